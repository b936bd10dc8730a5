"""From a data set's name to a surrogate in a folder: what the command line calls."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import readable
from privaudit.core.storage import make_private_folder, write_bytes
from privaudit.datasets.dataset import VALIDATION, Dataset, FeatureBank
from privaudit.datasets.sources import load_dataset
from privaudit_tools.surrogate_clip.public_split import (
    PublicRecords,
    contents,
    drawn_records,
    unseen_records,
    validation_records,
)
from privaudit_tools.surrogate_clip.storage import (
    FILE,
    WEIGHTS,
    BankShape,
    ResNetShape,
    SurrogateDescription,
    SurrogateLogLine,
    SurrogateSettings,
    SurrogateShape,
    promptable,
)
from privaudit_tools.surrogate_clip.training import (
    Pretrained,
    measure,
    pretrain,
    steps_within,
)
from privaudit_tools.weight_files import made_with, write_description

Options = TypeVar("Options")

SHARE = 0.2
_VERSIONS = ("torch", "open-clip-torch", "numpy")


def make_surrogate(
    dataset_name: str,
    out: Path,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    share: float | None = None,
    minutes: float | None = None,
    picture: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[SurrogateLogLine], None] | None = None,
) -> SurrogateDescription:
    """Pretrain a surrogate on a data set's public part, and write it to a folder.

    Args:
        dataset_name: From ``privaudit list datasets``.
        out: The surrogate's folder.
        data: Where the data set lies; None looks in the usual places.
        split: "validation"; None takes it where there is one.
        share: Of the training records, to be public in place of a split.
        minutes: How long to train; None takes the steps of ``settings``.
        picture: Fields of :class:`ResNetShape`, for a data set of pictures.
        settings: Fields of :class:`SurrogateSettings`.
        progress: Called with every line of the log.

    Raises:
        PrivauditError: As the parts do.
    """
    dataset = load_dataset(dataset_name, data)
    how = checked(SurrogateSettings, settings or {})
    public = public_part(dataset, split, share, how.seed)
    shape = SurrogateShape(_image_shape(dataset, picture or {}))
    if minutes is not None:
        steps = steps_within(minutes, dataset, public, shape, how)
        how = replace(how, steps=steps)
    done = pretrain(dataset, public, shape, how, progress)
    return save_surrogate(done, dataset, public, dataset_name, out)


def public_part(
    dataset: Dataset, split: str | None, share: float | None, seed: int
) -> PublicRecords:
    """Return what a surrogate may see: a split, or a drawn share.

    Args:
        dataset: Of which.
        split: "validation" or None.
        share: Above 0 and below 1, or None. Where both are None it is the validation
            split, or a fifth of the records where there is none.
        seed: Of the draw.

    Raises:
        ConfigError: Both are given, the split is another, or there is no such part.
    """
    if split is not None and share is not None:
        raise ConfigError(
            f"The public part cannot be the {split} split and a share of {share:g} at "
            "once. Give one of --split and --share."
        )
    if split not in (None, "validation"):
        raise ConfigError(
            f"The public part was asked to be the {split} split, which clients or "
            "tests need. Use --split validation, or a --share of the training records."
        )
    has_one = dataset.split is not None and bool((dataset.split == VALIDATION).any())
    if split is not None or (share is None and has_one):
        return validation_records(dataset)
    return drawn_records(dataset, SHARE if share is None else share, seed)


def _image_shape(
    dataset: Dataset, picture: Mapping[str, Any]
) -> BankShape | ResNetShape:
    if not isinstance(dataset.images, FeatureBank):
        return checked(ResNetShape, picture)
    if picture:
        given = ", ".join(f"--{name} {value}" for name, value in picture.items())
        raise ConfigError(
            f"This data set is a bank of embeddings without pictures, and {given} was "
            "given for an image tower. Leave it out."
        )
    return BankShape(dataset.images.embeddings.shape[1])


def checked(kind: type[Options], fields: Mapping[str, Any]) -> Options:
    """Build options from their fields.

    Raises:
        ConfigError: A field is unknown or out of its range.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(fields))
    except ValidationError as error:
        raise ConfigError(readable(error, "pretraining")) from None


def save_surrogate(
    done: Pretrained, dataset: Dataset, public: PublicRecords, name: str, out: Path
) -> SurrogateDescription:
    """Write a surrogate to a folder: ``surrogate-clip.safetensors`` and ``.json``.

    Args:
        done: The trained model, with its shape, settings and log.
        dataset: The data set that it was trained on.
        public: The records that it was trained on; accuracies are measured on others.
        name: The data set's name, as ``--dataset`` takes it.
        out: Folder; made if missing, for its owner only.
    """
    model = promptable(f"surrogate:{out}", done.model, done.tokenizer, done.shape)
    make_private_folder(out)
    state = done.model.state_dict()
    content = save({key: value.contiguous() for key, value in state.items()})
    description = SurrogateDescription(
        sha256=hashlib.sha256(content).hexdigest(),
        dataset=name,
        data_hash=dataset.hash,
        class_names=dataset.class_names,
        template=dataset.template,
        public_split=public.split,
        shape=done.shape,
        settings=done.settings,
        **made_with(_VERSIONS),
        accuracies=measure(model, dataset, unseen_records(dataset, public)),
        log=tuple(done.log),
        context_length=done.tokenizer.context_length,
        vocabulary=done.tokenizer.vocabulary,
        public_indices=tuple(public.indices.tolist()),
        public_contents=contents(dataset, public),
    )
    write_bytes(out / WEIGHTS, content)
    write_description(FILE, out, description)
    return description
