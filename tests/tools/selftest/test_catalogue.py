"""The checks pass on what is installed, and fail where a statistic is broken."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privaudit.statistics import comparisons, estimate, roc
from privaudit.statistics import verdict as verdicts
from privaudit.statistics.epsilon.one_run import OneRunGuesses
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.membership_test import MembershipTest, membership_test
from privaudit_tools.selftest import bootstrap, claims
from privaudit_tools.selftest.catalogue import CHECKS
from privaudit_tools.selftest.check import SelftestCheck, run_checks
from tests.conftest import Cli, refuse
from tests.privaudit.cli.test_json import valid

Break = Callable[[pytest.MonkeyPatch], None]


def find(name: str) -> SelftestCheck:
    """Return the one check whose name begins so."""
    (check,) = (check for check in CHECKS if check.name.startswith(name))
    return check


def passes(name: str) -> bool:
    return run_checks([find(name)])[0].passed


def narrowed(
    interval: Callable[..., tuple[float, float]], by: float
) -> Callable[..., tuple[float, float]]:
    """Return ends that lie ``by`` times as far from the value, which comes first."""

    def ends(value: float, *rest: Any, **named: Any) -> tuple[float, float]:
        low, high = interval(value, *rest, **named)
        return max(value - by * (value - low), 0.0), min(value + by * (high - value), 1)

    return ends


def narrow_auroc(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roc, "auroc_interval", narrowed(roc.auroc_interval, 0.5))


def ask_ten_times_as_much(patch: pytest.MonkeyPatch) -> None:
    """Hold a leak to a tenth of the error that it may make."""
    patch.setattr(verdicts, "ALPHA", 0.0025)


def trust_delong_alone(patch: pytest.MonkeyPatch) -> None:
    """Take a class that ties for one that does not vary."""

    def alone(value: float, clients: Any, *_: Any, **__: Any) -> tuple[float, float]:
        error = max(sum(one.delong_variance for one in clients), 1e-12) ** 0.5
        return max(value - 1.96 * error, 0.0), min(value + 1.96 * error, 1.0)

    patch.setattr(roc, "auroc_interval", alone)


def count_a_quarter(patch: pytest.MonkeyPatch) -> None:
    """Of the permutations that reach as far."""

    def tested(strata: Any) -> MembershipTest:
        found = membership_test(strata)
        return replace(found, either=found.either / 4)

    patch.setattr(claims, "membership_test", tested)


def narrow_student(patch: pytest.MonkeyPatch) -> None:
    """Half the error of a paired difference."""
    student = comparisons._student

    def half(*given: Any) -> tuple[float, float, float, float]:
        value, low, high, p_value = student(*given)
        return value, (value + low) / 2, (value + high) / 2, p_value**2

    patch.setattr(comparisons, "_student", half)


def fix_the_threshold(patch: pytest.MonkeyPatch) -> None:
    """Take the threshold as given: the error that Clopper-Pearson alone makes."""
    thresholds = roc._thresholds

    def given(*asked: Any) -> tuple[float, float, float]:
        return (thresholds(*asked)[0],) * 3

    patch.setattr(roc, "_thresholds", given)


def forget_holm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(comparisons, "holm", np.asarray)


def judge_one_sided(patch: pytest.MonkeyPatch) -> None:
    """Take any value above 0.5 by one standard error for a leak."""
    judge = verdicts.judge_leak

    def hasty(auroc: Estimate, evidence: object = None) -> verdicts.Verdict:
        low = auroc.value - (auroc.value - auroc.low) / 2
        return judge(Estimate(auroc.value, low, auroc.high, auroc.n, ""))

    patch.setattr(verdicts, "judge_leak", hasty)


def forget_the_margin(patch: pytest.MonkeyPatch) -> None:
    """Call whatever differs from 0 an increase."""
    patch.setattr(
        comparisons, "_kind", lambda e, *_: "increase" if e.low > 0 else "underpowered"
    )


def narrow_clopper_pearson(patch: pytest.MonkeyPatch) -> None:
    exact = estimate.clopper_pearson

    def half(successes: Any, trials: int, confidence: float) -> Any:
        ends = exact(successes, trials, confidence)
        return tuple((end + successes / trials) / 2 for end in ends)

    patch.setattr(estimate, "clopper_pearson", half)


def resample_half(patch: pytest.MonkeyPatch) -> None:
    """Draw four times as many as there are: intervals of half the width."""
    counts = bootstrap._counts

    def more(rng: np.random.Generator, rows: int, size: int) -> Any:
        return sum(counts(rng, rows, size) for _ in range(4))

    patch.setattr(bootstrap, "_counts", more)


def raise_the_bound(patch: pytest.MonkeyPatch) -> None:
    values = OneRunGuesses.values
    patch.setattr(OneRunGuesses, "values", lambda *asked: values(*asked) + 0.2)


def say_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OneRunGuesses, "values", lambda self, s, m: np.zeros(len(s)))


@pytest.mark.parametrize(
    ("break_it", "check"),
    [
        (narrow_auroc, "AUROC of 0.6, 100 + 100, DeLong"),
        (narrow_auroc, "AUROC of noise, 5 clients"),
        (ask_ten_times_as_much, "AUROC 0.6 is found"),
        (narrow_student, "paired difference of AUROCs"),
        (narrow_student, "equal attacks differ at 5 %"),
        (trust_delong_alone, "0/1 scores of one rate, 100 + 10, interval"),
        (count_a_quarter, "0/1 scores of one rate, 20 + 20, called a leak"),
        (fix_the_threshold, "TPR at FPR 1 %"),
        (forget_holm, "any of 5 true nulls"),
        (judge_one_sided, "noise is called a leak"),
        pytest.param(forget_the_margin, "any of 3 such rises", marks=pytest.mark.slow),
        (narrow_clopper_pearson, "success rate of coin tosses"),
        (resample_half, "AUROC of 0.6, 100 + 100, bootstrap"),
        (raise_the_bound, "OneRunGuesses: false without a leak"),
        (say_nothing, "OneRunGuesses: at least"),
    ],
)
def test_a_broken_statistic_fails(
    break_it: Break, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    assert not passes(check)


@pytest.mark.slow
def test_an_attack_with_the_wrong_sign_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from privaudit.attacks.output_attacks import LossThreshold

    likelihood = LossThreshold._signal
    monkeypatch.setattr(LossThreshold, "_signal", lambda *given: -likelihood(*given))
    assert not passes("loss-threshold on pfedprompt")


def test_the_command_prints_json_of_its_schema_and_ends_with_0(cli: Cli) -> None:
    (read,) = valid(cli, "selftest", "--only", "Holm", "--seed", 4)
    assert (read["passed"], read["seed"]) == (True, 4)
    (check,) = read["checks"]
    assert check["expected"] == [0.0, 0.05]
    assert math.isclose(check["observed"]["value"], 0.05, abs_tol=0.02)


def test_a_failed_check_is_named_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    forget_holm(monkeypatch)
    code, out, _ = cli("selftest", "--only", "nulls")
    assert code == 1
    assert "0 of 1 checks passed" in out
    assert "Failed: any of 5 true nulls falls after Holm" in out


def test_words_that_no_check_has_are_refused(cli: Cli) -> None:
    refuse(cli, "No check's group or name contains 'xyz'", "selftest", "--only", "xyz")


@pytest.mark.slow
def test_the_installed_version_passes() -> None:
    """In a process of its own: checking every type takes three times as long."""
    code = "import sys; sys.argv[1:] = ['selftest']; from privaudit.cli.main import run; run()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(CHECKS)} of {len(CHECKS)} checks passed" in done.stdout
