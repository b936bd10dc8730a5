"""Model folders of other people, checked before transformers reads them.

What config.json announces is allocated before the weights are looked at, so it is held
against the weights first.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch

from privaudit.core.bounded_files import open_regular, reading_errors
from privaudit.core.errors import ConfigError
from privaudit.core.limits import check_json, check_limit
from privaudit.core.storage import read_bytes

_PACKED = 8  # parameters in a byte, at most: what 1-bit weights would hold
_LAYERS = ("layers", "n_layer", "depth")  # how config.json names a number of layers


def check_folder(source: str) -> None:
    """Refuse pipes, devices, texts of extreme length and layers without weights.

    A name on the hub is left to the hub's client.

    Raises:
        MissingFileError: A file is none.
        LimitError: One besides the weights is larger than a bound.
        ConfigError: config.json announces more layers than the weights have tensors.
    """
    for path in _files(source):
        with reading_errors(path), open_regular(path) as file:
            size = file.seek(0, 2)
        if path.suffix != ".safetensors":
            check_limit("file", size, str(path))
    config = Path(source) / "config.json"
    if config.is_file() and (weights := _weights(source)):
        content = read_bytes(config)
        check_json(content, str(config))
        tensors = sum(map(_count_tensors, weights))
        for name, layers in _layers(json.loads(content)):
            if layers > tensors:
                raise ConfigError(
                    f"{config} says {name} = {layers:,}, and the weights beside it "
                    f"have {tensors:,} tensors. Restore the file."
                )


def check_size(source: str, build: Callable[[], Any]) -> None:
    """Refuse a configuration of a model far larger than the weights beside it.

    Args:
        source: A folder; a name on the hub is left to the hub's client.
        build: Makes the model of the configuration; called without memory for weights.

    Raises:
        ConfigError: It has more parameters than the bytes of the weights could hold.
    """
    if not (weights := _weights(source)):
        return
    with torch.device("meta"):
        announced = sum(p.numel() for p in build().parameters())
    stored = sum(path.stat().st_size for path in weights)
    if announced > _PACKED * stored:
        raise ConfigError(
            f"config.json in {source} describes a model of {announced:,} parameters, "
            f"and the weights are {stored:,} bytes. Restore the file."
        )


def _files(source: str) -> list[Path]:
    folder = Path(source)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in entries if not path.is_dir()]


def _weights(source: str) -> list[Path]:
    return [path for path in _files(source) if path.suffix == ".safetensors"]


def _count_tensors(path: Path) -> int:
    with safetensors.safe_open(path, "pt") as file:
        return len(file.keys())


def _layers(entries: Any) -> Iterator[tuple[str, int]]:
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if isinstance(entry, dict):
            yield from _layers(entry)
        elif isinstance(entry, int) and name.endswith(_LAYERS):
            yield name, entry
