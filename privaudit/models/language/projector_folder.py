"""A captioner for embeddings, in a folder: language model, projector, what it saw."""

import hashlib
import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Int
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from safetensors.torch import load, save
from torch import Tensor

from privaudit.core.devices import CPU, chosen_device
from privaudit.core.errors import ConfigError
from privaudit.core.storage import (
    make_private_folder,
    read_bytes,
    storage_errors,
    write_bytes,
)
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.dialogues import TokenSequences
from privaudit.datasets.sources import load_dataset
from privaudit.models.frozen_model import weights_hash
from privaudit.models.hugging_face import loading_errors
from privaudit.models.language.bare_language import load_language
from privaudit.models.language.captioning_vlm import CaptioningVLM, VectorProjector
from privaudit.models.language.dialogue_tokens import DialogueTokens, chat_template
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.projector import (
    Learned,
    Projector,
    ProjectorLogLine,
    ProjectorSettings,
    caption_loss,
    learn_projector,
)
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.surrogate_clip.making import checked, public_part
from privaudit.models.surrogate_clip.public_split import PublicRecords, unseen_records
from privaudit.models.weight_files import DescriptionFile, check_hash

WEIGHTS, DESCRIPTION, LANGUAGE = "projector.safetensors", "projector.json", "language"
_VERSIONS = ("torch", "transformers", "numpy")
_REMEDY = "Restore the whole folder as it was written."


@options(frozen=True)
class Losses:
    """What the projector reaches on records that it has not seen, in nats per token.

    Attributes:
        records: How many.
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
    """

    sha256: str
    language_hash: str
    dataset: str
    data_hash: str
    public_split: str | None
    settings: ProjectorSettings
    template: str
    bank_width: Annotated[int, Field(ge=1)]
    threads: int
    versions: dict[str, str]
    losses: Losses
    log: tuple[ProjectorLogLine, ...]
    public_indices: tuple[int, ...]


_FILE = DescriptionFile(
    DESCRIPTION,
    ProjectorDescription,
    what="captioner",
    command="projector",
    again="learn the projector",
)


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
    described = replace(
        description,
        sha256=hashlib.sha256(content).hexdigest(),
        language_hash=weights_hash(model),
        threads=torch.get_num_threads(),
        versions={name: importlib.metadata.version(name) for name in _VERSIONS},
    )
    with storage_errors(out), tempfile.TemporaryDirectory(dir=out) as unfinished:
        with loading_errors("language model", str(out)):
            model.to(CPU).save_pretrained(unfinished)
            words.save_pretrained(unfinished)
        shutil.rmtree(out / LANGUAGE, ignore_errors=True)
        shutil.copytree(unfinished, out / LANGUAGE)
    write_bytes(out / WEIGHTS, content)
    _FILE.write(out, described)
    return described


def load_captioner_folder(
    folder: Path,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    targets: TargetNames = "all-linear",
    template: str | None = None,
) -> CaptioningVLM:
    """Load a captioner for embeddings, frozen; it says which records it has seen.

    Its prompt is the one that it was trained with, or what the chat template
    ``template`` writes, with ``<image>`` where the picture goes.

    Raises:
        MissingFileError: One of its files is not there.
        ConfigError: They are damaged, or do not belong together, or no layer fits
            ``targets``.
    """
    described = _FILE.read(folder)
    content = read_bytes(folder / WEIGHTS, "tensors")
    digest = hashlib.sha256(content).hexdigest()
    check_hash(folder / WEIGHTS, digest, described.sha256, _REMEDY)
    model, tokenizer = load_language(str(folder / LANGUAGE))
    digest = weights_hash(model)
    check_hash(folder / LANGUAGE, digest, described.language_hash, _REMEDY)
    language = StackedLanguageModel(model.to(device, dtype), tokenizer, targets)
    parts = described.settings.parts
    projector = Projector(described.bank_width, parts, language.width)
    projector.load_state_dict(load(content))
    projector = projector.requires_grad_(False).to(device)
    prompt = described.template
    if template is not None:
        prompt = chat_template(tokenizer, image="<image>", template=template)
    both = hashlib.sha256((described.sha256 + described.language_hash).encode())
    return CaptioningVLM(
        f"language:{folder}",
        VectorProjector(projector, described.bank_width, parts),
        language,
        DialogueTokens(tokenizer, prompt, parts, language.context),
        both.hexdigest(),
        public_indices=described.public_indices,
        data_hash=described.data_hash,
    )


TEMPLATE = "{image}{question}"
_COMPARED = 200  # unseen records that the losses are measured on


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
            :func:`~privaudit.models.language.bare_language.load_language` takes it.
        dataset_name: From ``privaudit list datasets``: embeddings with captions.
        out: The captioner's folder.
        data: Where the data set lies; None looks in the usual places.
        split: "validation"; None takes it where there is one.
        share: Of the training records, to be public in place of a split.
        template: The prompt, with {image} and {question}.
        settings: Fields of :class:`~privaudit.models.language.projector.ProjectorSettings`.
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
    chosen: Int[Tensor, " n"] = unseen_records(dataset, public)[:_COMPARED]
    words = write([dataset.dialogues[int(i)] for i in chosen])
    embeddings = _bank(dataset).embeddings[chosen]
    own, other = (
        float(
            caption_loss(
                language,
                learned.projector(given.to(language.device)),
                _on(words, language),
            )
        )
        for given in (embeddings, embeddings.roll(1, dims=0))
    )
    return Losses(len(chosen), own, other)


def _on(words: TokenSequences, language: StackedLanguageModel) -> TokenSequences:
    return TokenSequences(
        words.ids.to(language.device), words.kinds.to(language.device)
    )
