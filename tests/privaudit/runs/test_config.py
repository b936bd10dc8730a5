import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.seeds import Seeds
from privaudit.datasets.partition import ByDomain, Dirichlet, Pathological
from privaudit.datasets.split import PUBLIC, TEST, Split, SplitSizes, split_records
from privaudit.runs.config import make_config, parameters_of

NOT_FINITE = pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf"])


@NOT_FINITE
@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        ("promptfl", "learning_rate"),
        ("promptfl", "momentum"),
        ("coop", "learning_rate"),
        *(
            ("dp-fpl", name)
            for name in (
                "learning_rate_global",
                "learning_rate_local",
                "epsilon",
                "delta",
                "clip_norm",
                "clip_local",
                "clip_global",
                "local_share",
            )
        ),
    ],
)
def test_a_trainers_parameters_are_finite(trainer: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"cannot take {name} = "):
        make_config(trainer, {name: value})


@NOT_FINITE
@pytest.mark.parametrize(
    "name", ["alpha", "participation", "test_share", "public_share"]
)
def test_a_runs_fields_are_finite(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"The run cannot take {name} = "):
        make_config("zero-shot", **{name: value})


def test_a_trainers_parameters_are_known_by_name() -> None:
    assert parameters_of("zero-shot") == frozenset()
    assert {"epsilon", "mode", "rank"} <= parameters_of("dp-fpl")
    with pytest.raises(UnknownNameError, match="Did you mean 'promptfl'"):
        parameters_of("promptlf")


def split(test_share: float, public_share: float) -> Split:
    return split_records(
        np.repeat(np.arange(10), 20),
        Dirichlet(100.0),
        SplitSizes(test_share, public_share),
        clients=2,
        seeds=Seeds(0),
    )


def test_a_split_needs_a_test_record_and_ten_public_ones() -> None:
    """Of 200 records, 0.002 are none; 0.045 are 9, and 0.05 are 10."""
    with pytest.raises(ConfigError, match=r"200 records leave 0 for tests"):
        split(0.002, 0.4)
    with pytest.raises(ConfigError, match=r"for tests and 9 public ones"):
        split(0.3, 0.045)
    assigned = split(0.005, 0.05)
    assert (len(assigned.of(TEST)), len(assigned.of(PUBLIC))) == (1, 10)


def test_no_public_record_is_for_runs_on_all_candidates_alone() -> None:
    for members in ("coin", "clients"):
        with pytest.raises(ConfigError, match="Attacks need reference records that no"):
            make_config("zero-shot", members=members, public_share=0)
    with pytest.raises(ConfigError, match="public_share = 0 was requested"):
        split(0.3, 0.0)
    with pytest.raises(ConfigError, match=r"cannot take public_share = -0\.1"):
        make_config("zero-shot", members="all", public_share=-0.1)


def test_runs_without_public_records_are_other_runs() -> None:
    """By hand: names of configurations that runs have since before there was a 0."""
    assert make_config("promptfl", seed=0).short_hash == "4b7b0f17"
    assert make_config("promptfl", members="all", seed=0).short_hash == "d38b0191"
    none = make_config("promptfl", members="all", public_share=0, seed=0)
    assert none.short_hash not in ("4b7b0f17", "d38b0191")


def test_an_infinite_concentration_is_refused() -> None:
    with pytest.raises(ValueError, match="finite number"):
        Dirichlet(math.inf)


def test_places_are_made_whole_since_a_run_is_read_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    config = make_config("zero-shot", data="pets", model="vit:folder")
    assert config.data == str(tmp_path / "pets")
    assert config.model == f"vit:{tmp_path / 'folder'}"
    assert make_config("zero-shot").data is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("shots", 0), ("members", "none"), ("test_share", 0), ("randomness", "dice")],
)
def test_options_have_their_ranges(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"The run cannot take {name} = "):
        make_config("zero-shot", **{name: value})


def test_each_partition_has_its_name() -> None:
    found = [
        make_config("zero-shot", partition=name, alpha=2.0).split()
        for name in ("dirichlet", "pathological", "domains")
    ]
    assert found == [Dirichlet(2.0), Pathological(), ByDomain(2.0)]


@pytest.mark.parametrize(("name", "value"), [("shards", 5), ("sizes", "power:2")])
def test_parameters_of_another_partition_are_refused(name: str, value: object) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"Add --partition {name}"):
        make_config("promptfl", **given)
    assert make_config("promptfl", partition=name, **given)


def test_sizes_and_tested_clients_are_checked() -> None:
    with pytest.raises(ConfigError, match="Use power:EXPONENT"):
        make_config("promptfl", partition="sizes", sizes="power")
    with pytest.raises(ConfigError, match="9 tested clients were requested"):
        make_config("promptfl", clients=4, tested_clients=9)
