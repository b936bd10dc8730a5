from pathlib import Path

import torch

from privaudit.auditing.signals.signal_cache import SignalStore


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


def test_a_damaged_table_is_made_again(tmp_path: Path) -> None:
    store = SignalStore(tmp_path, {})
    store.save({"x": torch.arange(3)}, client="a")
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:20])
    assert store.load(client="a") is None


def test_a_table_with_one_number_altered_is_made_again(tmp_path: Path) -> None:
    store = SignalStore(tmp_path, {})
    store.save({"x": torch.arange(300)}, client="a")
    (path,) = tmp_path.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    place = content.rindex(torch.tensor(299).numpy().tobytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))
    assert store.load(client="a") is None


def test_the_folder_is_private(tmp_path: Path) -> None:
    store = SignalStore(tmp_path / "signals", {})
    store.save({"x": torch.arange(3)}, client="a")
    assert (tmp_path / "signals").stat().st_mode & 0o777 == 0o700
