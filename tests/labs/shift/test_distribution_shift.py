import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, Run, train
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.scenario import Scenario, find_scenario, weight_attacks
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.seeds import Seeds
from privaudit.federation.rounds import Federation, run_round
from privaudit.federation.transcript import Message
from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc
from privaudit_labs.shift.command import _save
from privaudit_labs.shift.distribution_shift import _split, _untuned, measure_shift
from privaudit_labs.shift.distribution_shift_verdict import Shift
from privaudit_labs.shift.shift_table import HEADINGS, shift_table
from tests.conftest import Cli, common_cache
from tests.privaudit.auditing.test_played_scenario import paired
from tests.privaudit.cli.test_json import valid

SHIFT = "distribution shift, not membership"
OUTSIDE = "these foreign records show shift only"
MEMBERSHIP = "membership shows beyond the distribution shift"
BLIND = "a blind attacker tells them as well"


def about(value: float) -> Estimate:
    return Estimate(value, value - 0.05, value + 0.05, (100, 100), "made up")


@pytest.mark.parametrize(
    ("inside", "foreign", "untuned", "blind", "sentence"),
    [
        (0.7, 0.8, 0.6, 0.5, MEMBERSHIP),
        (0.7, 0.8, 0.6, 0.6, MEMBERSHIP),
        (0.7, 0.4, 0.3, 0.5, MEMBERSHIP),
        (0.7, 0.8, 0.6, 0.9, f"{MEMBERSHIP}, though {BLIND}"),
        (0.7, 0.8, 0.8, 0.5, f"{OUTSIDE}: the untuned model tells them as well; members "
         "stand out in their own distribution"),
        (0.5, 0.8, 0.8, 0.5, f"{SHIFT}: the untuned model tells them as well"),
        (0.5, 0.8, 0.6, 0.9, f"{SHIFT}: {BLIND}"),
        (
            0.5, 0.8, 0.8, 0.9,
            f"{SHIFT}: the untuned model and a blind attacker tell them as well",
        ),
        (0.5, 0.8, 0.6, 0.6, f"{SHIFT}: members do not stand out in their own "
         "distribution"),
        (0.7, 0.52, 0.5, 0.5, "nothing tells members from these foreign records"),
        (0.5, 0.3, 0.4, 0.9, "nothing tells members from these foreign records"),
        (0.7, 0.57, 0.54, 0.53, "undecided between distribution shift and membership"),
    ],
)  # fmt: skip
def test_the_sentence_says_no_more_than_the_controls_allow(
    inside: float, foreign: float, untuned: float, blind: float, sentence: str
) -> None:
    found = Shift(
        "token-loss",
        about(inside),
        about(foreign),
        about(untuned),
        Comparison(about(foreign - untuned), 0.5),
        about(blind),
        Comparison(about(foreign - blind), 0.5),
    )
    assert found.sentence == sentence


def test_a_row_holds_every_number_with_its_interval_and_the_sentence() -> None:
    foreign = Estimate(0.8, 0.75, 0.85, (40, 30), "made up")
    found = Shift(
        "entropy",
        Estimate(0.5, 0.45, 0.55, (40, 35), "made up"),
        foreign,
        about(0.75),
        Comparison(about(0.04), 0.5),
        about(0.9),
        Comparison(about(-0.1), 0.1),
    )
    heads, line, row, *rest = shift_table({"mine": [found]}).splitlines()
    assert row.startswith("| mine | entropy | 0.500 [0.450, 0.550] | 0.800 [0.750,")
    assert "| 40 + 35, 30 | distribution shift, not membership:" in row
    assert heads.count("|") == line.count("|") == row.count("|") == len(HEADINGS) + 5
    assert "n: members + others, foreign" in rest[1]


def test_foreign_records_go_to_one_client_each() -> None:
    parts = _split(records=100, most=70, clients=8, seed=3)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) == 70
    assert {len(part) for part in parts} == {8, 9}
    for part, again in zip(parts, _split(100, 70, 8, 3), strict=True):
        np.testing.assert_array_equal(part, again)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("shift")
    with common_cache(tmp_path_factory):
        return train("zero-shot", folder=folder, rounds=1, seed=0)


@pytest.fixture(scope="module")
def of_nothing(untrained: Run) -> list[Shift]:
    return measure_shift(untrained)


def test_what_a_model_without_training_shows_is_called_shift(
    of_nothing: list[Shift],
) -> None:
    """The attack's AUROC is far from 0.5, and the model never saw a record."""
    named = {found.attack: found for found in of_nothing}
    found = named["loss-threshold"]
    assert found.foreign.low > 0.6
    assert found.foreign == found.untuned
    assert found.beyond.estimate.value == 0
    assert not found.inside.excludes(0.5)
    assert found.blind.low > 0.8
    for one in of_nothing:
        assert one.sentence.startswith(SHIFT)


def test_cheap_attacks_that_read_classes_are_made_and_no_other(
    untrained: Run, of_nothing: list[Shift]
) -> None:
    plan = find_scenario("server-reconstruct", 0).for_task("classification")
    asking = [name for name in plan.attacks if name not in weight_attacks()]
    assert [found.attack for found in of_nothing] == asking
    assert len(asking) < len(plan.attacks)  # an untuned model sends no weights
    with pytest.raises(UnknownNameError, match="No attack is called 'shadow'"):
        measure_shift(untrained, attacks=["shadow"])


def test_the_foreign_number_is_the_mean_of_clients_by_pairs(
    untrained: Run, of_nothing: list[Shift]
) -> None:
    """Naive twin: zero-shot log-likelihoods, client by client."""
    from privaudit_labs.shift.foreign_records import records_elsewhere

    population = untrained.population
    task, ledger = population.task, untrained.ledger
    foreign = records_elsewhere(untrained.config, "drawn-digits")
    groups = []
    parts = _split(len(foreign), 300, len(task.clients), 0)
    for client, part in zip(task.clients, parts, strict=True):
        mine = population.indices(client)
        known = population.records.pick(torch.from_numpy(mine[ledger.is_member[mine]]))
        likely = [
            (task.logit_scale * some.features @ task.zero_shot.T)
            .log_softmax(dim=1)[torch.arange(len(some)), some.labels]
            .numpy()
            for some in (known, foreign.pick(torch.from_numpy(part)))
        ]
        groups.append((likely[0], likely[1]))
    assert of_nothing[0].foreign.value == pytest.approx(
        pooled_auroc(groups).value, abs=1e-4
    )


def test_records_that_share_a_coin_are_one_trial(untrained: Run) -> None:
    """The audit's own number stays that, and a group meets foreign records once."""
    run = Run(untrained.path)
    run.__dict__["ledger"] = paired(run.ledger)
    (found,) = measure_shift(run, attacks=["loss-threshold"], most=100)
    audit = Auditor(run).attack(is_logged=False, shadows=0)
    own = audit.results["loss-threshold"].auroc
    assert found.inside.value == pytest.approx(own.value)
    assert found.inside.n == own.n
    members = own.n[0]
    assert members < 0.6 * run.ledger.is_member.sum()
    for one in (found.foreign, found.untuned, found.blind, found.beyond.estimate):
        assert one.n == (members, 100)


@pytest.mark.parametrize("scenario", ["server-reconstruct", "one-run"])
def test_planted_canaries_are_none_of_the_records_that_shifts_are_about(
    tmp_path: Path, cli: Cli, scenario: str
) -> None:
    planted: dict[str, Any] = {"canary": "mislabelled", "canaries": 20}
    run = train("zero-shot", folder=tmp_path, rounds=1, seed=0, **planted)
    own = [run.population.asked_about(c, canaries=False) for c in run.ledger.clients]
    truth = run.ledger.is_member[np.concatenate(own)]
    shift = ("shift", run.name, "--runs", tmp_path, "--attacks", "loss-threshold")
    (said,) = valid(cli, *shift, "--scenario", scenario)
    assert said["canaries_left_out"] == 20 * len(run.ledger.clients)
    assert len(truth) == len(run.ledger.owner[run.ledger.owner >= 0]) - 20 * len(own)
    assert said["attacks"][0]["inside"]["n"] == [truth.sum(), (~truth).sum()]
    assert said["attacks"][0]["foreign"]["n"] == [truth.sum(), 300]
    assert "without 200 planted canaries:" in cli.done(*shift)
    page = Path(said["path"]).with_suffix(".md").read_text()
    assert page.startswith(f"{run.name}, non-members from ")
    assert "without 200 planted canaries:\n\n|" in page


def test_the_untuned_model_is_the_same_for_every_trainer(whole: Path) -> None:
    adversary, targets = Auditor(Run(whole)).prepare(
        find_scenario("server-reconstruct", 0)
    )
    base, plain = _untuned(adversary, targets)
    assert {id(target.reconstructed) for target in plain} == {
        id(plain[0].reconstructed)
    }
    assert torch.equal(plain[0].reconstructed.model["text"], base.task.zero_shot)
    assert [target.client for target in plain] == [t.client for t in targets]


def test_the_command_prints_and_keeps_all_numbers(whole: Path, cli: Cli) -> None:
    command = ["shift", "whole", "--attacks", "loss-threshold", "--most", "100"]
    said = cli.done(*command)
    for words in ("foreign non-members", "untuned model", "blind attacker, without"):
        assert words in said
    (found,) = valid(cli, *command)
    path = Path(found["path"])
    assert path.parent == whole / "audits"
    assert re.fullmatch(r"shift-drawn-digits-server-reconstruct-\w{8}.json", path.name)
    assert found == {**json.loads(path.read_text()), "path": str(path)}
    assert found["attacks"][0]["blind"]["n"][1] == found["asked"]["most"] == 100
    assert "Asked: scenario server-reconstruct, " in path.with_suffix(".md").read_text()
    run = Run(whole)
    for other in (
        {"asked": found["asked"] | {"scenario": "update-watch"}},
        {"asked": found["asked"] | {"seed": 1}},
        {"foreign": "image-folder:../../../../rel"},
        {"foreign": "image-folder:/far/away"},
    ):
        assert _save(run, found | other, [], "A title").parent == whole / "audits"
    assert len([*whole.glob("audits/shift-*.json")]) == 5


def test_data_sets_that_cannot_be_foreign_are_refused(whole: Path) -> None:
    run = Run(whole)
    with pytest.raises(ConfigError, match="digits is what the run was trained on"):
        measure_shift(run, "digits")
    with pytest.raises(ConfigError, match="8 of the 8 classes of scenes-far are none"):
        measure_shift(run, "scenes-far")
    with pytest.raises(ConfigError, match="10 clients need one each"):
        measure_shift(run, most=9)


def test_attacks_that_do_not_ask_the_model_are_refused(whole: Path) -> None:
    """With the untuned model they would do the same, and hide behind it."""
    with pytest.raises(ConfigError, match="update-alignment does not query its target"):
        measure_shift(Run(whole), scenario="update-watch", attacks=["update-alignment"])


@pytest.mark.slow
def test_a_model_tuned_on_others_records_is_not_said_to_show_membership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuning moves data sets apart, whoever's records it is on.

    The run's clients are attacked through a federation that trained on public records:
    it never saw a candidate, and yet does better than the untuned model.
    """
    run = train("promptfl", folder=tmp_path, rounds=4, seed=1)
    messages = _tuned_elsewhere(run)
    prepare = Auditor.prepare

    def others(
        self: Auditor, scenario: Scenario, *, seed: int = 0
    ) -> tuple[Adversary, list[Target]]:
        adversary, targets = prepare(self, scenario, seed=seed)
        adversary = replace(adversary, view=adversary.threat(messages))
        found = [
            replace(t, reconstructed=adversary.reconstruct(t.client)) for t in targets
        ]
        return adversary, found

    monkeypatch.setattr(Auditor, "prepare", others)
    for found in measure_shift(run):
        assert found.foreign.low > 0.55
        assert not found.inside.excludes(0.5)
        assert found.sentence.startswith(SHIFT)


def _tuned_elsewhere(run: Run) -> list[Message]:
    """Train as many records as the run's members, all of them public."""
    task = run.population.task
    order = torch.randperm(len(task.public), generator=torch.Generator().manual_seed(1))
    size = int(run.ledger.is_member.sum()) // len(task.clients)
    shards = {
        client: task.public.pick(order[size * n : size * (n + 1)])
        for n, client in enumerate(task.clients)
    }
    federation = Federation.begin(run.trainer, task, shards, Seeds(100))
    messages: list[Message] = []
    for index in range(task.rounds):
        (record,) = run_round(run.trainer, task, [federation], index)
        messages.extend(record.messages)
    return messages
