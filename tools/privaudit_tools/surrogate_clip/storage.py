"""Surrogate CLIPs: small open_clip towers or a bank's projection, and their folders.

A folder holds the weights, and a description that says what they have seen.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from safetensors.torch import load
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import MOST
from privaudit.models.clip.picture_preparation import PicturePreparation, Pictures
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.text_tower import Tokenizer
from privaudit.models.clip.word_tokenizer import WordTokenizer
from privaudit.models.hugging_face import import_open_clip
from privaudit.models.registry import ModelRequest
from privaudit_tools.weight_files import DescriptionFile, check_shapes, read_weights

Model: TypeAlias = Any  # open_clip.CustomTextCLIP, which comes without types

_HEAD_WIDTH = 64
_MEAN, _DEVIATION = 0.5, 0.25


@options(frozen=True)
class BankShape:
    """Embeddings that another image tower made take the image tower's place."""

    width: Annotated[int, Field(ge=1, le=MOST)]
    kind: Literal["bank"] = "bank"


@options(frozen=True, config={"extra": "forbid"})
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

    size: Annotated[int, Field(ge=8, le=MOST)] = 32
    width: Annotated[int, Field(ge=2, le=MOST, multiple_of=2)] = 16
    blocks: Annotated[int, Field(ge=1, le=100)] = 1
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
    dim: Annotated[int, Field(ge=2, le=MOST)] = 128
    text_width: Annotated[int, Field(ge=4, le=MOST)] = 64
    text_layers: Annotated[int, Field(ge=1, le=100)] = 2
    text_heads: Annotated[int, Field(ge=1)] = 4

    def __post_init__(self) -> None:
        if self.text_width % self.text_heads:
            raise ConfigError(
                f"A text tower of width {self.text_width} has no {self.text_heads} heads "
                "of one size. Use a number that divides the width."
            )


class BankProjection(nn.Module):
    """Standardises embeddings and projects them: an image tower without pictures.

    Attributes:
        bank_width: Numbers in an embedding.
        image_size: 0: it reads no pictures.
        mean: Of each number, over the public records.
        deviation: Standard deviation of each number, likewise.
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


WEIGHTS, DESCRIPTION = "surrogate-clip.safetensors", "surrogate-clip.json"


@options(frozen=True, config={"extra": "forbid"})
class TextSettings:
    """How often texts are what.

    A text that is no template is a context of vectors in front of "name.", the same
    for all classes, as in prompt learning. The remaining share of contexts is drawn
    N(0, s^2) with s between 0.005 and 0.1, log-uniformly; prompt learning starts at
    0.02.

    Attributes:
        templates: Share of steps with a template for each class.
        words: Share of the other steps whose context are random words, jittered.
        jitter: Deviation of what is added to a word's vector.
        longest: Most vectors in a context; their number is uniform from 1.
    """

    templates: Annotated[float, Field(ge=0, le=1)] = 0.9
    words: Annotated[float, Field(ge=0, le=1)] = 0.5
    jitter: Annotated[float, Field(ge=0)] = 0.02
    longest: Annotated[int, Field(ge=1, le=16)] = 16


@options(frozen=True, config={"extra": "forbid"})
class VariationSettings:
    """How public records are varied.

    Attributes:
        dropout: Share of an embedding's numbers that are put to their means.
        smallest_crop: Side of the smallest crop, as a share of the picture's; 1 only
            shifts.
        shift: Largest shift, as a share of the side.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    smallest_crop: Annotated[float, Field(gt=0, le=1)] = 0.8
    shift: Annotated[float, Field(ge=0, lt=1)] = 0.125


@options(frozen=True, config={"extra": "forbid"})
class SurrogateSettings:
    """How to pretrain.

    Attributes:
        steps: Batches in all.
        batch: Pictures in a batch.
        learning_rate: Largest; rises over the warm-up and falls as a cosine to 0.
        warmup: Steps of linear rise.
        weight_decay: Of AdamW, on matrices and kernels only.
        tokens: Weight of the same loss on the mean of a picture's tokens, beside the
            loss on its pooled feature. Without it tokens say little of the class.
        log_every: Steps between lines of the log.
        seed: Every draw follows from it.
        texts: What the text tower reads.
        variation: What the image tower reads.
    """

    steps: Annotated[int, Field(ge=1)] = 600
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    warmup: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    tokens: Annotated[float, Field(ge=0)] = 1.0
    log_every: Annotated[int, Field(ge=1)] = 50
    seed: Annotated[int, Field(ge=0)] = 0
    texts: TextSettings = Field(default_factory=TextSettings)
    variation: VariationSettings = Field(default_factory=VariationSettings)


@options(frozen=True)
class SurrogateLogLine:
    """One line of the training log.

    Attributes:
        step: Batches seen so far.
        loss: Mean since the line before.
        seconds: Since training began.
        logit_scale: The temperature's inverse, after exp.
    """

    step: int
    loss: float
    seconds: float
    logit_scale: float


@options(frozen=True)
class Accuracies:
    """Zero-shot accuracies, from 0 to 1.

    They are measured when the training is over, and nothing is chosen by them.

    Attributes:
        records: How many were classified.
        template: With the data set's hand-written prompt.
        template_by_class: The same, as the mean of the classes' accuracies.
        random_context: Behind 16 vectors drawn N(0, 0.02^2): the mean of five draws.
        random_context_lowest: The lowest of these five.
    """

    records: int
    template: float
    template_by_class: float
    random_context: float
    random_context_lowest: float


@options(frozen=True)
class SurrogateDescription:
    """What a surrogate is, and what it has seen.

    Attributes:
        sha256: Of the file with the weights.
        dataset: Name of the data set.
        data_hash: Of the data set.
        class_names: That it has seen, by index.
        template: Hand-written prompt of the data set.
        public_split: The split it has seen; None where ``settings`` drew a share.
        public_indices: The records that it has seen; no client may own them.
        public_contents: SHA-256 of each; None of an earlier version.
        bits: It was trained in, portable or native; None of an earlier version.
        shape: How it is built.
        settings: How it was trained.
        threads: That torch trained with.
        versions: Of what it was trained with.
        vocabulary: Number of tokens that its tokenizer knows.
        context_length: Positions of its text tower.
        accuracies: Zero-shot, on records that it has not seen.
        log: How the training went.
    """

    sha256: str
    dataset: str
    data_hash: str
    class_names: tuple[str, ...]
    template: str
    public_split: str | None
    shape: SurrogateShape
    settings: SurrogateSettings
    threads: int
    versions: dict[str, str]
    accuracies: Accuracies
    log: tuple[SurrogateLogLine, ...]
    context_length: Annotated[int, Field(ge=1, le=MOST)]
    vocabulary: tuple[str, ...]
    public_indices: tuple[Annotated[int, Field(ge=0)], ...]
    public_contents: tuple[str, ...] | None = None
    bits: str | None = None


FILE = DescriptionFile(
    DESCRIPTION,
    SurrogateDescription,
    what="surrogate",
    command="surrogate-clip --dataset NAME",
    again="pretrain",
)


def load_surrogate(request: ModelRequest) -> PromptableCLIP:
    """Load a surrogate, frozen; it says which records it has seen."""
    folder = Path(request.source)
    description = FILE.read(folder)
    remedy = "Restore both files from one pretraining run."
    content = read_weights(folder / WEIGHTS, description.sha256, remedy)
    shape, length = description.shape, description.context_length
    sizes, stored = (len(description.vocabulary), length), load(content)
    with torch.device("meta"):  # no memory for weights
        announced = build_model(shape, *sizes).state_dict()
    check_shapes(folder / DESCRIPTION, announced, stored, remedy)
    model = build_model(shape, *sizes)
    model.load_state_dict(stored)
    tokenizer = WordTokenizer(description.vocabulary, length)
    model = model.to(request.device)
    made = promptable(f"surrogate:{folder}", model, tokenizer, shape)
    made.public_indices = description.public_indices
    made.public_contents = description.public_contents
    made.data_hash = description.data_hash
    return made
