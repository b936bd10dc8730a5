"""Was a client in the federation at all? A coin for each client, and an outsider."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass

from privaudit import Auditor, Run, train
from privaudit.auditing.assurance import covering
from privaudit.auditing.audit import Audit
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.storage.save import save_audit
from privaudit.auditing.units.whole_clients import seen_from_outside
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.base_trainer import BaseTrainer
from privaudit.federated.runs.config import make_config
from privaudit.federated.trainer import (
    TRAINERS,
    Cohort,
    LocalResult,
    Records,
    Round,
    Signal,
    Signals,
    Task,
)
from privaudit.federated.transcripts.threat_models import View
from privaudit.federated.weighted_mean import weighted_upload
from privaudit.report.export import export_public
from privaudit.report.export.verify import verify_card
from tests.conftest import Cli, common_cache

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
    for audit in (audits["impossible"],):
        assert audit.auroc.low < 0.5 < audit.auroc.high
        assert audit.verdict.kind == "underpowered"


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
    card = json.loads((folder / "card.json").read_text())
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
    assert (
        "a group that shares a coin has many"
        in (covering(record, "record", pairs)["why"])
    )
    assert covering(record, "record", np.arange(4)) == record
    client = {**record, "unit": "client"}
    assert covering(client, "record", pairs) == client
    assert covering(client, "client") == client
