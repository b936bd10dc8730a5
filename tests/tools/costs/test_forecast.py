from dataclasses import replace
from typing import Any

import pytest

from privaudit.core import registry
from privaudit.core.errors import UnknownNameError
from privaudit.evaluation.sweep_runs import SweepRun
from privaudit.federation.masked_sum import SECURE_SUMS
from privaudit_tools.costs import forecast as module
from privaudit_tools.costs.forecast import forecast, forecasts


def run(trainer: str = "promptfl", seed: int = 1, **settings: Any) -> SweepRun:
    fields = {"clients": 2, "shots": 4, "rounds": 10, "seed": seed}
    return SweepRun(f"{trainer} {seed}", trainer, settings, fields, "", "")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a round of all clients take two seconds; collect what is timed."""
    names: list[str] = []

    def fake(one: SweepRun, _: str) -> tuple[float, bool]:
        names.append(one.label)
        return 2.0, one.trainer == "dp-fpl"

    monkeypatch.setattr(module, "_timed", fake)
    return names


def test_a_cost_is_rounds_times_a_timed_round(timed: list[str]) -> None:
    """Ten rounds of two seconds; five shadows of all clients replay one round each."""
    cost = forecast([run(seed=1), run(seed=2)], shadows=5)
    assert (cost.runs, cost.training, cost.attacks) == (2, 40.0, 20.0)
    assert str(cost) == "at most 1m on one core, 40s to train"
    assert timed == ["promptfl 1"]


def test_shadows_of_clients_with_a_state_replay_all_rounds(timed: list[str]) -> None:
    assert forecast([run("dp-fpl")], shadows=5).attacks == 100.0
    assert forecast([run("dp-fpl")], shadows=5, attacked=1).attacks == 50.0
    assert forecast([run("dp-fpl")], shadows=5, attacked=9).attacks == 100.0
    (twice,) = forecasts([run("dp-fpl")], shadows=5, looks=[2])
    assert twice.attacks == 200.0


def test_what_costs_the_same_is_timed_once(timed: list[str]) -> None:
    rates = [run(learning_rate=rate) for rate in (0.1, 0.2)]
    private = [run("dp-fpl", epsilon=one) for one in (1.0, 0.4, None)]  # None: no noise
    said: list[str] = []
    forecast([*rates, run(epochs=5), *private, run("dp-fpl")], progress=said.append)
    assert timed == ["promptfl 1", "promptfl 1", "dp-fpl 1", "dp-fpl 1"]
    assert said[-1] == "4/4 timed: dp-fpl 1, 2s a round"
    assert len(said) == 4


def test_nothing_is_timed_where_a_protocol_is_not_installed(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    masked = run()
    masked = replace(masked, fields={**masked.fields, "secure_aggregation": "masked"})
    forecast([run(), masked])
    assert len(timed) == 2
    monkeypatch.setattr(registry, "_entry_points", lambda group, path: ())
    monkeypatch.setattr(SECURE_SUMS, "_entries", {})
    with pytest.raises(
        UnknownNameError, match="privaudit-labs, which is not installed"
    ):
        forecast([run(), masked])
    assert len(timed) == 2


def test_a_round_is_really_timed() -> None:
    cost = forecast([run(epochs=1)])
    assert 0 < cost.training < 600
    assert cost.attacks == 0.0
