"""No epsilon where the records that are left out may follow from the data."""

from pathlib import Path
from typing import Any

from privaudit import Auditor, train
from privaudit.datasets.split import write_positions
from privaudit.report.report_data import KEPT, NOT_PROVED, Findings
from privaudit.runs.round_metrics import certify_again


def test_nothing_is_proved_of_a_list_that_may_follow_from_the_data(
    tmp_path: Path,
) -> None:
    asked: dict[str, Any] = {"seed": 0,
        "rounds": 1, "clients": 2, "shots": 12, "randomness": "system",
        "epsilon": 8.0, "steps": 2, "batch_size": 5,
    }  # fmt: skip
    events: list[object] = []
    whole = train("dp-promptfl", folder=tmp_path, **asked)
    gone = write_positions(whole.ledger.candidates_of(0)[:4])
    less = train(
        "dp-promptfl", folder=tmp_path, without=gone, watcher=events.append, **asked
    )
    badges = [
        Findings(Auditor(run).attack(is_logged=False, shadows=0)).promise
        for run in (whole, less)
    ]
    assert badges == [KEPT, NOT_PROVED]
    for proved in less.privacy["certified"].values():
        assert proved["epsilon"] is None
        assert "may follow from the data" in proved["why"]
    assert certify_again(less) == less.privacy
    assert {getattr(one, "epsilon", {}).get("server") for one in events} == {None}
