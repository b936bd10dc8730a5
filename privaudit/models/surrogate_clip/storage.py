"""A surrogate's folder: weights, and a description that says what they have seen."""

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from safetensors.torch import load, save

from privaudit.core.devices import CPU
from privaudit.core.storage import make_private_folder, read_bytes, write_bytes
from privaudit.datasets.dataset import Dataset
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.word_tokenizer import WordTokenizer
from privaudit.models.surrogate_clip.architecture import (
    SurrogateShape,
    build_model,
    promptable,
)
from privaudit.models.surrogate_clip.public_split import PublicRecords
from privaudit.models.surrogate_clip.training import (
    Accuracies,
    Pretrained,
    SurrogateLogLine,
    SurrogateSettings,
)
from privaudit.models.weight_files import DescriptionFile, check_hash

WEIGHTS, DESCRIPTION = "surrogate-clip.safetensors", "surrogate-clip.json"
_VERSIONS = ("torch", "open-clip-torch", "numpy")


@options(frozen=True)
class SurrogateDescription:
    """What a surrogate is, and what it has seen.

    Attributes:
        sha256: Of the file with the weights.
        dataset: Name of the data set.
        data_hash: Of the data set.
        class_names: That it has seen, by index.
        template: Hand-written prompt of the data set.
        public_split: The split it has seen; None where ``settings`` drew a share.
        public_indices: The records that it has seen; no client may own them.
        shape: How it is built.
        settings: How it was trained.
        threads: That torch trained with.
        versions: Of what it was trained with.
        vocabulary: Of its tokenizer.
        context_length: Positions of its text tower.
        accuracies: Zero-shot, on records that it has not seen.
        log: How the training went.
    """

    sha256: str
    dataset: str
    data_hash: str
    class_names: tuple[str, ...]
    template: str
    public_split: str | None
    shape: SurrogateShape
    settings: SurrogateSettings
    threads: int
    versions: dict[str, str]
    accuracies: Accuracies
    log: tuple[SurrogateLogLine, ...]
    context_length: Annotated[int, Field(ge=1)]
    vocabulary: tuple[str, ...]
    public_indices: tuple[int, ...]


_FILE = DescriptionFile(
    DESCRIPTION,
    SurrogateDescription,
    what="surrogate",
    command="surrogate-clip --dataset NAME",
    again="pretrain",
)


def save_surrogate(
    done: Pretrained,
    dataset: Dataset,
    public: PublicRecords,
    accuracies: Accuracies,
    name: str,
    out: Path,
) -> SurrogateDescription:
    """Write a surrogate to a folder: ``surrogate-clip.safetensors`` and ``.json``.

    Args:
        done: What was trained.
        dataset: On which.
        public: On which of its records.
        accuracies: What it reaches.
        name: The data set's.
        out: Folder; made if missing, for its owner only.
    """
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
        threads=torch.get_num_threads(),
        versions={name: importlib.metadata.version(name) for name in _VERSIONS},
        accuracies=accuracies,
        log=tuple(done.log),
        context_length=done.tokenizer.context_length,
        vocabulary=done.tokenizer.vocabulary,
        public_indices=tuple(public.indices.tolist()),
    )
    write_bytes(out / WEIGHTS, content)
    _FILE.write(out, description)
    return description


def read_description(folder: Path) -> SurrogateDescription:
    """Read what a surrogate is.

    Raises:
        MissingFileError: There is none in the folder.
        ConfigError: The file is damaged, or another version's.
    """
    return _FILE.read(folder)


def load_surrogate(folder: Path, device: torch.device = CPU) -> PromptableCLIP:
    """Load a surrogate, frozen; it says which records it has seen.

    Raises:
        MissingFileError: One of its files is not there.
        ConfigError: They are damaged, or do not belong together.
    """
    description = read_description(folder)
    content = read_bytes(folder / WEIGHTS, "tensors")
    digest = hashlib.sha256(content).hexdigest()
    remedy = "Restore both files from one pretraining run."
    check_hash(folder / WEIGHTS, digest, description.sha256, remedy)
    shape, length = description.shape, description.context_length
    model = build_model(shape, len(description.vocabulary), length)
    model.load_state_dict(load(content))
    return promptable(
        f"surrogate:{folder}",
        model.to(device),
        WordTokenizer(description.vocabulary, length),
        shape,
        public_indices=description.public_indices,
        data_hash=description.data_hash,
    )
