"""Folders of aligned encoders: a pretrained text encoder, and a map of embeddings to it."""

from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.devices import CPU
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import MOST
from privaudit.models.clip.picture_preparation import Pictures
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.frozen_model import weights_hash
from privaudit.models.hugging_face import load_model, load_reader
from privaudit.models.registry import ModelRequest
from privaudit.models.weight_files import check_hash
from privaudit_tools.surrogate_clip.storage import Accuracies
from privaudit_tools.weight_files import (
    DescriptionFile,
    check_shapes,
    read_weights,
    readers_hash,
)

WEIGHTS, DESCRIPTION, ENCODER = "map.safetensors", "map.json", "encoder"
_REMEDY = "Restore the whole folder as it was written."


@options(frozen=True, config={"extra": "forbid"})
class MapSettings:
    """How the map is fitted.

    Attributes:
        public: Records of each class that it is fitted on, at most.
        ridge: Added to the Gram matrix's diagonal; embeddings have length 1.
        seed: Of the records drawn.
    """

    public: Annotated[int, Field(ge=2)] = 2
    ridge: Annotated[float, Field(gt=0)] = 0.3
    seed: Annotated[int, Field(ge=0)] = 0


@options(frozen=True)
class AlignedDescription:
    """What an aligned encoder is, and what it has seen.

    Attributes:
        sha256: Of the file with the map.
        encoder_hash: Of the text encoder's weights.
        public_split: The split that the public records are of; None where a share was
            drawn.
        bank_width: Numbers in an embedding.
        context_length: Tokens that a text may take.
        accuracies: Zero-shot, on records that it has not seen.
        public_indices: The records that it has seen; no client may own them.
        public_contents: SHA-256 of each; None of an earlier version.
        bits: It was trained in, portable or native; None of an earlier version.
        readers_hash: Of the model's other files; None of an earlier version.
    """

    sha256: str
    encoder_hash: str
    dataset: str
    data_hash: str
    class_names: tuple[str, ...]
    template: str
    public_split: str | None
    settings: MapSettings
    bank_width: Annotated[int, Field(ge=1, le=MOST)]
    context_length: Annotated[int, Field(ge=1, le=MOST)]
    threads: int
    versions: dict[str, str]
    accuracies: Accuracies
    public_indices: tuple[Annotated[int, Field(ge=0)], ...]
    public_contents: tuple[str, ...] | None = None
    bits: str | None = None
    readers_hash: str | None = None


FILE = DescriptionFile(
    DESCRIPTION,
    AlignedDescription,
    what="aligned encoder",
    command="aligned-clip --dataset NAME --encoder FOLDER",
    again="align",
)


class EmbeddingMap(nn.Module):
    """Centres embeddings, scales them to length 1, and maps them into the texts' space.

    Attributes:
        image_size: 0: it reads no pictures.
        centre: Mean of the public embeddings.
    """

    image_size = 0
    centre: Tensor
    matrix: Tensor

    def __init__(self, bank_width: int, dim: int) -> None:
        super().__init__()
        self.bank_width = bank_width
        self.register_buffer("centre", torch.zeros(bank_width))
        self.register_buffer("matrix", torch.zeros(bank_width, dim))

    def forward(self, embeddings: Float[Tensor, "n width"]) -> Float[Tensor, "n dim"]:
        """Return features, not l2-normalised."""
        return normalize(embeddings - self.centre, dim=1) @ self.matrix


class CentredTexts(nn.Module):
    """A text encoder's mean of tokens, of length 1, less the mean of all templates.

    What all texts share says nothing of a class, and would take up most of a cosine.

    Args:
        encoder: Of transformers.
        padding: Its tokenizer's id of padding.
    """

    centre: Tensor

    def __init__(self, encoder: Any, padding: int) -> None:
        super().__init__()
        self.transformer, self.padding = encoder, padding
        self.output_dim = int(encoder.config.hidden_size)
        self.register_buffer("centre", torch.zeros(self.output_dim))

    def forward(self, ids: Int[Tensor, "texts length"]) -> Float[Tensor, "texts dim"]:
        """Return features, not l2-normalised; columns that are all padding are left out."""
        real = ids != self.padding
        longest = int(real.sum(1).max())
        ids, real = ids[:, :longest], real[:, :longest]
        found = self.transformer(input_ids=ids, attention_mask=real.long())
        weights = real[..., None].to(found.last_hidden_state.dtype)
        means = (found.last_hidden_state * weights).sum(1) / weights.sum(1)
        return normalize(means, dim=1) - self.centre


class AlignedModel(nn.Module):
    """Both halves as open_clip names them.

    Attributes:
        context_length: Tokens that a text may take, with its context.
    """

    logit_scale: Tensor

    def __init__(
        self, encoder: Any, padding: int, bank_width: int, context_length: int
    ) -> None:
        super().__init__()
        self.text = CentredTexts(encoder, padding)
        self.visual = EmbeddingMap(bank_width, self.text.output_dim)
        self.context_length = context_length
        self.register_buffer("logit_scale", torch.zeros(()))

    def encode_image(
        self, embeddings: Float[Tensor, "n width"]
    ) -> Float[Tensor, "n dim"]:
        """Return features of embeddings, not l2-normalised."""
        found: Tensor = self.visual(embeddings)
        return found

    def encode_text(
        self, ids: Int[Tensor, "texts length"]
    ) -> Float[Tensor, "texts dim"]:
        """Return features of texts, not l2-normalised."""
        found: Tensor = self.text(ids)
        return found

    def fitted(self) -> dict[str, Tensor]:
        """Return all that was fitted: what is not of the text encoder."""
        state = self.state_dict()
        return {
            name: tensor.contiguous()
            for name, tensor in state.items()
            if not name.startswith("text.transformer.")
        }


class PaddedTexts:
    """A tokenizer of transformers as open_clip's are called."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str], context_length: int) -> Tensor:
        """Return ids of start, text and end, padded or cut to a length."""
        made = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=context_length,
            return_tensors="pt",
        )
        ids: Tensor = made["input_ids"]
        return ids


def load_encoder(source: str) -> tuple[Any, Any]:
    """Return a folder's text encoder, frozen, and its tokenizer.

    Raises:
        ConfigError: It is none of transformers, has two halves, or its tokenizer does
            not pad.
    """
    tokenizer = load_reader("AutoTokenizer", "text encoder", source)
    tokenizer.padding_side = "right"  # where the mean of tokens leaves it out
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"The tokenizer in {source} has no token for padding, by which texts of "
            "several lengths are told apart. Name an encoder such as MiniLM."
        )
    model = load_model("AutoModel", "text encoder", source, CPU, torch.float32)
    if model.config.is_encoder_decoder or not hasattr(model.config, "hidden_size"):
        raise ConfigError(
            f"The model in {source} is of type {model.config.model_type!r}, and texts are "
            "read by an encoder or decoder alone. Name an encoder such as MiniLM."
        )
    return model, tokenizer


def promptable(name: str, model: AlignedModel, tokenizer: Any) -> PromptableCLIP:
    """Return an aligned encoder as all other code takes it."""
    return PromptableCLIP(name, model, PaddedTexts(tokenizer), _refuse_pictures)


def _refuse_pictures(pictures: Pictures) -> Tensor:
    raise ConfigError(
        f"This encoder was aligned with a bank of embeddings, and was given "
        f"{len(pictures)} pictures. Use the data set of that bank."
    )


def load_aligned(request: ModelRequest) -> PromptableCLIP:
    """Load an aligned encoder, frozen; it says which records it has seen."""
    folder = Path(request.source)
    described = FILE.read(folder)
    content = read_weights(folder / WEIGHTS, described.sha256, _REMEDY)
    encoder, tokenizer = load_encoder(str(folder / ENCODER))
    check_hash(folder / ENCODER, weights_hash(encoder), described.encoder_hash, _REMEDY)
    if described.readers_hash is not None:
        found = readers_hash(folder / ENCODER)
        check_hash(folder / ENCODER, found, described.readers_hash, _REMEDY)
    sizes = described.bank_width, described.context_length
    with torch.device("meta"):  # no memory for weights
        announced = AlignedModel(encoder, tokenizer.pad_token_id, *sizes).fitted()
    check_shapes(folder / DESCRIPTION, announced, stored := load(content), _REMEDY)
    model = AlignedModel(encoder, tokenizer.pad_token_id, *sizes)
    model.load_state_dict(stored, strict=False)
    model = model.to(request.device)
    made = promptable(f"aligned:{folder}", model, tokenizer)
    made.public_indices = described.public_indices
    made.public_contents = described.public_contents
    made.data_hash = described.data_hash
    return made
