"""Nothing is said to help that was neither measured nor proved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.evaluation.tradeoff.cells import SweepPoint
from privaudit.evaluation.tradeoff.result import judge_sweep
from privaudit.report.decision.advice import Advice, advise
from privaudit.report.galleries.sweep import write_sweep
from privaudit.report.labels import run_labels
from tests.privaudit.made_audits import make_audit, make_claimed


def given(*audits: Audit) -> list[Advice]:
    return advise(audits, run_labels(audits))


def commands(found: list[Advice], basis: str = "To try") -> list[str]:
    return [one.command for one in found if one.basis == basis]


def test_a_method_with_a_private_twin_is_offered_it_to_try() -> None:
    found = given(make_audit(shift=1.0))
    assert {one.basis for one in found} == {"To try", "Next"}
    assert "privaudit train --trainer dp-promptfl:epsilon=8" in commands(found)
    assert commands(found, "Next") == [
        "privaudit tradeoff --scenario server-reconstruct"
    ]


def test_a_kept_promise_without_a_leak_is_to_be_kept_so() -> None:
    quiet = make_audit(shift=0.0, seed=2, candidates=700, epsilons=(8.0, 7.9))
    (only,) = given(quiet)
    assert only.command == "privaudit gate RUN --write-baseline baseline.json"


def test_a_refuted_claim_is_not_to_be_relied_on() -> None:
    first = given(make_claimed(2.0, claimed=0.4))[0]
    assert (first.basis, first.command) == ("Measured", "privaudit lint RUN")
    assert "Do not rely" in first.text


def test_noise_of_the_server_is_to_be_moved_and_a_published_mode_to_be_left() -> None:
    audit = make_audit(
        "dp-fpl",
        mode="published-paper",
        epsilon=0.1,
        noise_at="server",
        epsilons=(0.1, None),
        noise=1.0,
    )
    offered = commands(given(audit))
    assert any("mode=sound,epsilon=8,noise_at=client" in one for one in offered)
    assert any(one.endswith("mode=sound,epsilon=8") for one in offered)


def test_advice_about_some_runs_names_them_and_about_all_does_not() -> None:
    leaks = make_audit(shift=1.0)
    quiet = make_audit(
        "dp-fpl", shift=0.0, seed=2, candidates=700, epsilon=8.0, epsilons=(8.0, 7.9)
    )
    found = given(leaks, quiet)
    assert found[0].runs == ("promptfl",)
    assert given(leaks)[0].runs == ()


def swept(epsilon: float | None, seed: int, auroc: float) -> SweepPoint:
    audit = make_audit()
    run = SweepPoint.of(audit, "sound", epsilon, replicate=seed)
    shown = replace(run.auroc, value=auroc, low=auroc - 0.05, high=auroc + 0.05)
    return replace(run, auroc=shown, scores=None)


@pytest.fixture
def beside(tmp_path: Path) -> Audit:
    """A run beside a trade-off whose noise lowers the leak, and a damaged one."""
    points = [
        swept(epsilon, seed, value + 0.001 * seed * (-1) ** seed)
        for seed in range(5)
        for epsilon, value in ((None, 0.7), (8.0, 0.65), (1.0, 0.55))
    ]
    write_sweep(judge_sweep(points), tmp_path / "weighed")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "sweep.json").write_text("{}")
    audit = make_audit(shift=1.0)
    audit.run.__dict__.update(path=tmp_path / "run")
    return audit


def test_what_a_trade_off_measured_comes_first(beside: Audit) -> None:
    texts = [one.text for one in given(beside) if one.basis == "Measured"]
    assert len(texts) == 2
    start = "In the trade-off “weighed” (3 settings, 5 seeds) sound, ε "
    assert all(text.startswith(start) for text in texts)
    assert any("ε 1 lowers the AUROC by 0.15" in text for text in texts)
    assert all("against sound without noise; utility is" in text for text in texts)
    assert given(beside)[0].basis == "Measured"


def test_a_trade_off_of_another_attack_says_nothing_here(beside: Audit) -> None:
    other = make_audit(shift=1.0, attacks=("loss-threshold",))
    other.run.__dict__.update(path=beside.run.path)
    assert {one.basis for one in given(other)} == {"To try", "Next"}


def test_scores_alone_are_offered_no_training(rng: np.random.Generator) -> None:
    members = rng.random(400) < 0.5
    audit = Auditor.from_scores(rng.normal(size=400) + members, members)
    assert audit.verdict.kind == "sampling unknown"
    coin, follow = given(audit)
    assert "fair coin" in coin.text
    assert follow.command == "privaudit gate RUN --baseline baseline.json"
