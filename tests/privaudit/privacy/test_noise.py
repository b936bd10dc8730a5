import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from privaudit.errors import ConfigError
from privaudit.privacy.noise import gaussian, noise_std_published
from privaudit.seeds import Seeds

GOLDEN = Path(__file__).parents[4] / "shared" / "golden" / "rgp.npz"


def test_seeded_noise_has_the_standard_deviation_and_can_be_repeated() -> None:
    draws = gaussian((100, 200), 3.0, Seeds(0).stream("noise"))
    again = gaussian((100, 200), 3.0, Seeds(0).stream("noise"))
    assert torch.equal(draws, again)
    assert draws.std().item() == pytest.approx(3.0, rel=0.03)


def test_noise_is_gaussian_and_goes_on() -> None:
    stream = Seeds(0).stream("noise")
    draws = gaussian((100, 200), 3.0, stream, torch.float64)
    assert kstest(draws.flatten().numpy() / 3.0, "norm").pvalue > 1e-6
    assert not torch.equal(draws, gaussian((100, 200), 3.0, stream, torch.float64))


def test_noise_has_the_shape_and_type_that_was_asked_for() -> None:
    stream = Seeds(0).stream("noise")
    assert gaussian((), 1.0, stream).shape == ()
    assert gaussian((2, 0), 1.0, stream).shape == (2, 0)
    assert gaussian((2, 3), 1.0, stream).dtype == torch.float32
    assert gaussian((2, 3), 0.0, Seeds(0).stream("noise")).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("std", [-1.0, math.inf, math.nan])
def test_noise_without_a_finite_standard_deviation_is_refused(std: float) -> None:
    with pytest.raises(ConfigError, match="standard deviation"):
        gaussian((2,), std, Seeds(0).stream("noise"))


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"needs {GOLDEN.name} of ../shared")
def test_the_published_standard_deviations_are_those_of_the_published_code() -> None:
    with np.load(GOLDEN, allow_pickle=False) as archive:
        names = ("eps", "delta", "T", "C", "B", "N")
        columns = [archive[f"noise_{name}"].tolist() for name in names]
        local, global_ = archive["noise_std_local"], archive["noise_std_global"]
    got = [noise_std_published(*row) for row in zip(*columns, strict=True)]
    assert np.array(got) == pytest.approx(np.c_[local, global_], rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("rounds", 0),
        ("clip_norm", 0.0),
        ("batch_size", 0),
        ("clients", 0),
    ],
)
def test_a_published_value_outside_its_range_is_refused(
    field: str, value: float
) -> None:
    settings: dict[str, float] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "rounds": 100,
        "clip_norm": 10.0,
        "batch_size": 32,
        "clients": 10,
    }
    with pytest.raises(ConfigError, match=field.split("_")[0]):
        noise_std_published(**(settings | {field: value}))  # type: ignore[arg-type]
