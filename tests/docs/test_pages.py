"""Pages: their links, and how many words they have."""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.models.hugging_face import declare_missing_operators
from tests.places import ROOT, ci_script

PAGES = ("own-model.md", "api.md", "split.md", "recording.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.M | re.S)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
TOLERANCE = 0.05  # of an AUROC: other machines round, and so train, otherwise
COUNTS = 0.15  # relative, of numbers that are derived from it


@dataclass(frozen=True)
class Block:
    """One piece of code, from which line on it stands, and what the page says of it."""

    code: str
    line: int
    printed: str


def blocks_of(text: str) -> list[Block]:
    return [
        Block(found[1], text[: found.start()].count("\n") + 1, found[2] or "")
        for found in BLOCK.finditer(text)
    ]


def run(block: Block, page: str, names: dict[str, Any]) -> str:
    """Run a block as if it stood alone in the page, so that errors name its line."""
    code = compile("\n" * block.line + block.code, page, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def assert_says(printed: str, said: str) -> None:
    """Compare words exactly, and numbers as far as machines agree."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", said)
    ours, theirs = ([float(n) for n in NUMBER.findall(x)] for x in (printed, said))
    assert ours == pytest.approx(theirs, abs=TOLERANCE, rel=COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a page may write files
    declare_missing_operators()  # before transformers looks for torchvision
    names: dict[str, Any] = {"__name__": "page"}
    blocks = blocks_of((ROOT / "docs" / page).read_text())
    assert blocks
    with torch.random.fork_rng():
        for block in blocks:
            assert_says(run(block, page, names), block.printed)


def test_a_page_that_says_something_else_is_found() -> None:
    (block,) = blocks_of("```python\nprint(0.61)\n```\n\n```text\n0.52\n```\n")
    with pytest.raises(AssertionError):
        assert_says(run(block, "page", {}), block.printed)


def test_an_error_names_the_line_of_the_page() -> None:
    (block,) = blocks_of("# Title\n\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as error:
        run(block, "page.md", {})
    assert error.traceback[-1].lineno + 1 == 4


def test_every_python_block_is_recognised() -> None:
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text()
        assert len(blocks_of(text)) == text.count("```python")


WORDS = ci_script("words")


def test_no_page_and_not_their_sum_is_above_its_budget() -> None:
    """Else: say it once, and link; a table's rows are not counted."""
    words = WORDS.words_by_page()
    assert len(words) > 100
    assert WORDS.above_budget(words) == []


def test_rows_of_tables_are_not_counted() -> None:
    text = "# Two words\n\n| a | b |\n|---|---|\n  | c | d |\nthree `more words`\n"
    assert WORDS.outside_rows(text) == 6


@pytest.mark.parametrize(
    ("name", "words", "most"),
    [("docs/a.md", 3_001, "3,000"), ("docs/results/a.md", 1_501, "1,500")],
)
def test_a_page_that_is_too_long_is_found(
    name: str, words: int, most: str, tmp_path: Path
) -> None:
    page = tmp_path / name
    page.parent.mkdir(parents=True)
    page.write_text("word " * words)
    (said,) = WORDS.above_budget(WORDS.words_by_page(tmp_path))
    assert name in said
    assert said.endswith(f"of at most {most}.")


def test_too_many_words_together_are_found() -> None:
    pages = {f"docs/{n}.md": 3_000 for n in range(WORDS.SUM // 3_000 + 1)}
    (said,) = WORDS.above_budget(pages)
    assert said.startswith("All pages have ")
