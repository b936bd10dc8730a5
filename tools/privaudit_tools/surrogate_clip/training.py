"""Align a small text tower with image features on public records.

Each picture's feature is compared with one text for every class, and the right one is
the target: the picture-to-text half of CLIP's loss, with all class names in place of a
batch's captions, so that two pictures of one class are no negatives of one another.
Where there are image tokens, their mean is compared in the same way, so that methods
that work on tokens find the class there too.
The other half is left out: it would ask which pictures of a batch a class name means.
Texts are templates and contexts without words, because prompt learning asks the tower
for texts that nobody wrote.

Source: Radford et al., "Learning transferable visual models from natural language
supervision", ICML 2021, figure 3; differs as said above.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from privaudit.datasets.dataset import Dataset
from privaudit.models.clip.promptable_clip import (
    PromptableCLIP,
    feature_map,
    map_tokens,
)
from privaudit.models.clip.text_tower import text_tower
from privaudit.models.clip.word_tokenizer import WordTokenizer
from privaudit.models.feature_cache import encoded_features
from privaudit_tools.pretraining.descent import (
    TRIAL_STEPS,
    bound_logit_scale,
    descend,
    require_time,
    seconds_a_step,
)
from privaudit_tools.surrogate_clip.pictures import (
    PublicBank,
    public_images,
)
from privaudit_tools.surrogate_clip.public_split import PublicRecords
from privaudit_tools.surrogate_clip.storage import (
    Accuracies,
    Model,
    SurrogateLogLine,
    SurrogateSettings,
    SurrogateShape,
    build_model,
)
from privaudit_tools.surrogate_clip.texts import (
    TrainingTexts,
    encode,
    make_tokenizer,
)

Progress = Callable[[SurrogateLogLine], None]


@dataclass(frozen=True)
class Pretrained:
    """A model that was just trained, in evaluation mode, and frozen.

    Attributes:
        model: open_clip's ``CustomTextCLIP``.
        tokenizer: Its tokenizer.
        shape: How it is built.
        settings: How it was trained.
        log: How that went.
    """

    model: Model
    tokenizer: WordTokenizer
    shape: SurrogateShape
    settings: SurrogateSettings
    log: list[SurrogateLogLine]


def pretrain(
    dataset: Dataset,
    public: PublicRecords,
    shape: SurrogateShape,
    settings: SurrogateSettings,
    progress: Progress | None = None,
) -> Pretrained:
    """Pretrain a surrogate. The same settings, threads and versions give the same.

    Args:
        dataset: Of which nothing but the public records and the names is used.
        public: What it may see.
        shape: How it is built.
        settings: How to pretrain.
        progress: Called with every line of the log.

    Raises:
        ConfigError: The shape does not fit the data set.
        TrainingError: The loss is not finite.
    """
    alignment = _Alignment(dataset, public, shape, settings)
    started, log, losses = time.monotonic(), [], []
    for step, loss in alignment.train():
        losses.append(loss)
        if step % settings.log_every == 0 or step == settings.steps:
            log.append(
                SurrogateLogLine(
                    step=step,
                    loss=sum(losses) / len(losses),
                    seconds=round(time.monotonic() - started, 1),
                    logit_scale=alignment.model.logit_scale.exp().item(),
                )
            )
            losses.clear()
            if progress is not None:
                progress(log[-1])
    model = alignment.model.eval().requires_grad_(False)
    return Pretrained(model, alignment.tokenizer, shape, settings, log)


def steps_within(
    minutes: float,
    dataset: Dataset,
    public: PublicRecords,
    shape: SurrogateShape,
    settings: SurrogateSettings,
) -> int:
    """Estimate how many steps fit into a time, from a few steps on this machine.

    Raises:
        ConfigError: The time is not above 0.
    """
    require_time(minutes)
    trial = replace(settings, steps=TRIAL_STEPS)
    training = _Alignment(dataset, public, shape, trial).train()
    return max(1, int(60 * minutes / seconds_a_step(training)))


class _Alignment:
    """A model in training, with what it is trained on."""

    def __init__(
        self,
        dataset: Dataset,
        public: PublicRecords,
        shape: SurrogateShape,
        settings: SurrogateSettings,
    ) -> None:
        self.settings = settings
        self.tokenizer = make_tokenizer(dataset.class_names)
        sizes = self.tokenizer.vocab_size, self.tokenizer.context_length
        self.model = build_model(shape, *sizes, settings.seed)
        self.model.visual.to(memory_format=torch.channels_last)
        self._tower = text_tower(self.model)
        self._texts = TrainingTexts(self.tokenizer, dataset.class_names, settings.texts)
        self._images = public_images(dataset, public, shape, settings.variation)
        if isinstance(self._images, PublicBank):
            self.model.visual.mean.copy_(self._images.mean)
            self.model.visual.deviation.copy_(self._images.deviation)
        self._labels = dataset.labels[public.indices].long()
        self._generator = torch.Generator().manual_seed(settings.seed)

    def train(self) -> Iterator[tuple[int, float]]:
        """Train, and yield every step's number, from 1, and loss."""
        self.model.train()
        batches = self._batches()
        for step, loss in descend(
            self.model, self.settings, lambda: self._loss(next(batches))
        ):
            bound_logit_scale(self.model.logit_scale)
            yield step, loss

    def _batches(self) -> Iterator[Tensor]:
        """Yield rows of public records: all once, in random order, then anew."""
        rest = torch.empty(0, dtype=torch.long)
        while True:
            while len(rest) < self.settings.batch:
                order = torch.randperm(len(self._images), generator=self._generator)
                rest = torch.cat([rest, order])
            batch, rest = rest.tensor_split([self.settings.batch])
            yield batch

    def _loss(self, rows: Tensor) -> Float[Tensor, ""]:
        images = self._images.draw(rows, self._generator)
        texts = encode(self._tower, self._texts.draw(self._tower, self._generator))
        texts, labels = normalize(texts), self._labels[rows]
        scale, loss = self.model.logit_scale.exp(), texts.new_zeros(())
        for features, weight in self._features(images):
            logits = scale * normalize(features) @ texts.T
            loss = loss + weight * cross_entropy(logits, labels)
        return loss

    def _features(self, images: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Yield features of each picture, and what their loss weighs."""
        visual = self.model.visual
        if images.ndim == 2:
            yield visual(images), 1.0
            return
        with torch.autocast("cpu", torch.bfloat16):
            states = feature_map(
                visual, images.contiguous(memory_format=torch.channels_last)
            )
            pooled, tokens = visual.attnpool(states), map_tokens(visual, states)
        yield pooled.float(), 1.0
        yield normalize(tokens.float(), dim=-1).mean(1), self.settings.tokens


_CONTEXTS, _CONTEXT_TOKENS, _DEVIATION = 5, 16, 0.02


@torch.no_grad()
def measure(
    model: PromptableCLIP, dataset: Dataset, indices: Int[Tensor, " n"], seed: int = 0
) -> Accuracies:
    """Classify records by hand-written prompts and behind random contexts.

    Args:
        model: The surrogate.
        dataset: Of which only the records at ``indices`` are read.
        indices: At least one.
        seed: Of the random contexts.
    """
    features = encoded_features(model, dataset.pictures, indices.tolist())
    labels = dataset.labels[indices]
    texts = model.template_features(dataset.class_names, dataset.template)
    by_template = _hits(features, texts, labels)
    prompts = model.prompts(dataset.class_names, _CONTEXT_TOKENS)
    generator = torch.Generator().manual_seed(seed)
    shape = (_CONTEXTS, _CONTEXT_TOKENS, model.width)
    contexts = _DEVIATION * torch.randn(shape, generator=generator)
    behind = [_hits(features, t, labels).mean().item() for t in prompts(contexts)]
    classes = [by_template[labels == label].mean() for label in labels.unique()]
    return Accuracies(
        records=len(labels),
        template=by_template.mean().item(),
        template_by_class=torch.stack(classes).mean().item(),
        random_context=sum(behind) / len(behind),
        random_context_lowest=min(behind),
    )


def _hits(
    features: Float[Tensor, "n dim"],
    texts: Float[Tensor, "classes dim"],
    labels: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    return ((features @ texts.T).argmax(1) == labels).float()
