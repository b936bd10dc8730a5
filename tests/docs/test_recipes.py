"""Every command of docs/recipes runs, on a miniature of the layout that the pages name."""

import io
import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import save_file

from privaudit.datasets.images.coop_split import KNOWN
from privaudit.models.hugging_face import import_open_clip
from tests.conftest import Cli
from tests.places import ROOT
from tests.small_transformers import image_processor, random_model, save
from tests.small_vlms import save_vlm

RECIPES = ROOT / "docs" / "recipes"
INDEX = (RECIPES / "README.md").read_text()
PAGES = sorted(path.name for path in RECIPES.glob("*.md") if path.name != "README.md")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
ROW = re.compile(r"^\| `([^`|]+)` \| `([^`|]+)` \|$", re.M)
CLASSES = [f"kind_{number}" for number in range(10)]
EACH = {"train": 4, "val": 2, "test": 1}  # pictures of a class
CLIP = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16,
                   "patch_size": 16},
    "text_cfg": {"context_length": 40, "vocab_size": 49408, "width": 32, "heads": 4,
                 "layers": 1},
}  # fmt: skip


def commands(text: str) -> list[list[str]]:
    """Return every command of a page, in words."""
    lines = "".join(BLOCK.findall(text)).splitlines()
    return [shlex.split(line) for line in lines]


def replacements() -> dict[str, str]:
    """Return the index' table of what the tests replace, and by what."""
    return dict(ROW.findall(INDEX.partition("## How these pages are tested")[2]))


def in_small(words: list[str], small: Path) -> list[str]:
    """Return a command with everything replaced that the table names."""
    table = replacements()
    replaced: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if before.startswith("--") and before in table:
            word = table[before]
        for name, value in table.items():
            if re.fullmatch(r"[a-z_]+", name):
                word = re.sub(rf"\b{name}=\d+", f"{name}={value}", word)
        if ":" in word:  # a model
            word = table.get(word, word)
        replaced += word.split()
    return [word.replace("SMALL", str(small)) for word in replaced]


def picture(shade: int) -> bytes:
    """Return a small picture that is no other's."""
    drawn = random.Random(shade)
    buffer = io.BytesIO()
    Image.frombytes("RGB", (8, 8), drawn.randbytes(192)).save(buffer, format="png")
    return buffer.getvalue()


def write(path: Path, content: bytes | str | Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes | str):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_coop_sets(data: Path) -> None:
    for part in KNOWN:
        if part.name not in INDEX + (RECIPES / "pfedmoap.md").read_text():
            continue
        rows: dict[str, list[Any]] = {
            kind: [
                (f"{name}/{kind}_{number}.png", label, name)
                for label, name in enumerate(CLASSES)
                for number in range(count)
            ]
            for kind, count in EACH.items()
        }
        write(data / part.folder / part.file, rows)
        for shade, (file, _, _) in enumerate(r for some in rows.values() for r in some):
            write(data / part.folder / part.pictures / file, picture(shade))


def write_captions(data: Path) -> None:
    """Write ScienceQA, MSCOCO and LLaVA's JSON, each with as few records as will do."""
    problems, split = {}, {"train": 60, "val": 8, "test": 6}
    pids: dict[str, list[str]] = {}
    for part, count in split.items():
        pids[part] = [f"{part}{number}" for number in range(count)]
        for number, pid in enumerate(pids[part]):
            problems[pid] = {
                "question": "What is it?", "choices": ["red", "blue"],
                "answer": number % 2, "hint": "", "image": "image.png",
                "topic": ("maps", "plants")[number % 2],
            }  # fmt: skip
            write(data / "ScienceQA" / part / pid / "image.png", picture(number))
    write(data / "ScienceQA" / "problems.json", problems)
    write(data / "ScienceQA" / "pid_splits.json", pids)
    for part, count in {"train2017": 70, "val2017": 4}.items():
        numbers = range(count)
        about = [{"id": n, "file_name": f"{n:012}.png"} for n in numbers]
        said = [
            {"id": n, "image_id": n, "caption": "a red square and a circle"}
            for n in numbers
        ]
        seen = [
            {"id": n, "image_id": n, "category_id": n % 2 + 1, "area": 9.0}
            for n in numbers
        ]
        kinds = [{"id": 1, "name": "square"}, {"id": 2, "name": "circle"}]
        home = data / "coco" / "annotations"
        write(
            home / f"captions_{part}.json",
            {"images": about, "annotations": said, "info": {}},
        )
        write(
            home / f"instances_{part}.json",
            {"images": about, "annotations": seen, "categories": kinds},
        )
        for n in numbers:
            write(data / "coco" / part / f"{n:012}.png", picture(n))
    talks = []
    for number in range(74):
        file = f"{('coco', 'gqa')[number % 2]}/{number}.png"
        turns = [("human", "<image>\nwhat is it?"), ("gpt", "a red square")]
        said_by = [{"from": who, "value": text} for who, text in turns]
        talks.append({"id": str(number), "image": file, "conversations": said_by})
        write(data / "llava" / file, picture(number))
    write(data / "llava" / "llava_v1_5_mix665k.json", talks)


def write_others(data: Path) -> None:
    lines = [f"a fine film {n}\t{n % 2}\n" for n in range(60)]
    write(data / "SST-2" / "train.tsv", "sentence\tlabel\n" + "".join(lines))
    write(data / "SST-2" / "dev.tsv", "sentence\tlabel\n" + "".join(lines[:10]))
    for part, count in {"train": 6, "test": 1}.items():
        for label, name in enumerate(CLASSES):
            for number in range(count):
                file = data / "cifar10" / part / name / f"{number:04}.png"
                write(file, picture(100 * label + number))


def write_models(small: Path) -> None:
    small.mkdir()
    write(small / "clip.json", CLIP)
    clip = random_model(lambda: import_open_clip().CLIP(**CLIP))
    save_file(clip.state_dict(), small / "clip.safetensors")
    save_vlm(small / "llava_onevision", "llava_onevision")
    save(small / "bert", "encoder-bert")
    save(small / "vit", "vit-ViT")
    image_processor().save_pretrained(small / "vit")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what the pages' users have: data sets and models."""
    folder = tmp_path_factory.mktemp("recipes")
    for fill in (write_coop_sets, write_captions, write_others):
        fill(folder / "data")
    write_models(folder / "models")
    return folder


@pytest.fixture
def recipe(
    world: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], None]:
    """Run a command of a page, in small, among the data that the pages name."""
    monkeypatch.setenv("PRIVAUDIT_DATA", str(world / "data"))
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(world / "cache"))
    # Figures take longer than all the rest, and have tests of their own.
    monkeypatch.setattr("privaudit.report.page.write_report", lambda *_, **__: None)

    def run(words: list[str]) -> None:
        program, *arguments = in_small(words, world / "models")
        assert program == "privaudit"
        code, _, errors = cli(*arguments, "--quiet")
        assert code == 0, f"{shlex.join(words)}\n{errors}"

    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(
    page: str, recipe: Callable[[list[str]], None]
) -> None:
    listed = commands((RECIPES / page).read_text())
    assert len(listed) >= 3
    for words in listed:
        recipe(words)


def test_only_what_the_table_names_is_replaced(tmp_path: Path) -> None:
    words = shlex.split("privaudit train --set epochs=5 --rounds 100 --clients 10")
    small = in_small(words, tmp_path)
    changed = {(a, b) for a, b in zip(words, small, strict=True) if a != b}
    assert changed == {("epochs=5", "epochs=1"), ("100", "2"), ("10", "4")}
    pages = "".join((RECIPES / page).read_text() for page in PAGES)
    for name in replacements():
        assert name in pages, f"no command has {name}"
