from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from privaudit.core.errors import MissingFileError, TranscriptError
from privaudit.datasets.files.mapped_tensors import (
    join_rows,
    map_tensors,
    spilled,
    write_rows,
)

PARTS = [
    {
        "wide": torch.tensor([[3, 4]]),
        "short": torch.ones(1, 1, 1, dtype=torch.bfloat16),
    },
    {
        "wide": torch.tensor([[5, 6]]),
        "short": torch.ones(1, 2, 3, dtype=torch.bfloat16),
    },
    {"wide": torch.empty(0, 2).long(), "short": torch.ones(0, 9, 3).bfloat16()},
]


def test_safetensors_reads_what_is_written_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    write_rows(path, PARTS)
    found = load(path.read_bytes())
    assert found["wide"].tolist() == [[3, 4], [5, 6]]
    assert found["short"].shape == (2, 9, 3)
    assert found["short"].dtype == torch.bfloat16
    assert found["short"].flatten(1).sum(dim=1).tolist() == [1.0, 6.0]
    for name, joined in join_rows(PARTS).items():
        assert torch.equal(joined, found[name])
        assert torch.equal(joined, map_tensors(path)[name])


def test_no_rows_are_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", [{"rows": torch.empty(0, 5)}])
    assert map_tensors(tmp_path / "rows")["rows"].shape == (0, 5)


def test_what_is_no_whole_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with pytest.raises(MissingFileError, match="no rows"):
        map_tensors(path)
    path.write_bytes(b"\x08")
    with pytest.raises(TranscriptError, match="cut or altered"):
        map_tensors(path)


def test_large_tensors_are_spilled_into_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"a": torch.arange(6.0).view(3, 2), "b": torch.arange(3)}
    assert spilled(tensors, tmp_path / "signals") is tensors
    monkeypatch.setattr("privaudit.datasets.files.mapped_tensors._SPILLED", 10)
    found = spilled(tensors, tmp_path / "signals")
    assert found is not tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert not [*(tmp_path / "signals").iterdir()]
    assert "tensors.safetensors (deleted)" in Path("/proc/self/maps").read_text()
    (tmp_path / "file").write_text("")
    assert spilled(tensors, tmp_path / "file") is tensors
