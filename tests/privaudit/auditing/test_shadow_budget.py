"""What a budget for shadow models pays for, and what is said where it pays for none."""

import re
from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, train
from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor as TheAuditor
from privaudit.auditing.shadow_budget import LADDER, RATE, ShadowBudget, parse_budget
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import ConfigError
from privaudit.core.operations import count_operations
from privaudit.report.tables.table import print_table
from privaudit.runs.run import Run
from tests.conftest import Cli, common_cache, refused

SERVER = "server-reconstruct"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    small: dict[str, Any] = {"rounds": 1, "epochs": 1, "clients": 3, "shots": 4}
    with common_cache(tmp_path_factory):
        return train("promptfl", folder=folder, seed=3, **small)


def planned(run: Run, budget: str | None, clients: Any = "all", **more: Any) -> Any:
    asked = {"scenario": SERVER, "attacks": (), "shadows": None, "seed": 0, **more}
    plan, _, _, paid = TheAuditor(run).resolve(clients=clients, budget=budget, **asked)
    return plan, paid


def test_a_larger_budget_buys_more_up_to_the_last_rung(run: Run) -> None:
    plan, most = planned(run, "1h")
    assert most.shadows == LADDER[-1]
    assert next(iter(plan.attacks)) == "rmia"
    assert plan.attacks["rmia"].shadows == plan.attacks["lira"].shadows == LADDER[-1]
    exactly = f"{LADDER[1] * most.each * 1.01:.3f}s"
    assert planned(run, exactly)[1].shadows == LADDER[1]


def test_work_is_counted_so_that_it_is_the_same_on_every_day(run: Run) -> None:
    _, first = planned(run, "1m")
    _, again = planned(run, "1m")
    _, one = planned(run, "1m", clients=1)
    assert first == again
    assert first.clients == 3 * one.clients
    assert first.each == pytest.approx(3 * one.each, rel=0.3)


def test_shadows_that_are_numbered_ask_no_budget(run: Run) -> None:
    plan, paid = planned(run, None, shadows=6)
    assert paid is None
    assert plan.attacks["rmia"].shadows == 6
    assert planned(run, None, scenario="update-watch")[1] is None


@pytest.fixture(scope="module")
def poor(run: Run) -> Audit:
    return Auditor(run).attack(budget="0.001s")


def test_a_budget_too_small_leaves_the_verdict_to_the_loss_threshold(
    poor: Audit,
) -> None:
    assert poor.headline.attack == "loss-threshold"
    assert len(poor.headline.clients) == 3
    assert poor.budget is not None
    advised = re.search(r"--budget (\S+),", poor.budget.sentence)
    assert advised is not None
    assert planned(poor.run, advised[1])[1].shadows >= LADDER[0]


def test_what_was_paid_for_is_written_and_read_back_and_shown(
    poor: Audit, capsys: pytest.CaptureFixture[str]
) -> None:
    save_audit(poor)
    again = restore_audit(read_audit(poor.run, SERVER))
    assert again.budget == poor.budget
    print_table([again])
    assert "does not pay for 8 shadow models" in " ".join(
        capsys.readouterr().out.split()
    )


def test_the_command_line_takes_a_budget(run: Run, cli: Cli, tmp_path: Path) -> None:
    words = ("attack", run.path, "--budget", "0.001s", "--quiet")
    code, out, _ = cli(*words)
    assert code == 0
    assert "does not pay" in out
    assert "Give one of the two" in refused(cli, *words, "--shadows", "8")


@pytest.mark.parametrize(
    "text", ["", "2", "2 m", "-1m", "0s", "99999999h", "1d", "nan"]
)
def test_a_budget_is_a_time(text: str) -> None:
    with pytest.raises(ConfigError, match="Use a time"):
        parse_budget(text)


def test_operations_are_those_of_the_matrix_products() -> None:
    import torch

    a, b = torch.ones(3, 5), torch.ones(5, 7)
    assert count_operations(lambda: a @ b) == 2 * 3 * 5 * 7


def test_sentences_say_what_it_takes() -> None:
    paid = ShadowBudget(120.0, 2.0, 10, 32)
    assert paid.sentence.startswith(
        "The budget of 2m pays for 32 shadow models of each"
    )
    unpaid = ShadowBudget(120.0, 60.0, 1, 0)
    assert "1 client" in unpaid.sentence
    assert "--budget 8.4m" in unpaid.sentence
    assert RATE > 0
