"""The weights' files: written atomically, checked by hash when they are read."""

import hashlib
import importlib.metadata
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter
from safetensors.torch import load, save
from torch import Tensor

from privaudit.errors import ConfigError, MissingFileError
from privaudit.models.tiny_llava.architecture import Model, build_model, configuration
from privaudit.storage import write_bytes

NAME = "tiny-llava"
_VERSIONS = ("torch", "transformers", "open-clip-torch", "numpy", "scipy")


@dataclass(frozen=True)
class Record:
    """One line of the training log.

    Attributes:
        stage: "looking" trains the image tower, "speaking" all of the model.
        step: Batches seen in this stage.
        loss: Mean over the steps since the last line, in nats per word; of
            "looking", see its module.
        seconds: Since the start.
        accuracies: On drawn validation scenes, by question; none for "looking".
    """

    stage: Literal["looking", "speaking"]
    step: int
    loss: float
    seconds: float
    accuracies: dict[str, float]


def save_weights(model: Model, out: Path, settings: Any, record: Record) -> None:
    """Write the weights in half precision, and what they are.

    Args:
        model: Whose weights.
        out: Folder to write to; made if missing.
        settings: The pydantic dataclass with which it was trained.
        record: The log's line at this moment.
    """
    out.mkdir(parents=True, exist_ok=True)
    content = save({name: _stored(t) for name, t in model.state_dict().items()})
    description = {
        "name": NAME,
        "sha256": hashlib.sha256(content).hexdigest(),
        "configuration": configuration(),
        "settings": TypeAdapter(type(settings)).dump_python(settings, mode="json"),
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONS},
        "last": asdict(record),
    }
    write_bytes(out / f"{NAME}.safetensors", content)
    write_bytes(
        out / f"{NAME}.json", (json.dumps(description, indent=2) + "\n").encode()
    )


def rounded(model: Model) -> Model:
    """Copy a model to the precision in which it is stored, frozen, for evaluation."""
    copy = build_model()
    state = model.state_dict()
    copy.load_state_dict({name: _loaded(_stored(t)) for name, t in state.items()})
    return copy.eval().requires_grad_(False)


def write_log(log: list[Record], out: Path) -> None:
    """Write the training log, one JSON object a line."""
    lines = "".join(json.dumps(asdict(record)) + "\n" for record in log)
    write_bytes(out / f"{NAME}.jsonl", lines.encode())


def load_weights(folder: Path) -> tuple[Model, str]:
    """Read the model, frozen and for evaluation, and the SHA-256 of its weights.

    Raises:
        MissingFileError: When one of its files is not there.
        ConfigError: When the weights are not those that the description names.
    """
    content = _read(folder / f"{NAME}.safetensors")
    description = json.loads(_read(folder / f"{NAME}.json"))
    found, wanted = hashlib.sha256(content).hexdigest(), description["sha256"]
    if found != wanted:
        raise ConfigError(
            f"{folder / NAME}.safetensors should have the SHA-256 {wanted[:12]}…, and "
            f"has {found[:12]}…. Restore both files from one pretraining run."
        )
    model = build_model()
    model.load_state_dict({n: _loaded(t) for n, t in load(content).items()})
    return model.eval().requires_grad_(False), found


def _stored(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().contiguous()
    return tensor.half() if tensor.is_floating_point() else tensor


def _loaded(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise MissingFileError(
            f"The embedded model needs {path}, which is not there. Reinstall "
            f"privaudit, or run: privaudit pretrain {NAME}."
        )
    return path.read_bytes()
