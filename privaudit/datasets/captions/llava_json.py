"""LLaVA's instruction data: conversations about pictures, in one JSON file.

Source: Liu, Li, Wu, Lee, "Visual instruction tuning", NeurIPS 2023: the form that
docs/Finetune_Custom_Data.md of https://github.com/haotian-liu/LLaVA describes.
"""

from pathlib import Path
from typing import NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from privaudit.core.errors import DatasetError
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.files.archives import plain
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.images.picture_files import number, pictures_of
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import on_disk, only_file

MARK = "<image>"  # where the picture stands in a question


class _Turn(TypedDict("_Said", {"from": str})):
    value: str


class _Conversation(TypedDict):
    image: NotRequired[str | None]
    conversations: list[_Turn]


CONVERSATIONS = TypeAdapter(list[_Conversation])


@on_disk(
    "llava-json",
    summary="Images with conversations in LLaVA's form.",
    needs='one *.json, a list of {"image": "coco/1.jpg", "conversations": '
    '[{"from": "human", "value": "<image>\\nWhat is it?"}, {"from": "gpt", '
    '"value": "A dog."}]}, and the images beside it',
    source="Get or write such a list (see docs/Finetune_Custom_Data.md of "
    "https://github.com/haotian-liu/LLaVA)",
    folders=("llava",),
)
def read_llava_json(path: Path) -> Dataset:
    """Read the first question and answer of each conversation that has a picture.

    Later turns, and conversations without a picture, are left out. The label, by which
    a Dirichlet partition splits, is the first folder of the picture's name (``coco``,
    ``gqa``, ...), where there are several.
    """
    missing = f"There is no *.json in {path}. Put LLaVA's list of conversations there."
    file = only_file(path, "*.json", missing)
    listed = read_checked(file, CONVERSATIONS)
    pictured = [
        (f"Conversation {count} of {file}", entry)
        for count, entry in enumerate(listed, start=1)
        if entry.get("image")
    ]
    if not pictured:
        raise DatasetError(
            f"None of the {len(listed)} conversations of {file} has a picture. Get it "
            "again."
        )
    files = [plain(str(entry["image"])) for _, entry in pictured]
    dialogues = tuple(_first_turns(entry, where) for where, entry in pictured)
    labels, class_names = number([name.split("/")[0] for name in files])
    if not all("/" in name for name in files):
        labels, class_names = number(["picture"] * len(files))
    pictures = pictures_of(file.parent, files)
    return Dataset(pictures, labels, class_names, dialogues=dialogues)


def _first_turns(entry: _Conversation, where: str) -> Dialogue:
    turns = [(turn["from"], turn["value"]) for turn in entry["conversations"][:2]]
    if [who for who, _ in turns] != ["human", "gpt"]:
        raise DatasetError(
            f"{where} begins with {', '.join(repr(who) for who, _ in turns) or 'nobody'}. "
            "It should begin with a question from 'human' and an answer from 'gpt'."
        )
    question, answer = (text.replace(MARK, "").strip() for _, text in turns)
    if not question or not answer:
        raise DatasetError(
            f"{where} asks {question!r} and answers {answer!r}: neither may be blank. "
            "Write one, or take the conversation out."
        )
    return Dialogue(question, (answer,))
