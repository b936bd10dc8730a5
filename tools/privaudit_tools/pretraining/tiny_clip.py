"""Pretrain ``tiny-clip`` on pictures that the code draws itself.

The contrastive loss of CLIP, except that a caption is a positive for every picture of
the batch of which it is true. What is drawn is printed: handwriting, even the drawn
kind, is kept for validation, so that a user's handwritten records stay a new domain and
leave prompt learning something to learn. Everything is chosen on drawn pictures; real
handwriting has no part in it.

Source: Radford et al., "Learning transferable visual models from natural language
supervision", ICML 2021, figure 3; several positives as in Khosla et al., "Supervised
contrastive learning", NeurIPS 2020, equation 2.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from privaudit.models.tiny_clip.loading import (
    SmallCLIP,
    TinyTokenizer,
    build_model,
    configuration,
    preprocess_batch,
)
from privaudit_tools.pretraining.captions import true_of, write_captions
from privaudit_tools.pretraining.descent import bound_logit_scale, descend
from privaudit_tools.pretraining.drawing import DrawingSettings, draw
from privaudit_tools.pretraining.marks import Marks, build_marks
from privaudit_tools.pretraining.tiny_clip_validation import (
    TinyClipValidation,
    build_validation,
)
from privaudit_tools.weight_files import EmbeddedWeights

_LONGEST_CHATTER = 17
_CALIBRATION_BATCHES = 10
_VERSIONS = ("torch", "numpy", "pillow", "matplotlib", "scipy")
WEIGHTS = EmbeddedWeights("tiny-clip", build_model, configuration, _VERSIONS)


@dataclass(frozen=True)
class TinyClipLogLine:
    """One line of the training log.

    Attributes:
        step: Batches seen.
        loss: Of the last batch.
        seconds: Since the start.
        logit_scale: The temperature's inverse, after exp.
        accuracies: Zero-shot on drawn validation pictures, by set and template.
    """

    step: int
    loss: float
    seconds: float
    logit_scale: float
    accuracies: dict[str, float]


@options(frozen=True)
class TinyClipSettings:
    """How to pretrain.

    Attributes:
        steps: Number of batches.
        batch: Pictures in a batch, each with one caption.
        learning_rate: Largest; rises over the warm-up and falls as a cosine to 0.
        warmup: Steps of linear rise.
        weight_decay: Of AdamW, on matrices and kernels only.
        average: Decay per step of the moving average of the weights, which is what
            is kept.
        chatter: Share of captions with words without meaning in front.
        copies: How often each writing variant is written.
        precision: Of the image tower's arithmetic in training.
        log_every: Steps between validations; each also writes a checkpoint.
        validate: Number of pictures of each validation set.
        seed: Of everything random.
        drawing: What the pictures show.
    """

    steps: Annotated[int, Field(ge=1)] = 2000
    batch: Annotated[int, Field(ge=2)] = 256
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    warmup: Annotated[int, Field(ge=0)] = 200
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    average: Annotated[float, Field(ge=0, lt=1)] = 0.998
    chatter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    copies: Annotated[int, Field(ge=1)] = 250
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    log_every: Annotated[int, Field(ge=1)] = 200
    validate: Annotated[int, Field(ge=10)] = 1000
    seed: Annotated[int, Field(ge=0)] = 0
    drawing: DrawingSettings = Field(default_factory=DrawingSettings)


Progress = Callable[[TinyClipLogLine], None]


def pretrain(
    settings: TinyClipSettings, out: Path, progress: Progress | None = None
) -> TinyClipLogLine:
    """Pretrain the model, and write weights, description and log to a folder.

    ``tiny-clip.safetensors``, ``tiny-clip.json`` and ``tiny-clip.jsonl`` are written
    anew at every validation, each atomically. The same settings, threads and versions
    give the same bytes.

    Args:
        settings: How to pretrain.
        out: Folder to write to; made if missing.
        progress: Called after every validation with its line of the log.

    Returns:
        The log's last line.

    Raises:
        TrainingError: When the loss is not finite.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    marks = build_marks(generator, copies=settings.copies)
    validation = build_validation(settings.validate, settings.seed + 1)
    model = build_model(settings.seed)
    average = _average(model, settings.average)
    started, log = time.monotonic(), []
    for step, loss in _train(model, average, marks, settings, generator):
        if step % settings.log_every == 0 or step == settings.steps:
            seconds = time.monotonic() - started
            snapshot = WEIGHTS.rounded(cast(SmallCLIP, average.module))
            calibrate(snapshot, marks, settings)
            log.append(_record(snapshot, validation, step, loss, seconds))
            WEIGHTS.save(snapshot, out, settings, log[-1])
            WEIGHTS.write_log(log, out)
            if progress is not None:
                progress(log[-1])
    return log[-1]


def _average(model: SmallCLIP, decay: float) -> AveragedModel:
    averaging = get_ema_multi_avg_fn(decay)
    return AveragedModel(model, multi_avg_fn=averaging)


def _train(
    model: SmallCLIP,
    average: AveragedModel,
    marks: Marks,
    settings: TinyClipSettings,
    generator: torch.Generator,
) -> Iterator[tuple[int, float]]:
    """Train, and yield every step's number, from 1, and loss."""
    model.train()
    tokenizer = TinyTokenizer()
    steps = descend(
        model,
        settings,
        lambda: _loss(model, tokenizer, marks, settings, generator),
        # In float32, as the weights that come with the package were trained.
        cosine=lambda angle: torch.cos(torch.tensor(angle)).item(),
    )
    for step, loss in steps:
        bound_logit_scale(model.logit_scale)
        average.update_parameters(model)
        yield step, loss


def _loss(
    model: SmallCLIP,
    tokenizer: TinyTokenizer,
    marks: Marks,
    settings: TinyClipSettings,
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    pictures = draw(marks, settings.batch, generator, settings.drawing)
    images = preprocess_batch(pictures.pixels)
    half = settings.precision == "bfloat16"
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        features = model.visual(images.contiguous(memory_format=torch.channels_last))
    long = round(settings.chatter * settings.batch)
    words = int(torch.randint(1, _LONGEST_CHATTER + 1, (), generator=generator))
    parts = [
        write_captions(pictures.attributes[long:], generator),
        write_captions(pictures.attributes[:long], generator, chatter=words),
    ]
    texts = [model.encode_text(tokenizer(p.texts)) for p in parts if p.texts]
    said = torch.cat([part.said for part in parts if part.texts])
    logits = normalize(features.float()) @ normalize(torch.cat(texts)).T
    matches = true_of(said, pictures.attributes)
    return contrastive_loss(model.logit_scale.exp() * logits, matches)


@torch.no_grad()
def calibrate(model: SmallCLIP, marks: Marks, settings: TinyClipSettings) -> None:
    """Measure batch normalisation's means and variances anew, on drawn pictures.

    Averaged weights need it: the statistics gathered on the way belong to other
    weights, and early ones, averaged in, swamp small variances.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # average over all batches alike
    generator = torch.Generator().manual_seed(settings.seed + 2)
    model.train()
    for _ in range(_CALIBRATION_BATCHES):
        pictures = draw(marks, settings.batch, generator, settings.drawing)
        model.visual(preprocess_batch(pictures.pixels))
    model.eval()


def contrastive_loss(
    logits: Float[Tensor, "pictures captions"],
    matches: Bool[Tensor, "pictures captions"],
) -> Float[Tensor, ""]:
    """Average the cross-entropies of pictures over captions and the other way round.

    The target is uniform over the matches; every row and column needs one.

    Example:
        >>> matches = torch.eye(2, dtype=torch.bool)
        >>> round(contrastive_loss(torch.zeros(2, 2), matches).item(), 4)
        0.6931
    """
    targets = matches.float()
    by_picture = targets / targets.sum(1, keepdim=True)
    by_caption = targets / targets.sum(0, keepdim=True)
    return -0.5 * (
        (by_picture * logits.log_softmax(1)).sum(1).mean()
        + (by_caption * logits.log_softmax(0)).sum(0).mean()
    )


def _record(
    model: SmallCLIP,
    validation: TinyClipValidation,
    step: int,
    loss: float,
    seconds: float,
) -> TinyClipLogLine:
    return TinyClipLogLine(
        step=step,
        loss=loss,
        seconds=round(seconds, 1),
        logit_scale=model.logit_scale.exp().item(),
        accuracies=validation.accuracies(model),
    )
