"""The auditor: its headline where nothing leaks and where records do, arguments, jobs.

Arguments that are none are refused before anything is loaded, in one line. What an attack
finds does not depend on who trained its shadow models.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, Run, load_run, train
from privaudit.attacks.rmia import Rmia
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.auditor import shadow_jobs
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import ConfigError, TranscriptError, one_line
from privaudit.core.limits import read_toml
from privaudit.execution.executors import HERE
from privaudit.execution.jobs import results_of
from privaudit.runs.config import make_config
from privaudit.runs.names import check_name
from privaudit.runs.run import find_place
from privaudit.runs.run_files import split_names
from privaudit.statistics.progress import Event, Phase
from tests.conftest import common_cache
from tests.other_coins import result_under_other_coins

SHADOWS, TOSSES = 8, 100


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    small: dict[str, Any] = {
        "rounds": 1, "clients": 4, "measured_rounds": 1,
        "epochs": 10, "optimizer": "adam", "learning_rate": 0.005,
    }  # fmt: skip
    with common_cache(tmp_path_factory):
        return train("promptfl", folder=folder, seed=3, **small)


@pytest.mark.usefixtures("fewer_permutations")
def test_where_other_coins_are_tossed_the_headline_says_leaks_as_rarely_as_it_may(
    run: Run,
) -> None:
    """No record was trained on for the coins that are asked about; bench: 400 runs."""
    adversary, targets = Auditor(run).prepare(find_scenario("server-reconstruct", 0))
    scored = Rmia(shadows=SHADOWS)(adversary, targets)
    said = []
    for toss in range(TOSSES):
        result = result_under_other_coins(run, targets, scored, 1000 + toss)
        said.append(result.verdict.kind)
    found = np.concatenate([one.scores for one in scored])
    assert len(np.unique(found)) > 20  # or nothing could be said
    limit = TOSSES * 0.025 + 3 * np.sqrt(TOSSES * 0.025 * 0.975)
    assert said.count("leaks") <= limit


def test_its_interval_knows_the_shadows_coins_and_is_read_back(run: Run) -> None:
    audit = Auditor(run).attack(shadows=SHADOWS)
    headline = audit.headline
    assert headline.attack == "rmia"
    assert len(headline.clients) == 4
    assert "jackknife over 4 sets of shadow models" in headline.auroc.method
    assert all("4 sets" in one.method for one in headline.by_client.values())
    plain = [
        ClientScores(**{**vars(client), "left_out": None})
        for client in headline.clients
    ]
    without = evaluate_scores("rmia", "", "", plain).auroc
    assert headline.auroc.low <= without.low
    assert headline.auroc.high >= without.high
    save_audit(audit)
    again = restore_audit(read_audit(run, "server-reconstruct"))
    assert again.headline.auroc == headline.auroc
    assert again.to_dict() == audit.to_dict()


def test_an_altered_set_is_seen(run: Run, tmp_path: Path) -> None:
    """What widens an interval is beside the scores, and is held against them."""
    stored = read_audit(run, "server-reconstruct")
    columns = {name: dict(values) for name, values in stored.columns.items()}
    columns["rmia"]["left_out"] = columns["rmia"]["left_out"] * [-1, -1, 1, 1]
    assert columns["rmia"]["left_out"].shape == (len(columns["rmia"]["scores"]), 4)
    clients = type(stored)(
        run, stored.scenario, stored.attacks, columns, stored.contents
    )
    with pytest.raises(Exception, match="its scores give"):
        restore_audit(clients)


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": -1}, {"seed": True}, {"seed": 10**30},
        {"clients": 0}, {"clients": 10**24}, {"shadows": 4},
        {"shadows": -1}, {"shadows": True}, {"scenario": "no"}, {"attacks": "lira"},
    ],
)  # fmt: skip
def test_an_audit_refuses_them_before_data_are_loaded(fields: dict[str, Any]) -> None:
    without_a_run = object.__new__(Auditor)  # whoever asks for data fails otherwise
    with pytest.raises(ConfigError, match=r"requested|No scenario|\['lira'\]"):
        without_a_run.attack(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": True}, {"clients": 10**9}, {"clients": int("9" * 24)},
        {"rounds": True}, {"seed": 10**30}, {"alpha": True}, {"data": "a\0b"},
        {"data": "~nobody-of-that-name/x"}, {"data": ""}, {"model": "vit:\0"},
        {"context_tokens": 10**9},
    ],
)  # fmt: skip
def test_a_configuration_refuses_them(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_config("promptfl", **fields)


def test_parameters_are_no_truths_and_no_numbers_without_end() -> None:
    for settings in ({"epsilon": True}, {"rank": True}, {"rank": int("9" * 24)}):
        with pytest.raises(ConfigError):
            make_config("dp-fpl", settings)


@pytest.mark.parametrize("name", ["", "x" * 201, "x" * 5000, ".", "a\nb"])
def test_a_name_has_a_length(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_name(name)
    assert len(str(caught.value)) < 500


def test_a_folder_is_a_run_by_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_place(".", tmp_path / "runs") == Path()
    for name, place in (("one", "runs/one"), ("runs/one", "runs/one")):  # none is there
        assert find_place(name, "runs") == Path(place)
    with pytest.raises(ConfigError, match="is not the name of a run"):
        find_place("", tmp_path / "runs")


def test_an_error_is_one_line_whatever_names_hold() -> None:
    assert one_line("a\n  b\x1b[2J") == "a b\\x1b[2J"
    assert len(one_line("x" * 5000)) < 1200


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 3000 + "]" * 3000, "a." * 200 + "b = 1", "\0", "=" * 9]
)
def test_a_plan_of_brackets_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.toml"):
        read_toml(tmp_path / "x.toml")


def test_a_tensor_of_nobody_is_damage() -> None:
    with pytest.raises(
        TranscriptError, match="'server' of a run's states has no client"
    ):
        split_names({"server": torch.ones(1)})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
def test_output_that_arrives_nowhere_is_said_and_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "privaudit", "key", "show"]
        done = subprocess.run(command, stdout=full, stderr=-1, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "The output cannot be written: the disk is full" in done.stderr


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "privaudit", "gate", "--baseline", "--é…"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("privaudit: ")
    assert done.stderr.count("\n") == 1


ASKED: dict[str, Any] = {
    "clients": "all", "shadows": 5, "budget": None, "seed": 0, "attacks": [],
}  # fmt: skip
SERVER = "server-reconstruct"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    small: dict[str, Any] = {"rounds": 1, "epochs": 1, "test_share": 0.45}
    return train("promptfl", folder=folder, clients=10, seed=3, **small)


def test_jobs_leave_nothing_to_train_and_the_same_numbers(
    many: Run, tmp_path: Path
) -> None:
    shutil.copytree(many.path, tmp_path / many.name)
    alone = Auditor(load_run(tmp_path / many.name)).attack(SERVER, **ASKED)
    jobs = shadow_jobs(many, SERVER, ASKED)
    assert [len(job.arguments[3]) for job in jobs] == [2, 2, 2, 2, 2]
    results_of(HERE, jobs)
    events: list[Event] = []
    found = Auditor(many).attack(SERVER, watcher=events.append, **ASKED)
    assert not [e for e in events if isinstance(e, Phase) and e.phase == "shadows"]
    assert found.to_dict() == alone.to_dict()


def test_a_run_that_is_attacked_alone_is_read_once(many: Run) -> None:
    for keep in (True, False):
        run = load_run(many.path)
        assert shadow_jobs(run, SERVER, ASKED, keep=keep)
        assert ("population" in vars(run)) == keep


@pytest.mark.parametrize(
    ("scenario", "asked"),
    [
        (SERVER, {"clients": 8}),  # one job
        (SERVER, {"shadows": 0}),
        ("server-aggregate", {}),  # whole federations: all targets are together
        ("prompt-release", {}),
        ("update-watch", {}),  # trains none
    ],
)
def test_where_nothing_is_won_there_are_none(
    many: Run, scenario: str, asked: dict[str, Any]
) -> None:
    assert shadow_jobs(many, scenario, ASKED | asked) == []
