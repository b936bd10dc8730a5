"""From a language model and a data set to a captioner in a folder."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from privaudit.core.devices import CPU, chosen_device
from privaudit.core.errors import ConfigError
from privaudit.core.storage import make_private_folder, write_bytes
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.sources import load_dataset
from privaudit.models.frozen_model import weights_hash
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.transformers.text_writer import load_language
from privaudit_tools.projector.projector import (
    Learned,
    caption_loss,
    learn_projector,
)
from privaudit_tools.projector.projector_folder import (
    FILE,
    LANGUAGE,
    WEIGHTS,
    Losses,
    Projector,
    ProjectorDescription,
    ProjectorLogLine,
    ProjectorSettings,
)
from privaudit_tools.surrogate_clip.making import checked, public_part
from privaudit_tools.surrogate_clip.public_split import (
    PublicRecords,
    contents,
    unseen_records,
)
from privaudit_tools.weight_files import made_with, save_pretrained, write_description

TEMPLATE = "{image}{question}"
_COMPARED = 200  # unseen records that the losses are measured on
_VERSIONS = ("torch", "transformers", "numpy")


def make_captioner(
    source: str,
    dataset_name: str,
    out: Path,
    *,
    data: str | Path | None = None,
    split: str | None = None,
    share: float | None = None,
    template: str = TEMPLATE,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[ProjectorLogLine], None] | None = None,
) -> ProjectorDescription:
    """Learn a projector on a data set's public part, and write a captioner.

    Args:
        source: The language model, as
            :func:`~privaudit.models.transformers.text_writer.load_language` takes it.
        dataset_name: From ``privaudit list datasets``: embeddings with captions.
        out: The captioner's folder.
        data: Where the data set lies; None looks in the usual places.
        split: "validation"; None takes it where there is one.
        share: Of the training records, to be public in place of a split.
        template: The prompt, with {image} and {question}.
        settings: Fields of :class:`~privaudit_tools.projector.projector_folder.ProjectorSettings`.
        progress: Called with every line of the log.

    Raises:
        PrivauditError: As the parts do.
    """
    how = checked(ProjectorSettings, settings or {})
    dataset = load_dataset(dataset_name, data)
    public = public_part(dataset, split, share, how.seed)
    return captioner_on(
        source, dataset, dataset_name, public, out, template, how, progress
    )


def captioner_on(
    source: str,
    dataset: Dataset,
    name: str,
    public: PublicRecords,
    out: Path,
    template: str = TEMPLATE,
    settings: ProjectorSettings | None = None,
    progress: Callable[[ProjectorLogLine], None] | None = None,
) -> ProjectorDescription:
    """Learn on given public records of a data set in memory, on the chosen device.

    Raises:
        ConfigError: It has pictures in place of embeddings, or no captions.
        PrivauditError: As the parts do.
    """
    how, bank = settings or ProjectorSettings(), _bank(dataset)
    model, tokenizer = load_language(source)
    language = StackedLanguageModel(model.to(chosen_device()), tokenizer)
    write = DialogueTokens(tokenizer, template, how.parts, language.context)
    words = write([dataset.dialogues[int(i)] for i in public.indices])
    embeddings = bank.embeddings[public.indices]
    learned = learn_projector(language, embeddings, words, how, progress)
    described = ProjectorDescription(
        sha256="",
        language_hash="",
        dataset=name,
        data_hash=dataset.hash,
        public_split=public.split,
        settings=how,
        template=template,
        bank_width=embeddings.shape[1],
        threads=0,
        versions={},
        losses=_losses(language, write, dataset, public, learned),
        log=learned.log,
        public_indices=tuple(public.indices.tolist()),
        public_contents=contents(dataset, public),
    )
    return save_captioner(out, described, learned.projector, model, tokenizer)


def _bank(dataset: Dataset) -> FeatureBank:
    if isinstance(dataset.images, FeatureBank) and dataset.dialogues:
        return dataset.images
    lacks = "captions" if dataset.dialogues == () else "embeddings, but pictures"
    raise ConfigError(
        "A projector is learned from embeddings and captions, and the data set has no "
        f"{lacks}. Use one with both, or a model that reads pictures."
    )


@torch.no_grad()
def _losses(
    language: StackedLanguageModel,
    write: DialogueTokens,
    dataset: Dataset,
    public: PublicRecords,
    learned: Learned,
) -> Losses:
    chosen = unseen_records(dataset, public, _COMPARED)
    words = write([dataset.dialogues[int(i)] for i in chosen])
    embeddings = _bank(dataset).embeddings[chosen]
    own, other = (
        float(
            caption_loss(
                language,
                learned.projector(given.to(language.device)),
                words.to(language.device),
            )
        )
        for given in (embeddings, embeddings.roll(1, dims=0))
    )
    return Losses(len(chosen), own, other)


def save_captioner(
    out: Path,
    description: ProjectorDescription,
    projector: Projector,
    model: Any,
    words: Any,
) -> ProjectorDescription:
    """Write a captioner to a folder, the description last.

    Args:
        out: Folder; made if missing, for its owner only.
        description: What it is; the weights' hashes and versions are filled in.
        projector: What was learned.
        model: The language model, which is copied into the folder.
        words: The language model's tokenizer.
    """
    make_private_folder(out)
    content = save(dict(projector.cpu().state_dict()))
    where, what = out / LANGUAGE, "language model"
    described = replace(
        description,
        readers_hash=save_pretrained(where, what, model.to(CPU), words),
        sha256=hashlib.sha256(content).hexdigest(),
        language_hash=weights_hash(model),
        **made_with(_VERSIONS),
    )
    write_bytes(out / WEIGHTS, content)
    write_description(FILE, out, described)
    return described
