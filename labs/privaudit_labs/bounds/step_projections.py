"""Scores of canaries in gradient space by every upload, not by the model at the end.

Who sees uploads sees noise drawn anew in each. What was sent in a round, against a canary's
gradient, is divided by its spread over the client's canaries, and rounds add up: loud rounds
count less.

    found = GaussianScores()(step_canaries(load_run(folder)))

Source: Agrawal et al., "Let's ask Gauss", arXiv 2606.12733, 2026, from two summaries: noisy
gradients' projections on a canary are summed over steps and normalised.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.record_gradients import chosen_moves
from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import AcceptsGradientCanaries
from privaudit.runs.run import Run
from privaudit.statistics.epsilon.bound import OneRunCanaries


def step_canaries(run: Run) -> OneRunCanaries:
    """Return a score of each planted canary by all uploads, and the coins.

    Clients with one alone are left out: it has nothing to be compared with.

    Raises:
        AttackError: The run has no canaries in gradient space, or no client has two, or
            sends other tensors.
        ViewError: Clients send no updates.
    """
    canaries, trainer = run.population.canaries, run.trainer
    if (
        canaries is None
        or canaries.kind != "gradient"
        or not isinstance(trainer, AcceptsGradientCanaries)
    ):
        raise AttackError(
            f"Scores by uploads were requested, and {run.name} has no canaries in gradient "
            "space. Train with --canary gradient."
        )
    plan = replace(find_scenario("one-run", 0), threat="server", dominates=())
    adversary, targets = Auditor(run).prepare(plan)
    scores, coins = [], []
    for target in targets:
        positions = run.population.indices(target.client)
        chosen = np.isin(positions, canaries.indices)
        if chosen.sum() < 2:
            continue
        crafted = target.candidates.crafted
        assert crafted is not None
        moves = [m.deltas for m in chosen_moves(adversary, target.client, 0)]
        if any(trainer.prompt not in move for move in moves):
            raise AttackError(
                f"Scores by uploads were requested, and clients of {run.name} send "
                "something else than the prompt that canaries pull at. Use dp-promptfl."
            )
        steps = [move[trainer.prompt] for move in moves]
        scores.append(step_scores(steps, crafted[torch.from_numpy(chosen)]))
        coins.append(run.ledger.is_member[positions[chosen]])
    if not scores:
        raise AttackError(
            f"Scores by uploads were requested, and no client of {run.name} has two "
            "canaries to compare. Train with more --canaries."
        )
    return OneRunCanaries(np.concatenate(scores), np.concatenate(coins))


def step_scores(
    moves: Iterable[Float[Tensor, "tokens width"]],
    crafted: Float[Tensor, "canaries tokens width"],
) -> Float[np.ndarray, " canaries"]:
    """Return the sum over moves of how far each went against a gradient, in deviations."""
    flat = crafted.flatten(1).double()
    directions = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
    total = torch.zeros(len(flat), dtype=torch.float64)
    for move in moves:
        against = -directions @ move.double().flatten()
        spread = against.std()
        if spread > 0:
            total += (against - against.mean()) / spread
    return np.asarray(total / max(float(total.std()), 1e-12))
