"""What the text tower reads in pretraining: templates, and contexts without words."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.models.clip.promptable_clip import spoken
from privaudit.models.clip.text_tower import TextTower, prompt_tokens
from privaudit.models.clip.word_tokenizer import WordTokenizer, pieces, vocabulary_of
from privaudit_tools.surrogate_clip.storage import TextSettings

TEMPLATES = (
    "a photo of a {}.",
    "a photo of the {}.",
    "a picture of a {}.",
    "an image of a {}.",
    "a good photo of a {}.",
    "a bad photo of the {}.",
    "a blurry photo of a {}.",
    "a cropped photo of the {}.",
    "a bright photo of a {}.",
    "a dark photo of the {}.",
    "a close photo of a {}.",
    "a photo of one {}.",
    "a photo of a small {}.",
    "a photo of a large {}.",
    "a photo of my {}.",
    "a drawing of a {}.",
    "a painting of the {}.",
    "a black and white photo of a {}.",
    "there is a {} in the picture.",
    "this is a {}.",
    "the {}.",
    "{}.",
)
ROOM = 24  # tokens beside the class name: 16 of a context, start, end and full stop
_SMALLEST, _LARGEST = 0.005, 0.1


class TemplateTexts(NamedTuple):
    """Token embeddings of one text for each class, and where each text ends."""

    embedded: Float[Tensor, "classes length width"]
    ends: Int[Tensor, " classes"]


def make_tokenizer(class_names: Sequence[str]) -> WordTokenizer:
    """Build the tokenizer for the class names and the templates.

    Rows have room for the longest name and 24 tokens beside it.
    """
    texts = [*map(spoken, class_names), *TEMPLATES]
    vocabulary = vocabulary_of([" ".join(pieces(text)) for text in texts])
    tokenizer = WordTokenizer(vocabulary, 1)
    longest = max(len(tokenizer.encode(spoken(name))) for name in class_names)
    return WordTokenizer(vocabulary, longest + ROOM)


class TrainingTexts:
    """Draws one text for each class.

    Args:
        tokenizer: As :func:`make_tokenizer` makes it.
        class_names: By index.
        settings: How often texts are what.
    """

    def __init__(
        self,
        tokenizer: WordTokenizer,
        class_names: Sequence[str],
        settings: TextSettings,
    ) -> None:
        self._settings = settings
        names, length = [spoken(name) for name in class_names], tokenizer.context_length
        self._templates = torch.stack(
            [tokenizer([t.format(name) for name in names]) for t in TEMPLATES]
        )
        bare = [f"{name}." for name in names]
        self._behind = [
            prompt_tokens(tokenizer, bare, count, length).ids
            for count in range(1, settings.longest + 1)
        ]
        words = {n for text in TEMPLATES for n in tokenizer.encode(text)}
        self._words = torch.tensor(sorted(words))

    def draw(self, tower: TextTower, generator: torch.Generator) -> TemplateTexts:
        """Return one text for each class, differentiable in the tower's embeddings."""
        if torch.rand((), generator=generator) < self._settings.templates:
            kinds, classes, _ = self._templates.shape
            drawn = torch.randint(kinds, (classes,), generator=generator)
            ids = self._templates[drawn, torch.arange(classes)]
            return _cut(tower.token_embedding(ids), ids.argmax(1))
        longest = self._settings.longest
        count = int(torch.randint(1, longest + 1, (), generator=generator))
        ids = self._behind[count - 1]
        context = self._context(tower, count, generator).expand(len(ids), -1, -1)
        embedded = tower.token_embedding(ids)
        whole = torch.cat([embedded[:, :1], context, embedded[:, 1 + count :]], dim=1)
        return _cut(whole, ids.argmax(1))

    def _context(
        self, tower: TextTower, count: int, generator: torch.Generator
    ) -> Float[Tensor, "count width"]:
        noise = torch.randn(count, tower.width, generator=generator)
        if torch.rand((), generator=generator) < self._settings.words:
            drawn = torch.randint(len(self._words), (count,), generator=generator)
            words: Tensor = tower.token_embedding(self._words[drawn])
            return words + self._settings.jitter * noise
        share = torch.rand((), generator=generator)
        return _SMALLEST * (_LARGEST / _SMALLEST) ** share * noise


def encode(tower: TextTower, texts: TemplateTexts) -> Float[Tensor, "classes dim"]:
    """Encode embedded texts as open_clip does; not l2-normalised."""
    length = texts.embedded.shape[1]
    states = texts.embedded + tower.positional_embedding[:length]
    assert tower.attention_mask is not None
    for block in tower.blocks:
        states = block(states, attn_mask=tower.attention_mask[:length, :length])
    return tower.project(states[torch.arange(len(states)), texts.ends])


def _cut(embedded: Tensor, ends: Tensor) -> TemplateTexts:
    """Leave out what stands behind the last end token: nothing sees it."""
    return TemplateTexts(embedded[:, : int(ends.max()) + 1], ends)
