"""Make embeddings readable: a linear map from them to tokens of a language model.

The language model stays frozen; the map is learned on public captions, so that the
model's own loss on them falls. It then has seen these records, which no client may own.
The map has far more numbers than there are captions: a fifth of them is held out, and
the map that does best on these is kept.

Source: Mokady et al., "ClipCap: CLIP prefix for image captioning", 2021, with a linear
map in place of its two layers.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.models.interfaces import Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit_tools.pretraining.descent import descend
from privaudit_tools.projector.projector_folder import (
    Projector,
    ProjectorLogLine,
    ProjectorSettings,
)

Progress = Callable[[ProjectorLogLine], None]


@dataclass(frozen=True)
class Learned:
    """A projector that was just learned, frozen."""

    projector: Projector
    log: tuple[ProjectorLogLine, ...]


def learn_projector(
    language: StackedLanguageModel,
    embeddings: Float[Tensor, "n bank_width"],
    words: TokenSequences,
    settings: ProjectorSettings,
    progress: Progress | None = None,
) -> Learned:
    """Learn a projector. The same settings, threads and versions give the same.

    Args:
        language: Frozen, and used without changes.
        embeddings: Of public records.
        words: Their dialogues with answers, with ``settings.parts`` places.
        settings: How to learn.
        progress: Called with every line of the log.

    Raises:
        TrainingError: The loss is not finite.
    """
    learning = _Learning(language, embeddings, words, settings)
    log, losses, started = list[ProjectorLogLine](), list[float](), time.monotonic()
    for step, loss in learning.steps():
        losses.append(loss)
        if step % settings.log_every == 0 or step == settings.steps:
            seconds = round(time.monotonic() - started, 1)
            held_out = learning.keep_best()
            log.append(
                ProjectorLogLine(step, sum(losses) / len(losses), held_out, seconds)
            )
            losses.clear()
            if progress is not None:
                progress(log[-1])
    return Learned(learning.folded(), tuple(log))


def caption_loss(
    language: StackedLanguageModel,
    tokens: Float[Tensor, "n parts width"],
    words: TokenSequences,
) -> Float[Tensor, ""]:
    """Return the mean loss of the answers' tokens, in nats, differentiable."""
    words = words.trimmed()
    answers = words.kinds == ANSWER
    first = int(answers.any(dim=0).nonzero()[0])
    before = torch.arange(first - 1, words.length - 1, device=words.ids.device)
    alone = TokenSequences(words.ids[None], words.kinds[None])
    logits = language.logits(tokens[None], alone, Tuning(), before)[0]
    scored = answers[:, first:]
    return cross_entropy(logits[scored], words.ids[:, first:][scored])


class _Learning:
    """A projector in training, on embeddings that are standardised."""

    def __init__(
        self,
        language: StackedLanguageModel,
        embeddings: Tensor,
        words: TokenSequences,
        settings: ProjectorSettings,
    ) -> None:
        self._language, self._words, self._settings = language, words, settings
        self._generator = torch.Generator().manual_seed(settings.seed)
        embeddings = embeddings.float()
        self._mean = embeddings.mean(dim=0)
        self._deviation = embeddings.std(dim=0, correction=0).clamp(min=1e-6)
        self._inputs = (embeddings - self._mean) / self._deviation
        self._projector = self._start(embeddings.shape[1])
        order = torch.randperm(len(embeddings), generator=self._generator)
        self._held_out, self._rest = order.tensor_split([max(1, len(order) // 5)])
        if not len(self._rest):
            self._rest = self._held_out
        self._best: tuple[float, dict[str, Tensor]] = math.inf, {}

    def _start(self, bank_width: int) -> Projector:
        """Draw tokens about as long as those of words."""
        made = Projector(bank_width, self._settings.parts, self._language.width)
        table = self._language.model.get_input_embeddings().weight
        spread = float(table.float().std()) / math.sqrt(bank_width)
        drawn = torch.randn(made.weight.shape, generator=self._generator)
        with torch.no_grad():
            made.weight.copy_(drawn * spread)
        return made.to(self._language.device)

    def steps(self) -> Iterator[tuple[int, float]]:
        """Learn, and yield every step's number, from 1, and loss."""
        betas = 0.9, 0.999  # torch's own
        return descend(
            self._projector, self._settings, lambda: self._loss(self._draw()), betas
        )

    @torch.no_grad()
    def keep_best(self) -> float:
        """Return the loss on the held-out captions, and remember the best map."""
        loss = float(self._loss(self._held_out))
        if loss < self._best[0]:
            state = self._projector.state_dict()
            self._best = loss, {name: t.clone() for name, t in state.items()}
        return loss

    def folded(self) -> Projector:
        """Return the best map, for embeddings as they are, frozen."""
        self._projector.load_state_dict(self._best[1])
        projector = self._projector.cpu()
        weight = projector.weight.detach() / self._deviation
        with torch.no_grad():
            projector.bias.sub_(weight @ self._mean)
            projector.weight.copy_(weight)
        return projector.eval().requires_grad_(False).to(self._language.device)

    def _draw(self) -> Int[Tensor, " batch"]:
        order = torch.randperm(len(self._rest), generator=self._generator)
        return self._rest[order[: self._settings.batch]]

    def _loss(self, rows: Tensor) -> Tensor:
        device = self._language.device
        tokens = self._projector(self._inputs[rows].to(device))
        return caption_loss(self._language, tokens, self._words[rows].to(device))
