"""Short names for runs: the trainer, and what sets a run apart from the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.auditing.audit import Audit
from privaudit.recording.origins.scores import ScoredRun


class NamedAudits(tuple[Audit, ...]):
    """Audits of one page, whose names are the same where a part of them is shown.

    Attributes:
        labels: Of each, in the same order.
    """

    labels: list[str]

    def __new__(
        cls, audits: Sequence[Audit], labels: Sequence[str] = ()
    ) -> "NamedAudits":
        """Name audits, or take the names that they have among more."""
        named = super().__new__(cls, audits)
        named.labels = list(labels or run_labels(audits))
        return named

    def only(self, places: Sequence[int]) -> "NamedAudits":
        """Return those at some places, as they are named among all."""
        return type(self)(
            [self[place] for place in places], [self.labels[place] for place in places]
        )


def run_labels(audits: Sequence[Audit]) -> list[str]:
    """Return a name for each run, no two alike unless a run is given twice.

    A name holds the settings in which runs of one trainer differ, and no others; runs
    of one configuration, and scores alone, get their folder's name.
    """
    if isinstance(audits, NamedAudits):
        return audits.labels
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
