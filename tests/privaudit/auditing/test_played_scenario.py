"""A scenario as it is played: signals that are kept, parts, groups of one coin, whole clients."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass

from privaudit import Auditor, Run, load_run, split_membership, train
from privaudit.auditing.audit import Audit, covering
from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND
from privaudit.auditing.played_scenario import (
    OWN_KEYS,
    PARTS,
    AuditPart,
    PlayedScenario,
    seen_from_outside,
    store_beside,
    stored_parts,
)
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    BaseTrainer,
    Cohort,
    LocalResult,
    Records,
    Round,
    Signal,
    Signals,
    Task,
)
from privaudit.federation.uploads import weighted_upload
from privaudit.report.export import export_public
from privaudit.report.export.verify import verify_card
from privaudit.runs.config import make_config
from privaudit.runs.ledger import Ledger
from privaudit.statistics.roc import auroc
from tests.altered_cards import statement_in
from tests.conftest import Cli, common_cache


@pytest.mark.parametrize(
    "other",
    [{"bits": "portable", "builds": {}}, {"bits": "native", "builds": {"a": "1"}}],
)
def test_signals_of_other_bits_or_builds_are_not_taken(
    whole: Path, other: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit would say that it was computed in bits that its numbers do not have."""

    def named() -> object:
        store = store_beside(load_run(whole), ("server",), 0)
        assert store is not None
        return store.context

    here = "privaudit.auditing.played_scenario.computed_with"
    monkeypatch.setattr(here, lambda: {"bits": "native", "builds": {}})
    before = named()
    assert named() == before
    monkeypatch.setattr(here, lambda: other)
    assert named() != before


@pytest.mark.parametrize("key", ["privacy", "attack_results"])
def test_a_part_that_would_replace_what_an_audit_says_is_refused(key: str) -> None:
    """As it is imported, before anything is computed."""
    with pytest.raises(ConfigError, match=f"writes '{key}'"):
        AuditPart("mine", int, lambda _: True, lambda _: 1, 0, "Mine", key=key)
    assert "mine" not in PARTS.names()


def test_what_an_audit_itself_writes_is_listed(whole: Path) -> None:
    audit = Auditor(load_run(whole)).attack("black-box", shadows=0)
    of_parts = {part.entry for part in stored_parts(audit.parts)}
    assert audit.to_dict().keys() - of_parts == OWN_KEYS - {
        "budget",
        "notes",
        "question",
    }


TOSSES = 200
NAME = "loss-threshold"


def test_intervals_by_group_cover_and_those_by_record_are_too_narrow() -> None:
    """No leak: only groups differ, as patients do. Truth is 0.5; each toss is anew."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(140), rng.integers(2, 15, 140))
    by_record = by_group = 0
    for toss in range(TOSSES):
        ledger = split_membership(clients=1, groups=groups, seed=toss)
        of = ledger.candidates_of(0)
        scores = rng.normal(size=140)[groups[of]] + rng.normal(size=len(of))
        truth, units = ledger.is_member[of], ledger.units(of)
        found = auroc(scores[truth], scores[~truth])
        by_record += found.low <= 0.5 <= found.high
        means, truth = units.mean(scores), truth[units.first]
        found = auroc(means[truth], means[~truth])
        by_group += found.low <= 0.5 <= found.high
        assert sum(found.n) == len(units.first) == 98
    assert by_group / TOSSES >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / TOSSES)
    assert by_record / TOSSES < 0.75


def paired(ledger: Ledger) -> Ledger:
    """Return the ledger with neighbours in groups that are alike in all else."""
    group = np.arange(len(ledger.owner))
    for owner in np.unique(ledger.owner):
        for member in (False, True):
            is_own = (ledger.owner == owner) & (ledger.is_member == member)
            rows = np.flatnonzero(is_own)
            rows = rows[: len(rows) // 2 * 2]
            group[rows[1::2]] = rows[::2]
    return replace(ledger, group=group)


@pytest.fixture
def played(whole: Path) -> tuple[PlayedScenario, PlayedScenario]:
    """Three clients under one attack: as they are, and with groups."""
    run, grouped = Run(whole), Run(whole)
    grouped.__dict__["ledger"] = paired(run.ledger)
    plan = find_scenario("update-watch", 0)
    plan = replace(plan, attacks={NAME: plan.attacks[NAME]})
    adversary, targets = Auditor(run).prepare(plan)
    alone, together = (
        PlayedScenario(one, plan, adversary, targets[:3]) for one in (run, grouped)
    )
    return alone, together


def test_an_audit_scores_and_counts_groups(
    played: tuple[PlayedScenario, PlayedScenario],
) -> None:
    before, after = (one.attack(one.scenario, one.targets)[NAME] for one in played)
    group, truth = played[1].run.ledger.group, played[0].run.ledger.is_member
    assert group is not None
    for client, alone in zip(after.clients, before.clients, strict=True):
        rows = [group[alone.records] == record for record in client.records]
        assert sum(int(some.sum()) for some in rows) == len(alone.records)
        means = [alone.scores[some].mean() for some in rows]
        np.testing.assert_allclose(client.scores, means)
        votes = np.array([alone.guesses[some].mean() for some in rows])
        np.testing.assert_array_equal(client.guesses, votes > 0.5)
        np.testing.assert_array_equal(client.is_member, truth[client.records])
    counted = sum(len(client.records) for client in after.clients)
    assert sum(after.auroc.n) == counted < 0.6 * sum(before.auroc.n)
    (rounds,) = LEAKAGE_BY_ROUND.compute(played[1])
    assert [sum(e.n) for e in rounds.by_round.values()] == [counted, counted]
    assert rounds.by_round[1] == after.auroc


def test_epsilon_of_groups_is_not_held_against_a_claim_about_records(
    whole: Path,
) -> None:
    run = Run(whole)
    run.__dict__["ledger"] = paired(run.ledger)
    with pytest.raises(AttackError, match="groups of records that share a coin"):
        Auditor(run).attack("one-run", shadows=0)


BINS = 2**15
CLIENTS = 24


@dataclass(frozen=True)
class Remembers(BaseTrainer):
    """A federated model that is a table of the records that it was trained on."""

    noise: bool = False

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        return {"seen": torch.zeros(BINS, len(task.zero_shot))}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        seen = torch.zeros(len(cohort), BINS, len(task.zero_shot))
        for place in range(len(cohort)):
            rows = cohort.mask[place].bool()
            bins = _bins(cohort.features[place][rows])
            seen[place, bins, cohort.labels[place][rows]] = 1.0
        sent = weighted_upload(cohort, {"seen": seen})
        return LocalResult(sent, {}, torch.zeros(len(cohort)))

    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        bins = _bins(records.features)
        known = (models["seen"][:, bins] > 0).float()
        if self.noise:  # says what depends on the record alone
            hot = torch.nn.functional.one_hot(bins % known.shape[-1], known.shape[-1])
            known = hot.float().expand_as(known)
        yield {"log_probabilities": (5 * known).log_softmax(dim=-1)}


def _bins(features: torch.Tensor) -> torch.Tensor:
    """Return a number for each record that follows from the bits of its features."""
    bits = features[..., :4].contiguous().view(torch.int32).long()
    return (bits * torch.tensor([1, 31, 977, 7919])).sum(dim=-1) % BINS


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Three federations of half of 24 clients each."""
    folder = tmp_path_factory.mktemp("runs")
    usual: dict[str, Any] = {
        "rounds": 1, "clients": CLIENTS, "members": "clients", "folder": folder,
        "seed": 3,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, common_cache(tmp_path_factory):
        patch.setitem(TRAINERS._entries, "remembers", Remembers)
        yield {
            "certain": train("remembers", **usual),
            "impossible": train("remembers", noise=True, **usual),
            "promptfl": train("promptfl", epochs=1, name="promptfl", **usual),
        }


@pytest.fixture(scope="module")
def audits(runs: dict[str, Run]) -> dict[str, Audit]:
    return {
        name: Auditor(run).attack("client-membership") for name, run in runs.items()
    }


def test_only_clients_whose_coin_says_so_take_part_and_with_all_they_have(
    runs: dict[str, Run],
) -> None:
    run = runs["certain"]
    ledger, everybody = run.ledger, run.population.task.clients
    inside = [c for c in everybody if len(ledger.members_of(c))]
    assert 4 <= len(inside) <= CLIENTS - 4
    assert [set(one) for one in run.participants] == [set(inside)]
    for client in inside:
        assert len(ledger.members_of(client)) == len(ledger.candidates_of(client))
    parties = {m.sender for m in run.transcript} | {m.receiver for m in run.transcript}
    assert parties.isdisjoint(set(everybody) - set(inside))
    assert set(run.personal_models) == set(inside)


def test_who_took_part_is_certain_where_the_model_remembers(
    audits: dict[str, Audit],
) -> None:
    audit = audits["certain"]
    assert audit.auroc.value == 1
    assert audit.verdict.kind == "leaks"
    assert sum(audit.auroc.n) == CLIENTS
    (one,) = audit.headline.clients
    assert len(one.scores) == CLIENTS


def test_nothing_is_found_where_answers_owe_nothing_to_training(
    audits: dict[str, Audit],
) -> None:
    audit = audits["impossible"]
    auroc = audit.auroc  # six standard errors are half as long again as the interval
    assert abs(auroc.value - 0.5) < 1.5 * (auroc.high - auroc.low)


def test_the_adversary_has_one_model_and_no_name(runs: dict[str, Run]) -> None:
    auditor = Auditor(runs["promptfl"])
    adversary, (target,) = auditor.prepare(find_scenario("client-membership", 0))
    (message,) = adversary.view.messages
    assert (message.sender, target.client) == ("clients", "clients")
    released = next(iter(runs["promptfl"].personal_models.values()))
    for name, tensor in target.reconstructed.model.items():
        torch.testing.assert_close(tensor, released[name], rtol=0, atol=0)


def test_a_page_a_card_and_the_terminal_speak_of_clients(
    runs: dict[str, Run], audits: dict[str, Audit], tmp_path: Path, cli: Cli
) -> None:
    run, audit = runs["promptfl"], audits["promptfl"]
    save_audit(audit)
    members, others = audit.auroc.n
    code, printed, err = cli("attack", run.path, "--scenario", "client-membership")
    assert code == 0, err
    assert "n counts whole clients" in printed
    assert f"on {CLIENTS} clients" in re.sub(r"\s+", " ", printed)
    page = (run.path / "audits/client-membership/report.html").read_text()
    said = f"all of {members} clients that took part and {others} that did not"
    assert said in page
    assert "Was this client in the federation at all?" in page
    folder = export_public(run, tmp_path / "public").folder
    card = statement_in(folder)["predicate"]
    assert card["design"]["unit"] == "client"
    auroc = card["audits"]["client-membership"]["auroc"]
    assert auroc["candidates"] == members + others
    assert (card["privacy"]["certified"], card["privacy"]["mechanisms"]) == ({}, [])
    assert verify_card(folder, run).matches


def test_a_question_about_the_other_unit_is_refused(
    runs: dict[str, Run], whole: Path
) -> None:
    with pytest.raises(AttackError, match="--scenario client-membership"):
        Auditor(runs["promptfl"]).attack(shadows=0)
    with pytest.raises(AttackError, match="--members clients"):
        Auditor(Run(whole)).attack("client-membership")
    odd: tuple[dict[str, Any], ...] = (
        {"clients": 9}, {"canary": "mislabelled"}, {"participation": 0.9},
        {"dropout": 0.1},
    )  # fmt: skip
    for fields in odd:
        with pytest.raises(ConfigError, match="--members clients"):
            make_config("promptfl", members="clients", **fields)


def test_models_of_ones_own_give_away_who_took_part(runs: dict[str, Run]) -> None:
    auditor = Auditor(runs["promptfl"])
    adversary, _ = auditor.prepare(find_scenario("client-membership", 0))
    (message,) = adversary.view.messages
    other = {name: tensor + 1 for name, tensor in message.tensors.items()}
    both = (message, replace(message, tensors=other))
    for sent, found in (((), "no model"), (both, "2 models")):
        view = View("released", sent)
        with pytest.raises(AttackError, match=found):
            seen_from_outside(replace(adversary, view=view), "mine")


def test_a_proof_for_a_record_covers_no_client() -> None:
    record = {"unit": "record", "epsilon": 2.0, "why": "Noise."}
    assert covering(record, "client")["epsilon"] is None
    assert "a client has many" in covering(record, "client")["why"]
    assert covering(record, "record") == record
    pairs = np.array([0, 0, 1, 1])
    assert covering(record, "record", pairs)["epsilon"] is None
    why = covering(record, "record", pairs)["why"]
    assert "a group that shares a coin has many" in why
    assert covering(record, "record", np.arange(4)) == record
    client = {**record, "unit": "client"}
    assert covering(client, "record", pairs) == client
    assert covering(client, "client") == client
