"""The log of a run's audits, and the plan that fixes them before anybody trains.

``audits/log.jsonl`` has a line for each audit that was made, whatever it found. It only
grows, and the signed header lists it by its hash: a line that was altered, or taken out,
is an error, and so is a log that was longer here before
(:mod:`privaudit.runs.run_header`). Whoever makes an audit in Python without
saving it is in the log, too: what counts is that somebody could have seen the result.

``privaudit plan`` writes the plan, ``train --plan`` puts it into the run, whose signed
header lists it from the first round on: what it says was said before any model was
there. An audit that is as planned is one of those that the plan names, however many
others are made.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, with_config
from typing_extensions import TypedDict

from privaudit.auditing.attack_result import AttackResult
from privaudit.core.errors import ConfigError, MissingFileError, TranscriptError, shown
from privaudit.core.limits import check_json, read_bytes
from privaudit.core.parameters import readable
from privaudit.core.portable_bits import processor_name
from privaudit.core.storage import to_json
from privaudit.recording.origins.scores import SCORES
from privaudit.runs.own_files import PLAN, write_output
from privaudit.runs.run import AUDITS, Run
from privaudit.runs.run_files import version
from privaudit.runs.run_header import COUNTS, grown_lines
from privaudit.statistics.estimate import Estimate

FORMAT = 1
Asked = Mapping[str, Any]
Words = Field(min_length=1, max_length=200)
Threshold = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


@with_config(ConfigDict(extra="forbid", strict=True))
class PlannedArguments(TypedDict):
    """Arguments of an audit, all of them; what they may be is checked once it is made."""

    attacks: list[Annotated[str, Words]]
    clients: int | Literal["all"]
    shadows: int | None
    budget: Annotated[str, Words] | None
    seed: int


@with_config(ConfigDict(extra="forbid", strict=True))
class PlannedThresholds(TypedDict, total=False):
    """Settings of the gate by their names there."""

    max_auroc: Threshold
    max_tpr: Threshold
    min_utility: Threshold
    margin: Threshold
    utility_margin: Threshold
    alpha: Threshold


class PlannedAudit(BaseModel):
    """An audit as it is to be asked for.

    Attributes:
        asked: Arguments of :meth:`privaudit.auditing.auditor.Auditor.attack` by name,
            all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: str = Words
    asked: PlannedArguments


class AuditPlan(BaseModel):
    """What a plan fixes.

    Attributes:
        made: When, in UTC; nothing is proved by it.
        thresholds: Settings of the gate by name, such as max_auroc.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: int = Field(FORMAT, ge=FORMAT, le=FORMAT)
    made: str = Words
    audits: tuple[PlannedAudit, ...] = Field(min_length=1, max_length=100)
    thresholds: PlannedThresholds = Field(default_factory=PlannedThresholds)

    @property
    def hash(self) -> str:
        """The SHA-256 of all that it fixes, whatever its file looks like."""
        text = json.dumps(self.model_dump(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def deviations(
        self, scenario: str, asked: Asked, own: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return by what an audit is not as planned; nothing where it is.

        Own arguments were objects, such as "a scenario": a plan holds names, and what
        goes by a planned name need not be what was planned.
        """
        planned = {one.scenario: one.asked for one in self.audits}
        theirs = tuple(f"{what} of one's own" for what in own)
        if scenario not in planned:
            return (*theirs, f"the scenario {scenario} is not in it")
        return (*theirs, *differences(planned[scenario], asked))


def differences(planned: Asked, done: Asked) -> tuple[str, ...]:
    """Return in words by what one differs from the other."""
    return tuple(
        f"{name} is {_word(done.get(name))} and not {_word(planned.get(name))}"
        for name in sorted({*planned, *done})
        if planned.get(name) != done.get(name)
    )


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "the default" if value is None else str(value)


def make_plan(audits: Mapping[str, Asked], thresholds: Asked) -> AuditPlan:
    """Return a plan of audits by scenario."""
    return _checked(
        {
            "plan": FORMAT,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "audits": [{"scenario": s, "asked": dict(a)} for s, a in audits.items()],
            "thresholds": dict(thresholds),
        },
        "The plan",
    )


def write_plan(plan: AuditPlan, path: Path) -> None:
    """Write a plan, which replaces none.

    Raises:
        ConfigError: Something is there.
        StorageError: It cannot be written.
    """
    if path.exists():
        raise ConfigError(
            f"The plan goes to {path}, and a file is there. A plan is made once: name "
            "another, or remove that one if nothing was trained with it."
        )
    write_output(path, to_json({**plan.model_dump(mode="json"), "sha256": plan.hash}))


def read_plan(path: Path) -> AuditPlan:
    """Read a plan."""
    return parse_plan(read_bytes(path), str(path))


def parse_plan(content: bytes, what: str) -> AuditPlan:
    """Return the plan that a file's content is.

    Raises:
        LimitError: It would take too much memory.
        ConfigError: It is no plan, or was altered since it was made.
    """
    check_json(content, what)
    try:
        parsed: Any = json.loads(content)
        said = parsed.pop("sha256")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{what} is no plan ({error!r}). Make one with `privaudit plan FILE`."
        ) from None
    plan = _checked(parsed, what)
    if said != plan.hash:
        raise ConfigError(
            f"{what} was altered since it was made: its own hash, {shown(said)}, is not "
            "of what it says. Restore it from a copy, or make another."
        )
    return plan


def _checked(parsed: Any, what: str) -> AuditPlan:
    try:
        plan = AuditPlan.model_validate(parsed)
    except ValidationError as error:
        raise ConfigError(f"{what} is no plan. {readable(error, 'plan')}") from None
    names = [one.scenario for one in plan.audits]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"{what} names a scenario twice ({', '.join(names)}). One audit of each: a "
            "second would replace the first."
        )
    return plan


def plan_of(run: Run) -> AuditPlan | None:
    """Return the plan that a run was trained with; None if there was none.

    Raises:
        MissingFileError: It is gone.
        TranscriptError: It was altered.
    """
    if PLAN not in run.header.get("files", {}):
        return None
    try:
        return parse_plan(run.read(PLAN), f"{run.place}/{PLAN}")
    except ConfigError as error:
        raise TranscriptError(str(error)) from None


LOG = f"{AUDITS}log.jsonl"
DIGITS = 6  # of an AUROC, in which two audits must agree to be one


class LoggedAttack(BaseModel):
    """What one attack of an audit was, and what it gave.

    Attributes:
        named: Whether it was named without sight of membership: the headline.
        auroc: None where it could not be estimated.
    """

    model_config = ConfigDict(frozen=True)

    attack: str
    settings: str
    named: bool
    n: tuple[int, ...]
    auroc: float | None

    @classmethod
    def of(
        cls, attack: str, settings: str, auroc: Estimate, *, named: bool
    ) -> "LoggedAttack":
        """Return an attack as it is logged."""
        found = _number(auroc)
        return cls(
            attack=attack, settings=settings, named=named, n=auroc.n, auroc=found
        )


class LoggedAudit(BaseModel):
    """A line of the log.

    Attributes:
        time: When it was made, in UTC.
        planned: Whether the run was trained with a plan of its audits.
        deviations: By what this one is not as planned, in words.
        processor: On which it was computed; empty in lines of earlier versions. Not in
            audit.json, which has the same bytes on all of them.
        pool: Of which trainings together a verdict was given; empty where on this alone.
    """

    model_config = ConfigDict(frozen=True)

    time: str
    privaudit: str
    scenario: str
    seed: int
    attacks: Annotated[tuple[LoggedAttack, ...], Field(min_length=1)]
    planned: bool = False
    deviations: tuple[str, ...] = ()
    processor: str = ""
    pool: str = ""

    @property
    def as_planned(self) -> bool:
        """Whether it was made as it was planned before training."""
        return self.planned and not self.deviations

    @property
    def outcome(self) -> tuple[object, ...]:
        """What tells it from audits that gave the same: those are one."""
        headline = self.attacks[0]
        return headline.attack, headline.n, _compared(headline.auroc), self.pool


@dataclass(frozen=True)
class AuditTally:
    """How often a run was audited, and whether the audit at hand is as planned.

    Attributes:
        different: How many of these differ in what the headline attack gave: the same
            command again gives the same, and nobody can choose among equals. Of an
            audit as planned, how many the plan names, or how many different results
            were as planned where these are more.
        planned: Whether the run was trained with a plan.
        deviations: By what the audit at hand is not as planned, in words.
    """

    made: int = 1
    different: int = 1
    planned: bool = False
    deviations: tuple[str, ...] = ()


def log_audit(
    run: Run,
    scenario: str,
    seed: int,
    attacks: Sequence[LoggedAttack],
    asked: Asked | None = None,
    own: Sequence[str] = (),
    pool: str = "",
) -> None:
    """Add an audit to the log of its run.

    Processes that do so at once wait for one another, and no line is lost. What was
    asked for is held against the run's plan; ``own`` names what of that was no name but
    an object, such as "a scenario". The headline stands first among the attacks.

    Raises:
        ConfigError: The run was trained anew since it was read.
        TranscriptError: The log is damaged.
        StorageError: The run's folder cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    plan = plan_of(run)
    line = LoggedAudit(
        time=now, privaudit=version("privaudit"), scenario=scenario, seed=seed,
        attacks=tuple(attacks), planned=plan is not None,
        deviations=plan.deviations(scenario, asked or {}, own) if plan else (),
        processor=processor_name(), pool=pool,
    )  # fmt: skip
    run.add({}, {LOG: line.model_dump_json().encode()})


def read_log(run: Run) -> list[LoggedAudit]:
    """Return the audits of a run in the order in which they were made.

    Empty where no audit was logged: earlier versions kept no log.

    Raises:
        MissingFileError: The log is gone.
        LimitError: It is larger than a bound.
        TranscriptError: It was cut or altered.
    """
    try:
        lines = grown_lines(run.path, run.latest().seal, LOG, run.latest)
    except MissingFileError:
        raise MissingFileError(
            f"The log of {run.name}'s audits, {run.place}/{LOG}, is gone or cannot be "
            "read, and the run lists it: restore it from a copy, or train anew with "
            "--fresh."
        ) from None
    if not lines:
        _refuse_uncounted(run)
    check_json(b"\n".join(lines), f"{run.place}/{LOG}")
    try:
        return [LoggedAudit.model_validate_json(line) for line in lines]
    except ValidationError as error:
        first = error.errors()[0]
        raise TranscriptError(
            f"{run.place}/{LOG} holds a line that is none of a log of audits "
            f"({first['msg']} at {'.'.join(map(str, first['loc']))}): another version "
            "wrote it. Use that version."
        ) from None


def _refuse_uncounted(run: Run) -> None:
    """Refuse audits without a log: a line is written before an audit is kept."""
    if not run.header.get(COUNTS) or run.origin == SCORES:
        return
    kept = (run.path / AUDITS).glob("*/audit.json")
    names = {path.relative_to(run.path).as_posix() for path in kept}
    if left := sorted(names - run.files.keys()):
        raise TranscriptError(
            f"{run.place} holds {left[0]}, and counts no audit: run.json was put back to "
            "an earlier state. Restore the latest copy, or train anew with --fresh."
        )


def check_log(run: Run) -> None:
    """Refuse a run in whose log no further audit could be noted, before one is made."""
    read_log(run)
    plan_of(run)


def tally_of(run: Run, attack: str, auroc: Estimate, pool: str = "") -> AuditTally:
    """Return how often a run was audited, the one with this headline attack among them.

    A run that was audited alone, and then in a pool, gave a choice between two verdicts.
    """
    return tally(read_log(run), plan_of(run), attack, auroc, pool)


def tally(
    log: Sequence[LoggedAudit],
    plan: AuditPlan | None,
    attack: str,
    auroc: Estimate,
    pool: str = "",
) -> AuditTally:
    """Count a log's audits and the one at hand, which an earlier version may not have logged."""
    outcomes = [audit.outcome for audit in log]
    own = attack, auroc.n, _compared(_number(auroc)), pool
    if own not in outcomes:
        outcomes.append(own)
    made, different = len(outcomes), len(set(outcomes))
    if plan is None:
        return AuditTally(made, different)
    mine = [audit for audit in log if audit.outcome == own]
    if any(audit.as_planned for audit in mine):
        kept = len({audit.outcome for audit in log if audit.as_planned})
        return AuditTally(made, max(len(plan.audits), kept), planned=True)
    deviations = mine[0].deviations if mine else ("it is not in the log",)
    return AuditTally(made, different, planned=True, deviations=deviations)


def logged(results: Mapping[str, AttackResult]) -> list[LoggedAttack]:
    """Return attacks as they are logged: the first one is the headline."""
    return [
        LoggedAttack.of(one.attack, one.settings, one.auroc, named=number == 0)
        for number, one in enumerate(results.values())
    ]


def _number(auroc: Estimate) -> float | None:
    return None if math.isnan(auroc.value) else auroc.value


def _compared(auroc: float | None) -> float | None:
    """Return an AUROC as it is compared: machines differ in the last bits."""
    return None if auroc is None else round(auroc, DIGITS)
