"""Signals of shadow models are found again only where they would come out the same."""

from pathlib import Path

import pytest

from privaudit import load_run
from privaudit.auditing.played_scenario import store_beside


@pytest.mark.parametrize(
    "other",
    [{"bits": "portable", "builds": {}}, {"bits": "native", "builds": {"a": "1"}}],
)
def test_signals_of_other_bits_or_builds_are_not_taken(
    whole: Path, other: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit would say that it was computed in bits that its numbers do not have."""

    def named() -> object:
        store = store_beside(load_run(whole), ("server",), 0)
        assert store is not None
        return store.context

    here = "privaudit.auditing.played_scenario.computed_with"
    monkeypatch.setattr(here, lambda: {"bits": "native", "builds": {}})
    before = named()
    assert named() == before
    monkeypatch.setattr(here, lambda: other)
    assert named() != before
