"""Reconstruction fidelity: how close rebuilt models are, with the wrong clients as null."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors, stack, unstack
from privaudit.federation.query import as_writer, ask_each, favourite_tokens
from privaudit.federation.trainer import LearnsPrompt, start_client
from privaudit.runs.run import Run
from privaudit.statistics.estimate import Estimate, mean_with_t

SOME = 128  # public records: thousands of tokens


@dataclass(frozen=True)
class Closeness:
    """Rebuilt against true personal models; the null compares with other clients'.

    Attributes:
        cosine: Of what training added to the personal parts: the rebuilt model less
            the last broadcast, the true one less what its untrained personal part gives
            with that broadcast. For adapters, of the changes of all weights.
        cosine_null: The same with the wrong clients.
        distance: Of the same, relative to the true one's norm.
        distance_null: The same with the wrong clients.
        agreement: Share of public records that both classify alike; for models that
            write, of the tokens of some public answers for which both have the same
            favourite.
        agreement_null: The same with the wrong clients.
    """

    cosine: Estimate
    cosine_null: Estimate
    distance: Estimate
    distance_null: Estimate
    agreement: Estimate
    agreement_null: Estimate


@dataclass(frozen=True)
class ReconstructionFidelity:
    """How good the reconstructed models are that the attacks looked at.

    Attributes:
        missing: What of a client's model the view did not show.
        staleness: Rounds by which the oldest reconstructed model lags its client.
        closeness: How close the models are to the true ones, where the view does not
            simply hold them.
    """

    missing: tuple[str, ...] = ()
    staleness: int = 0
    closeness: Closeness | None = None


def measure_closeness(
    run: Run, adversary: Adversary, targets: Sequence[Target]
) -> Closeness | None:
    """Return how close the estimated models are; None if none is an estimate."""
    all_estimated = all(target.reconstructed.estimated for target in targets)
    if not all_estimated or len(targets) < 2:
        return None
    if adversary.task.kind == "generation":
        return _closeness_of_writers(run, adversary, targets)
    received = [adversary.view.broadcasts_to(t.client)[-1].tensors for t in targets]
    true = [run.personal_models[t.client] for t in targets]
    reconstructed = [t.reconstructed.model for t in targets]
    prompt = run.trainer.prompt if isinstance(run.trainer, LearnsPrompt) else ""
    if not all(prompt in part for part in (*received, *true, *reconstructed)):
        return None  # no one prompt to compare
    pairs = zip(targets, received, strict=True)
    shared = [(target.reconstructed.shared or part)[prompt] for target, part in pairs]
    rebuilt = _added([m[prompt] for m in reconstructed], shared)
    untrained = [model[prompt] for model in _untrained(run, targets, received)]
    actual = _added([m[prompt] for m in true], untrained)
    products = (
        rebuilt @ actual.T,
        rebuilt.square().sum(dim=1),
        actual.square().sum(dim=1),
    )
    answers = [
        ask_each(run.trainer, adversary.task, models, adversary.task.public)
        for models in (reconstructed, true)
    ]
    first, second = (answer.argmax(dim=-1) for answer in answers)
    alike = (first[:, None] == second[None]).float().mean(dim=-1)
    return _compared(*products, alike)


def _compared(
    inner: Float[Tensor, "clients clients"],
    mine: Float[Tensor, " clients"],
    theirs: Float[Tensor, " clients"],
    alike: Float[Tensor, "clients clients"],
) -> Closeness:
    """Compare rebuilt (rows) with true vectors by inner products and squared norms."""
    inner, mine, theirs = inner.double(), mine.double(), theirs.double()
    norms = (mine[:, None] * theirs[None]).sqrt().clamp(min=1e-24)
    squares = (mine[:, None] + theirs[None] - 2 * inner).clamp(min=0)
    gaps = (squares / theirs.clamp(min=1e-24)[None]).sqrt()
    return Closeness(
        *_split(inner / norms, -1.0, 1.0),
        *_split(gaps, 0.0, np.inf),
        *_split(alike, 0.0, 1.0),
    )


def _closeness_of_writers(
    run: Run, adversary: Adversary, targets: Sequence[Target]
) -> Closeness:
    """Compare the changes of all weights, layer by layer, and the favourite tokens."""
    trainer, task = as_writer(run.trainer), adversary.task
    models = [t.reconstructed.model for t in targets]
    models += [run.personal_models[t.client] for t in targets]
    gram = torch.zeros(len(models), len(models), dtype=torch.float64)
    for layer in zip(*(trainer.weight_changes(task, m) for m in models), strict=True):
        flat = torch.stack([matrix.flatten() for matrix in layer]).double()
        gram += flat @ flat.T
    count = len(targets)
    said = favourite_tokens(
        trainer, task, models, task.public.pick(torch.arange(len(task.public))[:SOME])
    )
    alike = (said[:count, None] == said[None, count:]).float().mean(dim=-1)
    squares = gram.diagonal()
    return _compared(gram[:count, count:], squares[:count], squares[count:], alike)


def _untrained(
    run: Run, targets: Sequence[Target], received: Sequence[Tensors]
) -> list[Tensors]:
    """Return the personal models that the clients' private starts would give."""
    task, seeds = run.population.task, run.config.seeds
    untrained: list[Tensors] = []
    for target, down in zip(targets, received, strict=True):
        start = start_client(run.trainer, task, target.client, seeds)
        model = run.trainer.release(
            task, [target.client], stack([down]), stack([start])
        )
        untrained += unstack(model, 1)
    return untrained


def _added(
    contexts: Sequence[Tensor], starts: Sequence[Tensor]
) -> Float[Tensor, "clients size"]:
    pairs = zip(contexts, starts, strict=True)
    return torch.stack([(context - start).flatten() for context, start in pairs])


def _split(
    table: Float[Tensor, "clients clients"], least: float, most: float
) -> tuple[Estimate, Estimate]:
    """Return the right pairs' mean, and per client the mean over its wrong pairs.

    Intervals end where such numbers do.
    """
    values = table.double().numpy()
    count = len(values)
    wrong = (values.sum(axis=1) - values.diagonal()) / (count - 1)
    right = mean_with_t(np.array(values.diagonal()))
    return _within(right, least, most), _within(mean_with_t(wrong), least, most)


def _within(estimate: Estimate, least: float, most: float) -> Estimate:
    value = min(max(estimate.value, least), most)  # rounding goes beyond, too
    low, high = max(estimate.low, least), min(estimate.high, most)
    return replace(estimate, value=value, low=min(low, value), high=max(high, value))


def _measure(played: PlayedScenario) -> ReconstructionFidelity:
    models, notes = [t.reconstructed for t in played.targets], played.scenario.notes
    unseen = dict.fromkeys(part for model in models for part in model.missing)
    hidden = [text for about, text in notes.items() if about != "attacks"]
    return ReconstructionFidelity(
        missing=(*unseen, *hidden),
        staleness=max(model.staleness for model in models),
        closeness=measure_closeness(played.run, played.adversary, played.targets),
    )


CLOSENESS = AuditPart(
    "closeness",
    ReconstructionFidelity,
    applies=lambda played: True,
    compute=_measure,
    nothing=ReconstructionFidelity(),
    title="Reconstructed models",
    key="rebuilt",
    order=1,
)
