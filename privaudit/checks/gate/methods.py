"""The gate on methods: does one leak more than another, beyond a margin?

Both are trained with the same seeds, so with the same records, clients and coins, and
attacked alike; a seed is a replicate (:mod:`privaudit.statistics.paired_t`). The first seed
that is trained anew is timed, and by that it is planned how many there will be and when
to look. The plan stays: asked again, also after a kill, a gate goes on with it, or says
what it said. A method's numbers can be kept in a file, one AUROC a seed, no score and no
record: later gates train only the other side (``go_on(judge=False).save(file)``).
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from privaudit.auditing.audit import Assurance
from privaudit.auditing.scenario import find_scenario
from privaudit.checks.gate.baseline import SIGNATURE, read_contents
from privaudit.checks.gate.checks import GateCheck, GateQuestion
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    TooFewRecordsError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.core.formatting import write_time
from privaudit.core.parameters import parse_spec
from privaudit.core.signing import check_signature, sign
from privaudit.core.storage import make_private_folder, to_json
from privaudit.evaluation.compare.measured import unlike_settings
from privaudit.evaluation.sweep_runs import readable_attacks
from privaudit.evaluation.tradeoff.plan import (
    Cell,
    SweepPlan,
    refuse_swept,
    shared_settings,
)
from privaudit.evaluation.tradeoff.sweep import perform_cell, planned_run
from privaudit.execution.sweeps import SWEEPS
from privaudit.runs.own_files import write_output
from privaudit.runs.run import runs_folder, shared_place
from privaudit.statistics.comparisons import p_value_within
from privaudit.statistics.estimate import paired_difference
from privaudit.statistics.paired_t import (
    FEWEST,
    PairedJudgement,
    judge_pairs,
    planned_looks,
)
from privaudit.statistics.progress import Phase, Watcher
from privaudit.statistics.roc import leaks_over_seeds

_SHADOWS, _PURPOSE = 8, "method"  # by default; what a signature is for


class SeedNumbers(BaseModel):
    """AUROCs of one or two methods with each of some seeds, as they are kept and signed.

    Attributes:
        methods: In the order of a row.
        asked: What another method must have been asked, too.
        seconds: Of a seed that was trained anew; 0 before one was.
        looks: After how many seeds; empty before they are planned, by so many minutes and
            seeds at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: tuple[str, ...]
    asked: dict[str, JsonValue]
    seconds: float = 0.0
    minutes: float = 0.0
    most: int = 0
    looks: tuple[int, ...] = ()
    aurocs: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = ()

    def save(self, path: Path) -> None:
        """Sign and write them."""
        contents = self.model_dump(mode="json")
        write_output(path, to_json({**contents, SIGNATURE: sign(_PURPOSE, contents)}))

    @classmethod
    def read(cls, path: Path) -> "SeedNumbers":
        """Return the numbers of a file.

        Raises:
            MissingFileError: There is no such file.
            ConfigError: It is another kind of file.
            TranscriptError: It was altered, or nobody signed it.
            TrustError: It is signed by a key that is not trusted.
        """
        contents = read_contents(path)
        if "methods" not in contents:
            raise ConfigError(
                f"{path} holds no method's AUROCs. Write them with `privaudit gate --method "
                "NAME --write-baseline FILE`; a run's baseline is for --baseline."
            )
        check_signature(_PURPOSE, contents, contents.pop(SIGNATURE, None), path)
        try:
            return cls(**contents)
        except ValidationError as error:
            raise TranscriptError(
                f"{path} is damaged ({error.errors()[0]['msg']}). Write it again."
            ) from None

    def column(self, method: int, count: int) -> list[float]:
        """Return a method's AUROCs, as :func:`leaks_over_seeds` turns them."""
        return leaks_over_seeds([row[method] for row in self.aurocs[:count]])[0]


@dataclass(frozen=True)
class MethodGate(GateResult):
    """What came of a gate on methods.

    Attributes:
        looks: After how many seeds it was to look.
        aurocs: Of each seed, the method's and the other's.
        further: As in :class:`privaudit.statistics.paired_t.PairedJudgement`.
    """

    looks: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    aurocs: tuple[tuple[float, float], ...] = ()
    further: tuple[int, int] | None = None

    @property
    def alpha(self) -> float:
        """The error of one look, both sides together."""
        return self.settings.alpha / len(self.looks)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        own = ("looks", "seeds", "aurocs", "further")
        return super().to_dict() | {name: getattr(self, name) for name in own}


@dataclass(frozen=True)
class Method:
    """A trainer with its parameters, and how it is trained and attacked.

    Attributes:
        text: As it was asked for: NAME or NAME:key=value,key=value.
        plan: Scenario, attack, clients and shadow models.
    """

    text: str
    cell: Cell
    plan: SweepPlan
    settings: GateSettings

    @classmethod
    def of(
        cls,
        text: str,
        settings: GateSettings,
        parameters: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> "Method":
        """Return a method whose runs can be trained and attacked.

        Of the settings count scenario, attack, clients, shadow models, margin and alpha;
        the fields are of :class:`privaudit.runs.config.RunConfig`.

        Raises:
            UnknownNameError: There is no such trainer, scenario or attack, or the
                attack cannot be made on what the trainer releases.
            ConfigError: A value is out of range.
        """
        fields = fields or {}
        refuse_swept("field", fields, ("trainer", "settings", "seed"))
        name, own = parse_spec("--method", text, "dp-fpl:epsilon=8")
        shared = shared_settings(name, parameters or {})
        cell = Cell(text, name, settings={**shared, **own}, fields=fields)
        shadows = _SHADOWS if settings.shadows is None else settings.shadows
        scenario = find_scenario(settings.scenario, shadows)
        readable = readable_attacks(cell.config(0), scenario)
        attack = ", ".join(settings.attacks) or next(iter(readable), "none")
        if attack not in readable:
            raise UnknownNameError(f"one attack that {name} allows", attack, readable)
        clients = settings.clients or "all"
        plan = SweepPlan(
            scenario=settings.scenario, attack=attack, clients=clients, shadows=shadows
        )
        return cls(text, cell, plan, settings)

    def asked(self, first_seed: int) -> dict[str, JsonValue]:
        """Return what another method must have been asked, too."""
        own = {"trainer", "settings", "seed"}
        if "rounds" not in self.cell.fields:
            own.add("rounds")  # the trainer's usual number
        asked = self.cell.config(first_seed).identity
        asked |= self.plan.model_dump(
            include={"scenario", "attack", "clients", "shadows"}
        )
        asked |= {"margin": self.settings.margin, "alpha": self.settings.alpha}
        asked |= {"first seed": first_seed, "privaudit": version("privaudit")}
        return {name: value for name, value in asked.items() if name not in own}

    def auroc(self, seed: int, folder: Path, watcher: Watcher | None) -> float:
        """Train and attack it with a seed, and return the attack's AUROC."""
        run, shared = planned_run(self.cell, seed), shared_place(folder)
        auroc = perform_cell(run, self.cell, self.plan, shared, watcher).point.auroc
        if auroc.unresolved:
            raise TooFewRecordsError(
                f"{self.text} with seed {seed}: {auroc}. Train on more records."
            )
        return auroc.value


@dataclass(frozen=True)
class Pairs:
    """Runs of one or two methods, seed by seed, and where their AUROCs are kept.

    Attributes:
        methods: Two; or one, whose numbers are to be kept or stand beside ``stored``.
        minutes: What all may take, by the time of the first that is trained.
        most: Seeds at most, from the first one on.
        runs: Folder of all runs; by default ``./runs``.

    Raises:
        ConfigError: A number is out of range.
    """

    methods: tuple[Method, ...]
    minutes: float = 20.0
    most: int = 12
    first_seed: int = 0
    runs: Path | None = None
    watcher: Watcher | None = None
    stored: SeedNumbers | None = None

    def __post_init__(self) -> None:
        if self.most < FEWEST or self.first_seed < 0 or not 0 < self.minutes < math.inf:
            raise ConfigError(
                f"{self.most} seeds from {self.first_seed} on in {self.minutes:g} minutes "
                f"were asked for. Use at least {FEWEST}, from 0 on, in more than 0 minutes."
            )

    @property
    def asked(self) -> dict[str, JsonValue]:
        """What all sides must have been asked."""
        return self.methods[0].asked(self.first_seed)

    @property
    def file(self) -> Path:
        """Where the numbers are kept: another question has another."""
        stored = None if self.stored is None else self.stored.model_dump(mode="json")
        names = [one.cell.config(0).identity_hash for one in self.methods]
        question = json.dumps([names, self.asked, stored], sort_keys=True)
        digest = hashlib.sha256(question.encode()).hexdigest()[:8]
        return runs_folder(self.runs) / SWEEPS / f"gate-{digest}" / "pairs.json"

    def sides(self, kept: SeedNumbers, count: int) -> tuple[list[float], list[float]]:
        """Return the AUROCs of both, with the first so many seeds."""
        other, column = (kept, -1) if self.stored is None else (self.stored, 0)
        return kept.column(0, count), other.column(column, count)

    def judged(self, kept: SeedNumbers) -> tuple[int, PairedJudgement] | None:
        """Return the look that decides, or the last; None while seeds are missing."""
        settings, looks = self.methods[0].settings, kept.looks
        for look in looks:
            if look > len(kept.aurocs):
                return None
            sides = self.sides(kept, look)
            found = judge_pairs(*sides, settings.margin, len(looks), settings.alpha)
            if found.further is None or look == looks[-1]:
                return look, found
        return None

    def go_on(self, *, judge: bool = True) -> SeedNumbers:
        """Train what is missing, keep each seed as it is done, and return all.

        Raises:
            ConfigError: The minutes do not pay for four seeds.
            TranscriptError: What was kept was altered.
        """
        for folder in reversed(self.file.parents[:3]):
            make_private_folder(folder)
        names = tuple(one.text for one in self.methods)
        kept = SeedNumbers(methods=names, asked=self.asked)
        kept = SeedNumbers.read(self.file) if self.file.exists() else kept
        while True:
            if not kept.looks and (kept.seconds or len(kept.aurocs) == self.most):
                looks = self._planned(kept.seconds, judge)
                plan = {"looks": looks, "minutes": self.minutes, "most": self.most}
                kept = kept.model_copy(update=plan)
                kept.save(self.file)  # before anything is judged
            complete = kept.looks and len(kept.aurocs) >= kept.looks[-1]
            if complete or (judge and self.judged(kept)):
                return kept
            kept = self._with_next(kept)
            kept.save(self.file)

    def _planned(self, seconds: float, judge: bool) -> tuple[int, ...]:
        paid = int(min(60 * self.minutes / max(seconds, 1e-9), self.most))
        if paid < FEWEST:
            raise ConfigError(
                f"{self.minutes:g} minutes were given, and a seed took {seconds:.3g} s: "
                f"that pays for {paid}, and {FEWEST} are needed. Give --minutes "
                f"{math.ceil(FEWEST * seconds / 60)}, or fewer --shadows or rounds; what "
                "was trained is kept."
            )
        return planned_looks(paid) if judge else (paid,)

    def _with_next(self, kept: SeedNumbers) -> SeedNumbers:
        seed, began = self.first_seed + len(kept.aurocs), time.monotonic()
        folder, row, is_new = runs_folder(self.runs), [], True
        for one in self.methods:
            is_new &= not (folder / planned_run(one.cell, seed).run).exists()
            if self.watcher is not None:
                what, most = f"{one.text}, seed {seed}", max(*kept.looks, self.most, 0)
                self.watcher(Phase("gate", "cell", what, len(kept.aurocs), most))
            row.append(one.auroc(seed, folder, self.watcher))
        seconds = kept.seconds or is_new * (time.monotonic() - began)
        update = {"aurocs": (*kept.aurocs, tuple(row)), "seconds": seconds}
        return kept.model_copy(update=update)


def gate_methods(pairs: Pairs) -> MethodGate:
    """Train and attack two methods with the same seeds: pass, regression, or open.

    Raises:
        ConfigError: Both are one method, or as :meth:`Pairs.go_on`.
        IncompatibleRunsError: They are not, or were not, asked alike.
    """
    first, last = pairs.methods[0], pairs.methods[-1]
    against, theirs = last.text, last.asked(pairs.first_seed)
    if pairs.stored is not None:
        against, theirs = pairs.stored.methods[0], pairs.stored.asked
        pairs = replace(pairs, most=min(pairs.most, len(pairs.stored.aurocs)))
    elif first.cell.config(0) == last.cell.config(0):
        raise ConfigError(
            f"{first.text} and {against} are one method, and a copy is no finding. Name "
            "another one, or a file of --write-baseline."
        )
    names = [*dict.fromkeys([*pairs.asked, *theirs])]
    if unlike := unlike_settings(pairs.asked, theirs, names):
        raise IncompatibleRunsError(
            f"{first.text} and {against} are not asked alike ({'; '.join(unlike)}), so "
            "that their AUROCs cannot be compared. Give both the same, such as an attack "
            "that both allow (--attacks); or write the baseline again."
        )
    kept = pairs.go_on()
    judged = pairs.judged(kept)
    assert judged is not None  # all seeds are there
    return _result(pairs, kept, against, *judged)


def _result(
    pairs: Pairs, kept: SeedNumbers, against: str, count: int, found: PairedJudgement
) -> MethodGate:
    method, sides = pairs.methods[0], pairs.sides(kept, count)
    interval_at = partial(paired_difference, *sides)
    now, before = (float(np.mean(side)) for side in sides)
    name, margin = f"{method.plan.attack} AUROC", method.settings.margin
    said = _SAID[found.kind].format(method=method.text, against=against)
    check = GateCheck(
        GateQuestion(name, "leak", "margin", margin, now, before, interval_at),
        found.kind,
        found.estimate,
        p_value_within(interval_at, margin) if found.estimate.value > 0 else 1.0,
        found.further and found.further[1],
        f"{said}: {name} differs by {found.estimate} seeds ({now:.3f} and {before:.3f}), "
        f"margin {margin:g}.{_more(found, pairs, kept)}",
    )
    return MethodGate(
        run=method.text,
        baseline=against,
        paired="seed",
        settings=replace(method.settings, guarantees=False),
        checks=(check,),
        assurance=Assurance("unproved", "methods compared", _NOT_PROVED),
        notes=(_planned_by(pairs, kept),),
        looks=kept.looks,
        seeds=tuple(range(pairs.first_seed, pairs.first_seed + count)),
        aurocs=tuple(zip(*sides, strict=True)),
        further=found.further,
    )


_NOT_PROVED = (
    "A comparison proves nothing of either method: another attack may find more."
)
_SAID: Mapping[str, str] = {
    "pass": "Pass: that {method} leaks more than {against} beyond the margin is ruled out",
    "regression": "Regression: {method} leaks more than {against}, beyond the margin",
    "rose, size open": "Rose, size open: {method} leaks more than {against}, and whether "
    "beyond the margin is open",
    "underpowered": "Undecided whether {method} leaks more than {against}",
}


def _more(found: PairedJudgement, pairs: Pairs, kept: SeedNumbers) -> str:
    """Say what would decide, in the user's terms."""
    if found.further is None:
        return ""
    guess = "nothing differs" if found.kind == "underpowered" else "it is as it looks"
    fewest, most = found.further
    times = " to ".join(write_time(n * kept.seconds) for n in found.further)
    return (
        f" If {guess}, {fewest} to {most} further seeds{f' ({times})' * bool(kept.seconds)} "
        "decide in 80 of 100 cases, in a gate of their own: "
        f"--seed {pairs.first_seed + len(kept.aurocs)} --seeds {most}."
    )


def _planned_by(pairs: Pairs, kept: SeedNumbers) -> str:
    plan, looks = pairs.methods[0].plan, " and ".join(map(str, kept.looks))
    error = 50 * pairs.methods[0].settings.alpha / len(kept.looks)
    said = (
        f"Attacked by {plan.attack} ({plan.shadows} shadow models, clients: "
        f"{plan.clients}). Planned by {kept.minutes:g} minutes and {kept.seconds:.3g} s a "
        f"seed: looks after {looks} seeds, each wrong in at most {error:.3g} % a side."
    )
    if (kept.minutes, kept.most) != (pairs.minutes, pairs.most):
        said += (
            " That plan stands, whatever is given now: whoever looks until it is decided "
            "errs more often. Another --seed is another gate."
        )
    return said
