"""What is estimated of whole clients: how much they trained on, and of which classes."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from torch.nn.functional import one_hot

from privaudit import Audit, Auditor, Run, train
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import (
    Cohort,
    LocalResult,
    Records,
    Round,
    Signal,
    Signals,
    Task,
)
from privaudit.federation.uploads import weighted_upload
from privaudit.report.page import render_report
from privaudit.statistics.estimate import Estimate
from privaudit_labs.profiles.class_shares import CLASS_SHARES, infer_class_shares
from privaudit_labs.profiles.data_usage import CANDIDATES, DATA_USAGE
from tests.class_means import ASKED, ClassMeans
from tests.conftest import CLASSES, toy_records
from tests.toy_federation import CLIENTS, Play


@dataclass(frozen=True)
class Prior(ClassMeans):
    """Predict each class as often as it was trained on, or all alike."""

    learns: bool = True

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        hot = one_hot(cohort.labels, CLASSES) * cohort.mask[..., None]
        seen = hot if self.learns else torch.ones_like(hot)
        means = {"means": seen.float().mean(dim=1)}
        return LocalResult(weighted_upload(cohort, means), {}, torch.zeros(len(cohort)))

    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = ASKED,
    ) -> Iterator[Signals]:
        shares = models["means"] / models["means"].sum(dim=1, keepdim=True)
        logs = shares.clamp(min=1e-9).log()[:, None]
        yield {"log_probabilities": logs.expand(-1, len(records), -1)}


def inferred(play: Play, learns: bool) -> list[list[Estimate]]:
    """Return what is found of clients that hold one class each."""
    shards = {}
    for number, client in enumerate(CLIENTS):
        records = toy_records(48, seed=60 + number)
        shards[client] = records.pick(records.labels == number)
    played = play(Prior(learns=learns), shards=shards)
    return infer_class_shares(*played.watched(), 30, CLASSES)


def test_clients_whose_models_tell_their_classes_are_recognised(play: Play) -> None:
    for number, estimates in enumerate(inferred(play, learns=True)):
        for label, estimate in enumerate(estimates):
            assert estimate.value == pytest.approx(float(label == number), abs=0.01)
            assert estimate.high - estimate.low < 0.02


def test_models_that_learned_nothing_tell_no_class(play: Play) -> None:
    """Each share is what the shadows have on average, and most others stay possible."""
    for estimates in inferred(play, learns=False):
        assert sum(estimate.value for estimate in estimates) == pytest.approx(1)
        for estimate in estimates:
            assert estimate.value == pytest.approx(1 / CLASSES, abs=0.15)
            assert estimate.low == 0
            assert estimate.high > 0.5


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """Clients that overfit a little, two of them attacked."""
    run = train(
        "promptfl",
        settings={"epochs": 15, "optimizer": "adam", "learning_rate": 0.005},
        folder=tmp_path_factory.mktemp("runs"),
        rounds=1,
        clients=3,
        measured_rounds=1,
        seed=0,
    )
    return Auditor(run).attack("client-profile", clients=2, shadows=8)


def test_the_scenario_has_both_parts(audit: Audit) -> None:
    usage, classes = audit.part(DATA_USAGE), audit.part(CLASS_SHARES)
    assert usage is not None
    assert classes is not None
    truth = {c.client: c.is_member.mean() for c in audit.headline.clients}
    for client, shares in usage.by_client.items():
        assert shares[CANDIDATES].actual == pytest.approx(truth[client])
        assert not shares[CANDIDATES].estimated.excludes(shares[CANDIDATES].actual)
    for shares in classes.by_client.values():
        assert sum(share.actual for share in shares.values()) == pytest.approx(1)
    page = render_report([audit])
    assert "Share of candidates that was trained on" in page
    assert "Share of each class" in page
    save_audit(audit)
    again = restore_audit(read_audit(audit.run, audit.scenario.name))
    assert again.part(DATA_USAGE) == usage
    assert again.part(CLASS_SHARES) == classes


def test_the_true_share_is_of_records_not_of_groups(audit: Audit) -> None:
    run, ledger = Run(audit.run.path), audit.run.ledger
    group = np.arange(len(ledger.owner))
    members = np.flatnonzero((ledger.owner == 0) & ledger.is_member)
    group[members] = members[0]
    run.__dict__["ledger"] = replace(ledger, group=group)
    again = Auditor(run).attack("client-profile", clients=1, shadows=8, is_logged=False)
    usages = [one.part(DATA_USAGE) for one in (audit, again)]
    before, after = (u.by_client["client-0"][CANDIDATES].actual for u in usages if u)
    assert before == after


def test_another_scenario_has_neither(audit: Audit) -> None:
    other = Auditor(audit.run).attack("server-reconstruct", clients=1, shadows=0)
    assert other.part(DATA_USAGE) is None
    assert other.part(CLASS_SHARES) is None
