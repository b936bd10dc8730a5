"""What will be audited, fixed in a file before anybody trains.

``privaudit plan`` writes the file, ``train --plan`` puts it into the run, whose signed
header lists it from the first round on: what it says was said before any model was
there. An audit that is as planned is one of those that the plan names, however many
others are made.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, with_config
from typing_extensions import TypedDict

from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import ConfigError, TranscriptError, shown
from privaudit.core.limits import check_json
from privaudit.core.parameters import readable
from privaudit.core.storage import to_json
from privaudit.federated.runs.folder.outputs import write_output
from privaudit.federated.runs.folder.own_files import PLAN
from privaudit.federated.runs.runs import Run

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
        plan: The version of this form.
        made: When, in UTC; nothing is proved by it.
        audits: One for each scenario.
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

        Args:
            scenario: Its name.
            asked: Its arguments by name.
            own: Which of them were objects, such as "a scenario": a plan holds names,
                and what goes by a planned name need not be what was planned.
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
    """Return a plan of audits by scenario.

    Raises:
        ConfigError: There is none.
    """
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
