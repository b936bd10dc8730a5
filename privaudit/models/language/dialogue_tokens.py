"""Dialogues as tokens: questions and answers as one model writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from privaudit.core.errors import ConfigError, shown
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    Dialogue,
    TokenSequences,
)
from privaudit.models.language.chat_rendering import RenderingError, render_bounded
from privaudit.models.language.stacked_language import TextTokenizer

LLAVA_TEMPLATE = "USER: {image}\n{question} ASSISTANT:"
"""What LLaVA 1.5 was trained with."""
_QUESTION = "QUESTION-GOES-HERE"


def chat_template(
    reader: Any, plain: str = "{question}", image: str = "", template: str | None = None
) -> str:
    """Return the prompt that a chat template writes around a question.

    {question} and, in place of the image's token, {image} stand where they go.

    Args:
        reader: A tokenizer or a processor.
        plain: The prompt where it has no chat template.
        image: The image's token; empty for a model without pictures.
        template: In place of the reader's own chat template; may be somebody else's.

    Raises:
        ConfigError: ``template`` is none, leaves the question or the image out, or
            takes too long or too much memory; or {question} or {image} is written.
    """
    if template is None and not getattr(reader, "chat_template", None):
        return plain
    parts = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
    messages = [{"role": "user", "content": parts if image else _QUESTION}]
    if template is None:
        written: str = reader.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
    else:
        written = _written_by(template, messages, reader)
        _check_written(written, image)
    for place in ("{question}", "{image}"):
        if place in written:
            raise ConfigError(
                f"The chat template writes {place} itself, {shown(written)}, and that "
                "is where the question or the image would be put, too. Take it out."
            )
    if image:
        written = written.replace(image, "{image}", 1)
    return written.replace(_QUESTION, "{question}", 1)


def _written_by(template: str, messages: list[dict[str, Any]], reader: Any) -> str:
    """Return what a template writes that may be somebody else's."""
    tokens = getattr(getattr(reader, "tokenizer", reader), "special_tokens_map", {})
    try:
        return render_bounded(template, messages, tokens)
    except RenderingError as error:
        raise ConfigError(
            f"The chat template cannot be used: {error}. "
            "Mend it; it is given `messages` and `add_generation_prompt`."
        ) from None


def _check_written(written: str, image: str) -> None:
    """Refuse what lacks the question, or the image in front of it."""
    question, picture = written.count(_QUESTION), written.count(image) if image else 1
    first = not image or written.find(image) < written.find(_QUESTION)
    if question == 1 and picture == 1 and first:
        return
    places = f"its picture as {image} once and then its text" if image else "its text"
    raise ConfigError(
        f"The chat template has to write {places} once, of the first of `messages`, "
        f"and it makes of a question {shown(written)}."
    )


@dataclass(frozen=True)
class DialogueTokens:
    """Writes dialogues as tokens: a template around the question, then the answer.

    Attributes:
        tokenizer: The language model's. One without a padding token pads with its end
            token: ``kinds`` say what is padding, and as no token sees a later one the
            number there changes nothing.
        template: The prompt, with {image} and {question} once each, in that order; for
            a model without pictures with {question} only.
        parts: Places for a picture; 0 where there is none.
        context: Tokens that the language model takes; None if it does not say.
        image_token: What stands for a part of a picture in the tokenizer's own text;
            None if it knows none. Some tokenizers split other than they would without.

    Raises:
        ConfigError: The template lacks a place, or the tokenizer has no end token.
    """

    tokenizer: TextTokenizer
    template: str
    parts: int
    context: int | None = None
    image_token: str | None = None

    def __post_init__(self) -> None:
        self._check_template()
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(
                "The tokenizer has no end token: no answer could end, and nothing "
                "could stand for padding. Set its eos_token."
            )

    def _check_template(self) -> None:
        image, question = (self.template.find(p) for p in ("{image}", "{question}"))
        if self.parts and not 0 <= image < question:
            raise ConfigError(
                "A template has {image} and then {question} where they go, and "
                f"{self.template!r} has not. Write for example {LLAVA_TEMPLATE!r}."
            )
        if not self.parts and not image < 0 <= question:
            raise ConfigError(
                "A template of a model without pictures has {question} where it goes, "
                f"and no {{image}}, and {self.template!r} is another. Write for "
                "example '{question}'."
            )

    @property
    def padding(self) -> int:
        """The token behind the end."""
        pad_id = self.tokenizer.pad_token_id
        return int(self._end if pad_id is None else pad_id)

    def __call__(self, dialogues: Sequence[Dialogue]) -> TokenSequences:
        """Return rows of tokens, one for each record, padded at the right.

        Behind a prompt stand the first answer and an end token.

        Raises:
            ConfigError: A row does not fit into the context, an answer is empty, or a
                question or an answer holds the tokenizer's own mark for pictures.
        """
        rows = [self._row(i, each) for i, each in enumerate(dialogues)]
        longest = max((len(ids) for ids, _ in rows), default=0)
        ids = torch.full((len(rows), longest), self.padding)
        kinds = torch.full((len(rows), longest), PADDING)
        for row, (row_ids, row_kinds) in enumerate(rows):
            ids[row, : len(row_ids)] = torch.tensor(row_ids)
            kinds[row, : len(row_kinds)] = torch.tensor(row_kinds)
        return TokenSequences(ids, kinds)

    def _row(self, record: int, dialogue: Dialogue) -> tuple[list[int], list[int]]:
        prompt, kinds = self._prompt(record, dialogue.question)
        answer = self._answer(record, dialogue)
        if self.image_token is not None and self._image in answer:
            raise ConfigError(
                f"The answer of record {record} holds {self.image_token!r}, which stands "
                "for a picture. Take that out."
            )
        total = len(prompt) + len(answer)
        if self.context is not None and total > self.context:
            raise ConfigError(
                f"Record {record} takes {total} tokens ({len(prompt)} of its prompt, "
                f"with {kinds.count(PICTURE)} for the picture, and {len(answer)} of its "
                f"answer), and the language model takes {self.context}. Shorten its "
                "question or answer, or leave it out."
            )
        return prompt + answer, kinds + [ANSWER] * len(answer)

    def _prompt(self, record: int, question: str) -> tuple[list[int], list[int]]:
        before, after = self._around(question)
        if self.image_token is None:
            start, end = self._encode(before, True), self._encode(after, False)
            ids = start + [self.padding] * self.parts + end
            kinds = [INSTRUCTION] * len(ids)
            kinds[len(start) : len(start) + self.parts] = [PICTURE] * self.parts
            return ids, kinds
        picture = self._picture(record)
        ids = self._encode(before + picture + after, True)
        kinds = [PICTURE if each == self._image else INSTRUCTION for each in ids]
        parts = picture.count(self.image_token)
        if (places := kinds.count(PICTURE)) != parts:
            raise ConfigError(
                f"Record {record} has {places} places for a picture of {parts} "
                f"tokens: its question holds {self.image_token!r}. Take that out."
            )
        return ids, kinds

    def _picture(self, record: int) -> str:
        """Return what stands for a picture in the text."""
        return str(self.image_token) * self.parts

    def _answer(self, record: int, dialogue: Dialogue) -> list[int]:
        """Return what the tokenizer puts behind the prompt, and the end token."""
        answer = self._first_answer(record, dialogue)
        _, after = self._around(dialogue.question)
        joint = "" if not after or after[-1].isspace() else " "
        prompt = self._encode(after, False)
        whole = self._encode(after + joint + answer, False)
        if whole[: len(prompt)] == prompt:
            return [*whole[len(prompt) :], self._end]
        # The tokenizer joins the two texts, which no prompt alone could end with.
        return [*self._encode(joint + answer, False), self._end]

    def _first_answer(self, record: int, dialogue: Dialogue) -> str:
        answer = dialogue.answers[0].strip() if dialogue.answers else ""
        if not answer:
            raise ConfigError(
                f"The answer of record {record} is empty: there is nothing to train "
                "on. Write one, or leave the record out."
            )
        return answer

    def _around(self, question: str) -> tuple[str, str]:
        before, _, after = self.template.rpartition("{image}")
        return before, after.replace("{question}", question)

    def _encode(self, text: str, starts: bool) -> list[int]:
        """Return a text's tokens; ``starts`` where it is the beginning of a row."""
        starts = starts and not self._writes_start
        ids = list(self.tokenizer.encode(text, add_special_tokens=starts))
        # Alone it is the start token, which some models end with, too.
        return ids[:-1] if len(ids) > 1 and ids[-1] == self._end else ids

    @cached_property
    def _writes_start(self) -> bool:
        start = getattr(self.tokenizer, "bos_token", None)
        return bool(start) and self.template.startswith(str(start))

    @property
    def _end(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @cached_property
    def _image(self) -> int:
        known: Any = self.tokenizer
        return int(known.convert_tokens_to_ids(self.image_token))


@dataclass(frozen=True)
class PictureFirstTokens(DialogueTokens):
    """Writes dialogues as BLIP-2 takes them: even the start token is behind a picture.

    What the template has before {image} is written behind it.
    """

    def _prompt(self, record: int, question: str) -> tuple[list[int], list[int]]:
        before, after = self._around(question)
        ids = self._whole(before + after)
        if not ids:
            raise ConfigError(
                f"The tokenizer makes no token of the question of record {record}. "
                "Write another, or leave the record out."
            )
        places = [self.padding] * self.parts
        return places + ids, [PICTURE] * self.parts + [INSTRUCTION] * len(ids)

    def _whole(self, text: str) -> list[int]:
        return self._encode(text, True)


@dataclass(frozen=True)
class SeparateTokens(PictureFirstTokens):
    """Writes the question for an encoder, and the answer for a decoder.

    Both get the special tokens that the tokenizer puts around a text: T5's puts an end
    token behind it.
    """

    def _whole(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=True))

    def _answer(self, record: int, dialogue: Dialogue) -> list[int]:
        ids = self._whole(self._first_answer(record, dialogue))
        return ids if ids and ids[-1] == self._end else [*ids, self._end]
