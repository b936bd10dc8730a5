"""Pages of foreign runs that say less, and pictures that follow what they show."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

from privaudit.cli.serve.pages import run_page
from privaudit.cli.serve.served_runs import ServedRuns
from tests.privaudit.cli.serve.test_serve_attacked import save_scores

NAME = "mine"


@pytest.fixture
def served(tmp_path: Path) -> ServedRuns:
    save_scores(tmp_path / NAME, 1.5, 0)
    return ServedRuns(tmp_path)


def page_of(
    served: ServedRuns, lines: list[dict[str, Any]], patch: pytest.MonkeyPatch
) -> str:
    patch.setattr(type(served.load(NAME)), "metrics", property(lambda run: lines))
    return run_page(served, NAME)


def test_what_a_round_does_not_say_is_a_dash(
    served: ServedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ({"round": 0}, {"round": 0, "seconds": None, "training_loss": 0.5}):
        page = page_of(served, [line], monkeypatch)
        assert page.count("<td>\N{EN DASH}</td>") >= 4
        assert page.count("<section") == page.count("</section>")
        assert "<h2>Rounds</h2>" in page
    page = page_of(
        served, [{"round": 0, "seconds": 1.25, "bytes_up": 1000}], monkeypatch
    )
    assert "<td>1,000</td>" in page
    empty = page_of(served, [], monkeypatch)
    assert empty.count("<section") == empty.count("</section>")
    assert "No round is finished yet." in empty


def test_a_picture_follows_numbers_that_change_in_as_many_rounds(
    served: ServedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (
        page_of(served, [{"round": 0, "training_loss": loss}], monkeypatch)
        for loss in (0.5, 0.25)
    )
    assert "Training loss 0.5 in round 1" in first
    assert "Training loss 0.25 in round 1" in other


def test_an_audit_carries_the_stamp_of_the_files_it_was_read_from(
    served: ServedRuns,
) -> None:
    first = served.audit(NAME, "scores")
    assert first.stamp == served.audit(NAME, "scores").stamp != ()
    file = served.folder / NAME / "audits" / "scores" / "audit.json"
    os.utime(file, ns=(1, 1))
    assert served.audit(NAME, "scores").stamp != first.stamp
