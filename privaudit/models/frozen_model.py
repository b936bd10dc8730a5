"""Frozen models: what each answers, whatever it does and reads."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import numpy as np
from jaxtyping import Float, Int

from privaudit.core.devices import CPU
from privaudit.core.errors import ConfigError, PrivauditWarning
from privaudit.core.lazy_torch import Tensor, nn, torch
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.records import Records
from privaudit.models.clip.picture_preparation import Pictures
from privaudit.models.interfaces import Classifier, LanguageModel, Precision, Tower


class FrozenModel(ABC):
    """A model that is trained no further: trainers add to it.

    Attributes:
        name: As ``--model`` takes it.
        model_hash: SHA-256 of all weights.
        public_indices: The records of a data set that the model was trained on, where
            that is known; they are then nobody's.
        public_contents: SHA-256 of each, in hexadecimal; none of an earlier version's.
        data_hash: Of that data set.
        precision: Of its weights and forward passes.
    """

    name: str
    model_hash: str
    public_indices: tuple[int, ...] | None = None
    public_contents: tuple[str, ...] | None = None
    data_hash: str | None = None
    precision: Precision = "float32"

    @abstractmethod
    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int
    ) -> Classifier | LanguageModel:
        """Return what trainers see, bound to a data set's classes.

        Args:
            class_names: One for each class, by index.
            template: The hand-written prompt, with ``{}`` where a class name goes.
            context_tokens: Learned vectors in front of a class name.
        """

    @abstractmethod
    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return a data set's records as the model reads them, without their contents.

        With ``image_tokens`` a CLIP's local features of pictures are there too.
        """

    def encode(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return a data set's records as :meth:`read` does, with their contents.

        On the CPU, wherever the model is.
        """
        records = self.read(dataset, image_tokens=image_tokens).to(CPU)
        return replace(records, contents=dataset.contents)

    def known_records(self, dataset: Dataset) -> Int[np.ndarray, " known"] | None:
        """Return the records that the model was trained on, by contents or by hash."""
        if self.public_indices is None:
            return None
        if self.public_contents is not None:
            rows = (row.tobytes().hex() for row in dataset.contents.numpy())
            return np.flatnonzero(np.isin(list(rows), self.public_contents))
        if self.data_hash == dataset.hash:
            return np.asarray(self.public_indices, dtype=np.int64)
        said = f"Clients may own records that {self.name} has seen. Pretrain it again."
        warnings.warn(said, PrivauditWarning, stacklevel=2)
        return None


class TunableClassifier(FrozenModel):
    """A frozen transformer that is tuned to tell classes apart."""

    dim: int

    @abstractmethod
    def tower(self, class_names: tuple[str, ...], template: str) -> Tower:
        """Return the transformer behind classes of these names."""

    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int = 0
    ) -> Classifier:
        """Return what trainers see: no prompts, and texts that say nothing."""
        return Classifier(
            NoPrompts(),
            1.0,
            torch.zeros(len(class_names), self.dim),
            partial(self.tower, class_names, template),
        )


@dataclass(frozen=True)
class NoPrompts:
    """Stands where a classifier's prompts would, and has none."""

    context_tokens: int = 0
    width: int = 0

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Refuse."""
        raise ConfigError(
            "This model has no prompts before class names: it has a transformer of its "
            "own. Train it with fedpt."
        )


class WritingModel(FrozenModel):
    """A frozen model that writes texts."""

    language: LanguageModel

    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int = 0
    ) -> LanguageModel:
        """Return the language model: no class is bound to it."""
        return self.language


class PictureModel(FrozenModel):
    """A frozen model whose image tower makes tokens of pictures.

    Attributes:
        image_size: Side of a prepared picture, in pixels; None where embeddings of
            pictures are read.
        token_width: Numbers in a token.
    """

    image_size: int | None
    token_width: int

    @property
    @abstractmethod
    def description(self) -> str:
        """What beside the weights decides about tokens and features."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model runs."""

    @abstractmethod
    def preprocess_batch(self, pictures: Pictures) -> Float[Tensor, "n 3 size size"]:
        """Prepare pictures of one size (grey or RGB, bytes or floats from 0 to 1)."""

    @abstractmethod
    def encode_tokens(
        self, pictures: Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n tokens token_width"]:
        """Return each prepared picture's tokens."""

    def tokens_of_bank(
        self, embeddings: Float[Tensor, "n bank_width"]
    ) -> Float[Tensor, "n tokens token_width"]:
        """Refuse embeddings that an image tower made elsewhere: they have no parts."""
        raise ConfigError(
            f"Image tokens were requested from a bank of {len(embeddings)} pooled "
            "embeddings, which has none. Give the pictures, or use a method that "
            "needs no image tokens."
        )


class FeatureModel(PictureModel):
    """A frozen model with one feature of a whole picture."""

    dim: int

    @abstractmethod
    def encode_images(
        self, pictures: Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n dim"]:
        """Return each prepared picture's l2-normalised feature."""

    @abstractmethod
    def encode_bank(
        self, embeddings: Float[Tensor, "n bank_width"]
    ) -> Float[Tensor, "n dim"]:
        """Return the same for embeddings that an image tower made elsewhere."""


def weights_hash(*modules: nn.Module) -> str:
    """Return a SHA-256 over the names, types, shapes and bytes of all weights."""
    digest = sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            whole = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(whole.view(torch.uint8).numpy().data)
    return digest.hexdigest()
