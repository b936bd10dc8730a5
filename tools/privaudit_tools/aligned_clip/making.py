"""Fit a linear map from embeddings to a pretrained text encoder's space, and keep both.

The map is ridge regression from a public record's embedding to the mean of its class's
templates. Its temperature is the one under which the public records are most likely, each
by the matrix that is fitted without it, in closed form; the embeddings' mean, which the map
subtracts first, is of all of them. The text encoder stays as it was pretrained.

Source: Hoerl and Kennard, "Ridge regression", Technometrics 12, 1970; the leave-one-out
predictions as in Allen, "The relationship between variable selection and data augmentation
and a method for prediction", Technometrics 16, 1974.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from privaudit.core.errors import ConfigError
from privaudit.core.storage import make_private_folder, write_bytes
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.sources import load_dataset
from privaudit.models.clip.promptable_clip import spoken
from privaudit.models.frozen_model import weights_hash
from privaudit_tools.aligned_clip.storage import (
    ENCODER,
    FILE,
    WEIGHTS,
    AlignedDescription,
    AlignedModel,
    MapSettings,
    PaddedTexts,
    load_encoder,
    promptable,
)
from privaudit_tools.surrogate_clip.making import checked, public_part
from privaudit_tools.surrogate_clip.public_split import (
    PublicRecords,
    contents,
    unseen_records,
)
from privaudit_tools.surrogate_clip.texts import ROOM, TEMPLATES
from privaudit_tools.surrogate_clip.training import measure
from privaudit_tools.weight_files import made_with, save_pretrained, write_description

_SCALES = (1.0, 100.0)  # CLIP's own is at most 100
_VERSIONS = ("torch", "transformers", "numpy")


def make_aligned(
    dataset_name: str,
    encoder: str,
    out: Path,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    share: float | None = None,
    settings: Mapping[str, Any] | None = None,
) -> AlignedDescription:
    """Align a text encoder with a bank of embeddings, and write both to a folder.

    Args:
        dataset_name: From ``privaudit list datasets``: a bank with classes.
        encoder: A folder with a text encoder of transformers.
        out: The folder to write.
        data: Where the data set lies; None looks in the usual places.
        split: "validation"; None takes it where there is one.
        share: Of the training records, to be public in place of a split.
        settings: Fields of :class:`MapSettings`.

    Raises:
        PrivauditError: As the parts do.
    """
    dataset = load_dataset(dataset_name, data)
    how = checked(MapSettings, settings or {})
    embeddings = _embeddings(dataset)
    part = public_part(dataset, split, share, how.seed)
    public = PublicRecords(part.split, few_of_each(dataset, part.indices, how))
    model, tokenizer = _aligned(dataset, embeddings, public.indices, encoder, how)
    made = promptable(f"aligned:{out}", model, tokenizer)
    make_private_folder(out)
    encoder_model, what = model.text.transformer, "text encoder"
    content = save(model.fitted())
    description = AlignedDescription(
        sha256=hashlib.sha256(content).hexdigest(),
        encoder_hash=weights_hash(encoder_model),
        dataset=dataset_name,
        data_hash=dataset.hash,
        class_names=dataset.class_names,
        template=dataset.template,
        public_split=public.split,
        settings=how,
        bank_width=embeddings.shape[1],
        context_length=model.context_length,
        **made_with(_VERSIONS),
        accuracies=measure(made, dataset, unseen_records(dataset, public)),
        public_indices=tuple(public.indices.tolist()),
        public_contents=contents(dataset, public),
        readers_hash=save_pretrained(out / ENCODER, what, encoder_model, tokenizer),
    )
    write_bytes(out / WEIGHTS, content)
    write_description(FILE, out, description)
    return description


def _embeddings(dataset: Dataset) -> Float[Tensor, "n width"]:
    if isinstance(dataset.images, FeatureBank):
        return dataset.images.embeddings
    raise ConfigError(
        "An encoder is aligned with a bank of embeddings, and this data set has pictures. "
        "Name one such as feature-bank, or make a tower for pictures: privaudit pretrain "
        "surrogate-clip."
    )


def few_of_each(
    dataset: Dataset, indices: Int[Tensor, " n"], settings: MapSettings
) -> Int[Tensor, " few"]:
    """Draw at most so many records of each class, rising.

    Raises:
        ConfigError: A class has no record among them.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    labels, found = dataset.labels[indices], []
    for label, name in enumerate(dataset.class_names):
        mine = indices[labels == label]
        if not len(mine):
            raise ConfigError(
                f"The class {name!r} has no public record, and the map needs some of "
                "each. Make a larger part public."
            )
        order = torch.randperm(len(mine), generator=generator)
        found.append(mine[order[: settings.public]])
    return torch.cat(found).sort().values


def _aligned(
    dataset: Dataset,
    embeddings: Float[Tensor, "n width"],
    public: Int[Tensor, " few"],
    source: str,
    settings: MapSettings,
) -> tuple[AlignedModel, Any]:
    encoder, tokenizer = load_encoder(source)
    names = [spoken(name) for name in dataset.class_names]
    texts = PaddedTexts(tokenizer)
    longest = max(len(tokenizer(name)["input_ids"]) for name in names)
    sizes = embeddings.shape[1], longest + ROOM
    model = AlignedModel(encoder, tokenizer.pad_token_id, *sizes)
    with torch.no_grad():
        templates = torch.stack(
            [
                model.encode_text(
                    texts([t.format(name) for name in names], longest + ROOM)
                )
                for t in TEMPLATES
            ]
        )
        model.text.centre.copy_(templates.mean((0, 1)))
        classes = normalize((templates - model.text.centre).mean(0), dim=1)
        seen, labels = embeddings[public].float(), dataset.labels[public].long()
        model.visual.centre.copy_(seen.mean(0))
        centred = normalize(seen - model.visual.centre, dim=1)
        matrix, unseen = ridge(centred, classes[labels], settings.ridge)
        model.visual.matrix.copy_(matrix)
        model.logit_scale.fill_(likeliest_scale(unseen, classes, labels)).log_()
    return model, tokenizer


def ridge(
    inputs: Float[Tensor, "n width"], targets: Float[Tensor, "n dim"], amount: float
) -> tuple[Float[Tensor, "width dim"], Float[Tensor, "n dim"]]:
    """Return the matrix, and each target's prediction by the matrix fitted without it.

    Without record i its prediction is (fitted_i - h_i target_i) / (1 - h_i), where h_i is
    its own weight in its fitted value.

    Example:
        >>> matrix, unseen = ridge(torch.eye(2), torch.eye(2), 1.0)
        >>> matrix.tolist(), unseen.tolist()
        ([[0.5, 0.0], [0.0, 0.5]], [[0.0, 0.0], [0.0, 0.0]])
    """
    x, y = inputs.double(), targets.double()
    gram = x @ x.T
    duals = torch.linalg.solve(gram + amount * torch.eye(len(x), dtype=x.dtype), y)
    own = torch.linalg.solve(gram + amount * torch.eye(len(x), dtype=x.dtype), gram)
    weight = own.diagonal()[:, None]
    unseen = (gram @ duals - weight * y) / (1 - weight)
    return (x.T @ duals).float(), unseen.float()


def likeliest_scale(
    features: Float[Tensor, "n dim"],
    classes: Float[Tensor, "classes dim"],
    labels: Int[Tensor, " n"],
) -> float:
    """Return the factor of cosines under which labels are most likely, from 1 to 100."""
    cosines = normalize(features, dim=1) @ classes.T

    def loss(scale: float) -> float:
        return cross_entropy(scale * cosines, labels).item()

    return float(minimize_scalar(loss, bounds=_SCALES, method="bounded").x)
