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
from privaudit.federated.runs.config import RunConfig
from privaudit.federated.trainer import Records
from privaudit.models.interfaces import Classifier, LanguageModel
from privaudit.models.language.captioning_loading import is_captioner
from privaudit.models.names import kind_of, reads_texts

if TYPE_CHECKING:
    from privaudit.models.clip.promptable_clip import PromptableCLIP
    from privaudit.models.language.captioning_vlm import CaptioningVLM
    from privaudit.models.transformers.text_writer import TextWriter
    from privaudit.models.transformers.tunable_classifiers import TunableClassifier

    FrozenModel = PromptableCLIP | CaptioningVLM | TunableClassifier | TextWriter


def refuse_mismatch(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a trainer, a model and a data set that do not go together.

    Raises:
        ConfigError: They do not.
    """
    reads, writes = config.build_trainer().reads, is_captioner(config.model)
    wanted = {"classes": False, "words": True}.get(reads, writes)
    if wanted != writes:
        kind = "answers in words" if writes else "classifies"
        other = "tiny-clip" if writes else "tiny-llava"
        raise ConfigError(
            f"{config.trainer} cannot train {config.model}, which {kind}. Take a model "
            f"such as {other}, or another trainer."
        )
    if reads == "classes" and kind_of(config.model) == "classifies":
        raise ConfigError(
            f"{config.trainer} learns prompts before class names, and {config.model} "
            "has no such prompts. Train it with fedpt, or take a model such as "
            "tiny-clip."
        )
    if writes and not dataset.dialogues:
        raise ConfigError(
            f"{config.model} answers questions in words, and {config.dataset} has none "
            "about its records. Take a data set with captions or questions, such as "
            "scenes."
        )
    texts, reader = isinstance(dataset.images, Texts), reads_texts(config.model)
    if texts != reader:
        has, takes = ("texts", "pictures") if texts else ("pictures", "texts")
        other = "one named encoder:" if texts else "tiny-clip or tiny-llava"
        raise ConfigError(
            f"{config.dataset} has {has}, and {config.model} takes {takes}. Take a "
            f"model that takes {has}, such as {other}, or another data set."
        )


def load_frozen(config: RunConfig) -> "FrozenModel":
    """Load a run's model.

    Raises:
        UnknownNameError: There is none of that name.
        MissingFileError: Its files are not there.
        ConfigError: They cannot be used.
    """
    from privaudit.models.clip.loading import load_model
    from privaudit.models.language.captioning_loading import load_captioner
    from privaudit.models.transformers.tunable_loading import load_tunable

    if kind_of(config.model) is not None:
        if config.checkpoint:
            raise ConfigError(
                f"{config.model} has its own weights, and a checkpoint is given: "
                f"{config.checkpoint}. Leave it out."
            )
        return load_tunable(config.model, targets=_targets(config))
    if is_captioner(config.model):
        return load_captioner(config.model, targets=_targets(config))
    if config.targets != "all-linear":
        raise ConfigError(
            f"Targets were named, and no layer of {config.model} is changed. Leave "
            "--targets out, or take a model that is tuned: `privaudit list models`."
        )
    checkpoint = Path(config.checkpoint) if config.checkpoint else None
    return load_model(config.model, checkpoint)


def _targets(config: RunConfig) -> Literal["all-linear"] | Sequence[str]:
    if config.targets == "all-linear":
        return "all-linear"
    return [name.strip() for name in config.targets.split(",")]


def backbone_of(
    config: RunConfig, model: "FrozenModel", dataset: Dataset
) -> Classifier | LanguageModel:
    """Return what trainers see of a model, bound to a data set's classes."""
    from privaudit.models.clip.promptable_clip import PromptableCLIP
    from privaudit.models.transformers.tunable_classifiers import TunableClassifier

    if isinstance(model, TunableClassifier):
        return model.classifier(dataset.class_names, dataset.template)
    if not isinstance(model, PromptableCLIP):
        return model.language
    return Classifier(
        model.prompts(dataset.class_names, config.context_tokens),
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


def encode(config: RunConfig, model: "FrozenModel", dataset: Dataset) -> Records:
    """Return a data set's records as the model reads them.

    Raises:
        ConfigError: The model cannot read them.
    """
    return replace(_encode(config, model, dataset), contents=dataset.contents)


def _encode(config: RunConfig, model: "FrozenModel", dataset: Dataset) -> Records:
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
        return _encode_pictures(config, model, dataset)
    return _encode_dialogues(model, dataset)


def _encode_pictures(
    config: RunConfig, model: "PromptableCLIP", dataset: Dataset
) -> Records:
    from privaudit.models.feature_cache import cached_features, cached_tokens

    features, tokens = cached_features(model, dataset.pictures), None
    if config.build_trainer().image_tokens:
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
