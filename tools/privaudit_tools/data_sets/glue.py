"""SST-2, QNLI and MNLI of GLUE: sentences, or pairs of them, with a class.

Source: Wang, Singh, Michael, Hill, Levy, Bowman, "GLUE: a multi-task benchmark and
analysis platform for natural language understanding", ICLR 2019, for the files; Socher
et al., EMNLP 2013 (SST-2); Rajpurkar et al., EMNLP 2016 (QNLI); Williams, Nangia,
Bowman, NAACL 2018 (MNLI).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, Dataset, Texts
from privaudit.datasets.images.picture_files import require_classes
from privaudit.datasets.sources import OnDisk
from privaudit.datasets.text.question_texts import class_questions
from privaudit.datasets.text.rows import TextRow, read_rows

NO_CONSENSUS = ("-", "-1")
PAGE = "https://gluebenchmark.com/tasks"


@dataclass(frozen=True)
class GlueTask:
    """One of GLUE's tasks.

    Attributes:
        summary: What it is, in one line.
        columns: Each text's, by the names that some release gives it.
        parts: What a question calls each text.
        asked: What is asked about them.
        classes: As files write them, in the order of their numbers.
        tests: Files of the part that is measured on, without endings.
        template: A hand-written prompt with {} for the class name.
    """

    summary: str
    columns: tuple[tuple[str, ...], ...]
    parts: tuple[str, ...]
    asked: str
    classes: tuple[str, ...]
    tests: tuple[str, ...]
    folders: tuple[str, ...]
    template: str

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names as a prompt would write them."""
        return tuple(name.replace("_", " ") for name in self.classes)


SST2 = GlueTask(
    summary="SST-2 of GLUE: is a sentence about a film positive or negative?",
    columns=(("sentence",),),
    parts=("Sentence",),
    asked="Is the sentence positive or negative?",
    classes=("negative", "positive"),
    tests=("dev", "validation"),
    folders=("SST-2", "GLUE/SST-2", "glue_data/SST-2", "glue/sst2", "sst2"),
    template="It was {}.",
)
QNLI = GlueTask(
    summary="QNLI of GLUE: does a sentence answer a question?",
    columns=(("question",), ("sentence",)),
    parts=("Question", "Sentence"),
    asked="Does the sentence hold the answer to the question?",
    classes=("entailment", "not_entailment"),
    tests=("dev", "validation"),
    folders=("QNLI", "GLUE/QNLI", "glue_data/QNLI", "glue/qnli"),
    template="This is {}.",
)
MNLI = GlueTask(
    summary="MNLI of GLUE: does a premise entail a hypothesis? Tests: matched genres.",
    columns=(("sentence1", "premise"), ("sentence2", "hypothesis")),
    parts=("Premise", "Hypothesis"),
    asked="Does the premise entail the hypothesis?",
    classes=("entailment", "neutral", "contradiction"),
    tests=("dev_matched", "validation_matched", "multinli_1.0_dev_matched"),
    folders=("MNLI", "GLUE/MNLI", "glue_data/MNLI", "glue/mnli"),
    template="This is {}.",
)
MISMATCHED = replace(
    MNLI,
    summary="MNLI of GLUE, with tests of genres that training has none of.",
    tests=tuple(name.replace("matched", "mismatched") for name in MNLI.tests),
)


def read_glue(path: Path, task: GlueTask) -> Dataset:
    """Read train.tsv and dev.tsv, or train.jsonl and validation.jsonl.

    GLUE keeps the labels of its own test part, so dev is the test part. Records without
    an agreed label ("-" in MNLI) are left out, as by its authors. Each record also has
    a dialogue: the question written out, and the class name as the answer.
    """
    files = (_find(path, ("train", "multinli_1.0_train")), _find(path, task.tests))
    parts = [list(_records(file, task)) for file in files]
    for file, part in zip(files, parts, strict=True):
        if not part:
            raise DatasetError(f"{file} has no record with a label. Get it again.")
    texts = [text for part in parts for text, _ in part]
    labels = torch.tensor([label for part in parts for _, label in part])
    sizes = torch.tensor(list(map(len, parts)))
    split = torch.tensor([TRAIN, TEST_SPLIT]).repeat_interleave(sizes)
    names = task.class_names
    require_classes(labels, names, path)
    return Dataset(
        Texts(tuple(texts)), labels, names, task.template, split,
        dialogues=class_questions(texts, labels, names, task.parts, task.asked),
    )  # fmt: skip


def _find(path: Path, stems: tuple[str, ...]) -> Path:
    names = [f"{stem}{ending}" for stem in stems for ending in (".tsv", ".jsonl")]
    if there := [name for name in names if (path / name).is_file()]:
        return path / there[0]
    if first := next(path.glob(f"{stems[0].partition('_')[0]}*.parquet"), None):
        raise DatasetError(
            f"{path} holds {first.name}, and no {' or '.join(names[:2])}. Parquet is "
            "not read: write it as .jsonl with `to_json` of the datasets library."
        )
    raise MissingFileError(
        f"There is none of {', '.join(names)} in {path}. Name the folder that holds "
        f"the task's files; they are downloaded from {PAGE}."
    )


def _records(file: Path, task: GlueTask) -> Iterator[tuple[tuple[str, ...], int]]:
    for row in read_rows(file):
        label = row.take("gold_label", "label")
        if label not in NO_CONSENSUS:
            texts = tuple(row.take_text(*names) for names in task.columns)
            yield texts, _number(label, row, task)


def _number(label: str, row: TextRow, task: GlueTask) -> int:
    """Return a class's number, of its name or of the number itself."""
    names = (*map(str, range(len(task.classes))), *task.classes)
    known = {name: place % len(task.classes) for place, name in enumerate(names)}
    if label not in known:
        raise DatasetError(
            f"{row.where} has the label {label!r}. There are "
            f"{', '.join(known)}: write one of these, or take the line out."
        )
    return known[label]


def _on_disk(task: GlueTask) -> OnDisk:
    return OnDisk(
        summary=task.summary,
        needs=f"train.tsv and {task.tests[0]}.tsv as GLUE has them, or "
        f"train.jsonl and {task.tests[1]}.jsonl with the columns of the Hugging "
        f"Face release; {task.tests[0]} is the test part",
        source=f"Download the task from {PAGE}",
        read=partial(read_glue, task=task),
        folders=task.folders,
    )


SST_2_FILES, QNLI_FILES = map(_on_disk, (SST2, QNLI))
MNLI_FILES, MISMATCHED_FILES = map(_on_disk, (MNLI, MISMATCHED))
