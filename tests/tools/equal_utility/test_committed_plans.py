"""The plans of docs/benchmark: every one can be run, on its weights or in small."""

import re
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit_tools.equal_utility.benchmark import entries_of
from privaudit_tools.equal_utility.plan import read_benchmark_plan
from tests.conftest import Cli
from tests.places import ROOT
from tests.small_vlms import save_vlm

PLANS = sorted((ROOT / "docs" / "benchmark").glob("*.toml"))
PLACE = re.compile(r"\$(PRIVAUDIT_\w+)/([^\"]+)")
FIELDS = re.compile(r"^\[fields\]\n(?:.+\n)+", re.MULTILINE)
SIZES = {"clients": 2, "rounds": 2, "tested": 4}
IN_SMALL: dict[str, dict[str, Any]] = {
    "gpu-clip": {"dataset": "digits", "shots": 2, **SIZES},
    "gpu-llava": {"dataset": "scenes", "shots": 1, "measured_rounds": "none", **SIZES},
}


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in PLANS:
        for variable, place in PLACE.findall(path.read_text()):
            monkeypatch.setenv(variable, str(tmp_path))
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            if Path(place).suffix in (".pt", ".json"):
                (tmp_path / place).touch()
            else:
                (tmp_path / place).mkdir(exist_ok=True)


@pytest.mark.usefixtures("somewhere")
@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_has_valid_runs_and_seeds_kept_apart(path: Path) -> None:
    plan = read_benchmark_plan(path)
    runs = entries_of(plan, plan.tuning_seeds)
    assert not plan.quick or entries_of(plan.quickly, plan.quickly.tuning_seeds)
    assert len({entry.run.short_hash for entry in runs}) >= 0.9 * len(runs)
    assert any(method.control for method in plan.methods)
    assert all(len(method.values) <= 4 for method in plan.methods)
    rounds = max(entry.run.fields.get("rounds", 1) for entry in runs)
    assert plan.reference.stops[-1] <= rounds


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVAUDIT_WEIGHTS", raising=False)
    plan = read_benchmark_plan(ROOT / "docs" / "benchmark" / "sentences.toml")
    with pytest.raises(ConfigError, match=r"not set: PRIVAUDIT_WEIGHTS \("):
        entries_of(plan, [1])


@pytest.mark.slow
@pytest.mark.usefixtures("few_scenes")
@pytest.mark.parametrize("name", ["gpu-clip", "gpu-llava"])
def test_the_check_of_a_plan_for_a_gpu_trains_its_rows_in_small(
    name: str, tmp_path: Path, cli: Cli
) -> None:
    """A round of each kind of run; the captioner has the published layout."""
    fields = IN_SMALL[name]
    if name == "gpu-llava":
        fields = {**fields, "model": save_vlm(tmp_path / "model", "llava_onevision")}
    written = "".join(f"{key} = {value!r}\n" for key, value in fields.items())
    text = (ROOT / "docs" / "benchmark" / f"{name}.toml").read_text()
    text = FIELDS.sub(f"[fields]\n{written}", text).replace(
        "rounds = 100", "rounds = 2"
    )
    path = tmp_path / "plan.toml"
    text = text.replace("values = [2, 4]", "values = [1]")  # it has two layers
    path.write_text(re.sub(r"stops = .*", "stops = [1, 2]", text))
    said = cli.done("benchmark", path, "--check")
    assert re.search(r"\d+ runs, at most .* on one core", said)
