"""One-run audit: what canaries of one run show about epsilon.

Every candidate, or every canary planted among them, is in or out by a coin of its own,
so one run holds as many trials as canaries. A score is an attack's, or, for a canary in
gradient space, how far the model has moved against its gradient, or, for a secret, how
much likelier it is than other secrets of its space. Scores are ranked
within each client, since models differ, and joined. A tenth of the canaries is guessed
to be in and a tenth out: fixed here, before anybody has seen a score.

Source: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
NeurIPS 2023.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from privaudit.auditing.attack import Target
from privaudit.auditing.attack_result import AttackResult, ClientScores
from privaudit.auditing.parts.exposure import secret_scores
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.core.errors import AttackError, TooFewRecordsError
from privaudit.core.lazy_torch import torch
from privaudit.datasets.canaries import Canaries, CanaryKind
from privaudit.datasets.split import Split
from privaudit.federation.trainer import AcceptsGradientCanaries, Trainer
from privaudit.runs.run import Run
from privaudit.statistics.claim import ClaimVerdict, Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import (
    EpsilonBound,
    OneRunCanaries,
    OneRunMethod,
    other_bounds,
)
from privaudit.statistics.epsilon.one_run import FDPOneRun, OneRunGuesses, RankedGuesses
from privaudit.statistics.roc import mean_ranks

BY_SECRET, BY_GRADIENT = "secret-likelihood", "gradient-movement"
"""What stands for an attack: codes, beside attacks' names."""
SHARE_GUESSED = 0.1  # in, and as many out
FEWEST = 10  # canaries: a tenth of fewer is none


def refuse_unbounded(run: Run, scenario: str) -> None:
    """Refuse a bound on epsilon where no record had a coin of its own."""
    if run.ledger.group is not None:
        raise AttackError(
            f"{scenario} was requested, and {run.name} has groups of records that "
            "share a coin: what they show of epsilon is a group's, and a claim is "
            "about one record. Choose another scenario, or split without groups."
        )
    if run.sampling != "coin":
        raise AttackError(
            f"{scenario} was requested, and a bound on epsilon rests on an independent "
            f"coin for each record, which {run.name} does not declare: parts of fixed "
            "size make records depend on one another. Choose another scenario, or record "
            "a federation whose ledger was tossed."
        )


@dataclass(frozen=True)
class OneRunAudit:
    """Lower bounds on epsilon from one run, and what they say about a claim.

    Attributes:
        canaries: What was planted; "candidates" where all of them, as they are, count.
        scored_by: The attack, ``BY_SECRET`` or ``BY_GRADIENT``.
        verdict: On the claimed epsilon, by the bound that was named beforehand.
    """

    canaries: CanaryKind | Literal["candidates"]
    scored_by: str
    verdict: ClaimVerdict
    others: tuple[EpsilonBound, ...]

    @property
    def bound(self) -> EpsilonBound:
        """What the verdict is about."""
        return self.verdict.bound

    @property
    def refutes(self) -> bool:
        """Whether more is shown than is claimed, or than is certified."""
        return self.verdict.kind == "REFUTED" or self.verdict.alarm


def audit_one_run(
    canaries: Canaries | None,
    scored: Sequence[ClientScores],
    scored_by: str,
    privacy: Mapping[str, Any],
    view: str,
    own: Sequence[Float[np.ndarray, " _"]] = (),
) -> OneRunAudit:
    """Bound epsilon from below, and hold the bound against what is claimed.

    Args:
        canaries: Those that were planted; None takes all candidates.
        scored: All clients' candidates as an attack scored them, with the truth.
        scored_by: The attack, or what gave ``own``.
        privacy: The run's claimed and certified epsilon.
        view: Whose certificate the bound is held against: a threat model.
        own: Scores of the same clients' canaries that take the place of the attack's.

    Raises:
        ConfigError: There are too few canaries.
    """
    ranks, scores, coins = [], [], []
    for number, one in enumerate(scored):
        selected = np.ones(len(one.scores), bool)
        if canaries is not None:
            selected = np.isin(one.records, canaries.indices)
        canary_scores = own[number] if own else one.scores[selected]
        ranks.append(mean_ranks(canary_scores) / (len(canary_scores) + 1))  # in (0, 1)
        scores.append(_standardised(canary_scores))
        coins.append(one.is_member[selected])
    ranked, standard = (
        OneRunCanaries(np.concatenate(values), np.concatenate(coins))
        for values in (ranks, scores)
    )
    delta = float(privacy["claimed"]["delta"] or 1e-5)  # usual where none is claimed
    first, *others = _bounds(ranked, standard, delta)
    proved = privacy["certified"][view.partition(":")[0]]
    protects = {name: proved[name] for name in ("adjacency", "unit") if name in proved}
    claimed, certified = (
        Guarantee.stated(entry["epsilon"], entry["delta"], **protects)
        for entry in (privacy["claimed"], proved)
    )
    return OneRunAudit(
        "candidates" if canaries is None else canaries.kind,
        scored_by,
        judge_claim(claimed, certified, first),
        tuple(others),
    )


def _bounds(
    ranked: OneRunCanaries, standard: OneRunCanaries, delta: float
) -> list[EpsilonBound]:
    """Return all bounds, the one named beforehand first.

    Those of other packages come last and inform, whatever they say of themselves: what
    refutes a claim is fixed here.
    """
    count = len(ranked.scores)
    if count < FEWEST:
        raise TooFewRecordsError(
            f"{count} canaries are too few: at least {FEWEST} are needed, and some "
            "hundred to show anything. Plant more, or let every candidate be one."
        )
    side = int(SHARE_GUESSED * count)
    fixed: dict[str, Any] = {"delta": delta, "guesses_in": side, "guesses_out": side}
    return [
        OneRunGuesses(**fixed)(ranked),
        FDPOneRun(**fixed)(ranked),
        *(
            replace(
                method(ranked if isinstance(method, RankedGuesses) else standard),
                can_refute=False,
            )
            for method in other_bounds(OneRunMethod, **fixed)  # type: ignore[type-abstract]
        ),
    ]


def _moved_against(
    target: Target, trainer: Trainer
) -> Float[np.ndarray, " candidates"]:
    """Return how far a prompt has moved against each candidate's crafted gradient."""
    assert isinstance(trainer, AcceptsGradientCanaries)
    prompt = target.reconstructed.model[trainer.prompt]
    crafted = target.candidates.crafted
    assert crafted is not None
    length = crafted.flatten(1).norm(dim=1).clamp(min=1e-12)
    moved = -torch.einsum("ntw,tw->n", crafted, prompt) / length
    return moved.double().numpy()


def _standardised(scores: Float[np.ndarray, " some"]) -> Float[np.ndarray, " some"]:
    """Return scores of mean 0 and standard deviation 1; equal ones stay equal."""
    spread = scores.std()
    return (scores - scores.mean()) / (spread if spread > 0 else 1.0)


def _audit(played: PlayedScenario) -> OneRunAudit:
    run, headline = played.run, next(iter(played.results.values()))
    canaries, scored_by = run.population.canaries, headline.attack
    own = [one.margin for one in secret_scores(played)]
    if own:
        scored_by = BY_SECRET
    elif canaries is not None and canaries.kind == "gradient":
        scored_by = BY_GRADIENT
        own = [
            _moved_against(target, run.trainer)[np.isin(one.records, canaries.indices)]
            for target, one in zip(played.targets, headline.clients, strict=True)
        ]
    view = played.scenario.threat
    return audit_one_run(canaries, headline.clients, scored_by, run.privacy, view, own)


def _again(
    said: OneRunAudit, run: Run, headline: AttackResult, view: str
) -> OneRunAudit:
    """Return a stored result as a run and the kept scores give it.

    No score is kept of secrets and in gradient space, nor the places of what was planted
    where records were left out: such bounds stay as they are, and so do other packages'.
    """
    config, canaries = run.config, None
    if config.canary is not None:
        if config.canary in ("secret", "gradient") or config.without is not None:
            return said
        split = Split(run.truth.owner)
        candidates = [split.of(number) for number in range(config.clients)]
        drawn = config.canaries, config.seeds.child("canaries"), (0, 0), 1.0
        canaries = Canaries.draw(config.canary, candidates, *drawn)
    again = audit_one_run(
        canaries, headline.clients, headline.attack, run.privacy, view
    )
    return replace(again, others=(*again.others[:1], *said.others[1:]))


ONE_RUN = AuditPart(
    "one_run",
    OneRunAudit | None,
    applies=lambda played: played.scenario.one_run,
    compute=_audit,
    nothing=None,
    title="Lower bound on ε",
    order=6,
    again=_again,
)
