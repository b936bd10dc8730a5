import base64
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from rich.console import Console

from privaudit.auditing.audit import Audit
from privaudit.core.errors import ConfigError, PrivauditError, StorageError
from privaudit.report import page as page_module
from privaudit.report import wording
from privaudit.report.columns import columns
from privaudit.report.exposed_records import SHOWN
from privaudit.report.page import (
    figure,
    render_report,
    write_audit_figure,
    write_report,
)
from privaudit.report.report_data import Findings, ReportData
from privaudit.report.tables.parts import one_run_sentences, round_sentences
from privaudit.report.tables.table import print_table
from privaudit.report.wording import TableCell
from privaudit.statistics.verdict import judge_leak
from tests import drawn_once
from tests.privaudit.made_audits import (
    FIRST_RECORD,
    make_audit,
    make_claimed,
    make_watched,
    make_writer,
)

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps attributes, ids and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(
        self, tag: str, attrs: Sequence[tuple[str, str | None]]
    ) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(
        self, tag: str, attrs: Sequence[tuple[str, str | None]]
    ) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "svg"} & set(self.open):
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture(scope="module")
def audits() -> list[Audit]:
    return [
        make_audit("zero-shot", shift=0.0, local=0.6, epsilons=(0.0, 0.0), seed=2),
        make_audit("promptfl", shift=0.6),
        make_audit(
            "dp-fpl",
            mode="sound",
            epsilon=8.0,
            epsilons=(8.0, 9.31),
            noise=1.2,
            closeness=True,
        ),
    ]


@pytest.fixture(scope="module")
def html(audits: list[Audit]) -> str:
    return render_report(audits)


@pytest.fixture(scope="module")
def with_records() -> str:
    return render_report([make_audit(first=0)], show_records=True)


@pytest.mark.parametrize("which", ["html", "with_records"])
def test_the_page_needs_no_network_and_no_other_script_than_its_own(
    which: str, request: pytest.FixtureRequest
) -> None:
    html = request.getfixturevalue(which)
    page = Page(html)
    assert page.tags.count("script") == 1
    assert not {"link", "iframe", "object", "embed", "base"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert value.startswith(("#", "data:image/png;base64,")), (name, value)
        assert not name.startswith("on")
    for address in re.findall(r"url\(([^)]*)\)", html):
        assert address.startswith("#")
    assert "@import" not in html


def test_the_page_forbids_itself_any_request_and_any_other_script(html: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_page_is_html_whose_elements_nest_and_whose_ids_are_unique(
    html: str,
) -> None:
    page = Page(html)
    assert html.startswith("<!doctype html>")
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) <= set(ids)
    assert page.tags.count("h1") == html.count("</title>\n<style>") == 1
    assert html.count("<svg role") == 5


def test_the_same_audits_give_the_same_bytes(audits: list[Audit], html: str) -> None:
    drawn_once.forget()
    assert render_report(audits) == html


def test_the_verdict_of_each_run_comes_before_pictures_and_tables(
    audits: list[Audit], html: str
) -> None:
    text = Page(html).words
    assert "Of 3 runs, 2 leak, 1 undecided." in text
    for audit in audits:
        assert audit.headline.verdict.sentence in text
        sentence = audit.headline.verdict.sentence.partition("AUROC ")[2]
        assert (
            html.index(sentence) < html.index("<h2>Figures") < html.index("All attacks")
        )


def test_the_page_and_the_terminal_print_the_same_numbers(
    audits: list[Audit], html: str
) -> None:
    data = ReportData.of(audits)
    shown = columns(data, "run")
    assert len(shown) == 13
    for one in data.runs:
        text = printed(one.audit)
        for column in shown:
            cell = column.cell(one)
            assert all(line in text for line in str(cell.number).splitlines())
            if cell.number.interval.startswith("["):
                assert f"{cell.number.value}<i>{cell.number.interval}</i>" in html
        assert f"n = {TableCell.of(one.audit.auroc).counts}" in html


def test_unresolved_rates_say_so_and_why(audits: list[Audit], html: str) -> None:
    others = audits[1].auroc.n[1]
    assert html.count('unresolved<i class="reason">needs') == 2 * len(audits)
    assert f"needs 10000 non-members, has {others}" in html


@pytest.mark.parametrize(
    "part",
    [  # of certificates: unit, adjacency, mechanism, accountant
        "one record; data sets are neighbours by add/remove-one",
        "3 steps of a Gaussian mechanism",
        "opacus PRV",
        "ε = 9.31",
        "Tran et al. 2025, theorem 3.3",
        "against this adversary nothing is proved. No noise was added.",
        # What the page does not show:
        "Other attacks.",
        "Other adversaries",
        "named by a rule that never sees",
        "28/2024 this page has tried: membership inference; not: attribute inference",
        "reconstruction (it takes server-invert of privaudit-labs or shared-statistics)",
        # Closeness beside its null:
        "own client 0.925",
        "others 0.025",
    ],
)
def test_the_page_says_what_is_proved_and_what_it_does_not_show(
    part: str, html: str
) -> None:
    assert part in Page(html).words


def test_names_are_escaped() -> None:
    sly = '"><img src=x onerror=alert(1)>'
    audit = make_audit(sly, question=sly, rate=sly, attacks=(sly,))
    page = Page(render_report([audit, make_audit("promptfl", question=sly)]))
    assert "img" not in page.tags
    assert sly in page.text


def test_by_default_no_picture_and_no_position_of_a_record_is_on_the_page(
    html: str,
) -> None:
    assert "data:image" not in html
    assert "<image" not in html
    assert "<img" not in html
    assert not re.search(rf"\b{str(FIRST_RECORD)[:5]}\d{{3}}\b", html)


def test_records_are_shown_on_request_and_the_page_warns(with_records: str) -> None:
    assert with_records.count("data:image/png;base64,") == 3 * SHOWN
    assert "This page shows records." in with_records
    assert "as sensitive as the data" in Page(with_records).words


def test_an_unusual_audit_still_makes_a_page() -> None:
    """One client, no neighbours' classes, an interval that cannot be estimated."""
    audit = make_audit(clients=1, candidates=12)
    utility = replace(audit.measured_utility, neighbour=None)
    audit = replace(audit, utility=utility, parts={})
    text = Page(render_report([audit])).words
    assert "all own" in text
    assert "other clients like these" not in text


def test_audits_of_two_scenarios_are_refused() -> None:
    first = make_audit()
    other = replace(first, scenario=replace(first.scenario, name="prompt-release"))
    with pytest.raises(ConfigError, match="one scenario, and the audits have 2"):
        render_report([first, other])
    with pytest.raises(ConfigError, match="the audits have 0"):
        render_report([])


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_report([make_audit()], path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().endswith("</html>")


def test_a_folder_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is no folder"):
        write_report([make_audit()], tmp_path / "file" / "report.html")


def test_a_certificate_says_what_it_means_for_reconstruction() -> None:
    """By hand: e^7.96 / 1,000 is more than 1, and e^7.96 / 1,000,000 + 1e-5 0.287 %."""
    proved = make_audit("dp-fpl", epsilon=8.0, epsilons=(8.0, 7.96))
    said = (
        "one of 1,000 equally likely records is reconstructed with a chance of at most "
        "100 %, one of 1,000,000 of at most 0.287 %"
    )
    assert said in wording.proof(proved)
    assert Page(render_report([proved])).words.count(said) == 2  # card and guarantees
    assert f"By the certified ε, {said}." in printed(proved)
    stored = proved.to_dict()["reconstruction"]
    assert stored == {"1000": 1.0, "1000000": pytest.approx(0.002874, rel=1e-3)}
    none = make_audit("dp-fpl", epsilon=8.0, epsilons=(8.0, None))
    assert none.to_dict()["reconstruction"] is None
    assert "equally likely records" not in render_report([none]) + printed(none)


def printed(*audits: Audit, width: int = 400) -> str:
    """Return what the terminal says of audits, on lines of a width."""
    buffer = StringIO()
    print_table(audits, Console(file=buffer, width=width))
    return buffer.getvalue()


def words(html: str) -> str:
    """Return the text of a page, without the signs that are escaped."""
    apart = r"<style>.*?</style>|<script>.*?</script>|<svg.*?</svg>"
    html = re.sub(r"</?a\b[^>]*>", "", html)
    text = re.sub(f"{apart}|<[^>]*>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(text).split())


def printed_words(audit: Audit) -> str:
    return " ".join(printed(audit, width=100).split())


def quiet_but_for_lira() -> Audit:
    audit = make_audit(shift=0.0, seed=2, candidates=700)
    loud = make_audit(shift=1.0, candidates=700).headline
    audit = replace(
        audit, results={**audit.results, "lira": replace(loud, attack="lira")}
    )
    assert judge_leak(audit.auroc).kind == "no evidence"
    return audit


def test_no_leak_found_is_not_all_that_is_said_where_another_attack_shows_one() -> None:
    audit = quiet_but_for_lira()
    sentence = Findings(audit).others
    assert sentence.startswith("strongest of the 2 other attacks, lira 0.")
    assert f"promptfl: {sentence}" in printed_words(audit)
    page = words(render_report([audit]))
    assert "▲ Another attack shows a leak ∅ No promise made" in page
    assert sentence[1:] in page
    assert page.index(sentence[1:]) < page.index("Figures")
    assert "picked as the strongest" in page


def test_the_summary_of_several_runs_counts_them_too() -> None:
    quiet = quiet_but_for_lira()
    page = words(render_report([quiet, make_audit("coop", shift=1.0)]))
    assert (
        "Of 2 runs, 1 leak, no leak found in 1. In 1 of the others, another attack "
        "shows a leak." in page
    )


def test_where_no_other_attack_shows_a_leak_none_is_mentioned() -> None:
    audit = make_audit(shift=0.0, seed=2)
    assert Findings(audit).others == ""
    assert "other attack" not in printed_words(audit)
    assert "Another attack shows" not in render_report([audit])


def test_rounds_stand_on_the_page_and_in_the_terminal() -> None:
    audit = make_watched()
    html = render_report([audit])
    for sentence in round_sentences(audit):
        assert sentence in printed_words(audit)
        assert sentence[1:] in words(html)
    assert 'aria-label="AUROC by round with intervals. promptfl' in html
    assert "Leakage by round, source inference" in html


def test_a_claim_is_judged_on_the_page_and_in_the_terminal() -> None:
    audit = make_claimed(2.0, claimed=0.4)
    html = render_report([audit])
    verdict, canaries = one_run_sentences(audit)
    assert f"dp-fpl: {verdict}" in printed_words(audit)
    assert verdict in words(html)
    assert canaries in words(html)
    assert "✕ Promise refuted" in words(html)
    assert "Lower bounds on ε from one run" in html
    assert html.index("Epsilon from one run") < html.index("Utility against leakage")


def test_the_summary_counts_claims() -> None:
    page = words(render_report([make_claimed(2.0, claimed=0.4), make_claimed(seed=3)]))
    assert "Claims on ε: 1 REFUTED, 1 UNDERPOWERED." in page


def test_pages_without_such_questions_have_no_such_parts() -> None:
    html = render_report([make_audit()])
    for part in ("Lower bound on ε", "By round.", "Lower bounds on ε", "ε claim:"):
        assert part not in html


@pytest.fixture(scope="module")
def writers() -> list[Audit]:
    return [
        make_writer(closeness=False),
        make_writer("fedrand", seed=5, traffic=(1_000_000, 2_000_000)),
    ]


@pytest.fixture(scope="module")
def writers_html(writers: list[Audit]) -> str:
    return render_report(writers)


def test_accuracy_is_nowhere_said_of_models_that_write(writers_html: str) -> None:
    text = Page(writers_html).words
    assert "ccuracy" not in text
    assert "ROUGE-L, own classes" in text
    assert "Gain over untrained" in text
    assert "own-class ROUGE-L, last measured round" in text


def test_the_grid_has_a_server_and_a_client_row_for_each_run(writers_html: str) -> None:
    page = Page(writers_html)
    assert "Server and clients" in page.words
    section = writers_html[writers_html.index("<h2>Server and clients") :]
    section = section[: section.index("</section>")]
    assert section.count("<td>server</td>") == 2 * 4
    assert section.count("<td>clients</td>") == 2 * 4
    assert section.index("order 2") < section.index("<details>")
    assert section.index("<details>") < section.index("order ½")


def test_the_list_of_attacks_leaves_the_grid_out_and_says_so(writers_html: str) -> None:
    start = writers_html.rindex(
        "<details", 0, writers_html.index("All attacks</summary>")
    )
    rows = writers_html[start : writers_html.index("<h3>Quality of")]
    assert re.findall(r"<td><code>([^<]*)</code>", rows) == ["max-renyi", "min-k"] * 2
    assert "not about the best cell of the grid" in Page(rows).words


def test_bytes_of_a_round_stand_beside_each_other(writers_html: str) -> None:
    text = Page(writers_html).words
    assert "lora-fedavg2 MB2 MB4 MB" in text
    assert "fedrand1 MB2 MB3 MB-25.0 %" in text


def test_rebuilt_adapters_are_compared_by_all_their_weights(writers_html: str) -> None:
    text = Page(writers_html).words
    assert "Cosine similarity of the changes of all weights" in text
    assert "Staleness of the oldest part, in rounds" in text
    assert "Reconstruction quality." in text
    assert "private parts" not in text


def test_classifiers_and_writers_share_a_page(writers: list[Audit]) -> None:
    """Odd, but no reason to fail, or to call one what the other is."""
    text = Page(render_report([make_audit(), *writers])).words
    assert "Accuracy or ROUGE-L, own classes" in text
    assert "private parts, or changes of all weights" in text


def test_ids_are_unique_and_the_same_audits_give_the_same_bytes(
    writers: list[Audit], writers_html: str
) -> None:
    ids = [value for name, value in Page(writers_html).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    drawn_once.forget()
    assert render_report(writers) == writers_html
    assert writers_html.count("<svg role") == 7


def test_captions_are_shown_on_request_alone(
    writers: list[Audit], writers_html: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "least exposed" not in writers_html
    monkeypatch.setattr(
        page_module, "exposed_captions", lambda audit: Markup("<p>a caption</p>")
    )
    shown = render_report(writers, show_records=True)
    text = Page(shown).words
    assert text.count("a caption") == 2
    assert "It contains images and captions of training records" in text
    assert text.index("The most and the least exposed records") < text.index("Glossary")


def test_scores_are_a_frame_metrics_and_a_table_of_a_notebook() -> None:
    audit = make_audit("<b>")
    frame = audit.to_frame()
    rows = sum(len(c.scores) for r in audit.results.values() for c in r.clients)
    assert len(frame) == rows
    first = audit.headline.clients[0]
    shown = np.asarray(frame["score"])[: len(first.scores)]
    np.testing.assert_allclose(shown, first.scores)
    metrics = audit.metrics()
    assert metrics["auroc"] == audit.auroc.value
    assert metrics["auroc_low"] == audit.auroc.low
    assert all(type(number) is float for number in metrics.values())
    assert "<b>&lt;b&gt;" in audit._repr_html_()
    Page(audit._repr_html_())


def test_without_any_library_of_frames_the_file_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("pandas", "polars", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"read scores\.npz"):
        make_audit("a").to_frame()


@pytest.mark.parametrize(
    ("ending", "begins"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")]
)
@pytest.mark.parametrize("name", ["roc", "clients", "tradeoff"])
def test_a_picture_of_the_page_is_written_by_itself(
    name: str, ending: str, begins: bytes, tmp_path: Path
) -> None:
    audits = [make_audit("a"), make_audit("b")]
    paths = [tmp_path / f"{number}.{ending}" for number in (1, 2)]
    for path in paths:
        write_audit_figure(name, audits, path)
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(begins)
    assert first == second
    assert figure(name, audits).axes


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("nothing", "a.svg", "figure"),
        ("rounds", "a.svg", "nothing to draw"),
        ("roc", "a.gif", r"\.svg, \.pdf or \.png"),
    ],
)
def test_pictures_that_cannot_be_drawn_are_refused(
    name: str, path: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(PrivauditError, match=said):
        write_audit_figure(name, [make_audit("a")], tmp_path / path)
    assert not [*tmp_path.iterdir()]
