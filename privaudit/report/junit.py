"""The gate as JUnit XML, which nearly every CI shows as tests.

Source: the format has no standard; elements and attributes are those that GitLab's and
Jenkins' readers share (testsuites, testsuite, testcase, failure, system-out).
"""

import re
import xml.etree.ElementTree as ET

from privaudit.checks.gate.checks import AnyCheck
from privaudit.checks.gate.gate import GateResult
from privaudit.report.gate_codes import coded, line_of, summary

# XML 1.0 has no way to write these, not even escaped.
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", re.UNICODE
)


def gate_junit(result: GateResult) -> str:
    """Return a gate's result: a test for each check, failed unless it passed.

    What is underpowered is a failure too, of that type, as its exit code is not 0. It
    says codes and no numbers.
    """
    failed = [check for check in result.checks if check.outcome != "pass"]
    counts = {
        "tests": str(len(result.checks)),
        "failures": str(len(failed)),
        "errors": "0",
        "skipped": "0",
    }
    root = ET.Element("testsuites", {"name": "privaudit gate", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "privaudit gate", **counts})
    for check in result.checks:
        _add(suite, check, result.settings.scenario)
    ET.SubElement(suite, "system-out").text = xml_text(
        f"{summary(result)} {result.assurance.sentence}".strip()
    )
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add(suite: ET.Element, check: AnyCheck, scenario: str) -> None:
    names = {
        "classname": xml_text(f"privaudit.gate.{scenario}"),
        "name": xml_text(check.title),
        "time": "0",
    }
    case = ET.SubElement(suite, "testcase", names)
    if check.outcome == "pass":
        ET.SubElement(case, "system-out").text = xml_text(coded(check))
        return
    kind = {"message": xml_text(coded(check)), "type": check.outcome}
    failure = ET.SubElement(case, "failure", kind)
    failure.text = xml_text(f"{coded(check)}\n{line_of(check)}")


def xml_text(text: str) -> str:
    """Return a text without the characters that XML cannot hold.

    Example:
        >>> xml_text("a" + chr(0) + "b")
        'a�b'
    """
    return _FORBIDDEN.sub("\ufffd", text)
