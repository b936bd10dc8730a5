"""Training again without the most exposed records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Int
from jsonschema import Draft202012Validator

from privaudit import Audit, Auditor, Run, train
from privaudit.attacks.output_attacks import LossThreshold
from privaudit.auditing.parts.record_exposure import RECORD_EXPOSURE
from privaudit.auditing.stored_audit import read_audit, save_audit
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    MissingFileError,
)
from privaudit.core.parameters import from_plain, to_plain
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.split import UNUSED, read_positions
from privaudit.evaluation.compare.measured import check_pairable
from privaudit.runs import population
from privaudit.runs.run import load_run
from privaudit_labs.removal.command import _mean_lines
from privaudit_labs.removal.over_runs import RemovalOverRuns, over_runs
from privaudit_labs.removal.removal import (
    Removal,
    _attacks_again,
    _shadowed,
    retrain_without,
)
from tests.conftest import Cli, common_cache, refused
from tests.privaudit.cli.test_json import valid

QUICK: dict[str, Any] = {"rounds": 1, "epochs": 1, "shots": 10, "clients": 2}
SHADOWED: dict[str, Any] = {"attacks": ["lira:mode=offline"], "shadows": 12}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    folder = tmp_path_factory.mktemp("before")
    with common_cache(tmp_path_factory):
        run = train(folder=folder, name="before", seed=1, **QUICK | {"epochs": 30})
        audit = Auditor(run).attack(**SHADOWED)
        save_audit(audit)
    return audit


def test_without_a_seed_those_who_stay_keep_their_coins(tmp_path: Path) -> None:
    run = train(folder=tmp_path, name="before", **QUICK)
    save_audit(Auditor(run).attack(**SHADOWED))
    found = retrain_without(run, share=0.2, folder=tmp_path)
    for kept in (found.without_exposed, found.without_random):
        truth = load_run(kept.run, folder=tmp_path).truth
        stay = truth.owner >= 0
        assert stay.sum() < (run.truth.owner >= 0).sum()
        assert np.array_equal(truth.is_member[stay], run.truth.is_member[stay])


def test_those_who_lose_most_go_and_the_same_others_are_compared(audit: Audit) -> None:
    found = retrain_without(audit.run, share=0.2, folder=audit.run.path.parent)
    part = audit.part(RECORD_EXPOSURE)
    assert part is not None
    assert found.gone == sum(
        part.records.client.count(c) // 5 for c in set(part.records.client)
    )
    kept = found.before, found.without_exposed, found.without_random
    count = len(part.records.record) - 2 * found.gone
    assert {one.loss.n for one in kept} == {(count,)}
    assert {sum(one.auroc.n) for one in kept} == {count}
    assert found.onion.loss.value == pytest.approx(
        found.without_exposed.loss.value - found.without_random.loss.value
    )
    exposed = load_run(found.without_exposed.run, folder=audit.run.path.parent)
    gone = read_positions(str(exposed.config.without))
    losses = dict(zip(part.records.record, part.records.losses, strict=True))
    assert min(losses[n] for n in gone.tolist()) == pytest.approx(found.threshold)
    assert (exposed.ledger.owner[gone] == UNUSED).all()
    assert (audit.run.path.parent / "latest").read_text() == f"{audit.run.name}\n"
    random = load_run(found.without_random.run, folder=audit.run.path.parent)
    with pytest.raises(IncompatibleRunsError, match=r"without 19 records \(.* and 19"):
        check_pairable(exposed, random)
    measured = read_audit(exposed, audit.scenario.name)
    assert {
        name: measured.attack_result(name)["settings"] for name in measured.attacks
    } == {name: leak.settings for name, leak in audit.results.items()}


def pairs_of_a_class(dataset: Dataset, wanted: str) -> Int[np.ndarray, " n"]:
    """Put a class's records together by twos, whatever was asked for."""
    group = np.arange(len(dataset))
    for label in dataset.labels.unique():
        rows = np.flatnonzero(dataset.labels.numpy() == int(label))
        rows = rows[: len(rows) // 2 * 2]
        group[rows[1::2]] = rows[::2]
    return group


def test_records_that_share_a_coin_go_together_and_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population, "group_records", pairs_of_a_class)
    few = QUICK | {"epochs": 5, "shots": 6, "clients": 1}
    run = train(folder=tmp_path, groups="contents", seed=0, **few)
    audit = Auditor(run).attack(**SHADOWED | {"shadows": 8})
    save_audit(audit)
    found = retrain_without(run, share=0.2, folder=tmp_path)
    group, candidates = run.ledger.group, run.ledger.candidates_of(0)
    assert group is not None
    groups = len(set(group[candidates]))
    assert 2 * groups == len(candidates)
    assert found.gone == groups // 5
    for one in (found.before, found.without_exposed, found.without_random):
        assert one.loss.n == one.as_exposed.n == (groups - 2 * found.gone,)
        assert sum(one.auroc.n) == groups - 2 * found.gone
    assert sum(found.onion.auroc.estimate.n) == groups - 2 * found.gone
    ledger = load_run(found.without_exposed.run, folder=tmp_path).ledger
    gone = candidates[ledger.owner[candidates] == UNUSED]
    assert len(gone) == 2 * found.gone
    assert len(set(group[gone])) == found.gone


def test_attacks_are_made_again_on_the_clients_that_had_shadow_models(
    audit: Audit,
) -> None:
    one = Auditor(audit.run).attack(
        is_logged=False, attacks=["lira:shadows=12"], clients=1, shadows=0
    )
    assert len(one.headline.clients) == 2
    assert _shadowed(one) == 1
    assert _attacks_again(one) == (["lira:shadows=12"], 0)


def test_an_attack_that_cannot_be_made_again_is_refused_before_training(
    audit: Audit,
) -> None:
    odd = Auditor(audit.run).attack(
        is_logged=False, attacks={"mine": LossThreshold()}, shadows=12
    )
    with pytest.raises(ConfigError, match="cannot be made again"):
        _attacks_again(odd)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seed": 0}, "Use another --seed"),
        ({"share": 0.9}, "at most 0.5"),
        ({"share": 0.001}, "leaves out 0 of"),
        ({"scenario": "black-box"}, "There is no audit"),
    ],
)
def test_what_would_say_nothing_is_refused(
    audit: Audit, asked: dict[str, object], said: str
) -> None:
    with pytest.raises((ConfigError, MissingFileError), match=said):
        retrain_without(audit.run, folder=audit.run.path.parent, **asked)  # type: ignore[arg-type]


def test_the_command_needs_losses(cli: Cli, whole: Path) -> None:
    save_audit(Auditor(Run(whole)).attack(is_logged=False, shadows=0))
    error = refused(cli, "retrain", "whole")
    assert "has no privacy losses" in error
    assert error.count("\n") == 1


def test_the_command_says_who_pays(cli: Cli, audit: Audit) -> None:
    runs = audit.run.path.parent
    words = ("retrain", "before", "--share", "0.2", "--runs", runs, "--quiet")
    code, out, error = cli(*words)  # of the runs that are there
    assert (code, error) == (0, "")
    assert "19 records that lose" in out
    for said in (
        "in these trainings: AUROC",
        "for these three trainings alone",
        "a claim about removal takes several seeds",
    ):
        assert said in out


def test_json_is_of_its_schema(cli: Cli, audit: Audit) -> None:
    words = ("retrain", "before", "--share", "0.2", "--runs", audit.run.path.parent)
    *phases, found = valid(cli, *words)
    assert {one["event"] for one in phases} <= {"phase", "round"}
    assert found["before"]["run"] == "before"
    event = found.pop("event")
    over = over_runs([from_plain(Removal, found)] * 2)
    line = {"event": event, **to_plain(RemovalOverRuns, over)}
    assert line["removals"] == [found, found]
    schema = Draft202012Validator(json.loads(cli("retrain", "--json-schema")[1]))
    assert not [*schema.iter_errors(line)]


def test_several_runs_give_means_over_trainings(audit: Audit) -> None:
    one = retrain_without(audit.run, share=0.2, folder=audit.run.path.parent)
    effect = one.onion.loss.value
    other = replace(
        one,
        onion=replace(one.onion, loss=replace(one.onion.loss, value=effect + 0.2)),
    )
    found = over_runs([one, other])
    assert found.onion.loss.value == pytest.approx(effect + 0.1)
    assert found.onion.loss.n == (2,)
    assert found.exposed_effect.auroc.value == one.exposed_effect.auroc.estimate.value
    assert "Means over 2 runs" in _mean_lines(found)[0]


def test_replicates_are_of_one_setting_with_a_seed_each(cli: Cli, audit: Audit) -> None:
    runs = audit.run.path.parent
    assert "a seed each" in refused(cli, "retrain", "before", "before", "--runs", runs)
    train(folder=runs, name="other", seed=2, **QUICK)
    assert "other and before differ in settings" in refused(
        cli, "retrain", "before", "other", "--runs", runs
    )
