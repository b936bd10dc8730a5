"""What pretraining says about a picture, packed so that it is looked at once.

All dialogues about one picture stand in one row, behind its tokens. Each sees the
picture and itself only, and its positions go on from the picture's: so the row teaches
what the dialogues would teach in rows of their own, in about half the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.datasets.scenes.drawing import SHAPES, Distribution, Scene
from privaudit.datasets.scenes.records import WITH_LETTER
from privaudit.datasets.scenes.wording import (
    ORDINARY_STYLE,
    ask,
    caption,
    topics_of,
    with_choices,
)
from privaudit.models.tiny_llava.loading import (
    INSTRUCTIONS,
    SAY,
    TOKENS,
    Llama,
    LlavaTokenizer,
)

_PREFIX = 1 + TOKENS  # start token and picture
_NOBODY = -1
_NEVER = -1e9
_LONGEST_SAYING = 6
_FREQUENT = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.35, 0.35, 0.35, 0.35)
ORDINARY = Distribution(
    groups=(0.35, 0.45, 0.2),
    counts=(0.35, 0.27, 0.2, 0.14, 0.03, 0.01),
    shapes=(1.0, 1.0, 1.0, 1.0, 0.8, 0.8, 0.4, 0.4),
    colours=(_FREQUENT,) * len(SHAPES),
    sizes=(0.3, 0.4, 0.3),
    textures=(0.79, 0.07, 0.07, 0.07),
)
Said = tuple[str, str]  # question, answer


@dataclass(frozen=True)
class Lessons:
    """Rows of packed dialogues, padded at the right.

    Attributes:
        ids: Token numbers; 0 at the picture's positions.
        positions: As the language model counts them.
        dialogues: Which dialogue a token belongs to, from 1; 0 is start and picture.
        answers: Where the tokens of answers are, with the end token.
    """

    ids: Int[Tensor, "n length"]
    positions: Int[Tensor, "n length"]
    dialogues: Int[Tensor, "n length"]
    answers: Bool[Tensor, "n length"]


def teach(
    scene: Scene, tokenizer: LlavaTokenizer, rng: np.random.Generator
) -> list[Said]:
    """Write a caption, a short question, one of choice, and a fourth dialogue.

    That is another short question, or words to repeat.
    """
    topics = topics_of(scene)
    first, second, third = rng.permutation(len(topics))[:3].tolist()
    said = [
        (_instruction(rng), caption(scene, ORDINARY_STYLE, rng)),
        short_question(scene, topics[first], rng),
        choice_question(scene, topics[second], rng),
    ]
    if rng.random() < 0.5:
        return [*said, short_question(scene, topics[third], rng)]
    return [*said, _saying(tokenizer, rng)]


def short_question(scene: Scene, topic: str, rng: np.random.Generator) -> Said:
    """Ask for one word."""
    question = ask(scene, topic, rng)
    return question.text, question.answer


def choice_question(scene: Scene, topic: str, rng: np.random.Generator) -> Said:
    """Ask for the letter of the right choice, of two to four."""
    question = ask(scene, topic, rng)
    text, letter, _ = with_choices(question, rng, 2 + int(rng.random() * 3))
    return f"{text} {WITH_LETTER}", letter


def pack(said: Sequence[Sequence[Said]], tokenizer: LlavaTokenizer) -> Lessons:
    """Number the tokens of each picture's dialogues and put them into a row."""
    rows = [_row(dialogues, tokenizer) for dialogues in said]
    longest = max(len(row) for row in rows)
    empty = (0, 0, _NOBODY, 0)
    padded = [row + [empty] * (longest - len(row)) for row in rows]
    ids, positions, dialogues, answers = torch.tensor(padded).unbind(-1)
    return Lessons(ids, positions, dialogues, answers.bool())


def answer_logits(
    language: Llama, tokens: Float[Tensor, "n 16 d"], lessons: Lessons
) -> tuple[Float[Tensor, "words vocabulary"], Int[Tensor, " words"]]:
    """Return the logits before each answer's token, and the tokens, row by row."""
    embedded = language.get_input_embeddings()(lessons.ids)
    states = torch.cat([embedded[:, :1], tokens, embedded[:, _PREFIX:]], dim=1)
    hidden = language.model(
        inputs_embeds=states,
        attention_mask=_mask(lessons.dialogues)[:, None],
        position_ids=lessons.positions,
        use_cache=False,
    ).last_hidden_state
    wanted = lessons.answers[:, 1:]
    return language.lm_head(hidden[:, :-1][wanted]), lessons.ids[:, 1:][wanted]


def answer_loss(
    language: Llama, tokens: Float[Tensor, "n 16 d"], lessons: Lessons
) -> Float[Tensor, ""]:
    """Average the cross-entropy over all tokens of answers, in nats."""
    logits, wanted = answer_logits(language, tokens, lessons)
    return cross_entropy(logits.float(), wanted)


def right_answers(
    language: Llama, tokens: Float[Tensor, "n 16 d"], lessons: Lessons
) -> Bool[Tensor, "n dialogues"]:
    """Tell which dialogues are answered word for word, if answered greedily.

    Greedy words are those of the answer exactly if each is the likeliest behind the
    right ones before it.
    """
    logits, wanted = answer_logits(language, tokens, lessons)
    wrong = torch.zeros_like(lessons.ids)
    wrong[:, 1:][lessons.answers[:, 1:]] = (logits.argmax(-1) != wanted).long()
    last = int(lessons.dialogues.max())
    numbers = range(1, last + 1)
    counts = [(wrong * (lessons.dialogues == number)).sum(1) for number in numbers]
    return torch.stack(counts, dim=1) == 0


def _mask(dialogues: Int[Tensor, "n length"]) -> Float[Tensor, "n length length"]:
    """Let a token see itself, the prefix, and what its own dialogue said before.

    Added to attention: 0 where a token may look, and next to minus infinity elsewhere.
    """
    length = dialogues.shape[1]
    before = torch.ones(length, length, dtype=torch.bool).tril()
    same = dialogues[:, :, None] == dialogues[:, None, :]
    allowed = before & (same | (dialogues == 0)[:, None, :])
    return torch.zeros(allowed.shape).masked_fill(~allowed, _NEVER)


def _row(
    dialogues: Sequence[Said], tokenizer: LlavaTokenizer
) -> list[tuple[int, int, int, int]]:
    """Return token, position, dialogue and whether it is an answer's, for each."""
    start = tokenizer.sot_token_id
    row = [(start if n == 0 else 0, n, 0, 0) for n in range(_PREFIX)]
    for number, (question, answer) in enumerate(dialogues, 1):
        prompt = tokenizer.encode(question)
        reply = [*tokenizer.encode(answer), tokenizer.eot_token_id]
        parts = [(token, 0) for token in prompt] + [(token, 1) for token in reply]
        row += [(t, _PREFIX + n, number, reply) for n, (t, reply) in enumerate(parts)]
    return row


def _instruction(rng: np.random.Generator) -> str:
    """Return the usual instruction in seven of ten cases."""
    chance = rng.random()
    return INSTRUCTIONS[0 if chance < 0.7 else 1 if chance < 0.85 else 2]


def _saying(tokenizer: LlavaTokenizer, rng: np.random.Generator) -> Said:
    """Return words to repeat: any of the vocabulary, and now and then spelled ones.

    So words that no ordinary scene asks for become sayable, and can be learned later.
    """
    chances = rng.random(2 * _LONGEST_SAYING).tolist()
    words = []
    for chance, spelled in zip(chances[::2], chances[1::2], strict=True):
        words.append(tokenizer.words[int(chance * len(tokenizer.words))])
        if spelled < 0.15:
            words[-1] = _spelled(rng)
        elif spelled < 0.3:
            words[-1] = ascii_lowercase[int(chance * 26)]
    text = " ".join(words[: 1 + int(rng.random() * _LONGEST_SAYING)])
    return SAY.format(text), text


def _spelled(rng: np.random.Generator) -> str:
    letters = rng.integers(26, size=int(rng.integers(2, 6))).tolist()
    return "".join(ascii_lowercase[letter] for letter in letters)
