"""Records are read out of uploads where that is certain, and not where noise hides them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from privaudit import Audit, Auditor, train
from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.played_scenario import PARTS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core import registry
from privaudit.core.errors import UnknownNameError
from privaudit.datasets.records import TokenSequences
from privaudit.datasets.split import PUBLIC
from privaudit.federation.trainer import Records, Task
from privaudit.models.interfaces import Head, Tuning
from privaudit.report.export import export_public, verify_card
from privaudit.report.index import rewrite_reports
from privaudit.report.page import render_report
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainers.dp_fedpt import DPFedPT
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.inversion.judged import (
    INVERSION,
    TITLES,
    psnr,
)
from privaudit_labs.inversion.upload_inversion import UploadInversion
from tests.conftest import CLASSES, DIM, toy_records
from tests.toy_federation import CLIENTS, Play, joined
from tests.toy_tower import ToyTower, toy_tower

ONE_STEP = PromptFL(epochs=1, momentum=0, learning_rate=0.1)
SEVERAL = PromptFL(epochs=5, momentum=0.9, learning_rate=0.02)
OTHERS = 40


@dataclass(frozen=True)
class HeadedTower(ToyTower):
    """A prompt moves every feature by its mean, and a head of one's own classifies."""

    def logits(
        self,
        features: Tensor,
        tokens: Tensor | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Tensor:
        assert tuning.prompt is not None
        moved = features + tuning.prompt.mean(dim=1, keepdim=True)
        return moved @ tuning.head["weight"].mT + tuning.head["bias"][:, None]


def lonely(seed: int, count: int = 1) -> dict[str, Records]:
    """Give each client so many records of its own, of classes of their own."""
    drawn = {c: toy_records(4, seed + n) for n, c in enumerate(CLIENTS)}
    return {
        c: records.pick((torch.arange(count) + n) % 4)
        for n, (c, records) in enumerate(drawn.items())
    }


def inverted(
    play: Play,
    task: Task,
    trainer: Any,
    shards: dict[str, Records],
    view: str = "server",
    attack: UploadInversion | None = None,
) -> tuple[list[Any], list[np.ndarray], list[np.ndarray]]:
    """Return what is read of clients, and the scores of their records and of others."""
    others = toy_records(OTHERS, 7)
    asked = {client: joined(own, others) for client, own in shards.items()}
    world = replace(
        task,
        rounds=1,
        public=toy_records(400, seed=1),
        candidates={c: 2 * len(own) for c, own in shards.items()},
    )
    adversary, targets = play(trainer, shards=shards, task=world).watched(
        view, candidates=asked
    )
    attack = attack or UploadInversion()
    scores = [found.scores for found in attack(adversary, targets)]
    sizes = [len(own) for own in shards.values()]
    return (
        attack.invert(adversary, targets),
        [s[:size] for s, size in zip(scores, sizes, strict=True)],
        [s[size:] for s, size in zip(scores, sizes, strict=True)],
    )


@pytest.mark.parametrize("trainer", [ONE_STEP, SEVERAL], ids=["one step", "several"])
def test_one_record_without_noise_is_read_for_certain(
    trainer: PromptFL, play: Play, task: Task
) -> None:
    shards = lonely(60)
    read, own, others = inverted(play, task, trainer, shards)
    for found, record in zip(read, shards.values(), strict=True):
        assert torch.equal(found.matched.labels, record.labels)
        assert cosine_similarity(found.matched.features, record.features).item() > 0.99
    for mine, rest in zip(own, others, strict=True):
        assert mine.item() > rest.max()


def headed_world(task: Task) -> tuple[Task, dict[str, Records]]:
    """Return a task whose models train a head, and 12 records of random classes each."""
    plain = toy_tower(DIM, CLASSES)
    tower = HeadedTower(plain.weight, plain.texts, Head(CLASSES, DIM))
    backbone = replace(task.classifier, load_tower=lambda: tower)
    drawn, shards = toy_records(48, 30), {}
    for number, client in enumerate(CLIENTS):
        order = torch.randperm(48, generator=torch.Generator().manual_seed(number))
        shards[client] = drawn.pick(order[:12])
    return replace(task, backbone=backbone), shards


ONE_HEAD_STEP: dict[str, Any] = {"epochs": 1, "batch_size": 0, "optimizer": "sgd"}


def test_the_move_of_a_heads_bias_tells_the_labels_of_a_batch(
    play: Play, task: Task
) -> None:
    """In closed form: eight simulated clients fit its slope, and are too few to regress on."""
    headed, shards = headed_world(task)
    trainer = FedPT(**ONE_HEAD_STEP, learning_rate=0.01)
    attack = UploadInversion(examples=8)
    read, *_ = inverted(play, headed, trainer, shards, attack=attack)
    for found, records in zip(read, shards.values(), strict=True):
        counts = 12 * found.description.shares(found.estimate.found)
        actual = torch.bincount(records.labels, minlength=CLASSES)
        assert torch.equal(counts.round().long(), actual)


def test_behind_noise_a_heads_bias_tells_no_labels(play: Play, task: Task) -> None:
    """Then what is said is what batches have on average."""
    headed, shards = headed_world(task)
    trainer = DPFedPT(
        **ONE_HEAD_STEP, learning_rate=0.01, epsilon=1, noise_by="each-client"
    )
    read, *_ = inverted(play, headed, trainer, shards)
    for found in read:
        assert found.estimate.known[:CLASSES].max() < 0.2
        moved = found.estimate.found - found.estimate.prior
        assert moved[:CLASSES].abs().max() < 0.1


def test_a_heads_bias_tells_nothing_of_records_that_others_hold(
    play: Play, task: Task
) -> None:
    """What is read is one client's own counts, which are no other client's."""
    headed, shards = headed_world(task)
    trainer = FedPT(**ONE_HEAD_STEP, learning_rate=0.01)
    read, *_ = inverted(play, headed, trainer, shards)
    held = [torch.bincount(s.labels, minlength=CLASSES) / 12 for s in shards.values()]
    for number, found in enumerate(read):
        shares = found.description.shares(found.estimate.found)
        away = [float((shares - other).abs().sum()) for other in held]
        assert away[number] < 0.01
        assert sorted(away)[1] > 0.1


@pytest.mark.parametrize(
    ("trainer", "view"),
    [
        (DPFPL(epsilon=8, noise_at="client", rank=2), "server"),
        (DPFPL(epsilon=8, rank=2), "server-aggregate"),
    ],
    ids=["noise at clients", "sums"],
)
def test_nothing_is_read_through_noise(
    trainer: DPFPL, view: str, play: Play, task: Task
) -> None:
    """Of records that nobody trained on as much as of those that somebody did."""
    own = {c: toy_records(40, 20 + n) for n, c in enumerate(CLIENTS)}
    _, mine, rest = inverted(play, task, trainer, own, view)
    found = pooled_auroc(list(zip(mine, rest, strict=True)), confidence=0.999)
    assert found.low < 0.5 < found.high


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """One step of ten clients behind a masked sum."""
    run = train(
        "promptfl",
        settings={"epochs": 1, "momentum": 0.0},
        folder=tmp_path_factory.mktemp("runs"),
        rounds=1,
        secure_aggregation="masked",
        seed=0,
        randomness="system",
    )
    return Auditor(run).attack("server-invert")


def test_a_masked_sum_of_ten_clients_is_inverted_as_a_whole(audit: Audit) -> None:
    """What is read is of all clients together, and of none alone."""
    assert audit.scenario.threat == "server-aggregate"
    found = audit.part(INVERSION)
    assert found is not None
    assert (found.clients, found.matched) == (10, 0)
    tokens = {"token-precision", "token-recall"}
    assert set(found.measures) == set(TITLES) - tokens
    assert not found.measures["retrieval"].beyond.excludes(0)
    assert audit.auroc.value < 0.65


def test_the_part_is_stored_and_shown(audit: Audit) -> None:
    save_audit(audit)
    again = restore_audit(read_audit(audit.run, audit.scenario.name))
    assert again.part(INVERSION) == audit.part(INVERSION)
    page = render_report([audit])
    assert INVERSION.title in page
    assert "The nearest reference picture" not in page


def test_what_was_read_stands_beside_the_true_pictures_on_request(audit: Audit) -> None:
    inversion = audit.part(INVERSION)
    assert inversion is not None
    members = set(audit.run.ledger.is_member.nonzero()[0].tolist())
    public = set(audit.run.population.split.of(PUBLIC).tolist())
    for pairs in inversion.pairs.values():
        assert {pair.true for pair in pairs} <= members
        assert {pair.public for pair in pairs} <= public
    page = render_report([audit], show_records=True)
    assert (
        page.count('alt="The nearest reference picture"')
        == sum(map(len, inversion.pairs.values()))
        > 0
    )


@pytest.fixture
def without_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing of the labs in any list."""
    monkeypatch.setattr(registry, "_entry_points", lambda group, path: ())
    for names in (ATTACKS, SCENARIOS, PARTS):
        for name, entry in list(names._entries.items()):
            code = getattr(entry, "compute", entry).__module__
            if code.startswith("privaudit_labs."):
                monkeypatch.delitem(names._entries, name)


def test_an_audit_is_read_exported_and_verified_without_the_package(
    audit: Audit, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    save_audit(audit)
    export_public(audit.run, tmp_path / "with", budget=100.0)
    request.getfixturevalue("without_labs")
    with pytest.raises(UnknownNameError, match=r"pip install \./labs"):
        Auditor(audit.run).attack("server-invert")
    again = restore_audit(read_audit(audit.run, "server-invert"))
    assert (again.auroc, again.verdict) == (audit.auroc, audit.verdict)
    assert INVERSION.name not in again.parts
    assert INVERSION.title not in render_report([again], show_records=True)
    assert rewrite_reports([str(audit.run.path)], scenario="server-invert").exists()
    place = audit.run.path.parent
    assert verify_card(tmp_path / "with", runs=place).matches
    card = export_public(audit.run, tmp_path / "without", budget=100.0).card
    shown = card.audits["server-invert"]
    assert (shown.headline, shown.unnamed) == ("upload-inversion", 0)
    assert verify_card(tmp_path / "without", runs=place).matches


def test_equal_pictures_have_no_noise() -> None:
    grey = torch.full((1, 4, 4), 0.5)
    assert psnr(grey, grey) == 99
    assert psnr(grey, grey + 0.1) == pytest.approx(20)
