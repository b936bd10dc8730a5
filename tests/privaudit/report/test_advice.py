"""Every command that is suggested can be run, and trains what it is said to train."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.checks.gate.settings import make_settings
from privaudit.cli.main import app
from privaudit.core.storage import write_json
from privaudit.evaluation.tradeoff.plan import SweepPlan, cells_of
from privaudit.evaluation.tradeoff.result import SweepPoint, judge_sweep
from privaudit.recording.bundle import RecordedConfig, read_bundle
from privaudit.report.advice import Advice, advise, tradeoff_command, train_command
from privaudit.report.first_screen import first_screen
from privaudit.report.report_data import Findings, ReportData
from privaudit.runs.config import RunConfig, make_config
from tests.privaudit.made_audits import make_audit, make_claimed
from tests.privaudit.recording.small_federation import audited, record
from tests.test_ci_docs import parse

HUB: dict[str, Any] = {
    "dataset": "hf:Some-One/pictures",
    "image_column": "picture",
    "model": "open_clip:RN50",
    "clients": 4,
    "publish": False,
    "classes": "cat,dog's",
    "seed": 7,
}
RUNS: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "plain": ("promptfl", {}, {}),
    "hub": ("promptfl", {}, HUB),
    "owners": ("promptfl", {}, {**HUB, "owner_column": "who", "alpha": 0.5}),
    "masked": ("promptfl", {}, {"secure_aggregation": "masked"}),
    "sound": ("dp-fpl", {"epsilon": 4.0, "rank": 4}, HUB),
    "paper": ("dp-fpl", {"mode": "published-paper", "epsilon": 0.1}, {}),
    "code": ("dp-fpl", {"mode": "published-code", "epsilon": 0.1}, HUB),
    "clients": ("dp-fpl", {"epsilon": 1.0, "noise_at": "client"}, {"clients": 3}),
    "no noise": ("dp-promptfl", {"epsilon": None}, {}),
    "writers": ("lora-fedavg", {}, {"tested": 12}),
    "either": ("dp-fedpt", {"mode": "published-paper", "epsilon": 2.0}, {}),
    "coop": ("coop", {}, {}),
    "local": ("fedpt-local", {}, {}),
    **{
        name: (name, {}, {})
        for name in (
            "pfedmoap", "dp-pfedmoap", "prompt-fedamp", "fedpt-dhapa", "fedpt-top-k",
            "fedotp", "dp-fedpgp", "zero-shot",
        )
    },
}  # fmt: skip
SILENT = ("coop", "local", "zero-shot")
INDIVIDUAL = ("pfedmoap", "dp-pfedmoap", "prompt-fedamp", "fedpt-dhapa", "fedpt-top-k")


class Stop(Exception):  # noqa: N818
    """Nothing is trained here."""


def audit_of(name: str, **rest: Any) -> Audit:
    trainer, settings, fields = RUNS[name]
    claimed = settings.get("epsilon")
    audit = make_audit(trainer, shift=1.0, epsilons=(claimed, None), **rest)
    line = {"bytes_up": 0 if name in SILENT else 10, "bytes_down": 20}
    config = make_config(trainer, settings, **fields)
    audit.run.__dict__.update(config=config, metrics=[line])
    return audit


def recorded() -> Audit:
    audit = make_audit("promptfl", shift=1.0)
    config = RecordedConfig(trainer="ours", dataset="theirs", model="big", rounds=3)
    audit.run.__dict__.update(config=config)
    return audit


def scored(sampling: str = "unknown") -> Audit:
    rng = np.random.default_rng(0)
    members = rng.random(400) < 0.5
    scores = rng.normal(size=400) + members
    return Auditor.from_scores(scores[members], scores[~members], sampling=sampling)


def commands_of(audit: Audit) -> list[str]:
    found = advise(ReportData.of([audit]))
    return [one.command for one in found if one.command]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What train and tradeoff would do, in place of doing it."""
    seen: list[Any] = []

    def train(method: str, *, settings: Any, **rest: Any) -> None:
        fields = {k: v for k, v in rest.items() if k in RunConfig.model_fields}
        seen.append(make_config(method, settings, **fields))
        raise Stop

    def run_sweep(plan: SweepPlan, **_: Any) -> None:
        seen.append(plan)
        raise Stop

    for place in ("evaluation.sweep_runs", "runs.training"):  # the first imports it
        monkeypatch.setattr(f"privaudit.{place}.train", train)
    monkeypatch.setattr("privaudit.evaluation.tradeoff.sweep.run_sweep", run_sweep)
    return seen


def ask(command: str, asked: list[Any]) -> Any:
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert isinstance(result.exception, Stop), (command, result.output)
    return asked.pop()


def kept(config: RunConfig) -> dict[str, Any]:
    anew = {"trainer", "settings", "seed", "randomness", "secure_aggregation"}
    return config.model_dump(exclude=anew)


@pytest.mark.parametrize("name", RUNS)
def test_every_suggested_command_trains_the_run_s_own_data_and_model(
    name: str, asked: list[Any]
) -> None:
    audit = audit_of(name)
    config, commands = audit.run.config, commands_of(audit)
    for command in commands:
        if command.startswith("privaudit train "):
            made = ask(command, asked)
            assert kept(made) == kept(config)
            assert made.trainer in (config.trainer, f"dp-{config.trainer}")
            assert "--seed" not in command
        if command.startswith("privaudit tradeoff "):
            plan = ask(command, asked)
            assert plan.scenario == audit.scenario.name
            assert config.trainer in plan.trainers
            for cell in cells_of(plan):
                assert kept(cell.config(1)) == kept(config)
    assert any(one.startswith("privaudit tradeoff ") for one in commands)
    masked = [one for one in commands if "--secure-aggregation masked" in one]
    offered = any(re.search(r"^privaudit train --trainer (?!dp-)", m) for m in masked)
    if name in (*SILENT, *INDIVIDUAL):
        assert not masked
    elif name in ("plain", "hub", "writers"):
        assert offered


def test_what_hides_in_weights_is_said_where_weights_carry_the_verdict() -> None:
    audit = make_audit("promptfl", shift=3.0, attacks=["joint-regression"])
    audit.run.__dict__.update(metrics=[{"bytes_up": 5 * 4 * 9600}])
    said = [one.text for one in advise(ReportData.of([audit])) if "numbers" in one.text]
    assert len(said) == 1
    assert "about 9,600 numbers of a client" in said[0]
    assert "against 120 candidates: sums of 80 clients" in said[0]
    assert not any("numbers" in one.text for one in advise(ReportData.of([recorded()])))


@pytest.mark.parametrize(
    "audit", [recorded(), scored("split")], ids=["recorded", "own"]
)
def test_a_leak_of_what_others_trained_has_remedies_and_no_baseline(
    audit: Audit,
) -> None:
    found, scored_here = given(audit), audit.scenario.name == "scores"
    assert Findings(audit).leak.kind == "alarm"
    tried = [one.text for one in found if one.basis == "To try"]
    assert {"DP-SGD" in one for one in tried} == {True, False}
    assert any("Mask the uploads" in one for one in tried) == (not scored_here)
    assert not any("baseline" in one.text for one in found)
    (after,) = (one.command for one in found if one.command)
    scenario = f"--scenario {audit.scenario.name}"
    assert after == f"privaudit compare NEXT {audit.run.name} {scenario}"
    assert parse(after).params["run"] == ["NEXT", audit.run.name]


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ("flwr", "SecAggPlusWorkflow"),
        ("nvflare", "EngineFilter"),
        ("torch", "by Opacus"),
    ],
)
def test_remedies_are_those_of_the_library_that_trains(
    library: str, says: str, tmp_path: Path
) -> None:
    record(tmp_path / "run")
    audit = audited(tmp_path / "run", shadows=0)
    bundle = read_bundle(tmp_path / "run")
    named = bundle.model_copy(update={"libraries": {library: "1.0"}})
    audit.run.__dict__["bundle"] = named
    assert any(says in one.text for one in given(audit))


def test_what_was_not_trained_here_is_offered_no_training() -> None:
    audit = scored()
    commands = commands_of(audit)
    assert {shlex.split(one)[1] for one in commands} == {"gate"}
    for command in commands:
        params = parse(command).params
        assert make_settings({"scenario": params["scenario"]}).scenario == (
            audit.scenario.name
        )
        assert params["run"] in (audit.run.name, "NEXT")
    assert any("--write-baseline" in one for one in commands)


@pytest.mark.parametrize("name", ["sound", "paper", "code"])
def test_a_sound_mode_against_a_server_has_its_noise_from_the_clients(
    name: str, asked: list[Any]
) -> None:
    commands = [one for one in commands_of(audit_of(name)) if "noise_at" in one]
    (made,) = [ask(one, asked) for one in commands if " train " in one]
    settings = RUNS[name][1]
    assert made.settings["mode"] == "sound"
    assert made.settings["noise_at"] == "client"
    assert made.settings["epsilon"] == settings["epsilon"]
    assert made.settings["rank"] == settings.get("rank", 8)


def test_a_trade_off_leaves_out_modes_that_the_settings_rule_out(
    asked: list[Any],
) -> None:
    own = make_config("dp-fpl", {"noise_at": "client"})
    assert ask(tradeoff_command(own, "prompt-release"), asked).modes == ("sound",)
    code = make_config("dp-fpl", {"mode": "published-code"})
    modes = ask(tradeoff_command(code, "prompt-release"), asked).modes
    assert modes == ("published-code", "sound")


def test_what_would_be_refused_is_not_suggested() -> None:
    config = make_config("promptfl")
    assert train_command(config, "no-such-trainer") == ""
    assert train_command(config, settings={"epsilon": 8.0}) == ""
    assert train_command(make_config("pfedmoap"), secure_aggregation="masked") == ""
    assert tradeoff_command(make_config("promptfl", members="all"), "one-run") == ""
    assert tradeoff_command(config, "no-such-scenario") == ""
    without = ",".join(str(n) for n in range(0, 4000, 2))
    assert train_command(make_config("promptfl", without=without)) == ""


def given(*audits: Audit) -> list[Advice]:
    return advise(ReportData.of(audits))


def held(audit: Audit) -> list[str]:
    """Return the commands that keep the next run as good as an audited one."""
    scenario = f"--scenario {audit.scenario.name}"
    return [
        f"privaudit gate {audit.run.name} {scenario} --write-baseline baseline.json",
        f"privaudit gate NEXT {scenario} --baseline baseline.json",
    ]


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
    assert [one.command for one in given(quiet)] == held(quiet)


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


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trade-off whose noise lowers the leak."""
    folder = tmp_path_factory.mktemp("trade-off") / "weighed"
    points = [
        swept(epsilon, seed, value + 0.001 * seed * (-1) ** seed)
        for seed in range(5)
        for epsilon, value in ((None, 0.7), (8.0, 0.65), (1.0, 0.55))
    ]
    store(points, folder)
    return folder


@pytest.fixture
def beside(weighed: Path, tmp_path: Path) -> Audit:
    """A run beside a trade-off, and a damaged one."""
    shutil.copytree(weighed, tmp_path / "weighed")
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


def test_scores_alone_are_offered_no_training() -> None:
    audit = scored()
    assert audit.verdict.kind == "sampling unknown"
    coin, write, hold = given(audit)
    assert "fair coin" in coin.text
    assert [write.command, hold.command] == held(audit)
