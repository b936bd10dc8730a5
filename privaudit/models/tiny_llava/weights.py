"""The weights' files: ``tiny-llava.safetensors``, ``.json`` and ``.jsonl``."""

from dataclasses import dataclass
from typing import Literal

from privaudit.models.tiny_llava.architecture import build_model, configuration
from privaudit.models.weight_files import EmbeddedWeights

NAME = "tiny-llava"
_VERSIONS = ("torch", "transformers", "numpy", "scipy")


@dataclass(frozen=True)
class TinyLlavaLogLine:
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


WEIGHTS = EmbeddedWeights(NAME, build_model, configuration, _VERSIONS)
save_weights, rounded = WEIGHTS.save, WEIGHTS.rounded
write_log, load_weights = WEIGHTS.write_log, WEIGHTS.load
