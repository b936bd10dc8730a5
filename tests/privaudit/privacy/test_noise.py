import math

import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.privacy.noise import noise_std_published
from tests.places import SHARED

GOLDEN = SHARED / "golden" / "rgp.npz"


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
