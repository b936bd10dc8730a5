from pathlib import Path
from typing import Any

import numpy as np

from privaudit import Run
from privaudit.report.export import export_public
from privaudit.report.export.allow_list import AllowList
from privaudit.report.export.audits import recorded
from privaudit.statistics.guesses import success_rate
from tests.privaudit.report.export.conftest import make_small


def test_a_small_client_hides_the_figures_of_all(run: Run, tmp_path: Path) -> None:
    """By hand: the one small client would be the total less the others."""
    make_small(run, members=4)
    found = export_public(run, tmp_path / "out")
    results = found.card["audits"]["one-run"]["leaks"]
    assert "by_client" not in results["loss-threshold"]
    assert results["loss-threshold"]["auroc"]["n"][0] > 10
    assert "audits/one-run/audit.json/leaks/loss-threshold/by_client" in found.left.few


def test_what_a_few_records_would_follow_from_stays_behind(
    run: Run, tmp_path: Path
) -> None:
    """The peer attacks all but client-0: the difference to all is that client."""
    make_small(run, members=4)
    found = export_public(run, tmp_path / "out")
    assert found.card["audits"]["curious-peer"]["leaks"] == {}
    of_all = {"loss-threshold", "loss-threshold as black-box-labels"}
    assert set(found.card["audits"]["one-run"]["leaks"]) == of_all


def test_rounds_and_sources_leave_only_if_all_their_figures_are_on_many() -> None:
    def figure(*n: int) -> dict[str, Any]:
        return success_rate(np.ones(sum(n), bool), np.ones(sum(n), bool)).to_dict() | {
            "n": [*n]
        }

    entry = {"attack": "loss-threshold", "meaning": "this round's uploads alone"}
    rounds = [
        {**entry, "by_round": {"0": figure(30, 30), "1": figure(30, 30)}},
        {**entry, "by_round": {"0": figure(30, 30), "1": figure(30, 9)}},
    ]
    source = {"members": figure(30), "others": figure(9), "chance": 0.5}
    sieve = AllowList()
    contents = {"rounds": rounds, "source": source, "one_run": None}
    kept = recorded(contents, sieve, "audit.json")
    assert kept == {"rounds": rounds[:1], "source": None, "one_run": None}
    assert sieve.few == ["audit.json/rounds/1", "audit.json/source"]
    larger = {**source, "others": figure(10)}
    kept = recorded({"source": larger}, AllowList(), "audit.json")
    assert kept["source"] == larger
