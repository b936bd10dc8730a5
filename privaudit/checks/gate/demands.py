"""What must have been checked, and how strongly, held against what was."""

from collections.abc import Iterator
from dataclasses import dataclass

from privaudit.auditing.repetition.plan import differences
from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.against import Against, demanded_by, name_of
from privaudit.checks.gate.baseline import Baseline, tool_of
from privaudit.checks.gate.revision import commits_lacking, commits_since, revision_of
from privaudit.checks.gate.settings import Configured, GateSettings
from privaudit.checks.gate.shortfall import (
    Shortfall,
    less_asked,
    short_of_baseline,
    short_of_settings,
    stale,
    unheld,
    unsigned,
)
from privaudit.checks.gate.strength import Made, Relation, made_in
from privaudit.checks.gate.unpaired_baseline import PublicNumbers
from privaudit.evaluation.metric import metrics_of
from privaudit.federated.runs.runs import Run
from privaudit.models.interfaces import TaskKind


@dataclass(frozen=True)
class Demands:
    """What is asked of an audit.

    Attributes:
        made: Its attacks.
        named: Those of the baseline, the headline first; empty without one.
        short: Of what it is short.
        notes: What a reader must know besides: what differs, and what was accepted.
    """

    made: Made
    named: Made
    short: tuple[Shortfall, ...]
    notes: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The attack that is asked where settings name none."""
        return next(iter(self.named or self.made))

    def relation(self, attack: str) -> Relation | None:
        """Return how an attack compares with the baseline's; None if one lacks it."""
        if attack not in self.made or attack not in self.named:
            return None
        return self.made[attack].than(self.named[attack])[0]

    def comparable(self, settings: GateSettings) -> list[str]:
        """Return those asked attacks that were made, and not otherwise than before."""
        return [
            name
            for name in settings.attacks or (self.headline,)
            if name in self.made and self.relation(name) != "another"
        ]


def hold(
    audit: StoredAudit, against: Against | None, config: Configured, vouched: bool
) -> Demands:
    """Return what an audit is short of.

    Args:
        audit: Of the run.
        against: What it is compared with.
        config: The settings, and what they may not fall behind.
        vouched: Whether what it is compared with is signed, or was accepted unsigned.

    Raises:
        UnknownNameError: Settings name an attack that there is not.
        TranscriptError: The log of the run's audits was cut or altered.
    """
    scenario, run = config.settings.scenario, audit.run
    made = made_in(audit)
    named = {} if against is None else demanded_by(against, scenario)
    headline = next(iter(named or made))
    short, notes = _less_asked(config, against, headline)
    if isinstance(against, Baseline):
        short += stale(against.tool, tool_of(run, scenario), against.revision)
        notes += [*_of_baseline(against, run), *_of_revision(against, config.source)]
    elif against is not None and config.settings.guarantees:
        notes += _of_guarantees(against)
    if against is not None and config.baseline_unheld:
        short.append(unheld(config.settings.baseline or ""))
    if against is not None and not vouched:
        short.append(unsigned(name_of(against) or ""))
    if _asks_leaks(config.settings, against):
        short += short_of_baseline(run.name, scenario, made, named)
        short += short_of_settings(
            run.name, made, config.settings, _kind(run, against),
            by_default=not isinstance(against, Baseline),
        )  # fmt: skip
    distinct = {(one.name, one.code): one for one in reversed(short)}
    return Demands(made, named, tuple(reversed(distinct.values())), tuple(notes))


def _less_asked(
    config: Configured, against: Against | None, headline: str
) -> tuple[list[Shortfall], list[str]]:
    """Return settings that ask for less, and in words those that an option chose."""
    before, source = config.reference, config.source
    if before is None and isinstance(against, Baseline):
        before, source = against.gate, f"the baseline of {against.run}"
    if before is None:
        return [], []
    short, notes = [], []
    for one in less_asked(config.settings, before, headline, source):
        if config.chosen is None or one.name in config.chosen:
            notes.append(
                f"Less is asked than in {source}, by an option: {one.name} is {one.now} "
                f"and not {one.before}."
            )
        else:
            short.append(one)
    return short, notes


def _asks_leaks(settings: GateSettings, against: Against | None) -> bool:
    changes = against is not None and metrics_of("leak", settings.metrics)
    return bool(changes) or settings.max_auroc is not None


def _kind(run: Run, against: Against | None) -> TaskKind | None:
    """Return what models do of which an adversary could train shadows."""
    if against is not None or not run.trains_shadows:
        return None
    return run.population.task.kind if run.origin else run.config.task


def _of_baseline(baseline: Baseline, run: Run) -> Iterator[str]:
    now = {k: v for k, v in run.config.described().items() if k != "seed"}
    if unlike := differences(baseline.settings, now):
        yield f"The run differs from its baseline: {'; '.join(unlike)}."


def _of_guarantees(numbers: PublicNumbers) -> Iterator[str]:
    if numbers.guarantees and all(
        one.epsilon is None for one in numbers.guarantees.values()
    ):
        yield f"{numbers.name} states no guarantee, so none is compared."


def _of_revision(baseline: Baseline, target: str) -> Iterator[str]:
    """Yield in words how old a baseline is, where a checkout can tell.

    Args:
        baseline: What is compared with.
        target: The branch that a change goes to; empty, or a file, where none is named.
    """
    revision = baseline.revision
    if revision is None:
        if revision_of() is not None:
            yield "Nothing says of which revision the baseline is: it may be an old one."
        return
    try:
        count = commits_since(revision)
    except LookupError:
        return  # that is a shortfall
    if count != 0:
        since = "an unknown number of" if count is None else f"{count}"
        ago = f"{since} commit{'s' * (count != 1)} ago"
        yield f"The baseline is of revision {revision[:12]}, {ago}."
    if target and (newer := commits_lacking(revision, target)):
        yield (
            f"The baseline is older than {target}, which has {newer} "
            f"commit{'s' * (newer != 1)} since: a newer one can be written there."
        )
