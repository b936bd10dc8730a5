"""What a gate writes for others says codes: no number that a membership enters."""

import html
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, ValidationError
from markdown_it import MarkdownIt

from privaudit import train
from privaudit.auditing.audit import Assurance, assure
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.guarantees import Stated, compare_guarantees
from privaudit.checks.gate.settings import SettingLine
from privaudit.checks.lint import Finding
from privaudit.cli import main as cli
from privaudit.core.formatting import xml_text
from privaudit.report.ci_formats import (
    _SPACES,
    escape,
    gate_badge,
    gate_junit,
    gate_markdown,
    gate_sarif,
    lint_sarif,
    unproved,
    write_summary,
)
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling
from tests.privaudit.report.gate_results import NASTY, made

WRITERS: dict[str, Callable[[GateResult], Any]] = {
    "badge": gate_badge,
    "junit": gate_junit,
    "markdown": gate_markdown,
    "sarif": lambda result: gate_sarif(result)["runs"][0]["results"],
}


def numbers_of(written: Any) -> set[str]:
    text = written if isinstance(written, str) else json.dumps(written)
    return set(re.findall(r"\d+\.\d+", re.sub(r"[0-9a-f]{64}|version=\S+", "", text)))


@pytest.mark.parametrize("name", WRITERS)
def test_only_the_lines_that_were_asked_for_are_numbers(name: str) -> None:
    """Worse by 0.3, undecided at 0.05 of 9 + 8 records: the margin and the limit stay."""
    assert numbers_of(WRITERS[name](made())) <= {"0.05", "0.6", "2.1"}


@pytest.mark.parametrize("name", WRITERS)
def test_another_result_of_the_same_outcomes_reads_the_same(name: str) -> None:
    one, other = (
        made(worse=value, same=0.0, open=0.05 + value / 100) for value in (0.3, 0.31)
    )
    assert [c.outcome for c in one.checks] == [c.outcome for c in other.checks]
    assert one.to_dict() != other.to_dict()  # the owner's has the numbers
    assert WRITERS[name](one) == WRITERS[name](other)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("now", [7.25, 9.25, None])
def test_no_epsilon_is_there_as_it_may_count_the_members(
    name: str, now: float | None
) -> None:
    """Of whole clients, the server's certificate is a function of how many took part."""
    before = Stated(8.75, 1e-5, "client", "replace-one", "system")
    stated = {"certified epsilon (server)": before}
    changed = {"certified epsilon (server)": replace(before, epsilon=now)}
    missing = assure(6.5, {"epsilon": now}, refuted=False)
    result = made(same=0.0)
    checks = (*result.checks, *compare_guarantees(changed, stated))
    result = replace(result, checks=checks, assurance=missing)
    written = WRITERS[name](result)
    assert numbers_of(written) <= {"0.05", "0.6"}
    if name in ("junit", "markdown"):
        worse = "no weaker" if now == 7.25 else "weaker"
        assert f"is {worse} than before" in written
        assert "Claim not proved." in written


def test_that_no_coin_is_declared_is_a_code_whatever_the_sentence_says() -> None:
    result = made(same=0.0)
    codes: list[tuple[Sampling, str]] = [("unknown", UNKNOWN_SAMPLING), ("coin", "")]
    for sampling, said in codes:
        missing = Assurance("unproved", "nothing proved", "Worded anew.", sampling)
        found = unproved(replace(result, assurance=missing))
        assert found == f"Nothing proved. {said}".strip()


@pytest.mark.parametrize("name", WRITERS)
def test_a_run_s_name_which_may_hold_its_seed_is_not_there(name: str) -> None:
    result = made("promptfl-digits-seed40291773", worse=0.3, same=0.0)
    if name != "badge":
        assert "limit" in json.dumps(WRITERS[name](result))
    rest = [check for check in result.checks if "seed" not in check.name]
    plain = type(result)(
        result.run, result.baseline, "record", result.settings, tuple(rest)
    )
    assert "40291773" not in json.dumps(WRITERS[name](plain))


PROVED = Assurance("proved")
MISSING = Assurance("unproved", "nothing proved", "Nothing is proved.")
REFUTED = Assurance("refuted", "claim refuted", "Canaries show more.")


def passed() -> GateResult:
    result = made(NASTY, None, same=0.0)
    return replace(result, checks=result.checks[:1])


def unasked() -> GateResult:
    result = replace(passed(), assurance=MISSING)
    about = replace(result.tested[0].question, about="utility")
    return replace(result, checks=(replace(result.tested[0], question=about),))


def test_a_pass_without_a_check_of_a_leak_says_so() -> None:
    assert "nothing here speaks against merging" in passed().plain
    assert "no leak checked: that is another question" in unasked().plain
    for text in (unasked().sentence, gate_markdown(unasked()), gate_junit(unasked())):
        assert "no leak checked" in text


@pytest.mark.parametrize(
    ("result", "message", "colour"),
    [
        (made(NASTY), "regression", "red"),
        (replace(made(), checks=made().checks[2:3]), "rose, size open", "orange"),
        (replace(passed(), assurance=PROVED), "pass", "brightgreen"),
        (replace(passed(), assurance=MISSING), "pass, nothing proved", "lightgrey"),
        (replace(passed(), assurance=REFUTED), "pass, claim refuted", "orange"),
        (unasked(), "pass, no leak checked, nothing proved", "lightgrey"),
    ],
)
def test_a_badge(result: GateResult, message: str, colour: str) -> None:
    assert gate_badge(result) == {
        "schemaVersion": 1,
        "label": "privacy gate",
        "message": message,
        "color": colour,
    }


def test_each_check_is_a_test_and_only_a_pass_passes() -> None:
    root = ET.fromstring(gate_junit(made()))
    cases = root.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [
        "worse: change",
        "same: change",
        "open: change",
        "limit of run: limit",
    ]
    kinds = [None if (f := c.find("failure")) is None else f.get("type") for c in cases]
    assert kinds == ["regression", None, "rose, size open", "regression"]
    for element in (root, root[0]):
        counted = [element.get(key) for key in ("tests", "failures", "errors")]
        assert counted == ["4", "3", "0"]


def test_a_failure_says_what_was_asked_and_no_number_of_members() -> None:
    failure = ET.fromstring(gate_junit(made())).find(".//failure")
    assert failure is not None
    assert failure.get("message") == "Regression: found (worse: change, margin 0.05)."


def test_a_nasty_name_stays_text() -> None:
    text = gate_junit(made(NASTY))
    root = ET.fromstring(text)  # fails on what is not well-formed
    name = root[0][-2].get("name")
    assert name is not None
    assert "<script>" in name
    assert "<script>" not in text
    assert "\x00" not in text
    assert root.find(".//script") is None


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_read_back(text: str) -> None:
    element = ET.Element("a", {"b": xml_text(text)})
    read = ET.fromstring(ET.tostring(element, "unicode"))
    assert read.get("b") == xml_text(text)


@pytest.mark.parametrize("code", [0, 8, 0xB, 0x1F, 0xD800, 0xFFFE])
def test_what_xml_cannot_hold_is_replaced(code: int) -> None:
    assert xml_text(f"a{chr(code)}b") == "a\ufffdb"


READER = MarkdownIt("commonmark").enable("table")


def test_it_holds_the_sentence_a_row_and_a_sentence_for_each_check() -> None:
    page = READER.render(gate_markdown(made()))
    assert page.count("<tr>") == 5
    assert page.count("<li>") == 4
    assert "<strong>Regression: 2 of 4 checks (against a baseline" in page
    assert "<td>margin 0.05</td>" in page
    assert page.count("❌ regression") == 2
    assert page.count("⚠️ rose, size open") == 1


def test_a_nasty_name_stays_text_in_its_own_cell() -> None:
    page = READER.render(gate_markdown(made(NASTY, None, **{NASTY: 0.3})))
    assert "<script" not in page
    assert "<a " not in page
    assert "<code" not in page
    assert page.count("<tr>") == 3
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert {row.count("<td>") + row.count("<th>") for row in rows} == {3}
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


# RFC 3986: what may stand in a URI reference without being escaped
URI = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*")


@cache
def official() -> Any:
    """Return the checker of SCHEMA, which the written files name."""
    schema = json.loads(Path(__file__).with_name("sarif-2.1.0.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER)


def check_log(log: Any) -> None:
    log = json.loads(json.dumps(log, allow_nan=False))
    official().validate(log)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    ids = [rule["id"] for rule in rules]
    assert len(set(ids)) == len(ids)
    for result in run["results"]:
        if result["kind"] != "fail":  # 3.27.10
            assert result["level"] == "none"
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())
        for location in result["locations"]:
            physical = location.get("physicalLocation")
            if physical:
                assert URI.fullmatch(physical["artifactLocation"]["uri"])


def results(log: Any) -> list[Any]:
    found: list[Any] = log["runs"][0]["results"]
    return found


def test_regressions_fail_and_what_is_not_decided_is_open() -> None:
    log = gate_sarif(made())
    check_log(log)
    kinds = [(one["kind"], one["level"]) for one in results(log)]
    assert kinds == [("fail", "error"), ("open", "none"), ("fail", "error")]
    said = [one["message"]["text"] for one in results(log)]
    assert said[0] == "Regression: found (worse: change, margin 0.05)."


def test_a_finding_points_at_the_line_that_sets_what_governs_it() -> None:
    places = {
        "": SettingLine("pyproject.toml", 3),
        "margin": SettingLine("pyproject.toml", 7),
    }
    log = gate_sarif(made(lines=places))
    check_log(log)
    lines = {
        one["ruleId"]: one["locations"][0]["physicalLocation"]["region"]["startLine"]
        for one in results(log)
    }
    assert lines == {"leak-change": 7, "leak-limit": 3}


def test_without_a_file_the_setting_is_named() -> None:
    (location,) = results(gate_sarif(made()))[0]["locations"]
    assert "physicalLocation" not in location
    (logical,) = location["logicalLocations"]
    assert logical["fullyQualifiedName"] == "tool.privaudit.gate.margin"


def test_what_passes_is_no_result() -> None:
    log = gate_sarif(made(same=0.0))
    check_log(log)
    assert [one["ruleId"] for one in results(log)] == ["leak-limit"]


def test_a_fingerprint_stays_when_numbers_change() -> None:
    first, second = (results(gate_sarif(made(worse=v)))[0] for v in (0.3, 0.31))
    assert first["message"] == second["message"]
    assert first["partialFingerprints"] == second["partialFingerprints"]


def test_nasty_names_and_paths_are_valid() -> None:
    places = {"margin": SettingLine("a b/ä#?%.toml", 1)}
    log = gate_sarif(made(NASTY, places, **{NASTY: 0.3}))
    check_log(log)
    uri = results(log)[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "a%20b/%C3%A4%23%3F%25.toml"


SPOILS: list[Callable[[Any], Any]] = [
    lambda log: log.update(extra=1),
    lambda log: log.pop("version"),
    lambda log: results(log)[0].pop("message"),
    lambda log: results(log)[0].update(level="fatal"),
    lambda log: results(log)[0].update(ruleIndex=-2),
    lambda log: results(log)[1].update(level="error"),  # from here on of our own check
    lambda log: results(log)[0].update(ruleIndex=3),
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_the_check_notices_what_the_standard_forbids(spoil: Any) -> None:
    log = gate_sarif(made())
    spoil(log)
    with pytest.raises((AssertionError, ValidationError)):
        check_log(log)


def test_the_official_schema_is_that_of_sarif_and_notices_what_it_forbids() -> None:
    assert "SARIF) Version 2.1.0" in official().schema["title"]
    for spoil in SPOILS[:5]:
        log = gate_sarif(made())
        spoil(log)
        with pytest.raises(ValidationError):
            official().validate(log)


def test_lint_findings_point_at_the_line_of_run_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train("zero-shot", folder="runs", name="linted", rounds=1, clients=2, seed=0)
    findings = [
        Finding("stored-seeds", "warning", "All noise follows.", ("seed=0",)),
        Finding("not-a-rule", "note", "Nothing is claimed."),
    ]
    log = lint_sarif({run: findings})
    check_log(log)
    first, second = results(log)
    assert [one["level"] for one in (first, second)] == ["warning", "note"]
    physical = first["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "runs/linted/run.json"
    line = (tmp_path / "runs/linted/run.json").read_text().splitlines()
    assert '"seed":' in line[physical["region"]["startLine"] - 1]
    monkeypatch.setattr(
        sys, "argv", ["privaudit", "lint", "--runs", "runs", "linted", "--sarif", "l"]
    )
    with pytest.raises(SystemExit):
        cli.run()
    check_log(json.loads((tmp_path / "l").read_text()))
