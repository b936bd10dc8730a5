import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.report.junit import gate_junit, xml_text
from tests.privaudit.report.gate_results import NASTY, made


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
    assert kinds == ["regression", None, "underpowered", "regression"]
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
