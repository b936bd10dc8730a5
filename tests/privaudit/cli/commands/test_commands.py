"""Commands ``attack``, ``scores``, ``split`` and ``tradeoff``, and what they say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.evaluation.tradeoff.result import SweepPoint, Tradeoff, judge_sweep
from privaudit.report import page as report_module
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import load_run, runs_folder
from privaudit.statistics.estimate import Estimate
from tests.conftest import Cli

SCENARIOS = ("server-reconstruct", "prompt-release")
BOTH = [word for name in SCENARIOS for word in ("--scenario", name)]
RUN = "--trainer zero-shot --rounds 1 --clients 2 --shots 8 --quiet"
ATTACK = ("attack", *BOTH, "--shadows", "0", "--on", "local:1")


def test_each_scenario_is_made_on_each_run_with_a_page_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    undrawn = dict.fromkeys(("tradeoff", "clients", "roc"), "")
    monkeypatch.setattr(report_module, "_figures", lambda data: undrawn)
    folder = runs_folder()
    for seed in "12":
        named = ("--name", f"seed{seed}", "--seed", seed)
        assert cli("train", "--seed", 0, *RUN.split(), *named)[0] == 0

    code, out, err = cli(*ATTACK, "--scenario", "prompt-release", "seed1", "seed2")
    assert code == 0, err
    for scenario in SCENARIOS:
        assert out.count(f"Scenario: {scenario}\n") == 1
        page = folder / f"report-{scenario}.html"
        assert page.name in out
        assert page.exists()
        for seed in "12":
            audits = load_run(folder / f"seed{seed}").path / "audits"
            assert (audits / scenario / "report.html").exists()
    assert "seed1: attack 1/4, server-reconstruct" in err

    code, out, _ = cli(*ATTACK, "seed1", "--quiet")
    lines = out.splitlines()
    assert code == 0
    for line, scenario in zip(lines, SCENARIOS, strict=True):
        assert line.startswith(f"seed1, {scenario}: ")


def test_an_unknown_scenario_is_refused_before_the_others_are_made(cli: Cli) -> None:
    assert cli("train", "--seed", 0, *RUN.split(), "--name", "one")[0] == 0
    assert "Did you mean 'prompt-release'?" in cli.refused(
        *ATTACK, "--scenario", "promt-release", "one"
    )
    assert not list((runs_folder() / "one" / "audits").glob("*"))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    rng = np.random.default_rng(0)
    is_member = rng.random(200) < 0.5
    for name, shift in (("before", 0.0), ("after", 2.0)):
        scores = rng.normal(size=200) + shift * is_member
        rows = [f"{s},{int(m)},r{n}" for n, (s, m) in enumerate(zip(scores, is_member))]  # noqa: B905
        Path(f"{name}.csv").write_text("\n".join(["score,member,record", *rows]))
    return tmp_path


def test_a_file_becomes_a_folder_that_the_other_commands_take(
    files: Path, cli: Cli
) -> None:
    assert cli("scores", "before.csv", "--sampling", "coin")[0] == 0
    for _ in range(2):  # the second replaces the first, and leaves no mark of it
        code, out, _ = cli("scores", "after.csv", "--sampling", "coin", "--json")
    assert not list(Path("runs/after").rglob("*.unfinished"))
    said = json.loads(out.splitlines()[-1])
    assert (code, said["verdict"], said["utility"]) == (0, "leaks", None)
    assert Path(said["report"]).is_file()
    assert cli("report")[0] == 0  # the latest
    assert "after" in Path(said["report"]).read_text()
    asked = ("--scenario", "scores")
    assert cli("gate", "before", "--write-baseline", "b.json", *asked)[0] == 0
    code, out, _ = cli("gate", "after", "--baseline", "b.json", *asked)
    assert (code, "Regression: the one check found one" in out) == (1, True)
    assert cli("compare", "after", "before", *asked)[0] == 0
    assert cli("export", "after", "--public", "card")[0] == 0
    assert cli("verify", "card")[0] == 0


def test_what_is_not_declared_is_said(files: Path, cli: Cli) -> None:
    out = cli.done("scores", "after.csv", "--attack", "RMIA, 64 shadows")
    assert "No verdict on membership: AUROC" in " ".join(out.split())
    assert "nobody declares that a fair coin" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.csv",), "There is no none.csv"),
        ((".",), "no file of scores that is read"),
        (("after.csv", "--name", "../up"), "cannot be called"),
        (("after.csv", "--attack", " "), "The attack was to be called ' '"),
        (("after.csv", "--model", "a" * 61), "The model was to be called"),
        (("after.csv", "--sampling", "dice"), "dice"),
    ],
)
def test_bad_input_ends_with_2_and_writes_nothing(
    files: Path, cli: Cli, words: tuple[str, ...], says: str
) -> None:
    code, out, err = cli("scores", *words)
    assert (code, out, says in err) == (2, "", True)
    assert not (files / "runs").exists()


def test_other_commands_name_the_scenario_of_scores(files: Path, cli: Cli) -> None:
    cli("scores", "after.csv", "--quiet")
    code, _, err = cli("gate", "after", "--max-auroc", "0.6")
    assert (code, "It holds scores: add --scenario scores." in err) == (2, True)
    for command in ("attack", "lint", "costs"):
        code, _, err = cli(command, "after")
        assert "holds scores that were computed elsewhere" in err, command
        assert code == 2


def test_a_second_try_says_what_it_replaces(files: Path, cli: Cli) -> None:
    coin = ("--sampling", "coin", "--name", "mine")
    code, _, err = cli("scores", "after.csv", *coin)
    assert (code, "replaces" in err) == (0, False)
    code, _, err = cli("scores", "after.csv", *coin)  # the same again
    assert (code, "replaces" in err) == (0, False)
    code, _, err = cli("scores", "before.csv", *coin)
    assert code == 0
    assert "It replaces an audit of other scores" in err
    assert "Leaks: AUROC" in err


TABLE = "picture,patient,hospital\n" + "".join(
    f"{n}.png,p{n // 4},{('Anna', 'St-Mary')[n // 4 % 2]}\n" for n in range(400)
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures.csv").write_text(TABLE)
    return tmp_path


def test_hospitals_and_patients_of_a_table(table: Path, cli: Cli) -> None:
    words = ("--owners", "pictures.csv:hospital", "--groups", "pictures.csv:patient")
    code, out, err = cli("split", *words)
    assert (code, err) == (0, "")
    ledger = Ledger.load(table / "ledger.npz")
    assert ledger.clients == ("Anna", "St-Mary")
    assert ledger.group is not None
    assert "groups of one coin each" in out
    assert "a key of the system's, which nobody kept" in out
    first = (table / "ledger.npz").read_bytes()
    assert "a coin that is tossed again tells nothing" in cli.refused("split", *words)
    assert (table / "ledger.npz").read_bytes() == first
    assert cli("split", *words, "--fresh")[0] == 0
    assert Ledger.load(table / "ledger.npz").hash != ledger.hash


def test_a_seed_repeats_and_the_command_says_what_it_costs(
    table: Path, cli: Cli
) -> None:
    words = ("split", "--records", 300, "--clients", 30, "--seed", 4, "--out")
    hashes = set()
    for name in ("one.npz", "two.npz"):
        out = cli.done(*words, name)
        assert "anyone with the data and this seed knows every member" in out
        assert "and 10 more clients" in out
        hashes.add(Ledger.load(table / name).hash)
    assert len(hashes) == 1


def test_known_members_are_no_coin(table: Path, cli: Cli) -> None:
    np.save("members.npy", np.arange(0, 400, 3))
    out = cli.done(
        "split", "--members", "members.npy", "--owners", "pictures.csv:hospital"
    )
    assert "no audit can tell" in out
    ledger = Ledger.load(table / "ledger.npz")
    assert not ledger.tossed
    assert int(ledger.is_member.sum()) == 134


def test_members_of_a_library_s_split_are_checked(table: Path, cli: Cli) -> None:
    order = np.random.RandomState(42).permutation(400)
    np.save("members.npy", order[100:])
    words = ("split", "--records", 400, "--members", "members.npy", "--sampling")
    assert "not these members" in cli.refused(*words, "sklearn:7")
    assert "Known: coin" in cli.refused(*words, "dice")
    out = cli.done(*words, "sklearn:42")
    assert "by a random draw" in out
    assert "No bound on epsilon" in out
    assert Ledger.load(table / "ledger.npz").sampling == "split"
    rows = (f"{n % 7 + (n in order[100:])},{int(n in order[100:])}" for n in range(400))
    Path("all.csv").write_text("\n".join(["score,member", *rows]))
    assert "Leaks" in cli.done("scores", "all.csv", "--sampling", "sklearn:42")
    page = (runs_folder() / "all/audits/scores/report.html").read_text()
    assert "a random split of fixed size by sklearn, seed 42, done again" in page
    assert "not these members" in cli.refused(
        "scores", "all.csv", "--sampling", "torch:42"
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "How many records there are was not said"),
        (("--records", "50"), "No clients were given"),
        (("--owners", "pictures.csv"), "no column is named"),
        (("--owners", "pictures.csv:ward"), "none is 'ward'"),
        (("--owners", "pictures.csv:picture"), "400 clients got"),
        (("--owners", "gone.csv:ward"), "There is no gone.csv"),
        (("--owners", "pictures.csv:hospital", "--clients", "2"), "is a client"),
        (("--records", "9", "--owners", "pictures.csv:hospital"), "owners 400"),
        (("--records", "100", "--clients", "2", "--test-share", "1"), "test share of 1"),
        (("--records", "100", "--clients", "2", "--out", "no/x.npz"), "no folder no"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_one_line_and_exit_code_2(
    words: tuple[str, ...], why: str, table: Path, cli: Cli
) -> None:
    assert why in cli.refused("split", *words)
    assert not (table / "ledger.npz").exists()


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.01, value + 0.01, (100,), "")


def result() -> Tradeoff:
    return judge_sweep(
        [
            SweepPoint(
                "zero-shot", None, seed, estimate(0.5), estimate(0.5 + seed / 1000),
                estimate(0.8), None, estimate(0.0), None, "", "lira",
                "accuracy",
            )
            for seed in range(3)
        ]
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the library is called with."""
    found: dict[str, Any] = {}

    def sweep(**entries: Any) -> Tradeoff:
        found.update(entries)
        return result()

    monkeypatch.setattr("privaudit.evaluation.tradeoff.sweep.sweep", sweep)
    monkeypatch.setattr(
        "privaudit.report.sweep.write_sweep", lambda _, out: found.update(out=out)
    )
    return found


def test_flags_become_entries_of_a_plan(asked: dict[str, Any], cli: Cli) -> None:
    code, _, _ = cli(
        "tradeoff", "--trainers", "promptfl,dp-fpl", "--vary", "rank=2,4", "--vary",
        "shots=none,5", "--report-seeds", "20,21", "--attack", "lira", "--clients",
        "all", "--set", "noise_at=client",
    )  # fmt: skip
    assert (code, asked["trainers"]) == (0, ["promptfl", "dp-fpl"])
    assert asked["vary"] == {"rank": ["2", "4"], "shots": [None, "5"]}
    assert (asked["report_seeds"], asked["attack"]) == ([20, 21], "lira")
    assert (asked["clients"], asked["settings"]) == ("all", {"noise_at": "client"})
    assert "epsilons" not in asked  # the plan's own default


def test_flags_win_over_the_file_name_by_name(
    asked: dict[str, Any], tmp_path: Path, cli: Cli
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'trainers = ["dp-fpl"]\nseeds = [1, 2]\n[fields]\nclients = 3\nrounds = 5\n'
    )
    cli("tradeoff", "--plan", path, "--seeds", "7,8", "--field", "rounds=2")
    assert (asked["trainers"], asked["seeds"]) == (["dp-fpl"], [7, 8])
    assert asked["fields"] == {"clients": 3, "rounds": "2"}


def test_a_table_says_where_each_cell_stands(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    out = cli.done("tradeoff", "--trainers", "zero-shot")
    assert "not dominated by any, at level 5 %" in out
    assert "3 runs audited" in out


def test_json_is_printed_alone(asked: dict[str, Any], cli: Cli) -> None:
    out = cli.done("tradeoff", "--json")
    read = json.loads(out)  # a line: the sweep here tells nothing
    assert read["event"] == "result"
    assert Path(read["path"]).name == "tradeoff"
    assert read["cells"][0]["mode"] == "zero-shot"
    assert asked["trainers"] == ("dp-fpl",)
