"""Models by name, ``KIND`` or ``KIND:SOURCE``; each kind is a family in ``families/``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from privaudit.core.devices import CPU, chosen_device
from privaudit.core.errors import ConfigError, UnknownNameError, not_installed
from privaudit.core.lazy_torch import torch
from privaudit.core.registry import Registry
from privaudit.datasets.named_places import is_named, located
from privaudit.models.frozen_model import FrozenModel
from privaudit.models.interfaces import Precision, TaskKind
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.precisions import Bits

FOLDER = ("FOLDER",)
FOLDER_OR_HUB = ("FOLDER_OR_HUB_NAME",)
APART = ("aligned", "language", "surrogate")  # of the package that writes their folders


@dataclass(frozen=True)
class ModelRequest:
    """Which model of a family is loaded, and how.

    Attributes:
        name: As ``--model`` takes it.
        checkpoint: Its weights, where the family takes a file of them.
        targets: Linear layers that may be changed: "all-linear", or names or endings
            of names.
        template: A chat template (Jinja) in place of the model's own, where the family
            takes one.
        dtype: Of its weights, where the family loads them in one.
        bits: Into which weights of linear layers are packed, if any.
    """

    name: str
    checkpoint: Path | None = None
    targets: TargetNames = "all-linear"
    template: str | None = None
    device: torch.device = field(default_factory=lambda: CPU)
    dtype: torch.dtype = field(default_factory=lambda: torch.float32)
    bits: Bits | None = None

    @property
    def source(self) -> str:
        """What stands behind the kind: a folder, say."""
        return self.name.partition(":")[2]


@dataclass(frozen=True)
class ModelFamily:
    """Models that are loaded alike.

    Attributes:
        task: Whether they classify or write.
        load: Loads one of them, frozen, or raises a MissingFileError or ConfigError.
            Code that comes with a model runs only where it is trusted, and no pickled
            weights are read.
        sources: What a SOURCE is, as lists write it; empty where there is one model.
        records: Whether they read pictures or texts.
        tuned: Whether trainers change their layers, and not only a prompt before
            class names.
        prompted: Whether they are tuned, and have such prompts, too.
        takes_checkpoint: Whether weights may come from a file beside.
        takes_template: Whether a chat template may be given.
        packs: Whether weights of linear layers may be packed into few bits.
    """

    task: TaskKind
    load: Callable[[ModelRequest], FrozenModel]
    sources: tuple[str, ...] = ()
    records: Literal["pictures", "texts"] = "pictures"
    tuned: bool = True
    prompted: bool = False
    takes_checkpoint: bool = False
    takes_template: bool = False
    packs: bool = False


MODELS: Registry[ModelFamily] = Registry(
    "model", "privaudit.models.families", "privaudit.models"
)


def list_models() -> Iterator[tuple[str, TaskKind]]:
    """Yield how names of models are written, and what those models do."""
    families = sorted(MODELS.usable().items(), key=lambda entry: entry[1].task)
    for kind, family in families:
        for source in family.sources or ("",):
            yield f"{kind}:{source}".rstrip(":"), family.task


def find_family(name: str) -> ModelFamily:
    """Return the family of a model.

    Raises:
        UnknownNameError: There is no such model.
        ConfigError: The name ends where a source is needed, or its kind is loaded by a
            package of the repository that is not installed.
    """
    kind, colon, source = name.partition(":")
    try:
        family = MODELS.find(kind)
    except UnknownNameError:
        family = None
    if family is None and kind in APART:
        raise ConfigError(
            not_installed(f"Models such as {name} are loaded by", "tools")
        )
    if family is None or bool(colon) != bool(family.sources):
        raise UnknownNameError("model", name, [known for known, _ in list_models()])
    if colon and not source:
        raise ConfigError(
            f"{name} names no model. Write {kind}:{family.sources[0]}, for example "
            f"{name}models/mine."
        )
    return family


def load_frozen(
    name: str,
    *,
    checkpoint: str | Path | None = None,
    targets: str | Sequence[str] = "all-linear",
    precision: Precision = "float32",
    template: str | None = None,
    quantise: Bits | None = None,
) -> FrozenModel:
    """Load a model to the chosen device.

    Args:
        name: As `privaudit list models` writes it.
        checkpoint: A .safetensors file, or a torch file of plain tensors.
        targets: Names or endings of names of the linear layers that are changed, a
            list or with commas between; or "all-linear", or "attention".
        precision: Of weights and forward passes.
        template: A chat template (Jinja) in place of the model's own.
        quantise: Into how many bits weights of linear layers are packed; None: not.

    Raises:
        UnknownNameError: There is none of that name.
        MissingFileError: Its files are not there, or could not be downloaded.
        ConfigError: They cannot be used, or an option does not go with the model.
    """
    family = find_family(name)
    if checkpoint and not family.takes_checkpoint:
        raise ConfigError(
            f"{name} has its own weights, and a checkpoint is given: {checkpoint}. "
            "Leave it out, or name the checkpoint's architecture: open_clip:ARCH."
        )
    if targets != "all-linear" and not family.tuned:
        raise ConfigError(
            f"Targets were named, and no layer of {name} is changed. Leave --targets "
            "out, or use a model that is tuned: `privaudit list models`."
        )
    if template is not None and not family.takes_template:
        raise ConfigError(
            f"A chat template was given, and {name} has no place for one. Leave "
            "--template out, or use a model such as vlm:FOLDER."
        )
    if quantise is not None and not family.packs:
        raise ConfigError(
            f"Weights of {quantise.removesuffix('bit')} bits were requested, and those "
            f"of {name} cannot be packed. Leave --quantise out, or use a model of "
            "transformers that is tuned, such as vlm:FOLDER or decoder:FOLDER."
        )
    file = located(checkpoint) if checkpoint else None
    kind, colon, source = name.partition(":")
    if is_named(source):
        name = f"{kind}{colon}{located(source)}"
    dtype: torch.dtype = getattr(torch, precision)
    device = chosen_device()
    model = family.load(
        ModelRequest(name, file, _layers(targets), template, device, dtype, quantise)
    )
    model.precision = precision
    return model


def _layers(targets: str | Sequence[str]) -> TargetNames:
    if targets == "all-linear" or targets == "attention":
        return targets
    if isinstance(targets, str):
        return [name.strip() for name in targets.split(",")]
    return targets
