"""Cards from outside: what is verified, and where they stand to the curve."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, train
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError
from privaudit.report.export import export_public
from privaudit_tools.equal_utility.benchmark import BenchmarkResult, read_result
from privaudit_tools.equal_utility.page import blocks_of
from privaudit_tools.equal_utility.plan import BenchmarkPlan
from privaudit_tools.equal_utility.submissions import (
    SubmittedCard,
    read_submissions,
    submissions,
)
from tests.conftest import Cli, common_cache
from tests.tools.equal_utility.test_benchmark import PLAN, result

__all__ = ["result"]
OURS = PLAN.model_copy(update={"fields": {"clients": 3, "rounds": 2}})


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("submitted")
    with common_cache(tmp_path_factory):
        run = train(
            "promptfl", folder=folder, rounds=2, clients=3, randomness="system",
            settings={"epochs": 1},
        )  # fmt: skip
        save_audit(Auditor(run).attack(shadows=0))
    return export_public(run, folder / "card").folder


def card(utility: float, leak: float, key: str = "a" * 64) -> SubmittedCard:
    return SubmittedCard(
        key=key, trainer="mine", attack="rmia",
        utility=utility, leak=leak, certified={"server": 4.0},
    )  # fmt: skip


def test_cards_stand_where_they_were_put(result: BenchmarkResult) -> None:
    """At 0.85 the curve is a sixth of the way from 0.58 to 0.70: 0.60."""
    cards = [card(0.84, 0.50), card(0.85, 0.50), card(0.86, 0.53)]
    (found,) = submissions(cards, result.judged)
    assert found.distance is not None
    assert found.distance.value == pytest.approx(0.60 - 0.51, abs=0.003)
    assert found.where == "inside"
    assert found.distance.n == (3, 4)
    # Slope 2 a point of utility: the contrasts of cards are -.52, -.50, -.51.
    half = found.distance.high - found.distance.value
    assert half == pytest.approx(4.303 * 0.01 / np.sqrt(3), rel=0.15)


def test_two_cards_and_other_keys_have_no_distance(result: BenchmarkResult) -> None:
    cards = [card(0.84, 0.5), card(0.85, 0.5), card(0.86, 0.5, key="b" * 64)]
    found = submissions(cards, result.judged)
    assert [(one.cards, one.distance) for one in found] == [(2, None), (1, None)]
    with_them = result.model_copy(update={"cards": tuple(cards)})
    texts = str(blocks_of(with_them, "", ""))
    assert "From outside" in texts
    assert "takes 3 cards" in texts


def test_a_card_of_the_task_is_verified_and_added(
    exported: Path, tmp_path: Path, cli: Cli, result: BenchmarkResult
) -> None:
    stored = tmp_path / "small.json"
    seal = result.seal.model_copy(update={"digest": OURS.digest})
    told = result.model_copy(update={"plan": OURS, "seal": seal})
    stored.write_text(told.model_dump_json())
    cli.done("benchmark", stored, "--cards", exported.parent)
    (added,) = read_result(stored).cards
    assert added.trainer == "promptfl"
    assert 0 < added.utility <= 1
    assert added.guarantee == "one record, add/remove-one, δ 1e-5"
    cli.done("benchmark", stored)
    assert read_result(stored).cards == (added,)
    said = cli.refused("benchmark", tmp_path / "plan.toml", "--cards", exported)
    assert "cards are added to a result" in said


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"clients": 4}, "clients is 3"), ({"dataset": "cifar10"}, "dataset is digits")],
)
def test_a_card_of_another_task_is_refused(
    exported: Path, fields: dict[str, object], says: str
) -> None:
    plan: BenchmarkPlan = OURS.model_copy(update={"fields": OURS.fields | fields})
    with pytest.raises(ConfigError, match=f"not of this benchmark's task: {says}"):
        read_submissions(exported, plan, [])


def test_cards_that_are_changed_or_copied_or_of_nobody_are_refused(
    exported: Path, tmp_path: Path
) -> None:
    with pytest.raises(MissingFileError, match=r"There is no card\.json in"):
        read_submissions(tmp_path, OURS, [])
    for name in ("one", "two"):
        shutil.copytree(exported, tmp_path / name)
    # As if exported on two days: the files differ, and the run is one.
    path = tmp_path / "one" / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=3))
    with pytest.raises(ConfigError, match="a run counts once"):
        read_submissions(tmp_path, OURS, [])
    with pytest.raises(ConfigError, match="Add cards to a plan of utility = 'local'"):
        read_submissions(tmp_path, OURS.model_copy(update={"utility": "all"}), [])
    with pytest.raises(PrivauditError, match="not by"):
        read_submissions(tmp_path / "one", OURS, ["0" * 64])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"payload": "e30="}))
    with pytest.raises(PrivauditError):
        read_submissions(tmp_path / "one", OURS, [])
