"""Reference vectors, not in the repository; a test that needs some is skipped without."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.places import SHARED


def golden(name: str, prefix: str = "") -> dict[str, np.ndarray]:
    """Return a file's arrays whose names begin so, by the rest of their names."""
    path = SHARED / "golden" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs reference vectors, not in the repository: {name}.npz")
    with np.load(path, allow_pickle=False) as stored:
        names = [each for each in stored.files if each.startswith(prefix)]
        return {each.removeprefix(prefix): stored[each] for each in names}


def golden_tensors(name: str, prefix: str = "") -> dict[str, Tensor]:
    """Return the same as tensors."""
    arrays = golden(name, prefix)
    return {each: torch.from_numpy(np.asarray(arrays[each])) for each in arrays}
