"""Nothing is said to help that was neither measured nor proved."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.core.storage import write_json
from privaudit.evaluation.tradeoff.cells import SweepPoint
from privaudit.evaluation.tradeoff.result import judge_sweep
from privaudit.federated.runs.config import make_config
from privaudit.recording.recorded_config import RecordedConfig
from privaudit.report.decision.advice import Advice, advise
from privaudit.report.decision.first_screen import first_screen
from privaudit.report.report_data import ReportData
from tests.privaudit.made_audits import make_audit, make_claimed


def given(*audits: Audit) -> list[Advice]:
    return advise(ReportData.of(audits))


def commands(found: list[Advice], basis: str = "To try") -> list[str]:
    return [one.command for one in found if one.basis == basis]


def test_a_method_with_a_private_twin_is_offered_it_to_try() -> None:
    found = given(make_audit(shift=1.0))
    assert {one.basis for one in found} == {"To try", "Next"}
    assert "privaudit train --trainer dp-promptfl:epsilon=8 --clients 5 --rounds 3" in (
        commands(found)
    )
    assert commands(found, "Next") == [
        "privaudit tradeoff --scenario server-reconstruct --trainers "
        "promptfl,dp-promptfl --field clients=5 --field rounds=3"
    ]


def test_a_kept_promise_without_a_leak_is_to_be_kept_so() -> None:
    quiet = make_audit(shift=0.0, seed=2, candidates=700, epsilons=(8.0, 7.9))
    write, hold = given(quiet)
    run, scenario = quiet.run.name, "--scenario server-reconstruct"
    assert write.command == (
        f"privaudit gate {run} {scenario} --write-baseline baseline.json"
    )
    assert hold.command == f"privaudit gate NEXT {scenario} --baseline baseline.json"


def test_a_refuted_claim_is_not_to_be_relied_on() -> None:
    refuted = make_claimed(2.0, claimed=0.4)
    first = given(refuted)[0]
    command = f"privaudit lint {refuted.run.name}"
    assert (first.basis, first.command) == ("Measured", command)
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
    assert [one for one in offered if "mode=sound" in one or "noise_at" in one] == [
        "privaudit train --trainer dp-fpl:mode=sound,epsilon=0.1,noise_at=client "
        "--clients 5 --rounds 3"
    ]


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


def store(points: list[SweepPoint], folder: Path) -> None:
    """Write what a trade-off found, without its pictures."""
    folder.mkdir(parents=True)
    write_json(folder / "sweep.json", judge_sweep(points).to_dict())


@pytest.fixture
def beside(tmp_path: Path) -> Audit:
    """A run beside a trade-off whose noise lowers the leak, and a damaged one."""
    points = [
        swept(epsilon, seed, value + 0.001 * seed * (-1) ** seed)
        for seed in range(5)
        for epsilon, value in ((None, 0.7), (8.0, 0.65), (1.0, 0.55))
    ]
    store(points, tmp_path / "weighed")
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


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "scenes"},
        {"data": "/elsewhere"},
        {"classes": "1,2"},
        {"model": "open_clip:RN50"},
    ],
)
def test_a_trade_off_of_other_data_or_another_model_says_nothing_here(
    beside: Audit, fields: dict[str, Any]
) -> None:
    config = beside.run.config.model_copy(update=fields)
    beside.run.__dict__.update(config=config)
    assert "Measured" not in {one.basis for one in given(beside)}


def test_a_trade_off_of_another_scenario_or_trainer_says_nothing_here(
    beside: Audit,
) -> None:
    scenario = replace(beside.scenario, name="prompt-release")
    for other in (
        replace(beside, scenario=scenario),
        make_audit("promptfl-ft", shift=1.0),
    ):
        other.run.__dict__.update(path=beside.run.path)
        assert "Measured" not in {one.basis for one in given(other)}


def test_a_trade_off_that_does_not_say_what_it_trained_is_not_quoted(
    beside: Audit,
) -> None:
    file = beside.run.path.parent / "weighed" / "sweep.json"
    said = json.loads(file.read_text())
    assert {point["study"]["scenario"] for point in said["points"]} == {
        "server-reconstruct"
    }
    for point in said["points"]:
        del point["study"]
    file.write_text(json.dumps(said))
    assert "Measured" not in {one.basis for one in given(beside)}


def test_only_the_runs_of_a_trade_off_s_study_get_its_advice(beside: Audit) -> None:
    other = make_audit("dp-promptfl", shift=1.2, epsilon=8.0)
    other.run.__dict__.update(path=beside.run.path)
    found = [one for one in given(other, beside) if one.basis == "Measured"]
    assert [one.runs for one in found] == [("promptfl",)] * 2


def now(audit: Audit) -> str:
    data = ReportData.of([audit])
    return first_screen(data, advise(data)).answers[-1].text


def test_that_nothing_lowered_the_leak_is_said_last_and_is_no_answer(
    tmp_path: Path,
) -> None:
    refuted = make_claimed(2.0, claimed=0.4)
    quiet = make_audit("dp-fpl", shift=0.0, epsilon=8.0, epsilons=(8.0, 7.9))
    for audit in (refuted, quiet):
        points = [
            replace(SweepPoint.of(audit, "sound", budget, replicate=seed), scores=None)
            for seed in range(3)
            for budget in (None, 8.0)
        ]
        store(points, tmp_path / audit.run.name / "weighed")
        audit.run.__dict__.update(path=tmp_path / audit.run.name / "run")
        assert "none lowered" in given(audit)[-1].text
        assert "none lowered" not in now(audit)
    assert now(refuted).startswith("Measured: Do not rely on the claimed ε")


def test_a_proof_is_urgent_before_what_is_undecided() -> None:
    undecided = make_audit(
        "dp-fpl", shift=0.1, candidates=30, epsilons=(8.0, None), epsilon=8.0,
        mode="published-paper", noise_at="server",
    )  # fmt: skip
    found = given(undecided)
    assert "Mode “sound”" in found[0].text
    assert "Audit more" in found[1].text


def repeatable(claimed: float | None, certified: float, **rest: Any) -> Audit:
    audit = make_audit("dp-fpl", shift=0.0, epsilons=(claimed, certified), **rest)
    for proved in audit.run.privacy["certified"].values():
        proved["randomness"] = "seed"
    return audit


@pytest.mark.parametrize(("claimed", "certified"), [(8.0, 7.9), (None, 7.9)])
def test_noise_of_a_seed_is_to_be_drawn_anew_with_the_run_s_own_settings(
    claimed: float | None, certified: float
) -> None:
    audit = repeatable(claimed, certified)
    config = make_config("dp-fpl", {"epsilon": 8.0, "rank": 4}, clients=7, seed=3)
    audit.run.__dict__.update(config=config)
    assert commands(given(audit), "Proved") == [
        "privaudit train --trainer dp-fpl:epsilon=8,rank=4 --clients 7 --rounds 60 "
        "--randomness system"
    ]


def test_a_certificate_above_the_claim_is_no_proof_to_be_had_by_a_key() -> None:
    assert not commands(given(repeatable(0.4, 57.0)), "Proved")


def test_a_federation_that_others_trained_is_not_to_be_trained_here() -> None:
    audit = repeatable(8.0, 7.9)
    config = RecordedConfig(trainer="dp-fpl", dataset="digits", rounds=3)
    audit.run.__dict__.update(config=config)
    assert not commands(given(audit), "Proved")


def test_scores_alone_are_offered_no_training(rng: np.random.Generator) -> None:
    members = rng.random(400) < 0.5
    scores = rng.normal(size=400) + members
    audit = Auditor.from_scores(scores[members], scores[~members])
    assert audit.verdict.kind == "sampling unknown"
    coin, write, hold = given(audit)
    assert "fair coin" in coin.text
    run, scenario = audit.run.name, f"--scenario {audit.scenario.name}"
    assert write.command == (
        f"privaudit gate {run} {scenario} --write-baseline baseline.json"
    )
    assert hold.command == f"privaudit gate NEXT {scenario} --baseline baseline.json"
