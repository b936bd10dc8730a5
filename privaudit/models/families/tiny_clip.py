"""tiny-clip, the CLIP that comes with the package."""

from torch import Tensor

from privaudit.models.clip.picture_preparation import Pictures, as_rgb
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.registry import MODELS, ModelFamily, ModelRequest
from privaudit.models.tiny_clip.loading import load
from privaudit.models.tiny_clip.preprocessing import preprocess_batch


def _load(asked: ModelRequest) -> PromptableCLIP:
    embedded = load()
    clip = embedded.model.to(asked.device)
    return PromptableCLIP(asked.name, clip, embedded.tokenizer, _prepare)


def _prepare(pictures: Pictures) -> Tensor:
    return preprocess_batch(as_rgb(pictures))


MODELS.register("tiny-clip")(ModelFamily("classification", _load, tuned=False))
