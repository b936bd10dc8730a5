"""What a benchmark keeps of a run: utility and leaks after some of its rounds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.named_attacks import attack_in_place
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.core.errors import PrivauditError, RunInUseError
from privaudit.core.formatting import small
from privaudit.core.portable_bits import Provenance
from privaudit.evaluation.sweep_runs import SweepRun
from privaudit.execution.jobs import use_threads
from privaudit.runs.config import RunConfig
from privaudit.runs.run import AUDITS, Run
from privaudit.statistics.progress import Watcher
from privaudit_tools.equal_utility.stopped import StoppedRun
from privaudit_tools.tables.afterwards import remembered

_PLACE = f"{AUDITS}benchmark/"
AS = attack_in_place("", "")  # between an attack and who makes it in another's place
_UTILITIES = ("local", "neighbour", "all")
Scores = tuple[list[float], list[float]]  # of members, and of non-members


@dataclass(frozen=True)
class Question:
    """What is asked of a run.

    Attributes:
        stops: Rounds after which it is attacked; what it does not have is left out, and
            its last round is always one.
        shadows: Shadow models for each client.
        chosen: Attacks to make, and after how many rounds, 0 being the last; all of the
            scenario's at each stop if empty.
        attacks: Made at each stop while none are chosen; all of the scenario's if empty.
    """

    scenario: str
    shadows: int
    stops: tuple[int, ...]
    chosen: tuple[tuple[int, str], ...] = ()
    attacks: tuple[str, ...] = ()

    def chosen_after(self, rounds: int, last: int) -> set[str]:
        """Return the labels of the attacks that are made at a look; none for all."""
        if not self.chosen:
            return set(self.attacks)
        return {label for after, label in self.chosen if (after or last) == rounds}

    def attacks_after(self, rounds: int, last: int) -> Scenario:
        """Return the scenario with the attacks that are made after some rounds of all.

        A weaker adversary's attack is made beside the scenario's own of that name.
        """
        scenario = find_scenario(self.scenario, self.shadows)
        if not self.chosen and not self.attacks:
            return scenario
        chosen = [one.partition(AS) for one in self.chosen_after(rounds, last)]
        named, weaker = {one for one, _, _ in chosen}, {one for _, _, one in chosen}
        return replace(
            scenario,
            attacks={n: one for n, one in scenario.attacks.items() if n in named},
            dominates=tuple(one for one in scenario.dominates if one in weaker),
        )

    def rounds(self, config: RunConfig) -> list[int]:
        """Return the rounds after which a run is attacked; after masked ones, the last.

        Behind masks each round is one sum, and the whole transcript is one view.
        """
        last = config.rounds
        earlier = () if config.is_masked else self.stops
        return [*sorted({stop for stop in earlier if stop < last}), last]


class Look(BaseModel):
    """A run after some of its rounds.

    Attributes:
        utility: Accuracy in [0, 1] by "local", "neighbour" and "all", where measured.
        leaks: AUROC by attack.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    rounds: int
    utility: dict[str, float]
    leaks: dict[str, float]


class RunRecord(BaseModel):
    """One run of a benchmark, or why there is none.

    Attributes:
        certified: Proved epsilon by view; None where nothing is proved.
        unit: What it protects, and which data sets are neighbours.
        delta: Of all epsilons; None in results that did not keep it.
        megabytes: That a round sends, up and down, over all clients.
        seconds: That its rounds took.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    row: str
    setting: str
    seed: int
    run: str = ""
    looks: list[Look] = []
    certified: dict[str, float | None] = {}
    unit: str = ""
    delta: float | None = None
    megabytes: float = 0.0
    seconds: float = 0.0
    bits: str = ""
    error: str = ""

    @property
    def guarantee(self) -> str:
        """What an epsilon is of: unit, neighbours and delta, in words."""
        return guarantee(self.unit, self.delta)

    def at(self, rounds: int) -> Look:
        """Return a look; the last one for 0.

        Raises:
            StopIteration: There is none after so many rounds.
        """
        found = reversed(self.looks) if rounds == 0 else iter(self.looks)
        return next(look for look in found if rounds in (0, look.rounds))


def guarantee(unit: str, delta: float | None) -> str:
    """Return what an epsilon is of, in words; what was not kept is left out."""
    return ", ".join(filter(None, [unit, "" if delta is None else f"δ {small(delta)}"]))


def perform(
    planned: SweepRun,
    row: str,
    setting: str,
    question: Question,
    folder: str | Path | None,
    watcher: Watcher | None = None,
) -> RunRecord:
    """Train and attack a run, or go on with it, or take what it keeps.

    Raises:
        RunInUseError: Another process trains it.
    """
    seed = planned.fields["seed"]
    try:
        with use_threads(1):
            run = planned.train(folder, watcher)
            looks = [
                _look(run, question, rounds) for rounds in question.rounds(run.config)
            ]
            return _record(run, row, setting, looks)
    except RunInUseError:
        raise
    except PrivauditError as error:
        return RunRecord(row=row, setting=setting, seed=seed, error=str(error))


def _record(run: Run, row: str, setting: str, looks: list[Look]) -> RunRecord:
    certified = run.privacy["certified"]
    proof = certified["released"]
    sent = [line["bytes_up"] + line["bytes_down"] for line in run.metrics]
    seed = run.config.seed
    assert seed is not None  # a benchmark names its seeds
    return RunRecord(
        row=row,
        setting=setting,
        seed=seed,
        run=run.name,
        looks=looks,
        certified={view: one["epsilon"] for view, one in certified.items()},
        unit=f"one {proof['unit']}, {proof['adjacency']}",
        delta=proof["delta"],
        megabytes=fmean(sent) / 1e6,
        seconds=run.training_seconds,
        bits=Provenance.of(run.header).bits,
    )


def _look(run: Run, question: Question, rounds: int) -> Look:
    answer = _attacked(run, question, rounds)
    line = run.metrics[rounds - 1]
    measured = ((name, line.get(f"{name}_accuracy")) for name in _UTILITIES)
    return Look(
        rounds=rounds,
        utility={name: value for name, value in measured if value is not None},
        leaks={name: one["auroc"] for name, one in answer.items()},
    )


def scores_of(run: Run, question: Question, rounds: int, attack: str) -> Scores | None:
    """Return an attack's scores after some rounds; None if it found no number."""
    found = _attacked(run, question, rounds or run.config.rounds).get(attack)
    return (found["members"], found["others"]) if found else None


def _attacked(
    run: Run, question: Question, rounds: int
) -> Mapping[str, Mapping[str, Any]]:
    """Return each attack's AUROC and scores, which the run keeps.

    Attacks that found no number are left out. A run's log counts the last look alone:
    the others are of no whole run.
    """
    scenario = question.attacks_after(rounds, run.config.rounds)
    if not scenario.attacks:
        return {}
    chosen = question.chosen_after(rounds, run.config.rounds)
    asked = {
        "threat": scenario.threat,
        "attacks": {name: repr(attack) for name, attack in scenario.attacks.items()},
        "rounds": rounds,
        **({"chosen": sorted(chosen)} if chosen else {}),
    }

    def attack() -> dict[str, Any]:
        stopped = StoppedRun.of(run, rounds)
        audit = Auditor(stopped).attack(
            scenario, shadows=question.shadows, is_logged=stopped is run
        )
        return {n: one for n, one in _found(audit) if n in chosen or not chosen}

    place = f"{_PLACE}{scenario.name}-{rounds}.json"
    return remembered(run, place, asked, attack)


def _found(audit: Audit) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, result in audit.results.items():
        if not math.isfinite(result.auroc.value):
            continue
        groups = [client.groups for client in result.clients]
        members, others = (_joined(side) for side in zip(*groups, strict=True))
        value = result.auroc.value
        yield name, {"auroc": value, "members": members, "others": others}


def _joined(parts: Sequence[Any]) -> list[float]:
    """Return all clients' scores in one list, to seven digits: ranks need no more."""
    return [float(f"{score:.7g}") for part in parts for score in part.tolist()]
