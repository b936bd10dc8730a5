from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, train
from privaudit.core.errors import ConfigError
from privaudit.runs.config import make_config
from privaudit.runs.run import Run
from privaudit_tools.equal_utility.benchmark import entries_of
from privaudit_tools.equal_utility.outcomes import Question, perform, scores_of
from privaudit_tools.equal_utility.plan import BenchmarkPlan
from privaudit_tools.equal_utility.stopped import StoppedRun

SMALL: dict[str, Any] = {"clients": 2, "shots": 8, "seed": 1}


PLAN: dict[str, Any] = {
    "title": "t",
    "shadows": 0,
    "fields": {"clients": 2, "shots": 8},
    "tuning_seeds": [1],
    "evaluation_seeds": [2, 3, 4],
    "reference": {"label": "r", "trainer": "promptfl", "stops": [1, 2]},
    "methods": [{"label": "none", "trainer": "zero-shot"}],
}


def trained(folder: Path, rounds: int) -> Run:
    return train("promptfl", folder=folder, rounds=rounds, epochs=1, **SMALL)


def test_a_stopped_run_is_the_shorter_training(tmp_path: Path) -> None:
    """A round knows nothing of how many follow: all attacks find the very same."""
    long, short = trained(tmp_path, 3), trained(tmp_path, 2)
    stopped = StoppedRun.of(long, 2)
    found = [
        Auditor(run).attack(shadows=5, is_logged=False) for run in (stopped, short)
    ]
    leaks = [{n: r.auroc.value for n, r in audit.results.items()} for audit in found]
    assert leaks[0] == leaks[1]
    ours, theirs = stopped.metrics[-1], short.metrics[-1]
    assert ours["local_accuracy"] == theirs["local_accuracy"]
    assert [m.round for m in stopped.transcript] == [
        m.round for m in short.transcript if m.kind != "release"
    ]
    assert StoppedRun.of(short, 2) is short
    for rounds in (0, 3):
        with pytest.raises(ConfigError, match="Name rounds from 1 to that"):
            StoppedRun.of(short, rounds)


def test_a_run_is_attacked_once_and_keeps_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a benchmark that was killed goes on."""
    entry = entries_of(BenchmarkPlan.model_validate(PLAN), [1])[0]
    weaker = "loss-threshold as server-aggregate"
    question = replace(entry.question, chosen=((0, weaker),))
    alone = perform(entry.run, entry.row, entry.setting, question, tmp_path)
    assert [[*look.leaks] for look in alone.looks] == [[], [weaker]]
    first = perform(entry.run, entry.row, entry.setting, entry.question, tmp_path)
    assert [look.rounds for look in first.looks] == [1, 2]
    assert (first.error, first.guarantee) == ("", "one record, add/remove-one, δ 1e-5")
    assert alone.at(0).leaks.items() <= first.at(0).leaks.items()
    monkeypatch.setattr(Auditor, "attack", None)  # whoever attacks now fails
    assert perform(entry.run, entry.row, "", entry.question, tmp_path) == first
    run = Run(tmp_path / first.run)
    scores = scores_of(run, entry.question, 0, "loss-threshold")
    assert scores is not None
    members, others = scores
    asked = [
        run.population.asked_about(c, canaries=False)
        for c in run.population.task.clients
    ]
    assert len(members) + len(others) == sum(map(len, asked))
    line = run.metrics[0]
    assert first.at(1).utility["local"] == line["local_accuracy"]


def test_a_masked_run_is_one_view_and_has_one_look() -> None:
    config = make_config("promptfl", rounds=2, secure_aggregation="masked")
    assert Question("server-reconstruct", 0, (1,)).rounds(config) == [2]


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    writing = PLAN | {"scenario": "text-extraction"}  # of models that write
    entry = entries_of(BenchmarkPlan.model_validate(writing), [1])[0]
    record = perform(entry.run, entry.row, entry.setting, entry.question, tmp_path)
    assert record.error
    assert (record.row, record.seed, record.looks) == ("r", 1, [])
