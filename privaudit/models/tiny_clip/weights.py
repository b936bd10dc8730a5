"""The weights' files: ``tiny-clip.safetensors``, ``.json`` and ``.jsonl``."""

from dataclasses import dataclass
from pathlib import Path

from privaudit.models.tiny_clip.architecture import build_model, configuration
from privaudit.models.tiny_clip.network import SmallCLIP
from privaudit.models.weight_files import EmbeddedWeights

NAME = "tiny-clip"
_VERSIONS = ("torch", "numpy", "pillow", "matplotlib", "scipy")


@dataclass(frozen=True)
class TinyClipLogLine:
    """One line of the training log.

    Attributes:
        step: Batches seen.
        loss: Of the last batch.
        seconds: Since the start.
        logit_scale: The temperature's inverse, after exp.
        accuracies: Zero-shot on drawn validation pictures, by set and template.
    """

    step: int
    loss: float
    seconds: float
    logit_scale: float
    accuracies: dict[str, float]


WEIGHTS = EmbeddedWeights(NAME, build_model, configuration, _VERSIONS)
save_weights, rounded, write_log = WEIGHTS.save, WEIGHTS.rounded, WEIGHTS.write_log


def load_weights(folder: Path) -> SmallCLIP:
    """Read the model from a folder: in evaluation mode, frozen, float32.

    Raises:
        MissingFileError: When one of its files is not there.
        ConfigError: When the weights are not those that the description names.
    """
    return WEIGHTS.load(folder)[0]
