import html
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from privaudit.report.markdown import _SPACES, escape, gate_markdown, write_summary
from tests.privaudit.report.gate_results import NASTY, made

READER = MarkdownIt("commonmark").enable("table")


def test_it_holds_the_sentence_a_row_and_a_sentence_for_each_check() -> None:
    page = READER.render(gate_markdown(made()))
    assert page.count("<tr>") == 5
    assert page.count("<li>") == 4
    assert "<strong>Regression: 2 of 4 checks (against a baseline" in page
    assert "<td>margin 0.05</td>" in page
    assert page.count("❌ regression") == 2
    assert page.count("⚠️ underpowered") == 1


def test_a_nasty_name_stays_text_in_its_own_cell() -> None:
    page = READER.render(gate_markdown(made(NASTY, None, **{NASTY: 0.3})))
    assert "<script" not in page
    assert "<a " not in page
    assert "<code" not in page
    assert page.count("<tr>") == 3
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert {row.count("<td>") + row.count("<th>") for row in rows} == {4}
    assert page.count("<h1") == 0


@given(st.text())
def test_a_text_in_a_cell_is_one_paragraph_of_text(text: str) -> None:
    page = READER.render(f"| a |\n|---|\n| {escape(text)} |\n")
    tags = set(re.findall(r"</?([a-z0-9]+)", page))
    assert tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert page.count("<td>") == 1
    shown = html.unescape(re.sub(r"<[^>]*>", "", page.partition("<tbody>")[2]))
    plain = _SPACES.sub(" ", text).strip()
    assert shown.strip() == plain.replace("\\\n", "").strip()


@given(st.text("1a.-+_=:[](), !", max_size=12))
def test_a_text_in_a_list_is_an_item_of_text(text: str) -> None:
    page = READER.render(f"- x\n- {escape(text)}\n")
    tags = set(re.findall(r"</?([a-z0-9]+)", page))
    assert tags == {"ul", "li"}
    item = page.split("<li>")[2].partition("</li>")[0]
    assert html.unescape(item) == " ".join(text.split())


def test_a_number_at_the_beginning_reads_as_it_is() -> None:
    assert (escape("0.578"), escape("1. a"), escape("7.")) == (
        "0.578",
        "1\\. a",
        "7\\.",
    )


def test_it_reads_as_text_too() -> None:
    text = gate_markdown(made("dp-fpl_8", None, worse=0.3, same=0.0))
    assert "| worse " in text
    assert "dp-fpl_8 against before" not in text  # names may hold a seed
    rows = [line for line in text.splitlines() if line.startswith("|")]
    bars = [[n for n, sign in enumerate(row) if sign == "|"] for row in rows]
    assert all(one == bars[0] for one in bars)
    first, *_, last = [line for line in text.splitlines() if line.startswith("- ")]
    assert first.startswith("- Regression: ")
    assert last.startswith("- Pass: ")


def test_githubs_summary_is_added_to_and_other_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, other = tmp_path / "summary", tmp_path / "other"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for path in (summary, other):
        path.write_text("before\n")
        write_summary(path, "after\n")
    assert summary.read_text().split() == ["before", "after"]
    assert other.read_text() == "after\n"
