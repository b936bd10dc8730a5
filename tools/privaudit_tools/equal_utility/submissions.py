"""Rows from outside: audit cards of the benchmark's task, verified, held to its curve.

A card has no seed, so it is paired with none: the interval of its distance has the spread
of cards beside that of the curve. Its AUROC is noised, which widens that spread, and of
the attack that its owner declared. What is taken on trust is what `privaudit verify` says
of any card: that its numbers are those of scores and coins.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy.stats import t as student

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.evaluation.card import CARD, Card, read_card
from privaudit.report.export import check_card
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.equal_utility.curve import FEWEST, by_seed, contrasts
from privaudit_tools.equal_utility.judging import Judged
from privaudit_tools.equal_utility.outcomes import guarantee
from privaudit_tools.equal_utility.plan import BenchmarkPlan

_METHOD = "Welch's t over cards and seeds"


class SubmittedCard(BaseModel):
    """What a verified card says of a run of the task.

    Attributes:
        key: That signed it.
        utility: Of its clients' models, as the card has it.
        leak: The headline's AUROC, noised.
        certified: Proved epsilon by view; None where nothing is proved.
        guarantee: What it is of: unit, neighbours and delta.
        transcript: Commitment to what was sent: two cards of one run share it.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    key: str
    trainer: str
    attack: str
    utility: float
    leak: float
    certified: dict[str, float | None] = {}
    guarantee: str = ""
    transcript: str = ""


@dataclass(frozen=True)
class Submission:
    """All cards that one key signed of one trainer.

    Attributes:
        distance: Below the curve, positive where it leaks less; None below three cards.
        where: "inside" the curve's utilities, "above" or "below" them.
    """

    key: str
    trainer: str
    attacks: tuple[str, ...]
    cards: int
    utility: Estimate
    leak: Estimate
    distance: Estimate | None = None
    where: str = ""

    def has(self, card: SubmittedCard) -> bool:
        """Whether a card is one of them."""
        return (card.key, card.trainer) == (self.key, self.trainer)


def read_submissions(
    folder: Path, plan: BenchmarkPlan, keys: Sequence[str]
) -> list[SubmittedCard]:
    """Return what the cards below a folder say, each verified.

    Args:
        folder: Searched for card.json, in it and in all folders below.
        plan: Whose task they must be of.
        keys: Public keys that must have signed each; by default one that is trusted.

    Raises:
        MissingFileError: There is no card.
        TrustError: One is signed by another key.
        ConfigError: One does not hold, two are of one run, or one is of another task.
    """
    if plan.utility != "local":
        raise ConfigError(
            f"A card says utility on own classes, and the plan {plan.title!r} judges by "
            "utility on all. Add cards to a plan of utility = 'local'."
        )
    paths = sorted(folder.rglob(CARD))
    if not paths:
        raise MissingFileError(
            f"There is no {CARD} in {folder} or below it. `privaudit export RUN --public "
            "DIR` makes one of a run."
        )
    found = [_read(path, plan, keys) for path in paths]
    counts = Counter(one.transcript for one in found)
    for path, one in zip(paths, found, strict=True):
        if counts[one.transcript] > 1:
            raise ConfigError(
                f"{path} is of a run that another card is of, and a run counts once. "
                "Keep one card of it."
            )
    return found


def _read(path: Path, plan: BenchmarkPlan, keys: Sequence[str]) -> SubmittedCard:
    signed = read_card(path)
    check = check_card(signed, keys)
    if check.mismatches:
        first = check.mismatches[0]
        raise ConfigError(
            f"{path} does not hold: {first}. Ask its owner for a card that does."
        )
    card = signed.card
    _require_task(path, card, plan)
    audit = card.audits[plan.scenario]
    assert audit.auroc is not None  # required with the task
    assert card.utility is not None
    proof = card.privacy.certified["released"]
    return SubmittedCard(
        key=signed.signers(keys)[0].key,
        trainer=card.training.trainer or "a trainer of its own",
        attack=audit.headline,
        utility=card.utility.value,
        leak=audit.auroc.value,
        certified={view: one.epsilon for view, one in card.privacy.certified.items()},
        guarantee=guarantee(f"one {proof.unit}, {proof.adjacency}", proof.delta),
        transcript=card.commitments.transcript,
    )


def _require_task(path: Path, card: Card, plan: BenchmarkPlan) -> None:
    """Refuse a card of another model, data set or federation, or without the numbers."""
    config = plan.reference.cell(plan.fields).config(plan.evaluation_seeds[0])
    audit = card.audits.get(plan.scenario)
    # Of a model in a folder a card says the kind alone.
    names = (config.model, config.model.partition(":")[0])
    model = names[0] if card.training.model in names else card.training.model
    asked = {
        "dataset": (card.training.dataset, config.dataset),
        "model": (model, config.model),
        "clients": (card.design.clients, config.clients),
        "utility": (card.utility and card.utility.metric, plan.measure),
        f"an AUROC under {plan.scenario}": (bool(audit and audit.auroc), True),
    }
    for name, (given, wanted) in asked.items():
        if given != wanted:
            raise ConfigError(
                f"{path} is not of this benchmark's task: {name} is {given}, and the plan "
                f"has {wanted}. Export a run of the plan's fields."
            )


def submissions(cards: Sequence[SubmittedCard], judged: Judged) -> list[Submission]:
    """Return the cards by key and trainer, the farthest below the curve first."""
    groups: dict[tuple[str, str], list[SubmittedCard]] = defaultdict(list)
    for card in cards:
        groups[card.key, card.trainer].append(card)
    found = [_submission(mine, judged) for mine in groups.values()]
    return sorted(
        found, key=lambda one: -(one.distance.value if one.distance else -1.0)
    )


def _submission(cards: Sequence[SubmittedCard], judged: Judged) -> Submission:
    utility, leak = (
        np.array([getattr(card, name) for card in cards])
        for name in ("utility", "leak")
    )
    distance, where = None, ""
    if len(cards) >= FEWEST:
        distance, where = _below(utility, leak, judged)
    return Submission(
        cards[0].key,
        cards[0].trainer,
        tuple(dict.fromkeys(card.attack for card in cards)),
        len(cards),
        mean_with_t(utility.tolist()),
        mean_with_t(leak.tolist()),
        distance,
        where,
    )


def _below(
    utility: np.ndarray, leak: np.ndarray, judged: Judged
) -> tuple[Estimate, str]:
    """Return the curve at the cards' mean utility less their mean leak.

    Two independent parts: the curve's, one number a seed, at that utility; and the cards',
    slope times utility less leak, one number a card.
    """
    knots = judged.measured
    shared = set(knots[0].utility).intersection(*(knot.utility for knot in knots))
    utilities, leaks = by_seed(knots, sorted(shared))
    seeds = len(utilities)
    at = np.full(seeds, utility.mean())
    curve, where = contrasts(utilities, leaks, at, np.zeros(seeds))
    step = 1e-6
    beside, _ = contrasts(utilities, leaks, at + step, np.zeros(seeds))
    slope = float((beside - curve).mean()) / step
    own = slope * (utility - utility.mean()) - leak
    parts = [(curve.var(ddof=1) / seeds, seeds), (own.var(ddof=1) / len(own), len(own))]
    error = math.sqrt(sum(variance for variance, _ in parts))
    value = float(curve.mean() - leak.mean())
    lost = sum(variance**2 / (count - 1) for variance, count in parts)
    degrees = error**4 / lost if lost else math.inf
    half = error * float(student.ppf(0.975, degrees))
    n = (len(own), seeds)
    return Estimate(value, value - half, value + half, n, _METHOD), where
