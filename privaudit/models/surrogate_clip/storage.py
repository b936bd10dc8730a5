"""Folders of surrogates: weights, and a description that says what they have seen."""

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass as options
from safetensors.torch import load

from privaudit.core.storage import read_bytes
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.clip.word_tokenizer import WordTokenizer
from privaudit.models.registry import ModelRequest
from privaudit.models.surrogate_clip.architecture import (
    SurrogateShape,
    build_model,
    promptable,
)
from privaudit.models.weight_files import DescriptionFile, check_hash

WEIGHTS, DESCRIPTION = "surrogate-clip.safetensors", "surrogate-clip.json"


@options(frozen=True)
class TextSettings:
    """How often texts are what.

    A text that is no template is a context of vectors in front of "name.", the same
    for all classes, as in prompt learning. The remaining share of contexts is drawn
    N(0, s^2) with s between 0.005 and 0.1, log-uniformly; prompt learning starts at
    0.02.

    Attributes:
        templates: Share of steps with a template for each class.
        words: Share of the other steps whose context are random words, jittered.
        jitter: Deviation of what is added to a word's vector.
        longest: Most vectors in a context; their number is uniform from 1.
    """

    templates: Annotated[float, Field(ge=0, le=1)] = 0.9
    words: Annotated[float, Field(ge=0, le=1)] = 0.5
    jitter: Annotated[float, Field(ge=0)] = 0.02
    longest: Annotated[int, Field(ge=1, le=16)] = 16


@options(frozen=True)
class VariationSettings:
    """How public records are varied.

    Attributes:
        dropout: Share of an embedding's numbers that are put to their means.
        smallest_crop: Side of the smallest crop, as a share of the picture's; 1 only
            shifts.
        shift: Largest shift, as a share of the side.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    smallest_crop: Annotated[float, Field(gt=0, le=1)] = 0.8
    shift: Annotated[float, Field(ge=0, lt=1)] = 0.125


@options(frozen=True)
class SurrogateSettings:
    """How to pretrain.

    Attributes:
        steps: Number of batches.
        batch: Pictures in a batch.
        learning_rate: Largest; rises over the warm-up and falls as a cosine to 0.
        warmup: Steps of linear rise.
        weight_decay: Of AdamW, on matrices and kernels only.
        tokens: Weight of the same loss on the mean of a picture's tokens, beside the
            loss on its pooled feature. Without it tokens say little of the class.
        log_every: Steps between lines of the log.
        seed: Of everything random.
        texts: What the text tower reads.
        variation: What the image tower reads.
    """

    steps: Annotated[int, Field(ge=1)] = 600
    batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    warmup: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    tokens: Annotated[float, Field(ge=0)] = 1.0
    log_every: Annotated[int, Field(ge=1)] = 50
    seed: Annotated[int, Field(ge=0)] = 0
    texts: TextSettings = Field(default_factory=TextSettings)
    variation: VariationSettings = Field(default_factory=VariationSettings)


@options(frozen=True)
class SurrogateLogLine:
    """One line of the training log.

    Attributes:
        step: Batches seen.
        loss: Mean since the line before.
        seconds: Since the start.
        logit_scale: The temperature's inverse, after exp.
    """

    step: int
    loss: float
    seconds: float
    logit_scale: float


@options(frozen=True)
class Accuracies:
    """Zero-shot accuracies, from 0 to 1.

    They are measured when the training is over, and nothing is chosen by them.

    Attributes:
        records: How many were classified.
        template: With the data set's hand-written prompt.
        template_by_class: The same, as the mean of the classes' accuracies.
        random_context: Behind 16 vectors drawn N(0, 0.02^2): the mean of five draws.
        random_context_lowest: Of the five.
    """

    records: int
    template: float
    template_by_class: float
    random_context: float
    random_context_lowest: float


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


FILE = DescriptionFile(
    DESCRIPTION,
    SurrogateDescription,
    what="surrogate",
    command="surrogate-clip --dataset NAME",
    again="pretrain",
)


def load_surrogate(request: ModelRequest) -> PromptableCLIP:
    """Load a surrogate, frozen; it says which records it has seen."""
    folder = Path(request.source)
    description = FILE.read(folder)
    content = read_bytes(folder / WEIGHTS, "tensors")
    digest = hashlib.sha256(content).hexdigest()
    remedy = "Restore both files from one pretraining run."
    check_hash(folder / WEIGHTS, digest, description.sha256, remedy)
    shape, length = description.shape, description.context_length
    model = build_model(shape, len(description.vocabulary), length)
    model.load_state_dict(load(content))
    tokenizer = WordTokenizer(description.vocabulary, length)
    model = model.to(request.device)
    made = promptable(f"surrogate:{folder}", model, tokenizer, shape)
    made.public_indices = description.public_indices
    made.data_hash = description.data_hash
    return made
