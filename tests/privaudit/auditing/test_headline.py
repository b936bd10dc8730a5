"""The attack that a verdict is about, where nothing leaks and where records do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, train
from privaudit.attacks.rmia import Rmia
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.storage.load import read_audit
from privaudit.auditing.storage.restore import restore_audit
from privaudit.auditing.storage.save import save_audit
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
