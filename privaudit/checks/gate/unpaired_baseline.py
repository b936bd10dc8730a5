"""Comparing with public numbers: no record can be compared with itself.

Two intervals give the interval of a difference (the square-and-add rule): its distance
from the difference is the root of the sum of both squared distances. It takes the two
for independent. Two models of the same records rise and fall together, so for these it
is too wide, not too narrow, and takes more records to decide.

Source: Zou and Donner, "Construction of confidence limits about effect measures: a
general approach", Statistics in Medicine 27, 2008, equation 5; for proportions it is
Newcombe's of 1998.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from scipy.special import expit, logit

from privaudit.auditing.scenario import OF_SCORES, find_plan
from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.against import Against
from privaudit.checks.gate.checks import GateQuestion
from privaudit.checks.gate.guarantees import NONE_STATED, Stated, stated
from privaudit.checks.gate.questions import (
    TURNED_SIDES,
    as_sampled,
    margin_of,
    turned_at,
)
from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.strength import AttackStrength, Made
from privaudit.core.arrays import DAMAGE
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.evaluation.card import Card, parse_card
from privaudit.evaluation.compare.comparable import score_tests
from privaudit.evaluation.metric import Metric, metrics_of
from privaudit.federated.runs.runs import Run
from privaudit.statistics.change import IntervalAt
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import normal_quantile
from privaudit.statistics.verdict import Sampling

NOTE = (
    " Unpaired: the baseline holds numbers and no scores, so this takes more records "
    "than a comparison of each record with itself."
)


@dataclass(frozen=True)
class PublicNumbers(Against):
    """What an export, or an audit.json, says of a run.

    Attributes:
        dataset: Its name; None where nothing is said.
        contents: "leaks" by attack, and "utility".
        of_card: The headline's settings, where it is a card: it says nothing of others.
    """

    name: str
    dataset: str | None
    contents: Mapping[str, Any]
    guarantees: Mapping[str, Stated]
    of_card: str | None = None

    pairing = "no"
    gate = None

    @property
    def label(self) -> str:
        """The file's name."""
        return self.name

    def demanded(self, scenario: str) -> Made:
        """Return its attacks, in the scenario's order, and how they were made."""
        leaks = self.contents["leaks"]
        own = [name for name in find_plan(scenario).attacks if name in leaks]
        ordered = {name: leaks[name] for name in [*own, *leaks]}
        return {
            name: _strength_of(leak, scenario)
            for name, leak in ordered.items()
            if isinstance(leak, dict)
        }

    def questions(
        self, audit: StoredAudit, attacks: Sequence[str], settings: GateSettings
    ) -> Iterator[GateQuestion]:
        """Yield a question for each metric that is asked for, without pairing."""
        ours = audit.run.config.dataset
        if self.dataset not in (None, ours):
            raise IncompatibleRunsError(
                f"{audit.run.name} was trained on {ours}, and {self.name} is of a run "
                f"on {self.dataset}. Compare runs on one data set."
            )
        for name in attacks:
            clients = audit.clients(name)
            _check_strength(audit, self, name)
            for metric in metrics_of("leak", settings.metrics):
                listed = _listed(self, name)
                before = _estimate(self, "leaks", listed, metric.key or metric.code)
                asked = _question(metric, name, metric.at(clients), before, settings)
                yield as_sampled(asked, _sampling(self, name))
        known = audit.run.has_utility or self.contents.get("utility") is not None
        if (measures := metrics_of("use", settings.metrics)) and known:
            yield from _of_utility(audit, self, measures, settings)

    def notes(self, run: Run, settings: GateSettings, target: str) -> Iterator[str]:
        """Yield that no guarantee is stated, where guarantees are asked for."""
        stated_here = self.guarantees.values()
        nothing = stated_here and all(one.epsilon is None for one in stated_here)
        if settings.guarantees and nothing:
            yield f"{self.name} states no guarantee, so none is compared."


def _strength_of(leak: Mapping[str, Any], scenario: str) -> AttackStrength:
    settings = "" if scenario == OF_SCORES.name else leak.get("settings")
    how = settings if isinstance(settings, str) else None
    return AttackStrength(how, str(leak.get("package", "")))


def parse_numbers(
    contents: Mapping[str, Any], scenario: str, path: Path
) -> PublicNumbers:
    """Return the numbers of an audit card (``privaudit export``) or of an audit.json.

    Raises:
        ConfigError: It is neither, or not of the scenario.
    """
    if "audits" in contents:
        return _of_card(parse_card(contents, path), scenario, path)
    if not isinstance(contents.get("leaks"), dict):
        raise ConfigError(
            f"{path} is neither a baseline nor an audit card. Make one with "
            "`privaudit gate RUN --write-baseline FILE`, or `privaudit export`."
        )
    if contents.get("scenario", scenario) != scenario:
        raise IncompatibleRunsError(
            f"{path} is an audit of {contents['scenario']}, and the gate asks about "
            f"{scenario}. Choose one."
        )
    config = contents.get("config")
    config = config if isinstance(config, dict) else {}
    guarantees = _stated(contents.get("privacy"), config.get("randomness"), path)
    return PublicNumbers(path.name, config.get("dataset"), contents, guarantees)


def _of_card(card: Card, scenario: str, path: Path) -> PublicNumbers:
    """Return what a card says, its intervals as the noise widened them."""
    audit = card.audits.get(scenario)
    if audit is None:
        raise ConfigError(
            f"{path} holds audits of {', '.join(card.audits) or 'no scenario'}, and none "
            f"of {scenario}. Choose one of them, or export again."
        )
    leak: dict[str, Any] = {
        "verdict": {"kind": audit.verdict},
        "settings": audit.settings,
    }
    if audit.auroc is not None:
        leak["auroc"] = audit.auroc.estimate.to_dict()
    contents: dict[str, Any] = {"leaks": {audit.headline: leak}}
    if card.utility is not None:
        local = card.utility.estimate.to_dict()
        contents["utility"] = {"local": local, "metric": card.utility.metric}
    guarantees: Mapping[str, Stated] = NONE_STATED
    if card.privacy.certified:
        privacy = card.privacy.model_dump()
        guarantees = _stated(privacy, card.training.randomness, path)
    return PublicNumbers(
        path.name,
        card.training.dataset,
        contents,
        guarantees,
        audit.settings or "",
    )


def _stated(privacy: Any, randomness: Any, path: Path) -> dict[str, Stated]:
    if privacy is None:
        return {}
    try:
        return stated(privacy, randomness)
    except DAMAGE as error:
        raise ConfigError(
            f"{path} does not say as a run does what was claimed and certified "
            f"({error!r}). Export the run again."
        ) from None


def _listed(numbers: PublicNumbers, attack: str) -> str:
    """Return what the numbers call an attack: a card has one, by its plain name."""
    leaks = numbers.contents["leaks"]
    return attack if numbers.of_card is None else next(iter(leaks))


def _check_strength(audit: StoredAudit, numbers: PublicNumbers, attack: str) -> None:
    """Refuse to compare with a card of an attack that had other parameters."""
    ours = audit.leak(attack)["settings"]
    if numbers.of_card is None or ours == numbers.of_card:
        return
    there = ", ".join(numbers.contents["leaks"])
    raise IncompatibleRunsError(
        f"{audit.run.name} was attacked by {ours}, and {numbers.name} has a number of "
        f"{numbers.of_card or there} alone. Ask for that one with the same parameters."
    )


def _sampling(numbers: PublicNumbers, attack: str) -> Sampling:
    """Return how its members were chosen, as its verdict on the attack says."""
    verdict = numbers.contents["leaks"][_listed(numbers, attack)].get("verdict")
    kind = verdict.get("kind") if isinstance(verdict, dict) else ""
    return "unknown" if kind == "sampling unknown" else "coin"


def _of_utility(
    audit: StoredAudit,
    numbers: PublicNumbers,
    measures: Sequence[Metric[Any]],
    settings: GateSettings,
) -> Iterator[GateQuestion]:
    tests = score_tests(audit.run)
    before = [_estimate(numbers, "utility", m.key or m.code) for m in measures]
    metric = numbers.contents["utility"].get("metric", tests.metric)
    if metric != tests.metric:
        raise IncompatibleRunsError(
            f"{audit.run.name} measures {tests.metric}, and {numbers.name} {metric}. "
            'Leave "utility" out of the metrics.'
        )
    for one, stated_before in zip(measures, before, strict=True):
        yield _question(one, metric, one.at(tests), stated_before, settings)


def _question(
    metric: Metric[Any],
    of: str,
    now: IntervalAt,
    before: Estimate,
    settings: GateSettings,
) -> GateQuestion:
    """Return the question of a metric, of either side with its sign turned if need be."""
    turned = False, False
    if metric.of_scores and metric.turn is not None:
        turned = _is_reversed(metric, now(0.95)), _is_reversed(metric, before)
        now = partial(turned_at, metric, now) if turned[0] else now
        before = metric.turn(before) if turned[1] else before
    setting, margin = margin_of(metric, settings)
    return GateQuestion(
        name=metric.name(of),
        about=metric.side,
        setting=setting,
        limit=margin,
        now=now(0.95).value,
        before=before.value,
        interval_at=partial(independent_difference, now, partial(rescaled, before)),
        note=f"{TURNED_SIDES[turned]}{NOTE}",
    )


def _is_reversed(metric: Metric[Any], estimate: Estimate) -> bool:
    """Say whether all of an interval is on the turned side of chance."""
    assert metric.turn is not None
    return estimate.high < metric.turn(estimate).low


def _estimate(numbers: PublicNumbers, *keys: str) -> Estimate:
    entry: Any = numbers.contents
    try:
        for key in keys:
            entry = entry[key]
        estimate = Estimate.from_dict(entry)
        counts = all(isinstance(n, int) for n in estimate.n)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{numbers.name} has no estimate at {'/'.join(keys)} ({error!r}). Leave "
            "that metric out, or export the run again."
        ) from None
    if estimate.unresolved or not counts:
        raise ConfigError(
            f"{numbers.name} has no interval at {'/'.join(keys)}: {estimate}. Leave "
            "that metric out."
        )
    return estimate


def independent_difference(
    first: IntervalAt, second: IntervalAt, confidence: float = 0.95
) -> Estimate:
    """Return the difference of two independent estimates, first less second.

    Example:
        >>> from privaudit.statistics.estimate import proportion
        >>> a, b = partial(proportion, 70, 100), partial(proportion, 40, 100)
        >>> print(independent_difference(a, b))
        0.300 [0.157, 0.430], n = 100 + 100
    """
    a, b = first(confidence), second(confidence)
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    method = "difference of independent estimates, square and add"
    unresolved = a.unresolved or b.unresolved
    return Estimate(value, low, high, (*a.n, *b.n), method, confidence, unresolved)


def rescaled(estimate: Estimate, confidence: float) -> Estimate:
    """Return an estimate's interval at another confidence.

    On the logit scale, on which most of our intervals are made, the distance to each
    end grows like the normal quantile; where an end is 0 or 1, on the plain scale.

    Example:
        >>> print(rescaled(Estimate(0.5, 0.4, 0.6, (200,), "made up"), 0.99))
        0.500 [0.370, 0.630], n = 200
    """
    times = normal_quantile(confidence) / normal_quantile(estimate.confidence)
    value, ends = estimate.value, (estimate.low, estimate.high)
    if 0 < estimate.low <= estimate.high < 1:
        centre = float(logit(value))
        low, high = (
            float(expit(centre + times * (float(logit(e)) - centre))) for e in ends
        )
    else:
        low, high = (value + times * (end - value) for end in ends)
    ends = min(low, value), max(high, value)
    return replace(estimate, low=ends[0], high=ends[1], confidence=confidence)
