"""From a language model and a bank of embeddings to a captioner in a folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.dataset import Dataset, FeatureBank
from privaudit.datasets.on_disk import load_dataset
from privaudit.errors import ConfigError
from privaudit.models.bare_language import load_language
from privaudit.models.dialogue_tokens import DialogueTokens
from privaudit.models.projector import (
    Learned,
    ProjectorSettings,
    Record,
    caption_loss,
    learn_projector,
)
from privaudit.models.projector_folder import Description, Losses, save_captioner
from privaudit.models.stacked_language import StackedLanguageModel
from privaudit.models.surrogate_clip.command import checked, public_part
from privaudit.models.surrogate_clip.public import PublicRecords, unseen_records
from privaudit.words import Words

TEMPLATE = "{image}{question}"
_COMPARED = 200  # unseen records that the losses are measured on


def make_captioner(
    source: str,
    dataset_name: str,
    out: Path,
    *,
    data: Path | None = None,
    split: str | None = None,
    share: float | None = None,
    template: str = TEMPLATE,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[Record], None] | None = None,
) -> Description:
    """Learn a projector on a data set's public part, and write a captioner.

    Args:
        source: The language model, as
            :func:`~privaudit.models.bare_language.load_language` takes it.
        dataset_name: From ``privaudit list datasets``: embeddings with captions.
        out: The captioner's folder.
        data: Where the data set lies; None looks in the usual places.
        split: "validation"; None takes it where there is one.
        share: Of the training records, to be public in place of a split.
        template: The prompt, with {image} and {question}.
        settings: Fields of :class:`~privaudit.models.projector.ProjectorSettings`.
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
    progress: Callable[[Record], None] | None = None,
) -> Description:
    """Learn on given public records of a data set in memory; see above.

    Raises:
        ConfigError: It has pictures in place of embeddings, or no captions.
        PrivauditError: As the parts do.
    """
    how, bank = settings or ProjectorSettings(), _bank(dataset)
    model, tokenizer = load_language(source)
    language = StackedLanguageModel(model, tokenizer)
    write = DialogueTokens(tokenizer, template, how.parts, language.context)
    words = write([dataset.dialogues[int(i)] for i in public.indices])
    embeddings = bank.embeddings[public.indices]
    learned = learn_projector(language, embeddings, words, how, progress)
    described = Description(
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
    )
    return save_captioner(out, described, learned.projector, model, tokenizer)


def _bank(dataset: Dataset) -> FeatureBank:
    if isinstance(dataset.images, FeatureBank) and dataset.dialogues:
        return dataset.images
    lacks = "captions" if dataset.dialogues == () else "embeddings, but pictures"
    raise ConfigError(
        "A projector is learned from embeddings and captions, and the data set has no "
        f"{lacks}. Take one with both, or a model that reads pictures."
    )


@torch.no_grad()
def _losses(
    language: StackedLanguageModel,
    write: DialogueTokens,
    dataset: Dataset,
    public: PublicRecords,
    learned: Learned,
) -> Losses:
    chosen: Int[Tensor, " n"] = unseen_records(dataset, public)[:_COMPARED]
    words = write([dataset.dialogues[int(i)] for i in chosen])
    embeddings = _bank(dataset).embeddings[chosen]
    own, other = (
        float(caption_loss(language, learned.projector(given), _on(words, language)))
        for given in (embeddings, embeddings.roll(1, dims=0))
    )
    return Losses(len(chosen), own, other)


def _on(words: Words, language: StackedLanguageModel) -> Words:
    return Words(words.ids.to(language.device), words.kinds.to(language.device))
