"""An active server on a run: what is found, recorded and refused."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from privaudit import Run, train
from privaudit.auditing.audit_log import read_log
from privaudit.core.errors import AttackError, ConfigError, UnknownNameError
from privaudit.core.seeds import Seeds
from privaudit.federation.transcript import TranscriptFolder
from privaudit.statistics.estimate import proportion
from privaudit_labs.active_server.amplified import Amplifier
from privaudit_labs.active_server.audit import _chosen, attack_actively, write_messages
from tests.conftest import Cli, refused
from tests.privaudit.auditing.test_played_scenario import paired
from tests.privaudit.cli.test_json import valid

QUICK = Amplifier(copies=2, rounds=1, shadows=6)


def test_who_was_sent_what_is_recorded(whole: Path, tmp_path: Path) -> None:
    found = attack_actively(Run(whole), records=10, how=QUICK)
    (line,) = read_log(Run(whole))
    assert line.scenario == "active-server"
    assert [one.named for one in line.attacks] == [True, False]
    assert line.attacks[0].auroc == found.active.value
    assert sum(found.active.n) == sum(found.passive.n) == 10
    crafted = [m.round for m in found.messages if m.kind == "rule"]
    assert crafted == list(range(min(crafted), min(crafted) + 10))
    digests, _ = found.checks
    assert digests.detected.value == 1
    assert digests.false_alarms == proportion(0, Run(whole).config.rounds + 1)
    end = write_messages(tmp_path / "sent", found.messages)
    again = TranscriptFolder(tmp_path / "sent").read(head=end.head, length=end.length)
    kinds = [(m.round, m.receiver, m.kind) for m in found.messages]
    assert [(m.round, m.receiver, m.kind) for m in again.check()] == kinds


def test_clients_are_compared_each_with_itself(whole: Path) -> None:
    """Two clients in one call find what two calls find, in rounds one after another."""
    found = attack_actively(Run(whole), ["client-0", "client-1"], records=16, how=QUICK)
    apart = [
        attack_actively(Run(whole), client, records=16, how=QUICK)
        for client in ("client-0", "client-1")
    ]
    pairs = [one.active.n[0] * one.active.n[1] for one in apart]
    values = [one.active.value for one in apart]
    assert found.active.value == pytest.approx(np.average(values, weights=pairs))
    assert found.gain.estimate.value == pytest.approx(
        found.active.value - found.passive.value
    )
    rounds = [m.round for m in found.messages if m.kind == "rule"]
    assert len(set(rounds)) == len(rounds) == 32
    assert found.checks[0].detected.n == (32,)


def test_one_record_of_each_group_is_asked_about(whole: Path) -> None:
    run = Run(whole)
    candidates = run.population.asked_about("client-0", canaries=False)
    run.__dict__["ledger"] = paired(run.ledger)
    group = run.ledger.group
    assert group is not None
    asked = candidates[_chosen(run, ["client-0"], 1000, Seeds(0))["client-0"]]
    assert len(np.unique(group[asked])) == len(asked) == len(set(group[candidates]))
    assert len(asked) < 0.6 * len(candidates)
    found = attack_actively(run, records=16, how=QUICK)
    assert sum(found.active.n) == sum(found.gain.estimate.n) == 16
    assert read_log(run)[-1].attacks[0].n == found.active.n


def test_what_stays_within_the_bound_raises_no_alarm(whole: Path) -> None:
    found = attack_actively(Run(whole), records=10, how=QUICK, unnoticed=True)
    assert found.checks[1].detected.value == 0


def test_before_a_client_has_a_bound_nothing_holds_the_server() -> None:
    run = train("promptfl", rounds=1, clients=2, seed=0)
    found = attack_actively(run, records=16, how=QUICK, unnoticed=True)
    assert found.active.value != found.passive.value
    digests, moves = found.checks
    assert digests.false_alarms == proportion(0, 2)  # one trial for each broadcast
    assert (moves.detected.value, moves.false_alarms) == (0, None)


def test_what_would_say_nothing_is_refused(
    whole: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError):
        attack_actively(Run(whole), "client-99")
    with pytest.raises(ConfigError, match="takes 5 of either"):
        attack_actively(Run(whole), records=6)
    with pytest.raises(ConfigError, match="singled out once"):
        attack_actively(Run(whole), ["client-0", "client-0"])
    assert read_log(Run(whole)) == []
    writes = SimpleNamespace(task=SimpleNamespace(kind="generation"))
    with monkeypatch.context() as patched:
        patched.setattr(Run, "population", writes)
        with pytest.raises(AttackError, match="generates text"):
            attack_actively(Run(whole))
    everyone = Run(whole).config.model_copy(update={"members": "all"})
    with monkeypatch.context() as patched:
        patched.setattr(Run, "config", everyone)
        with pytest.raises(AttackError, match="is trained on all candidates"):
            attack_actively(Run(whole))
    assert "lies in the run" in refused(cli, "active", "whole", "--output", whole)


def test_the_command_reaches_how_models_are_crafted_and_logs_it(
    whole: Path, cli: Cli, tmp_path: Path
) -> None:
    how = ("--records", 10, "--rounds", 2, "--copies", 3, "--shadows", 6)
    (found,) = valid(cli, "active", "whole", *how, "--output", tmp_path / "sent")
    again = TranscriptFolder(tmp_path / "sent").read(**found["transcript"])
    assert len(again.check()) == found["transcript"]["length"]
    out = cli.done("active", "whole", *how)
    before, line = read_log(Run(whole))
    assert before.attacks == line.attacks
    assert line.attacks[0].auroc == found["active"]["value"]
    assert f"AUROC {line.attacks[0].auroc:.3f} [" in out
    assert "copies=3, rounds=2, shadows=6" in line.attacks[0].settings
    assert "cannot take shadows = 7" in cli.refused("active", "whole", "--shadows", 7)
