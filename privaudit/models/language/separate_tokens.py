"""Dialogues as tokens whose picture, if there is one, stands before all words."""

from dataclasses import dataclass

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import INSTRUCTION, PICTURE, Dialogue
from privaudit.models.language.dialogue_tokens import DialogueTokens


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
