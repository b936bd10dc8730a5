"""The surrogate's architecture: small open_clip towers, or a bank's projection."""

from typing import Annotated, Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.models.clip.picture_preparation import PicturePreparation, Pictures
from privaudit.models.clip.prompt_tokens import Tokenizer
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.torchvision_shim import import_open_clip

Model: TypeAlias = Any  # open_clip.CustomTextCLIP, which comes without types

_HEAD_WIDTH = 64
_MEAN, _DEVIATION = 0.5, 0.25


@options(frozen=True)
class BankShape:
    """Embeddings that another image tower made take the image tower's place."""

    width: Annotated[int, Field(ge=1)]
    kind: Literal["bank"] = "bank"


@options(frozen=True)
class ResNetShape:
    """open_clip's ModifiedResNet, small, with a stem that keeps small pictures whole.

    The tower shrinks a picture by 8 times ``stem``; the map that remains has one token
    at each position.

    Attributes:
        size: Side of the pictures in pixels: a multiple of 8 * stem.
        width: Channels after the stem; the map has 32 times as many.
        blocks: In each of the four stages.
        stem: What the stem shrinks by: 4 is open_clip's own, 2 leaves out its average
            pool, 1 its first stride as well.
    """

    size: Annotated[int, Field(ge=8)] = 32
    width: Annotated[int, Field(ge=2, multiple_of=2)] = 16
    blocks: Annotated[int, Field(ge=1)] = 1
    stem: Literal[1, 2, 4] = 1
    kind: Literal["resnet"] = "resnet"

    def __post_init__(self) -> None:
        if self.size % (8 * self.stem):
            raise ConfigError(
                f"Pictures of {self.size} pixels do not shrink by {8 * self.stem}, as "
                f"a stem of {self.stem} does. Use a size that is a multiple of it."
            )


@options(frozen=True)
class SurrogateShape:
    """How a surrogate is built.

    Attributes:
        image: What makes image features.
        dim: Of the space that pictures and texts share.
        text_width: Of a token, and so of a context vector.
        text_layers: Of the causal text tower.
        text_heads: In each layer; they divide the width.
    """

    image: Annotated[BankShape | ResNetShape, Field(discriminator="kind")]
    dim: Annotated[int, Field(ge=2)] = 128
    text_width: Annotated[int, Field(ge=4)] = 64
    text_layers: Annotated[int, Field(ge=1)] = 2
    text_heads: Annotated[int, Field(ge=1)] = 4


class BankProjection(nn.Module):
    """Standardises embeddings and projects them: an image tower without pictures.

    Attributes:
        bank_width: Of an embedding.
        image_size: 0: it reads no pictures.
        mean: Of each number, over the public records.
        deviation: Of each number.
    """

    image_size = 0
    mean: Tensor
    deviation: Tensor

    def __init__(self, bank_width: int, dim: int) -> None:
        super().__init__()
        self.bank_width = bank_width
        self.register_buffer("mean", torch.zeros(bank_width))
        self.register_buffer("deviation", torch.ones(bank_width))
        self.projection = nn.Linear(bank_width, dim, bias=False)

    def forward(self, embeddings: Float[Tensor, "n width"]) -> Float[Tensor, "n dim"]:
        """Return features, not l2-normalised."""
        return self.projection((embeddings - self.mean) / self.deviation)


def build_model(
    shape: SurrogateShape, vocabulary_size: int, context_length: int, seed: int = 0
) -> Model:
    """Build the model at random weights.

    open_clip draws them from torch's global state, which is put back afterwards.
    ``context_length`` is the text tower's number of positions.
    """
    text = {
        "context_length": context_length,
        "vocab_size": vocabulary_size,
        "width": shape.text_width,
        "heads": shape.text_heads,
        "layers": shape.text_layers,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = import_open_clip().CustomTextCLIP(
            embed_dim=shape.dim, vision_cfg=_vision(shape.image), text_cfg=text
        )
        if isinstance(shape.image, BankShape):
            model.visual = BankProjection(shape.image.width, shape.dim)
        else:
            _keep_resolution(model.visual, shape.image)
    return model


def preparation(shape: ResNetShape) -> PicturePreparation:
    """Return what turns pictures of any size into what the tower reads."""
    return PicturePreparation(shape.size, (_MEAN,) * 3, (_DEVIATION,) * 3)


def promptable(
    name: str, model: Model, tokenizer: Tokenizer, shape: SurrogateShape
) -> PromptableCLIP:
    """Return a surrogate as all other code takes it."""
    image = shape.image
    prepare = _refuse_pictures if isinstance(image, BankShape) else preparation(image)
    return PromptableCLIP(name, model, tokenizer, prepare)


def _refuse_pictures(pictures: Pictures) -> Tensor:
    raise ConfigError(
        f"This surrogate was aligned with a bank of embeddings, and was given "
        f"{len(pictures)} pictures. Use the data set of that bank, or pretrain a "
        "surrogate from pictures."
    )


def _vision(shape: BankShape | ResNetShape) -> dict[str, Any]:
    if isinstance(shape, BankShape):  # the smallest, to be replaced
        return {"image_size": 1, "patch_size": 1, "layers": 1, "width": _HEAD_WIDTH}
    return {
        "layers": [shape.blocks] * 4,
        "width": shape.width,
        "head_width": min(_HEAD_WIDTH, 32 * shape.width),
        "image_size": shape.size * 4 // shape.stem,  # sets the attention pool's grid
    }


def _keep_resolution(tower: Any, shape: ResNetShape) -> None:
    tower.image_size = shape.size
    if shape.stem < 4:
        tower.avgpool = nn.Identity()
    if shape.stem < 2:
        tower.conv1.stride = (1, 1)
