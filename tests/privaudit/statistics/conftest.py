import numpy as np
import pytest
from hypothesis import settings

from tests.golden import golden as read_golden

# Wall-clock limits per example fail on a busy machine.
settings.register_profile("statistics", deadline=None, max_examples=50)
settings.load_profile("statistics")


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """DeLong, TPR at FPR and Clopper-Pearson by formula in float64, O(n m)."""
    return read_golden("roc")
