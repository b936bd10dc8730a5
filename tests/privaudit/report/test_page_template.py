import re

import pytest

from privaudit.report.page_template import PLACE, TERMS, with_glossary


def page(body: str) -> str:
    return with_glossary(f"<html><title>AUROC</title><body>{body}{PLACE}</body></html>")


def test_the_first_use_is_linked_and_no_other() -> None:
    html = page("<p>An AUROC, and another AUROC.</p>")
    assert html.count('href="#term-auroc"') == 1
    assert '<p>An <a class="term" href="#term-auroc">AUROC</a>, and another' in html
    assert html.count('id="term-auroc"') == 1


def test_terms_that_are_not_used_are_not_explained() -> None:
    html = page("<p>An AUROC.</p>")
    assert re.findall(r'<dt id="term-([^"]*)"', html) == ["auroc"]


@pytest.mark.parametrize(
    "apart",
    [
        "<h1>AUROC</h1>",
        "<svg aria-label='AUROC'><text>AUROC</text></svg>",
        "<script>AUROC</script>",
        "<table><thead><tr><th>AUROC</th></tr></thead></table>",
        "<a href='#x'>AUROC</a>",
        "<code>AUROC</code>",
        '<p title="AUROC">a</p>',
    ],
)
def test_links_stand_in_running_text_alone(apart: str) -> None:
    assert page(apart) == page(apart).replace("term-auroc", "")
    assert f'{apart}<p><a class="term" href="#term-auroc">' in page(
        f"{apart}<p>AUROC</p>"
    )


def test_a_tables_cell_is_linked_only_if_no_prose_uses_the_term() -> None:
    cell = "<table><tr><td>zero-shot</td></tr></table>"
    assert f"{cell}<p><a " in page(f"{cell}<p>zero-shot</p>")
    assert '<td><a class="term" href="#term-zero-shot">' in page(cell)


def test_terms_that_overlap_are_both_linked() -> None:
    html = page("<p>the clip norm of a mechanism; a non-member</p>")
    assert 'href="#term-member">non-member</a>' in html
    assert html.count('href="#term-mechanism"') == 1


def test_parts_of_words_are_no_use() -> None:
    assert "term-roc" not in page("<p>An AUROC and a microclient.</p>")
    assert "term-federated" not in page("<p>a microclient</p>")


def test_a_page_without_a_place_stays_as_it_is() -> None:
    html = "<html><body><p>AUROC</p></body></html>"
    assert with_glossary(html) == html


def test_what_was_escaped_stays_escaped() -> None:
    assert "<p>&lt;b&gt; " in page("<p>&lt;b&gt; AUROC</p>")


def test_every_term_has_one_entry_of_its_own_and_says_something() -> None:
    assert len(TERMS) > 20
    for term in TERMS:
        assert re.fullmatch(r"[a-z-]+", term.key)
        assert term.meaning.endswith(".")
        assert not term.pattern.search("")
