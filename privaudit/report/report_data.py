"""The data of a report: audits with their labels and findings, computed once.

A label is short: the trainer, and what sets a run apart from the others.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report.decision.badges import Findings
from privaudit.report.wording import writes

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
        names = class_names or repeat(None)
        return cls(tuple(map(Findings, audits, named, names)))

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
        common = [(f"{leak.attack}, server's own model", leak) for leak in server]
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
            "the table has all."
        )


def run_labels(audits: Sequence[Audit]) -> list[str]:
    """Return a name for each run, no two alike unless a run is given twice.

    A name holds the settings in which runs of one trainer differ, and no others; runs
    of one configuration, and scores alone, get their folder's name.
    """
    described = [_describe(audit) for audit in audits]
    labels = [
        audit.run.name
        if isinstance(audit.run, ScoredRun)
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
