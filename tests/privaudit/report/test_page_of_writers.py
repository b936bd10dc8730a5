import re

import pytest
from markupsafe import Markup

from privaudit.auditing.audit import Audit
from privaudit.report import page as page_module
from privaudit.report.page import render_report
from tests.privaudit.made_audits import make_audit, make_writer
from tests.privaudit.report.test_page import Page


@pytest.fixture(scope="module")
def audits() -> list[Audit]:
    return [
        make_writer(closeness=False),
        make_writer("fedrand", seed=5, traffic=(1_000_000, 2_000_000)),
    ]


@pytest.fixture(scope="module")
def html(audits: list[Audit]) -> str:
    return render_report(audits)


def test_accuracy_is_nowhere_said_of_models_that_write(html: str) -> None:
    text = Page(html).words
    assert "ccuracy" not in text
    assert "ROUGE-L, own classes" in text
    assert "Gain over untrained" in text
    assert "own-class ROUGE-L, last measured round" in text


def test_the_grid_has_a_server_and_a_client_row_for_each_run(html: str) -> None:
    page = Page(html)
    assert "Server and clients" in page.words
    section = html[html.index("<h2>Server and clients") :]
    section = section[: section.index("</section>")]
    assert section.count("<td>server</td>") == 2 * 4
    assert section.count("<td>clients</td>") == 2 * 4
    assert section.index("order 2") < section.index("<details>")
    assert section.index("<details>") < section.index("order ½")


def test_the_list_of_attacks_leaves_the_grid_out_and_says_so(html: str) -> None:
    start = html.rindex("<details", 0, html.index("All attacks</summary>"))
    rows = html[start : html.index("<h3>Quality of")]
    assert re.findall(r"<td><code>([^<]*)</code>", rows) == ["max-renyi", "min-k"] * 2
    assert "not about the best cell of the grid" in Page(rows).words


def test_bytes_of_a_round_stand_beside_each_other(html: str) -> None:
    text = Page(html).words
    assert "lora-fedavg2 MB2 MB4 MB" in text
    assert "fedrand1 MB2 MB3 MB-25.0 %" in text


def test_rebuilt_adapters_are_compared_by_all_their_weights(html: str) -> None:
    text = Page(html).words
    assert "Cosine similarity of the changes of all weights" in text
    assert "Staleness of the oldest part, in rounds" in text
    assert "Reconstruction quality." in text
    assert "private parts" not in text


def test_classifiers_and_writers_share_a_page(audits: list[Audit]) -> None:
    """Odd, but no reason to fail, or to call one what the other is."""
    text = Page(render_report([make_audit(), *audits])).words
    assert "Accuracy or ROUGE-L, own classes" in text
    assert "private parts, or changes of all weights" in text


def test_ids_are_unique_and_the_same_audits_give_the_same_bytes(
    audits: list[Audit], html: str
) -> None:
    ids = [value for name, value in Page(html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert render_report(audits) == html
    assert html.count("<svg role") == 7


def test_captions_are_shown_on_request_alone(
    audits: list[Audit], html: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "least exposed" not in html
    monkeypatch.setattr(
        page_module, "exposed_captions", lambda audit: Markup("<p>a caption</p>")
    )
    shown = render_report(audits, show_records=True)
    text = Page(shown).words
    assert text.count("a caption") == 2
    assert "It contains images and captions of training records" in text
    assert text.index("The most and the least exposed records") < text.index("Glossary")
