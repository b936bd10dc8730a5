import numpy as np
import pytest
from hypothesis import settings

from tests.places import SHARED

# Wall-clock limits per example fail on a busy machine.
settings.register_profile("statistics", deadline=None, max_examples=50)
settings.load_profile("statistics")

GOLDEN = SHARED / "golden/roc.npz"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """DeLong, TPR at FPR and Clopper-Pearson by formula in float64, O(n m)."""
    if not GOLDEN.exists():
        pytest.skip("needs shared/golden/roc.npz beside the checkout")
    with np.load(GOLDEN, allow_pickle=False) as arrays:
        return dict(arrays)
