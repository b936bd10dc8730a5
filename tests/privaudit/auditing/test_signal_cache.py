from pathlib import Path

import pytest
import torch
from torch import Tensor

from privaudit.auditing.signal_cache import SIGNATURE, SignalStore
from privaudit.core.storage import read_tensors, write_tensors


def test_a_table_is_found_by_what_it_is_about(tmp_path: Path) -> None:
    store = SignalStore(tmp_path / "signals", {"run": "a"})
    assert store.load(client="client-0", shadows=5) is None
    store.save({"x": torch.arange(3)}, client="client-0", shadows=5)
    found = store.load(client="client-0", shadows=5)
    assert found is not None
    assert torch.equal(found["x"], torch.arange(3))
    assert store.load(client="client-0", shadows=6) is None
    other = SignalStore(tmp_path / "signals", {"run": "b"})
    assert other.load(client="client-0", shadows=5) is None


def kept(folder: Path, **tensors: Tensor) -> tuple[SignalStore, Path]:
    """Return a store, and the file of the one table in it."""
    store = SignalStore(folder, {})
    store.save(tensors, client="a")
    (path,) = folder.glob("*.safetensors")
    assert store.load(client="a") is not None
    return store, path


def test_a_table_that_was_cut_or_of_which_a_number_was_altered_is_made_again(
    tmp_path: Path,
) -> None:
    store, path = kept(tmp_path, x=torch.arange(300))
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[whole.rindex(torch.tensor(299).numpy().tobytes())] ^= 1
    for damaged in (whole[:20], altered):
        path.write_bytes(damaged)
        assert store.load(client="a") is None


ALTERED: dict[str, dict[str, Tensor]] = {
    "type": {"x": torch.arange(12).view(torch.float64), "y": torch.zeros(4)},
    "no type of numpy": {
        "x": torch.arange(12).view(torch.bfloat16), "y": torch.zeros(4),
    },
    "shape": {"x": torch.arange(12).view(3, 4), "y": torch.zeros(4)},
    "bytes of another": {"x": torch.arange(12)[:0], "y": torch.arange(14)},
    "name": {"x": torch.arange(12), "z": torch.zeros(4)},
}  # fmt: skip


@pytest.mark.parametrize("what", ALTERED)
def test_a_table_of_altered_types_shapes_or_names_is_made_again(
    tmp_path: Path, what: str
) -> None:
    store, path = kept(tmp_path, x=torch.arange(12), y=torch.zeros(4))
    signed = {SIGNATURE: read_tensors(path)[SIGNATURE]}
    write_tensors(path, ALTERED[what] | signed)
    assert store.load(client="a") is None


def test_a_signature_of_another_type_or_shape_is_none(tmp_path: Path) -> None:
    store, path = kept(tmp_path, x=torch.arange(12))
    for other in (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(2, 0), None):
        found = {} if other is None else {SIGNATURE: other}
        write_tensors(path, {"x": torch.arange(12), **found})
        assert store.load(client="a") is None


def test_the_folder_is_private(tmp_path: Path) -> None:
    store = SignalStore(tmp_path / "signals", {})
    store.save({"x": torch.arange(3)}, client="a")
    assert (tmp_path / "signals").stat().st_mode & 0o777 == 0o700
