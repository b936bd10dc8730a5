"""Pages stay short: words outside rows of tables, by page and together."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT


def loaded() -> Any:
    spec = spec_from_file_location("words", ROOT / ".ci" / "words.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WORDS = loaded()


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
