"""Dialogues as tokens of a vision-language model, laid out by its own processor."""

from dataclasses import dataclass

from privaudit.datasets.dialogues import PICTURE
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.vision_language.picture_reader import PictureLayout


@dataclass(frozen=True)
class LaidOutTokens(DialogueTokens):
    """Writes dialogues about pictures of any sizes, with the layout's number at places.

    Attributes:
        layouts: Of each record's picture.
    """

    layouts: tuple[PictureLayout, ...] = ()

    def _prompt(self, record: int, question: str) -> tuple[list[int], list[int]]:
        ids, kinds = super()._prompt(record, question)
        number, pairs = self.layouts[record].number, zip(ids, kinds, strict=True)
        return [number if kind == PICTURE else i for i, kind in pairs], kinds

    def _picture(self, record: int) -> str:
        return self.layouts[record].text
