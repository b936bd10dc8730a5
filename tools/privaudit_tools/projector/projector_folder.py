"""Folders of captioners for embeddings: language model, projector, what it has seen."""

import hashlib
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from safetensors.torch import load
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import MOST
from privaudit.models.frozen_model import weights_hash
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import DialogueTokens, chat_template
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import ModelRequest
from privaudit.models.transformers.text_writer import load_language
from privaudit.models.weight_files import check_hash
from privaudit_tools.weight_files import (
    DescriptionFile,
    check_shapes,
    read_weights,
    readers_hash,
)

WEIGHTS, DESCRIPTION, LANGUAGE = "projector.safetensors", "projector.json", "language"
_REMEDY = "Restore the whole folder as it was written."


@options(frozen=True, config={"extra": "forbid"})
class ProjectorSettings:
    """How to learn a projector.

    Attributes:
        parts: Tokens that an embedding becomes.
        learning_rate: Largest; rises over the first tenth and falls as a cosine to 0.
        weight_decay: Of AdamW, on the map's matrix.
    """

    parts: Annotated[int, Field(ge=1, le=MOST)] = 4
    steps: Annotated[int, Field(ge=1)] = 200
    batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    weight_decay: Annotated[float, Field(ge=0)] = 1.0
    log_every: Annotated[int, Field(ge=1)] = 25
    seed: Annotated[int, Field(ge=0)] = 0

    @property
    def warmup(self) -> int:
        """Steps of linear rise: the first tenth."""
        return max(1, self.steps // 10)


@options(frozen=True)
class ProjectorLogLine:
    """One line of the log.

    Attributes:
        step: Batches seen so far.
        loss: Mean since the line before, in nats per token.
        held_out: On the public captions that are held out.
        seconds: Since training began.
    """

    step: int
    loss: float
    held_out: float
    seconds: float


class Projector(nn.Module):
    """A linear map from an embedding to tokens."""

    def __init__(self, bank_width: int, parts: int, width: int) -> None:
        super().__init__()
        self.parts, self.width = parts, width
        # Straight onto the CPU's zeros: nothing is drawn from torch's global state.
        self.weight = nn.Parameter(torch.zeros(parts * width, bank_width))
        self.bias = nn.Parameter(torch.zeros(parts * width))

    def forward(
        self, embeddings: Float[Tensor, "n bank_width"]
    ) -> Float[Tensor, "n parts width"]:
        """Return the tokens of each embedding."""
        flat = embeddings.to(self.weight.dtype) @ self.weight.T + self.bias
        return flat.unflatten(1, (self.parts, self.width))


@options(frozen=True)
class Losses:
    """What the projector reaches on records that it has not seen, in nats per token.

    Attributes:
        records: How many captions the means are of.
        own: Each caption behind its own embedding.
        other: Each behind another record's: what is missing to ``own`` comes from the
            language alone.
    """

    records: int
    own: float
    other: float


@options(frozen=True)
class ProjectorDescription:
    """What a captioner is, and what it has seen.

    Attributes:
        sha256: Of the file with the projector's weights.
        language_hash: Of the language model's weights.
        public_split: The split it has seen; None where a share was drawn.
        losses: On records that it has not seen.
        public_indices: The records that it has seen; no client may own them.
        public_contents: SHA-256 of each; None of an earlier version.
        bits: It was trained in, portable or native; None of an earlier version.
        readers_hash: Of the model's other files; None of an earlier version.
    """

    sha256: str
    language_hash: str
    dataset: str
    data_hash: str
    public_split: str | None
    settings: ProjectorSettings
    template: str
    bank_width: Annotated[int, Field(ge=1, le=MOST)]
    threads: int
    versions: dict[str, str]
    losses: Losses
    log: tuple[ProjectorLogLine, ...]
    public_indices: tuple[Annotated[int, Field(ge=0)], ...]
    public_contents: tuple[str, ...] | None = None
    bits: str | None = None
    readers_hash: str | None = None


FILE = DescriptionFile(
    DESCRIPTION,
    ProjectorDescription,
    what="captioner",
    command="projector --language FOLDER --dataset NAME",
    again="learn the projector",
)


class BankCaptioner(CaptioningVLM):
    """A captioning model for embeddings that an image tower made elsewhere."""

    def __init__(
        self,
        name: str,
        projector: Projector,
        language: StackedLanguageModel,
        words: DialogueTokens,
        model_hash: str,
    ) -> None:
        self._projector, self.name = projector, name
        no_tower = PictureTower(self._refuse, self._refuse, 0, projector.parts, "")
        super().__init__(name, no_tower, language, words, model_hash)
        self.image_size = None

    @torch.no_grad()
    def tokens_of_bank(
        self, embeddings: Float[Tensor, "n bank_width"]
    ) -> Float[Tensor, "n parts width"]:
        """Return each embedding's tokens as the language model reads them.

        Raises:
            ConfigError: The embeddings have another size, or one of them is no
                picture's: all zero, or not finite.
        """
        width = self._projector.weight.shape[1]
        if embeddings.shape[1] != width:
            raise ConfigError(
                f"{self.name} reads embeddings of {width} numbers, and was given "
                f"embeddings of {embeddings.shape[1]}. Give those, or make a projector "
                "for these: privaudit pretrain projector."
            )
        empty = ~embeddings.isfinite().all(dim=1) | (embeddings == 0).all(dim=1)
        if empty.any():
            raise ConfigError(
                f"Record {int(empty.nonzero()[0])} has no picture: its embedding is "
                "zero or not finite. Give it one, or leave the record out."
            )
        tokens: Tensor = self._projector(embeddings.to(self.device))
        return tokens

    def _refuse(self, pictures: Tensor) -> Tensor:
        raise ConfigError(
            f"{self.name} reads embeddings of {self._projector.weight.shape[1]} numbers "
            "and no pictures. Give it a bank of embeddings, or use a model with an image "
            "tower."
        )


def load_captioner(request: ModelRequest) -> CaptioningVLM:
    """Load a captioner for embeddings, frozen; it says which records it has seen.

    Its prompt is the one that it was trained with, or what the request's chat template
    writes, with ``<image>`` where the picture goes.
    """
    folder, device = Path(request.source), request.device
    described = FILE.read(folder)
    content = read_weights(folder / WEIGHTS, described.sha256, _REMEDY)
    model, tokenizer = load_language(str(folder / LANGUAGE))
    digest = weights_hash(model)
    check_hash(folder / LANGUAGE, digest, described.language_hash, _REMEDY)
    if described.readers_hash is not None:
        found = readers_hash(folder / LANGUAGE)
        check_hash(folder / LANGUAGE, found, described.readers_hash, _REMEDY)
    model = model.to(device, request.dtype)
    language = StackedLanguageModel(model, tokenizer, request.targets)
    parts = described.settings.parts
    with torch.device("meta"):  # no memory for weights
        announced = Projector(described.bank_width, parts, language.width).state_dict()
    check_shapes(folder / DESCRIPTION, announced, stored := load(content), _REMEDY)
    projector = Projector(described.bank_width, parts, language.width)
    projector.load_state_dict(stored)
    projector = projector.requires_grad_(False).to(device)
    prompt = described.template
    if request.template is not None:
        prompt = chat_template(tokenizer, image="<image>", template=request.template)
    both = hashlib.sha256((described.sha256 + described.language_hash).encode())
    made = BankCaptioner(
        f"language:{folder}",
        projector,
        language,
        DialogueTokens(tokenizer, prompt, parts, language.context),
        both.hexdigest(),
    )
    made.public_indices = described.public_indices
    made.public_contents = described.public_contents
    made.data_hash = described.data_hash
    return made
