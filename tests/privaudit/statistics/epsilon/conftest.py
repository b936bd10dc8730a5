import numpy as np
import pytest

from tests.places import SHARED

GOLDEN = SHARED / "golden/audit_bounds.npz"


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """Bounds of jax_privacy's CanaryScoreAuditor, and one-run p-values."""
    if not GOLDEN.exists():
        pytest.skip("needs shared/golden/audit_bounds.npz beside the checkout")
    with np.load(GOLDEN, allow_pickle=False) as arrays:
        return dict(arrays)
