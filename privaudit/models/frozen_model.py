"""The frozen model of a run: loading it, and reading a data set with it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Int
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, Texts
from privaudit.datasets.records import Records
from privaudit.models.interfaces import Classifier, LanguageModel
from privaudit.models.language.captioning_loading import is_captioner
from privaudit.models.names import kind_of

if TYPE_CHECKING:
    from privaudit.models.clip.promptable_clip import PromptableCLIP
    from privaudit.models.language.captioning_vlm import CaptioningVLM
    from privaudit.models.transformers.text_writer import TextWriter
    from privaudit.models.transformers.tunable_classifiers import TunableClassifier

    FrozenModel = PromptableCLIP | CaptioningVLM | TunableClassifier | TextWriter


def load_frozen(
    name: str, *, checkpoint: str | None = None, targets: str = "all-linear"
) -> "FrozenModel":
    """Load a model.

    Args:
        name: As `privaudit list models` writes it.
        checkpoint: Its weights, where they are not its own or of a hub.
        targets: Names of the layers that are changed, with commas between; or all
            linear ones.

    Raises:
        UnknownNameError: There is none of that name.
        MissingFileError: Its files are not there.
        ConfigError: They cannot be used.
    """
    from privaudit.models.clip.loading import load_model
    from privaudit.models.language.captioning_loading import load_captioner
    from privaudit.models.transformers.tunable_loading import load_tunable

    if kind_of(name) is not None:
        if checkpoint:
            raise ConfigError(
                f"{name} has its own weights, and a checkpoint is given: {checkpoint}. "
                "Leave it out."
            )
        return load_tunable(name, targets=_layers(targets))
    if is_captioner(name):
        return load_captioner(name, targets=_layers(targets))
    if targets != "all-linear":
        raise ConfigError(
            f"Targets were named, and no layer of {name} is changed. Leave --targets "
            "out, or use a model that is tuned: `privaudit list models`."
        )
    return load_model(name, Path(checkpoint) if checkpoint else None)


def _layers(targets: str) -> Literal["all-linear"] | Sequence[str]:
    if targets == "all-linear":
        return "all-linear"
    return [name.strip() for name in targets.split(",")]


def backbone_of(
    model: "FrozenModel", dataset: Dataset, context_tokens: int
) -> Classifier | LanguageModel:
    """Return what trainers see of a model, bound to a data set's classes.

    Args:
        model: Whose.
        dataset: Names the classes.
        context_tokens: Of a prompt that is learned.
    """
    from privaudit.models.clip.promptable_clip import PromptableCLIP
    from privaudit.models.transformers.tunable_classifiers import TunableClassifier

    if isinstance(model, TunableClassifier):
        return model.classifier(dataset.class_names, dataset.template)
    if not isinstance(model, PromptableCLIP):
        return model.language
    return Classifier(
        model.prompts(dataset.class_names, context_tokens),
        model.logit_scale,
        model.template_features(dataset.class_names, dataset.template),
        partial(model.tower, dataset.class_names, dataset.template),
    )


def known_records(
    model: "FrozenModel", dataset: Dataset
) -> Int[np.ndarray, " known"] | None:
    """Return the records that the model was trained on, if it was on this data set."""
    if model.public_indices is None or model.data_hash != dataset.hash:
        return None
    return np.asarray(model.public_indices, dtype=np.int64)


def encode(
    model: "FrozenModel", dataset: Dataset, *, image_tokens: bool = False
) -> Records:
    """Return a data set's records as the model reads them.

    Args:
        model: Reads them.
        dataset: What is read.
        image_tokens: Whether a CLIP's local features of pictures are there too.

    Raises:
        ConfigError: The model cannot read them.
    """
    return replace(_encode(model, dataset, image_tokens), contents=dataset.contents)


def _encode(model: "FrozenModel", dataset: Dataset, image_tokens: bool) -> Records:
    from privaudit.models.clip.promptable_clip import PromptableCLIP
    from privaudit.models.transformers.text_writer import TextWriter
    from privaudit.models.transformers.tunable_classifiers import TunableClassifier

    if isinstance(model, TunableClassifier):
        return _encode_for_towers(model, dataset)
    if isinstance(model, TextWriter):
        words = model.words(dataset.dialogues)
        pictures, features = model.no_pictures(len(dataset)), model.features(words)
        return Records(features, dataset.labels, pictures, words, dataset.dialogues)
    if isinstance(model, PromptableCLIP):
        return _encode_pictures(model, dataset, image_tokens)
    return _encode_dialogues(model, dataset)


def _encode_pictures(
    model: "PromptableCLIP", dataset: Dataset, image_tokens: bool
) -> Records:
    from privaudit.models.feature_cache import cached_features, cached_tokens

    features, tokens = cached_features(model, dataset.pictures), None
    if image_tokens:
        tokens = cached_tokens(model, dataset.pictures)
    return Records(features, dataset.labels, tokens)


def _encode_for_towers(model: "TunableClassifier", dataset: Dataset) -> Records:
    """Return what the tuned transformer reads of each record: patches, or words."""
    from privaudit.models import feature_cache as cache
    from privaudit.models.transformers.picture_classifier import PictureClassifier
    from privaudit.models.transformers.text_classifier import TextClassifier

    if isinstance(model, TextClassifier):
        assert isinstance(dataset.images, Texts)
        words = model.words(dataset.images)
        features = cache.cached_text_features(model, dataset.images, words)
        return Records(features, dataset.labels, words=words)
    assert isinstance(model, PictureClassifier)
    features = cache.cached_features(model, dataset.pictures)
    tokens = cache.cached_tokens(model, dataset.pictures)
    return Records(features, dataset.labels, tokens)


def _encode_dialogues(model: "CaptioningVLM", dataset: Dataset) -> Records:
    """Return pictures as the language model reads them, and what is said of them."""
    from privaudit.models.feature_cache import cached_tokens

    tokens = cached_tokens(model, dataset.pictures)
    words = model.words(dataset.dialogues)
    features = normalize(tokens.mean(dim=1), dim=-1)
    return Records(features, dataset.labels, tokens, words, dataset.dialogues)
