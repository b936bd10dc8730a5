import math

import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.privacy.noise import noise_std_published
from tests.golden import golden


def test_the_published_standard_deviations_are_those_of_the_published_code() -> None:
    known = golden("rgp", "noise_")
    columns = [known[n].tolist() for n in ("eps", "delta", "T", "C", "B", "N")]
    got = [noise_std_published(*row) for row in zip(*columns, strict=True)]
    want = np.c_[known["std_local"], known["std_global"]]
    assert np.array(got) == pytest.approx(want, rel=1e-12)


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
