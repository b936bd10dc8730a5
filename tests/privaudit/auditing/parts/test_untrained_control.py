"""What an audit says where no coin chose the members."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit import Auditor, load_run
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.untrained_control import (
    UNTRAINED_CONTROL,
    UntrainedControl,
)
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import AttackError, ConfigError
from privaudit.evaluation.tradeoff.plan import SweepPlan
from privaudit.evaluation.tradeoff.sweep import weigh_runs
from privaudit.recording.owner import use_owner
from privaudit.report.page import render_report
from privaudit.report.tables.parts import round_sentences
from privaudit.runs.ledger import Coin, Ledger
from tests.privaudit.recording.small_federation import (
    COUNT,
    Linear,
    Y,
    drawn_start,
    owners,
    record,
    toss,
)

BEGIN = drawn_start(9)
"""A model that has seen other data, as a pretrained one has."""


def chosen(shift: bool) -> Ledger:
    """Members that nobody tossed a coin for: some the first model knew before."""
    owner = owners()
    logits = Linear().query(BEGIN, np.arange(COUNT))
    known = logits.log_softmax(dim=1)[torch.arange(COUNT), Y].numpy()
    by_chance = np.random.default_rng(3).random(COUNT)
    score = known if shift else by_chance
    is_member = (score > np.median(score)) & (owner >= 0)
    return Ledger(owner, is_member, coin=Coin("none"))


def audited(folder: Path, ledger: Ledger, learns: bool) -> Audit:
    owner = Linear(learns)
    record(folder, ledger, owner, played={"begin": BEGIN})
    with use_owner(owner):
        return Auditor(load_run(folder)).attack("server-reconstruct", shadows=0)


def control_of(audit: Audit) -> UntrainedControl:
    control = audit.part(UNTRAINED_CONTROL)
    assert control is not None
    return control


def test_a_difference_that_was_there_before_is_found_before(tmp_path: Path) -> None:
    """The clients learn no member, and the attack tells members all the same."""
    audit = audited(tmp_path / "run", chosen(shift=True), learns=False)
    assert control_of(audit).before.low > 0.8
    assert audit.auroc.low > 0.5
    assert audit.headline.verdict.kind == "sampling unknown"
    page = render_report([audit])
    assert "No coin chose the members" in page
    assert "differ before any training" in page


def test_what_training_adds_is_distinguished(tmp_path: Path) -> None:
    audit = audited(tmp_path / "run", chosen(shift=False), learns=True)
    control = control_of(audit)
    assert control.before.low < 0.5 < control.before.high
    assert control.change.low > 0.2
    assert audit.auroc.low > 0.5
    assert audit.headline.verdict.kind == "sampling unknown"
    save_audit(audit)
    again = restore_audit(read_audit(load_run(tmp_path / "run"), audit.scenario.name))
    assert control_of(again).change == control.change
    assert again.headline.verdict == audit.headline.verdict


def test_nothing_is_said_to_leak_by_round_or_of_epsilon(tmp_path: Path) -> None:
    record(tmp_path / "run", replace(toss(), coin=Coin("none")), Linear())
    run = load_run(tmp_path / "run")
    with use_owner(Linear()):
        audit = Auditor(run).attack("update-watch", shadows=0)
        with pytest.raises(AttackError, match=r"one-run .* does not declare"):
            Auditor(run).attack("one-run", shadows=0)
        with pytest.raises(ConfigError, match=r"trade-off .* declares no coin"):
            weigh_runs([run], SweepPlan(scenario="server-reconstruct", shadows=0))
    rounds = round_sentences(audit)
    assert rounds
    assert all("no round is named, as no coin is declared" in one for one in rounds)


def test_where_a_coin_was_tossed_there_is_no_control(tmp_path: Path) -> None:
    record(tmp_path / "run", toss())
    with use_owner(Linear()):
        audit = Auditor(load_run(tmp_path / "run")).attack(shadows=0)
    assert audit.part(UNTRAINED_CONTROL) is None
    assert audit.headline.verdict.kind == "leaks"
