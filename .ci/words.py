"""Print the words of the documentation outside rows of tables, by page, and their sum.

Exit code 1 where a page or the sum is above its budget: ``python .ci/words.py``.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, PAPER, SUM = 3_000, 1_500, 55_000  # most words: any page, a paper's, all together
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")


def outside_rows(text: str) -> int:
    """Return how many words stand in a page's lines that are no row of a table."""
    lines = text.splitlines()
    return sum(len(one.split()) for one in lines if not one.lstrip().startswith("|"))


def words_by_page(root: Path = ROOT) -> dict[str, int]:
    """Return the words of the root's pages and of docs/, the most first."""
    pages = [*(root / name for name in ROOT_PAGES), *(root / "docs").rglob("*.md")]
    found = {
        page.relative_to(root).as_posix(): outside_rows(page.read_text("utf-8"))
        for page in pages
        if page.exists()
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def above_budget(words: dict[str, int]) -> list[str]:
    """Return a sentence for each budget that is exceeded."""
    said = []
    for name, count in words.items():
        most = PAPER if Path(name).parent == Path("docs/results") else PAGE
        if count > most:
            said.append(
                f"{name} has {count:,} words outside tables, of at most {most:,}."
            )
    if sum(words.values()) > SUM:
        said.append(
            f"All pages have {sum(words.values()):,} words, of at most {SUM:,}."
        )
    return said


def main() -> None:
    """Print the table, and end with 1 where a budget is exceeded."""
    words = words_by_page()
    for name, count in words.items():
        print(f"{count:7,} {name}")
    print(f"{sum(words.values()):7,} in all")
    if said := above_budget(words):
        sys.exit("\n".join(said))


if __name__ == "__main__":
    main()
