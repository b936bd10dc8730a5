import numpy as np
import pytest

from tests.golden import golden as read_golden


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """Bounds of jax_privacy's CanaryScoreAuditor, and one-run p-values."""
    return read_golden("audit_bounds")
