"""The data of a report: audits with labels, badges and leaking classes, computed once.

Two badges for each audit, one of what attacks found, one of what was promised: neither
stands in for the other. An attack that finds nothing proves nothing, so "no leak found" has
the colour of good news only beside a proof that bounds something, of a run whose mechanism
is on record and not its owner's word. Other attacks than the headline, and classes, are
corrected for their number.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from privaudit.auditing.attack_result import AttackResult, ClientScores
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import ALPHAS as ORDERS
from privaudit.auditing.scenario import SHARES, SLICES, GridCell
from privaudit.core.formatting import epsilon, p_value
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report.attack_strength import HeadlineStrength, strength_of
from privaudit.report.wording import TAIL, interval, point, writes
from privaudit.statistics.comparisons import (
    holm,
    p_above_chance,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc, sign_turned
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling, top_of

ALPHA = 0.05


@dataclass(frozen=True)
class StrongestOther:
    """The strongest of the other attacks that show a leak.

    Attributes:
        result: What it found. It was picked, so its AUROC looks larger than it is.
        p_value: Corrected by Holm's method over all other attacks, and for the number
            of audits of the run.
        tried: How many others there are.
        audits: How many audits of the run p-values are corrected for.
        turned: Whether members have the lower scores.
    """

    result: AttackResult
    p_value: float
    tried: int
    audits: int
    turned: bool

    @property
    def sentence(self) -> str:
        """Which attack shows a leak, and how surely."""
        auroc = self.result.auroc
        members, others = auroc.n
        clients = len(self.result.clients)
        which, corrected = "the other attack", ""
        if self.tried > 1:
            which = f"strongest of the {self.tried} other attacks"
            corrected = f", Holm-corrected over {self.tried}"
        if self.audits > 1:
            corrected += f", corrected for {self.audits} audits"
        return (
            f"{which}, {self.result.attack} {point(auroc)} {interval(auroc)} on {clients} "
            f"client{'s' * (clients > 1)} (n = {members} + {others}); "
            f"{self._where} at p {p_value(self.p_value)}{corrected}"
            f"{': separates, with the sign turned' if self.turned else ''}."
        )

    @property
    def _where(self) -> str:
        """What differs from chance: the AUROC, or the highest scores alone."""
        test = self.result.verdict.test
        if not self.turned and test and test.parts() == ("tail",):
            return f"{top_of(test)},"
        return "below 0.5" if self.turned else "above 0.5"


def strongest_other(audit: Audit) -> StrongestOther | None:
    """Return the other attack with the largest AUROC of those that show a leak.

    Attacks but the headline are tested together, so that where none can tell anything,
    at most one audit in twenty says that any of them does: p-values are two-sided, and
    scores that tell members with the sign turned are counted. None if none shows a leak.
    """
    if audit.run.sampling == "unknown":  # no leak is shown, by whatever attack
        return None
    others = list(audit.results.values())[1:]
    shown = [(result, p) for result, p in _tested(audit, others) if p <= ALPHA]
    if not shown:
        return None
    result, p = max(shown, key=lambda one: either_sign(one[0].auroc).value)
    straight, turned = _p_values(result)
    return StrongestOther(
        result, p, len(others), audit.tally.different, turned < straight
    )


def either_sign(auroc: Estimate) -> Estimate:
    """Return the AUROC of the scores, or of the turned ones if that is larger."""
    return max(auroc, sign_turned(auroc), key=lambda one: one.value)


def separation(auroc: Estimate) -> float:
    """Return how far scores separate with either sign, in [0.5, 1]; -1 if unknown."""
    return -1.0 if math.isnan(auroc.value) else either_sign(auroc).value


def _tested(
    audit: Audit, results: Sequence[AttackResult]
) -> list[tuple[AttackResult, float]]:
    """Return attacks that are tested together, with two-sided p-values by Holm."""
    p_values = [min(1.0, *_p_values(result)) for result in results]
    adjusted = holm(p_values, audit.tally.different)
    return [(result, float(p)) for result, p in zip(results, adjusted, strict=True)]


def _p_values(result: AttackResult) -> tuple[float, float]:
    """Return twice the p-values of a leak, and of one with the sign turned."""
    turned, test = p_above_chance(sign_turned(result.auroc)), result.verdict.test
    return 2 * test.either if test else p_above_chance(result.auroc), turned


def both_models(audit: Audit) -> tuple[AttackResult, AttackResult] | None:
    """Return the first attack that was made on the server's own model too.

    On the clients' models, and on that one: the headline, unless it trains shadows or
    reads uploads.
    """
    common = audit.part(SERVER_MODEL)
    name = next((name for name in audit.results if name in common), None)
    return None if name is None else (audit.results[name], common[name])


def gain_of_rebuilding(audit: Audit) -> Estimate | None:
    """Return an attack's AUROC on clients less that on the server's own model.

    Paired by record; None where the server's model was not attacked, or no client has
    both members and others.
    """
    found = both_models(audit)
    if found is None:
        return None
    groups = [
        (client.scores, server.scores, client.is_member)
        for client, server in zip(*(result.clients for result in found), strict=True)
    ]
    if not any(truth.any() and not truth.all() for *_, truth in groups):
        return None
    return pooled_paired_auroc_difference(groups).estimate


def same_columns(audit: Audit) -> list[str]:
    """Say which columns of MaxRényi's grid are one measurement, each slice's.

    Of n positions K % are one until n is 200 / K: then K = 0 takes the same one, and
    scores every candidate alike.
    """
    sentences = []
    for part in SLICES:
        for share in SHARES[1:]:
            pairs = [
                (GridCell(part, share, alpha), GridCell(part, SHARES[0], alpha))
                for alpha in ORDERS
            ]
            if all(_scores_alike(audit, one, other) for one, other in pairs):
                sentences.append(
                    f"in the slice {part}, {share} % scores every candidate as "
                    f"{SHARES[0]} % does: of so few positions both take one. These "
                    "columns are one measurement, not two."
                )
    return sentences


def _scores_alike(audit: Audit, one: GridCell, other: GridCell) -> bool:
    both = [audit.results.get(cell.attack) for cell in (one, other)]
    return all(both) and all(
        np.array_equal(a.scores, b.scores)
        for a, b in zip(*(result.clients for result in both if result), strict=True)
    )


FEWEST = 10  # members, and as many others: with fewer an interval says nothing
MOST_CLASSES = 24  # in a picture; the table holds all


@dataclass(frozen=True)
class ClassLeak:
    """What an attack learned of one class's records.

    Attributes:
        n: Its members and its other candidates, of all attacked clients.
        auroc: Within clients and averaged by pairs; None where there are too few.
        p_value: Of an AUROC of 0.5, by Holm's method over all classes with enough.
        sampling: How members were chosen: without a coin each, no class is said to leak.
    """

    name: str
    n: tuple[int, int]
    auroc: Estimate | None
    p_value: float = 1.0
    sampling: Sampling = "coin"

    @property
    def results(self) -> bool:
        """Whether the AUROC lies above 0.5, corrected for the number of classes."""
        by_chance = self.sampling != "unknown"
        return by_chance and self.auroc is not None and self.p_value <= ALPHA

    @property
    def standing(self) -> str:
        """Say what may be said of the class."""
        if self.auroc is None:
            members, others = self.n
            return f"unresolved: needs {FEWEST} + {FEWEST}, has {members} + {others}"
        if self.sampling == "unknown":
            return "no verdict"
        finding = "above 0.5" if self.results else "not distinguishable from 0.5"
        return f"{finding}, p {p_value(self.p_value)}"


def leak_by_class(
    result: AttackResult, names: Sequence[str] = (), sampling: Sampling = "coin"
) -> list[ClassLeak]:
    """Return each class that has a candidate, in the order of the classes.

    Scores are compared within a client and a class only, so that an attack which knows
    the class and nothing else gets 0.5. A class without a name is called by its number.
    """
    labels = sorted({int(label) for c in result.clients for label in c.labels})
    class_leaks = [_of_class(result.clients, label, names) for label in labels]
    adjusted = iter(holm([p_above_chance(c.auroc) for c in class_leaks if c.auroc]))
    return [
        replace(c, p_value=float(next(adjusted)) if c.auroc else 1.0, sampling=sampling)
        for c in class_leaks
    ]


def _of_class(
    clients: Sequence[ClientScores], label: int, names: Sequence[str]
) -> ClassLeak:
    groups = []
    for client in clients:
        in_class = client.labels == label
        members = client.scores[in_class & client.is_member]
        groups.append((members, client.scores[in_class & ~client.is_member]))
    n = tuple(int(np.sum([len(group[side]) for group in groups])) for side in (0, 1))
    usable = [group for group in groups if all(map(len, group))]
    counted = [sum(len(group[side]) for group in usable) for side in (0, 1)]
    name = names[label] if label < len(names) else f"class {label}"
    enough = min(counted) >= FEWEST
    return ClassLeak(name, (n[0], n[1]), pooled_auroc(usable) if enough else None)


def class_sentence(classes: Sequence[ClassLeak]) -> str:
    """Say which classes stand out, and over how many that is corrected."""
    resolved = [one for one in classes if one.auroc is not None]
    few, rest = len(classes) - len(resolved), ""
    if few:
        rest = f" {few} of {len(classes)} classes have too few records for an estimate."
    if not resolved:
        return f"No class has {FEWEST} members and {FEWEST} non-members.{rest}"
    if resolved[0].sampling == "unknown":
        return f"No verdict on any class. {UNKNOWN_SAMPLING}{rest}"
    over = f"Holm-corrected over {len(resolved)} class{'es' * (len(resolved) > 1)}"
    leaking = sorted((one for one in resolved if one.results), key=lambda one: one.name)
    if not leaking:
        return f"No class is above 0.5, {over}.{rest}"
    named = at_most_five((one.name, one.auroc) for one in leaking)
    return f"Above 0.5, {over}: {named}.{rest}"


def at_most_five(found: Iterable[tuple[str, Estimate | None]]) -> str:
    """Return names with their AUROCs, and behind the fifth how many more there are."""
    texts = [f"{name} {point(one)} {interval(one)}" for name, one in found if one]
    return ", ".join(texts[:5]) + f" and {len(texts) - 5} more" * (len(texts) > 5)


Kind = Literal["alarm", "open", "good", "neutral"]
GREEN_EPSILON = 10.0
"""The largest epsilon of good news: a larger one lets the odds of membership grow more
than 20 000-fold (e^10 = 22 026), which bounds little."""


@dataclass(frozen=True)
class Badge:
    """A status in words, with a colour and a sign: never the colour alone.

    Attributes:
        kind: Sets colour and outline: filled for an alarm and for good news, a dashed
            outline for what is open, a plain one for what is neither.
        beside: Drawn after the text, such as an epsilon; no part of what it says.
    """

    text: str
    kind: Kind
    sign: str
    beside: str = field(default="", compare=False)


NO_LEAK = "No leak found"
WEAK = Badge(f"{NO_LEAK} by a weak attack", "open", "?")
IN_TAIL = Badge(TAIL, "alarm", "▲")
_LEAKS: dict[str, Badge] = {
    "leaks": Badge("Leaks", "alarm", "▲"),
    "reversed": Badge("Separates, sign turned", "open", "?"),
    "sampling unknown": Badge("No verdict", "open", "?"),
    "underpowered": Badge("Undecided", "open", "?"),
    "no evidence": Badge(NO_LEAK, "neutral", "○"),
}
ANOTHER = Badge("Another attack shows a leak", "alarm", "▲")
REFUTED = Badge("Promise refuted", "alarm", "✕")
NOT_PROVED = Badge("Promise not proved", "open", "?")
KEPT = Badge("Promise kept", "good", "✓")
KEPT_LOOSE = Badge("Promise kept, but ε is large", "neutral", "✓")
DECLARED = Badge("Promise only declared", "open", "?")
NO_PROMISE = Badge("No promise made", "neutral", "∅")
_PROMISES = (KEPT, KEPT_LOOSE, NO_PROMISE, DECLARED, NOT_PROVED, REFUTED)


@dataclass(frozen=True, eq=False)
class Findings:
    """An audit with what is said of it everywhere, each found out once.

    Attributes:
        label: Names the run among those that it is shown with.
        class_names: Of the data set, which is loaded for them where this is None.
    """

    audit: Audit
    label: str = ""
    class_names: Sequence[str] | None = None

    @property
    def attack(self) -> str:
        """The name of the headline attack."""
        return self.audit.headline.attack

    @cached_property
    def classes(self) -> list[ClassLeak]:
        """The headline attack's leak per class."""
        run, names = self.audit.run, self.class_names
        known = run.class_names if names is None else names
        return leak_by_class(self.audit.headline, known, run.sampling)

    @cached_property
    def both(self) -> tuple[AttackResult, AttackResult] | None:
        """The first attack that was made on clients' models and on the server's."""
        return both_models(self.audit)

    @cached_property
    def gain(self) -> Estimate | None:
        """That attack's AUROC on clients less that on the server's own model."""
        return gain_of_rebuilding(self.audit)

    @cached_property
    def other(self) -> StrongestOther | None:
        """The strongest attack beside the headline, of those that show a leak."""
        return strongest_other(self.audit)

    @property
    def others(self) -> str:
        """Which other attack shows a leak, in a sentence; empty if none does."""
        return self.other.sentence if self.other else ""

    @cached_property
    def strongest(self) -> tuple[AttackResult, float]:
        """The attack that separates best, with either sign, and its p-value.

        The headline was named beforehand and is a test of its own; the others are
        corrected together, as in :func:`strongest_other`. One without an AUROC comes
        last.
        """
        headline, *others = self.audit.results.values()
        tested = [*_tested(self.audit, [headline]), *_tested(self.audit, others)]
        return max(tested, key=lambda one: separation(one[0].auroc))

    @cached_property
    def strength(self) -> HeadlineStrength:
        """How strong the attack was that the verdict stands on."""
        return strength_of(self.audit)

    @cached_property
    def leak(self) -> Badge:
        """What the attacks found, the others beside the one named beforehand."""
        kind, is_proved = self.audit.verdict.kind, self.audit.assurance.kind == "proved"
        if kind != "leaks" and self.other:
            return ANOTHER
        if self.audit.verdict.parts == ("tail",):
            return IN_TAIL
        if kind == "no evidence" and self.strength.is_weak:
            return WEAK
        if kind == "no evidence" and is_proved and not self.is_large:
            return Badge(NO_LEAK, "good", "○", self._certified)
        return _LEAKS[kind]

    @cached_property
    def promise(self) -> Badge:
        """What became of the claimed epsilon.

        Kept: an epsilon no larger is certified against this adversary, from noise that
        no seed repeats; no good news where it is large. Declared: the mechanisms would
        give that, and nothing here applied them. Refuted: canaries show more. Not
        proved: neither. Where none is claimed there is nothing to keep, whatever is
        certified.
        """
        audit, declared = self.audit, self.audit.declared_epsilon
        if audit.assurance.kind == "refuted":
            return REFUTED
        if audit.claimed_epsilon is None:
            return NO_PROMISE
        if declared is not None and declared <= audit.claimed_epsilon:
            return replace(DECLARED, beside=f"ε = {epsilon(declared)}")
        if audit.assurance.kind != "proved":
            return NOT_PROVED
        return replace(KEPT_LOOSE if self.is_large else KEPT, beside=self._certified)

    @property
    def is_large(self) -> bool:
        """Whether what is certified bounds too little to be good news."""
        proved = self.audit.certified_epsilon
        return proved is not None and proved > GREEN_EPSILON

    @property
    def _certified(self) -> str:
        return f"ε = {epsilon(self.audit.certified_epsilon)}"

    @property
    def leak_rank(self) -> int:
        """How bad what was found is: the larger, the worse."""
        if self.leak == ANOTHER:
            return len(_LEAKS)
        return len(_LEAKS) - list(_LEAKS).index(self.audit.verdict.kind)

    @property
    def promise_rank(self) -> int:
        """How bad it is what became of the promise: the larger, the worse."""
        return _PROMISES.index(self.promise)

    @cached_property
    def rank(self) -> tuple[bool, bool, int, float, str]:
        """What audits are sorted by, the worst first.

        What is said to leak, then refuted promises, then what is open, then where
        nothing was found; among those that leak refuted promises first; then the
        largest AUROC of the attack that is named, of turned scores where they are. One
        without an AUROC is the last of its kind.
        """
        no_leak, kept = self.leak.kind != "alarm", self.promise != REFUTED
        return no_leak, kept, -self.leak_rank, -self._shown, self.audit.run.name

    @property
    def named_auroc(self) -> Estimate:
        """The AUROC of the attack that the badge is about."""
        another = self.other if self.leak == ANOTHER else None
        return another.result.auroc if another else self.audit.auroc

    @property
    def _shown(self) -> float:
        """What runs of one badge are sorted by: its AUROC, of turned scores or not."""
        auroc, kind = self.named_auroc, self.audit.verdict.kind
        if self.leak == ANOTHER or kind in ("reversed", "sampling unknown"):
            return separation(auroc)
        return -1.0 if math.isnan(auroc.value) else auroc.value


MOST_RUNS = 7
"""Runs in a picture, one a colour: more are not distinguishable, and no page is small."""
_MOST_ATTACKS = 4  # of one run in a picture, for the same reason


@dataclass(frozen=True)
class ReportData:
    """What a page or a table shows of audits, found out once and handed on.

    Attributes:
        runs: In the order in which they were given; their names are the same where a
            part of them is shown.
    """

    runs: tuple[Findings, ...]

    @classmethod
    def of(
        cls, audits: Sequence[Audit], class_names: Sequence[Sequence[str]] | None = None
    ) -> "ReportData":
        """Name audits, of one scenario or of several.

        Args:
            audits: Runs of several audits have one label.
            class_names: Of each audit, where its data set is not to be loaded for them.
        """
        named = run_labels(audits)
        if len({audit.scenario.name for audit in audits}) > 1:
            runs = {audit.run.path: audit for audit in audits}
            labels = dict(zip(runs, run_labels(list(runs.values())), strict=True))
            named = [labels[audit.run.path] for audit in audits]
        names: Sequence[Sequence[str] | None] = class_names or [None] * len(audits)
        found = zip(audits, named, names, strict=True)
        return cls(tuple(Findings(*one) for one in found))

    @property
    def audits(self) -> list[Audit]:
        """The audits alone."""
        return [one.audit for one in self.runs]

    @cached_property
    def worst_first(self) -> list[Findings]:
        """The runs in the order of their badges."""
        return sorted(self.runs, key=lambda one: one.rank)

    @cached_property
    def drawn(self) -> "ReportData":
        """The runs that pictures show: the worst, if there are many."""
        worst = self.worst_first[:MOST_RUNS]
        return ReportData(tuple(one for one in self.runs if one in worst))

    @property
    def writers(self) -> "ReportData":
        """The runs whose models generate text."""
        return ReportData(tuple(one for one in self.runs if writes(one.audit)))

    @property
    def useful(self) -> "ReportData":
        """The runs whose utility is known."""
        return ReportData(tuple(one for one in self.runs if one.audit.utility))

    @cached_property
    def metric(self) -> str:
        """The utility metric: "accuracy", "exact match", "ROUGE-L"; empty if none."""
        names = (audit.utility.metric for audit in self.audits if audit.utility)
        return " or ".join(dict.fromkeys(names))

    @cached_property
    def untrained(self) -> str:
        """What the model before training is called."""
        names = {True: "untrained", False: "zero-shot"}
        return " or ".join(dict.fromkeys(names[writes(a)] for a in self.audits))

    @property
    def have_classes(self) -> bool:
        """Whether any run has more than one class."""
        return any(len(one.classes) > 1 for one in self.runs)

    @cached_property
    def series(self) -> list[tuple[str, AttackResult]]:
        """What is drawn as a series: runs, or one run's attacks, headline first.

        Of one run's attacks it is the first four, in the scenario's order. Where models
        write it is one attack, on the clients' models and on the server's.
        """
        audit = self.runs[0].audit
        if len(self.runs) > 1:
            return [(one.label, one.audit.headline) for one in self.runs]
        if not writes(audit):
            return list(audit.results.items())[:_MOST_ATTACKS]
        clients, *server = self.runs[0].both or (audit.headline,)
        common = [(f"{result.attack}, server's own model", result) for result in server]
        return [(f"{clients.attack}, clients' models", clients), *common]

    @property
    def undrawn(self) -> str:
        """Which runs, or attacks of one run, figures leave out; empty if none."""
        count, audit = len(self.runs), self.runs[0].audit
        if count > MOST_RUNS:
            return (
                f"The figures show the first {MOST_RUNS} of {count} runs in the table at "
                "the top, and the trade-off the others in grey; the tables have all."
            )
        if count > 1 or writes(audit) or len(audit.results) <= _MOST_ATTACKS:
            return ""
        return (
            f"The figures show the first {_MOST_ATTACKS} of {len(audit.results)} attacks; "
            "the one by attack, and the table, have all."
        )


def run_labels(audits: Sequence[Audit]) -> list[str]:
    """Return a name for each run, no two alike unless a run is given twice.

    A name holds the settings in which runs of one trainer differ, and no others; runs
    of one configuration, and scores alone, get their folder's name.
    """
    described = [_describe(audit) for audit in audits]
    labels = [
        audit.run.name
        if isinstance(audit.run, ScoredRun) and not audit.run.is_pool
        else ", ".join(
            [audit.run.config.trainer, *_apart(fields, audit, audits, described)]
        )
        for audit, fields in zip(audits, described, strict=True)
    ]
    counts = Counter(labels)
    return [
        label if counts[label] == 1 else f"{label} ({audit.run.name})"
        for label, audit in zip(labels, audits, strict=True)
    ]


def shortened(label: str, longest: int = 42) -> str:
    """Return a label with no more characters than a picture has room for.

    Example:
        >>> shortened("dp-fpl, published-paper", 9)
        'dp-fpl, …'
    """
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _describe(audit: Audit) -> dict[str, Any]:
    fields = audit.run.config.described()
    settings, trainer = fields.pop("settings"), fields["trainer"]
    trainer_settings = {
        f"{n} of {trainer}" if n in fields else n: v for n, v in settings.items()
    }
    return {**trainer_settings, **fields}


def _apart(
    fields: Mapping[str, Any],
    audit: Audit,
    audits: Sequence[Audit],
    described: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Say in which fields a run differs from others of its trainer."""
    rivals = [
        other
        for rival, other in zip(audits, described, strict=True)
        if rival.run.config.trainer == audit.run.config.trainer
    ]
    return [
        _phrase(name, value)
        for name, value in fields.items()
        if any(other.get(name) != value for other in rivals)
    ]


def _phrase(name: str, value: Any) -> str:
    if name == "epsilon":
        return "no ε" if value is None else f"ε {value:g}"
    if name == "mode":
        return str(value)
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
