"""Pretrain ``tiny-llava`` on scenes that the code draws itself.

First the image tower learns which objects are there; then all of the model learns from
picture tokens, a question and an answer, with the loss on the answer only. What is
drawn and said is ordinary: the records of the data sets ``scenes``, ``scenes-far`` and
``scenes-vqa`` come from other distributions and other seeds, and nothing is chosen on
them.

Source: Liu et al., "Visual instruction tuning", NeurIPS 2023, section 4; here with
other stages, and with the image tower trained on.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    smooth_l1_loss,
    softplus,
)

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import FixedSeed
from privaudit.datasets.scenes.drawing import (
    COLOURS,
    SHAPES,
    SIZES,
    TEXTURES,
    Scene,
    draw_pictures,
    draw_scene,
)
from privaudit.models.tiny_clip.loading import load
from privaudit.models.tiny_llava.loading import (
    CHANNELS,
    LlavaTokenizer,
    Model,
    PictureEncoder,
    build_model,
    configuration,
    prepare,
)
from privaudit_tools.pretraining.descent import (
    TRIAL_STEPS,
    descend,
    require_time,
    seconds_a_step,
)
from privaudit_tools.pretraining.lessons import (
    ORDINARY,
    Lessons,
    answer_loss,
    pack,
    teach,
)
from privaudit_tools.pretraining.tiny_llava_validation import (
    TinyLlavaValidation,
    build_validation,
)
from privaudit_tools.weight_files import EmbeddedWeights

_LOOKS = len(COLOURS) + len(TEXTURES) + len(SIZES)
PAIRS = len(SHAPES) * _LOOKS
_COUNTING = 0.1  # weight of the counts
_VERSIONS = ("torch", "transformers", "numpy", "scipy")
WEIGHTS = EmbeddedWeights("tiny-llava", build_model, configuration, _VERSIONS)


@dataclass(frozen=True)
class TinyLlavaLogLine:
    """One line of the training log.

    Attributes:
        stage: "looking" trains the image tower, "speaking" all of the model.
        step: Batches seen in this stage.
        loss: Mean over the steps since the last line, in nats per word; of
            "looking", see :func:`looking_loss`.
        seconds: Since the start.
        accuracies: On drawn validation scenes, by question; none for "looking".
    """

    stage: Literal["looking", "speaking"]
    step: int
    loss: float
    seconds: float
    accuracies: dict[str, float]


def shown(scene: Scene) -> Float[np.ndarray, " pairs_and_counts"]:
    """Tell which pairs of a shape and a look are in a scene, and how many of a shape.

    Returns:
        1 or 0 for each pair, then a number for each shape.
    """
    counts = np.zeros(len(SHAPES), dtype=np.float32)
    table = np.zeros((len(SHAPES), _LOOKS), dtype=np.float32)
    for group in scene.groups:
        texture = len(COLOURS) + group.texture
        size = len(COLOURS) + len(TEXTURES) + group.size
        table[group.shape, [group.colour, texture, size]] = 1.0
        counts[group.shape] = group.count
    return np.concatenate([table.reshape(-1), counts])


def looking_loss(
    scores: Float[Tensor, "n 16 pairs_and_counts"],
    truth: Float[Tensor, "n pairs_and_counts"],
) -> Float[Tensor, ""]:
    """Add the pairs' mean cross-entropy, in nats, and a tenth of the counts' error.

    The error is squared below 1 and linear above, and a mean over shapes.
    """
    pairs = scores[:, :, :PAIRS].logsumexp(dim=1)
    counts = softplus(scores[:, :, PAIRS:]).sum(dim=1)
    entropy = binary_cross_entropy_with_logits(pairs, truth[:, :PAIRS])
    return entropy + _COUNTING * smooth_l1_loss(counts, truth[:, PAIRS:])


def look(
    encoder: PictureEncoder,
    steps: int,
    batch: int,
    learning_rate: float,
    rng: np.random.Generator,
    *,
    half: bool,
) -> Iterator[float]:
    """Train the tower on ordinary scenes, and yield every step's loss.

    Args:
        encoder: Whose tower is trained; its projector is not.
        steps: Batches.
        batch: Pictures in each.
        learning_rate: At the start; falls as a cosine to 0.
        rng: Source of scenes and pictures.
        half: Compute in bfloat16.
    """
    head = nn.utils.skip_init(nn.Linear, CHANNELS, PAIRS + len(SHAPES))
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, -6.0)  # most of it is not there
    parameters = [*encoder.tower.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, learning_rate, (0.9, 0.98))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        scenes = [draw_scene(ORDINARY, rng) for _ in range(batch)]
        pictures = prepare(torch.from_numpy(draw_pictures(scenes, rng)))
        truth = torch.from_numpy(np.stack([shown(scene) for scene in scenes]))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            scores = head(encoder.see(pictures))
        loss = looking_loss(scores.float(), truth)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


@options(frozen=True)
class TinyLlavaSettings:
    """How to pretrain.

    Attributes:
        looking: Number of batches for the image tower alone.
        steps: Number of batches for all of the model.
        batch: Pictures in a batch, each with four dialogues.
        learning_rate: Largest; rises over the warm-up and falls as a cosine to 0.
        warmup: Steps of linear rise.
        weight_decay: Of AdamW, on matrices and kernels only.
        tower: What the image tower starts from.
        precision: Of the arithmetic in training.
        log_every: Steps between validations; each also writes a checkpoint.
        validate: Number of validation scenes.
        seed: Of everything random.
    """

    looking: Annotated[int, Field(ge=0)] = 1500
    steps: Annotated[int, Field(ge=1)] = 1800
    batch: Annotated[int, Field(ge=2)] = 64
    learning_rate: Annotated[float, Field(gt=0)] = 1.5e-3
    warmup: Annotated[int, Field(ge=0)] = 200
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    tower: Literal["tiny-clip", "random"] = "tiny-clip"
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    log_every: Annotated[int, Field(ge=1)] = 200
    validate: Annotated[int, Field(ge=10)] = 300
    seed: Annotated[int, Field(ge=0)] = 0


Progress = Callable[[TinyLlavaLogLine], None]


def pretrain(
    settings: TinyLlavaSettings, out: Path, progress: Progress | None = None
) -> TinyLlavaLogLine:
    """Pretrain the model, and write weights, description and log to a folder.

    ``tiny-llava.safetensors``, ``tiny-llava.json`` and ``tiny-llava.jsonl`` are
    written anew at every validation, each atomically. The same settings, threads,
    versions and kind of processor give the same bytes.

    Args:
        settings: How to pretrain.
        out: Folder to write to; made if missing.
        progress: Called after every validation with its line of the log.

    Returns:
        The log's last line.

    Raises:
        TrainingError: When the loss is not finite.
    """
    validation = _validation(settings)
    model = starting_model(settings)
    started, log = time.monotonic(), []
    losses = list(_look(model, settings))
    if losses:
        log.append(_line("looking", settings.looking, losses[-100:], started, {}))
        losses = []
    for step, loss in _train(model, settings):
        losses.append(loss)
        if step % settings.log_every == 0 or step == settings.steps:
            snapshot = WEIGHTS.rounded(model)
            accuracies = validation.accuracies(snapshot)
            log.append(_line("speaking", step, losses, started, accuracies))
            losses.clear()
            WEIGHTS.save(snapshot, out, settings, log[-1])
            WEIGHTS.write_log(log, out)
            if progress is not None:
                progress(log[-1])
    return log[-1]


def steps_within(minutes: float, settings: TinyLlavaSettings) -> int:
    """Estimate how many steps fit into a time, from a few steps on this machine.

    The image tower's own steps come first.

    Args:
        minutes: Time for all of pretraining, above 0.
        settings: How to pretrain; its number of steps does not matter.

    Raises:
        ConfigError: The time is not above 0, or too short for the image tower's steps
            and one more.
    """
    require_time(minutes)
    model = starting_model(settings)
    trial = replace(settings, looking=TRIAL_STEPS, steps=TRIAL_STEPS)
    looking = settings.looking * seconds_a_step(_look(model, trial))
    speaking = seconds_a_step(_train(model, trial))
    if (steps := int((60 * minutes - looking) / speaking)) < 1:
        raise ConfigError(
            f"Pretraining for {minutes:g} minutes is impossible: the image tower's "
            f"{settings.looking} steps, which come first, take {looking / 60:.1f}. Give "
            "more minutes, or a number of steps."
        )
    return steps


def starting_model(settings: TinyLlavaSettings) -> Model:
    """Build the model that training starts from."""
    model = build_model(settings.seed)
    if settings.tower == "tiny-clip":
        known = load().model.visual.state_dict()
        tower_state = model.encoder.tower.state_dict()
        model.encoder.tower.load_state_dict({name: known[name] for name in tower_state})
    return model


def lessons_batch(
    count: int, tokenizer: LlavaTokenizer, rng: np.random.Generator
) -> tuple[Float[Tensor, "n 3 64 64"], Lessons]:
    """Draw ordinary scenes, and say something about each."""
    scenes = [draw_scene(ORDINARY, rng) for _ in range(count)]
    pictures = prepare(torch.from_numpy(draw_pictures(scenes, rng)))
    return pictures, pack([teach(s, tokenizer, rng) for s in scenes], tokenizer)


def _line(
    stage: Literal["looking", "speaking"],
    step: int,
    losses: list[float],
    started: float,
    accuracies: dict[str, float],
) -> TinyLlavaLogLine:
    seconds = round(time.monotonic() - started, 1)
    return TinyLlavaLogLine(stage, step, sum(losses) / len(losses), seconds, accuracies)


def _look(model: Model, settings: TinyLlavaSettings) -> Iterator[float]:
    """Train the tower alone, and yield every step's loss."""
    model.train()
    return look(
        model.encoder,
        settings.looking,
        settings.batch,
        settings.learning_rate,
        FixedSeed(settings.seed).numpy("looking"),
        half=settings.precision == "bfloat16",
    )


def _validation(settings: TinyLlavaSettings) -> TinyLlavaValidation:
    seed = FixedSeed(settings.seed).child("validation").seed
    return build_validation(settings.validate, seed)


def _train(model: Model, settings: TinyLlavaSettings) -> Iterator[tuple[int, float]]:
    """Train, and yield every step's number, from 1, and loss."""
    model.train()
    # On short rows, torch's fused attention takes twice as long on a CPU as the rest.
    model.language.set_attn_implementation("eager")
    tokenizer = LlavaTokenizer()
    rng = FixedSeed(settings.seed).numpy("lessons")
    half = settings.precision == "bfloat16"

    def next_loss() -> Float[Tensor, ""]:
        pictures, lessons = lessons_batch(settings.batch, tokenizer, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            return answer_loss(model.language, model.encoder(pictures), lessons)

    return descend(model, settings, next_loss)
