"""Demands on an audit: the attacks that must have been made, and how strongly."""

from dataclasses import dataclass

from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.against import Against
from privaudit.checks.gate.baseline import tool_of
from privaudit.checks.gate.settings import Configured, GateSettings
from privaudit.checks.gate.shortfall import (
    Shortfall,
    less_asked,
    short_of_baseline,
    short_of_settings,
    unheld,
    unsigned,
)
from privaudit.checks.gate.strength import Made, Relation, made_in
from privaudit.evaluation.metric import metrics_of
from privaudit.federated.runs.runs import Run
from privaudit.models.interfaces import TaskKind


@dataclass(frozen=True)
class Demands:
    """What is asked of an audit.

    Attributes:
        made: The attacks of the audit.
        named: Those of the baseline, the headline first; empty without one.
        short: What was to be made or asked, and was not.
        notes: What differs from the baseline, and what an option accepted.
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

    What it is compared with is vouched for if it is signed, or was accepted unsigned.

    Raises:
        UnknownNameError: Settings name an attack that there is not.
        TranscriptError: The log of the run's audits was cut or altered.
    """
    scenario, run = config.settings.scenario, audit.run
    made = made_in(audit)
    named = {} if against is None else against.demanded(scenario)
    headline = next(iter(named or made))
    short, notes = _less_asked(config, against, headline)
    if against is not None:
        short += against.stale(tool_of(run, scenario))
        notes += against.notes(run, config.settings, config.source)
        if config.baseline_unheld:
            short.append(unheld(config.settings.baseline or ""))
        if not vouched:
            short.append(unsigned(against.label))
    if _asks_leaks(config.settings, against):
        short += short_of_baseline(run.name, scenario, made, named)
        short += short_of_settings(
            run.name, made, config.settings, _kind(run, against),
            by_default=against is None or against.gate is None,
        )  # fmt: skip
    distinct = {(one.name, one.code): one for one in reversed(short)}
    return Demands(made, named, tuple(reversed(distinct.values())), tuple(notes))


def _less_asked(
    config: Configured, against: Against | None, headline: str
) -> tuple[list[Shortfall], list[str]]:
    """Return settings that ask for less, and in words those that an option chose."""
    before, source = config.reference, config.source
    if before is None and against is not None:
        before, source = against.gate, f"the baseline of {against.label}"
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
