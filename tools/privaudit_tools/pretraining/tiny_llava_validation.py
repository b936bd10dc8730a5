"""Drawn validation scenes: ordinary ones, from a seed that training does not use."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.datasets.scenes.drawing import (
    COLOURS,
    NUMBERS,
    PLURALS,
    SHAPES,
    TEXTURES,
    Distribution,
    Group,
    Scene,
    draw_pictures,
    draw_scene,
)
from privaudit.datasets.scenes.wording import DESCRIBE, TOPICS, topics_of
from privaudit.models.clip.word_tokenizer import pieces
from privaudit.models.tiny_llava.loading import Llama, LlavaTokenizer, Model, prepare
from privaudit_tools.pretraining.lessons import (
    ORDINARY,
    Said,
    choice_question,
    pack,
    right_answers,
    short_question,
)

LONGEST = 40  # words of a caption
_SHAPES = {name: n for names in (SHAPES, PLURALS) for n, name in enumerate(names)}
_COUNTS = {name: n for n, name in enumerate(NUMBERS)} | {"a": 1, "an": 1}


@dataclass(frozen=True)
class TinyLlavaValidation:
    """Drawn scenes, with two questions each: a short one and one of choice.

    Attributes:
        scenes: What the pictures show.
        pictures: As the image tower takes them.
        questions: By scene.
        topics: Of each scene's questions.
    """

    scenes: list[Scene]
    pictures: Float[Tensor, "n 3 64 64"]
    questions: list[list[Said]]
    topics: list[str]

    @torch.no_grad()
    def accuracies(self, model: Model) -> dict[str, float]:
        """Measure captions and answers.

        Returns:
            For captions the share of groups whose shape, number, colour and texture
            are named correctly (a number, colour or texture only with its shape), of
            captions that tell all shapes in one of the two true orders with the right
            word between them, and of those in which all of that is right; for
            questions the share of right answers, by topic (none for a topic that
            nobody asked about) and in all.
        """
        tokenizer = LlavaTokenizer()
        tokens = model.encoder(self.pictures)
        captions = describe(model.language, tokens, tokenizer)
        judged = [judge(c, s) for c, s in zip(captions, self.scenes, strict=True)]
        means = {k: _mean([x for j in judged for x in j[k]]) for k in judged[0]}
        lessons = pack(self.questions, tokenizer)
        short, choice = right_answers(model.language, tokens, lessons).T.tolist()
        graded = list(zip(self.topics, short, strict=True))
        by_topic = {
            f"question {topic}": _mean(
                [right for name, right in graded if name == topic]
            )
            for topic in TOPICS
            if topic in self.topics
        }
        means |= by_topic
        return means | {"questions": _mean(short), "choices": _mean(choice)}


def build_validation(
    count: int, seed: int, distribution: Distribution = ORDINARY
) -> TinyLlavaValidation:
    """Draw validation scenes.

    Args:
        count: How many.
        seed: Other than training's.
        distribution: What is drawn.
    """
    rng = np.random.default_rng(seed)
    scenes = [draw_scene(distribution, rng) for _ in range(count)]
    pictures = prepare(torch.from_numpy(draw_pictures(scenes, rng)))
    topics = [_topic(scene, rng) for scene in scenes]
    questions = [
        [short_question(scene, topic, rng), choice_question(scene, topic, rng)]
        for scene, topic in zip(scenes, topics, strict=True)
    ]
    return TinyLlavaValidation(scenes, pictures, questions, topics)


@torch.no_grad()
def describe(
    language: Llama,
    tokens: Float[Tensor, "n 16 d"],
    tokenizer: LlavaTokenizer,
    longest: int = LONGEST,
) -> list[str]:
    """Write a caption for each picture, word by word the likeliest."""
    embed = language.get_input_embeddings()
    start, *prompt_ids = [tokenizer.sot_token_id, *tokenizer.encode(DESCRIBE)]
    words = embed(torch.tensor([start, *prompt_ids])).expand(len(tokens), -1, -1)
    states = torch.cat([words[:, :1], tokens, words[:, 1:]], dim=1)
    written: list[Int[Tensor, " n"]] = []
    cache = None
    for _ in range(longest):
        out = language(inputs_embeds=states, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        written.append(out.logits[:, -1].argmax(-1))
        states = embed(written[-1])[:, None]
    return [_until_end(row, tokenizer) for row in torch.stack(written, 1).tolist()]


def judge(text: str, scene: Scene) -> dict[str, list[bool]]:
    """Compare a caption with its scene.

    What stands between one shape's name and the next belongs to the next.

    Returns:
        "shapes", "counts", "colours", "textures": one value for each group of the
        scene; "orders": whether shapes come in one of the two true orders; "captions":
        whether all is right.
    """
    by_shape = _words_by_shape(text)
    result: dict[str, list[bool]] = {
        name: [] for name in ("shapes", "counts", "colours", "textures")
    }
    for group in scene.groups:
        words = by_shape.get(group.shape)
        result["shapes"].append(words is not None)
        result["counts"].append(words is not None and _count(words) == group.count)
        result["colours"].append(words is not None and _colour_is(words, group))
        result["textures"].append(words is not None and _texture_is(words, group))
    result["orders"] = [_in_order(text, by_shape, scene)]
    return result | {"captions": [all(all(values) for values in result.values())]}


def _words_by_shape(text: str) -> dict[int, list[str]]:
    """Return the words in front of each shape's name, by shape, as they come."""
    by_shape: dict[int, list[str]] = {}
    words: list[str] = []
    for piece in pieces(text):
        if piece in _SHAPES:
            by_shape[_SHAPES[piece]] = words
            words = []
        else:
            words.append(piece)
    return by_shape


def _count(words: list[str]) -> int | None:
    counts = [_COUNTS[word] for word in words if word in _COUNTS]
    return counts[-1] if counts else None


def _colour_is(words: list[str], group: Group) -> bool:
    return [word for word in words if word in COLOURS] == [COLOURS[group.colour]]


def _texture_is(words: list[str], group: Group) -> bool:
    said = [word for word in words if word in TEXTURES] or [TEXTURES[0]]
    return said == [TEXTURES[group.texture]]


def _in_order(text: str, by_shape: dict[int, list[str]], scene: Scene) -> bool:
    """Check order and relation: forwards with one word, backwards with the other."""
    shapes = [group.shape for group in scene.groups]
    relation, reverse = scene.relations
    if list(by_shape) not in (shapes, shapes[::-1]):
        return False
    said = relation if list(by_shape) == shapes else reverse
    return len(shapes) == 1 or text.count(f" {said} ") == len(shapes) - 1


def _topic(scene: Scene, rng: np.random.Generator) -> str:
    topics = topics_of(scene)
    return topics[int(rng.random() * len(topics))]


def _until_end(numbers: list[int], tokenizer: LlavaTokenizer) -> str:
    end = tokenizer.eot_token_id
    return tokenizer.decode(
        numbers[: numbers.index(end)] if end in numbers else numbers
    )


def _mean(values: list[bool]) -> float:
    return sum(values) / len(values)
