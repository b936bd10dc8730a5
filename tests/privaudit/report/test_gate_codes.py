"""What a gate writes for others says codes: no number that a membership enters."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from privaudit.auditing.assurance import Assurance, assure
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.guarantees import Stated, compare_guarantees
from privaudit.report.badge import gate_badge
from privaudit.report.gate_codes import unproved
from privaudit.report.junit import gate_junit
from privaudit.report.markdown import gate_markdown
from privaudit.report.sarif import gate_sarif
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling
from tests.privaudit.report.gate_results import made

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
