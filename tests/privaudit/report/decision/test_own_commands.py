"""Every command that is suggested can be run, and trains what it is said to train."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.checks.gate.settings import make_settings
from privaudit.cli.main import app
from privaudit.evaluation.tradeoff.plan import SweepPlan, cells_of
from privaudit.federated.runs.config import RunConfig, make_config
from privaudit.recording.recorded_config import RecordedConfig
from privaudit.report.decision.advice import advise
from privaudit.report.decision.own_commands import tradeoff_command, train_command
from privaudit.report.report_data import ReportData
from tests.privaudit.made_audits import make_audit
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


def scored() -> Audit:
    rng = np.random.default_rng(0)
    members = rng.random(400) < 0.5
    scores = rng.normal(size=400) + members
    return Auditor.from_scores(scores[members], scores[~members])


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

    monkeypatch.setattr("privaudit.federated.runs.training.train", train)
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


@pytest.mark.parametrize("audit", [recorded(), scored()], ids=["recorded", "scores"])
def test_what_was_not_trained_here_is_offered_no_training(audit: Audit) -> None:
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
