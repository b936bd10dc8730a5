"""A federation that this tool trained, and the same as its owner would bring it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit import Auditor, load_run, train
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, stack
from privaudit.federation.trainer import Cohort, Round
from privaudit.federation.transcript import SERVER
from privaudit.federation.uploads import WEIGHT, without_weight
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from privaudit.runs.run import Run


class Theirs:
    """The owner's functions of a run of promptfl: one client, one model at a time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.known, self.records = run.population.task, run.population.records
        self.labels = self.records.labels.numpy()
        self.contents = self.records.identities.numpy()

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        records = self.records.pick(torch.from_numpy(positions))
        (said,) = self.run.trainer.query(self.known, stack([tensors]), records)
        return said["log_probabilities"][0]

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        shard = self.records.pick(torch.from_numpy(positions))
        result = self.run.trainer.local_update(
            self.known,
            Cohort.of(["theirs"], [shard]),
            stack([received]),
            {},
            Round(0, Seeds(seed), ("theirs",)),
        )
        model = without_weight(result.uploads()[0])
        assert model is not None
        return model


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """All records in each step, so that no client draws anything at random."""
    folder = tmp_path_factory.mktemp("pair")
    ours = train(
        "promptfl",
        settings={"batch_size": 0, "epochs": 1},
        folder=folder,
        name="ours",
        rounds=2,
        clients=2,
        shots=4,
        public_share=0.06,
        seed=3,
        context_tokens=2,
    )
    with Recorder(folder / "theirs", ledger=ours.ledger, weight="records") as recorder:
        for message in ours.transcript:
            tensors = message.tensors
            if message.sender == SERVER:
                recorder.broadcast(message.round, message.receiver, tensors)
            elif message.is_update:
                weight = tensors[WEIGHT].item()
                sent = without_weight(tensors)
                assert sent is not None
                recorder.update(message.round, message.sender, sent, weight=weight)
            else:
                recorder.release(message.sender, tensors)
    return ours, load_run(folder / "theirs")


@pytest.mark.parametrize(
    ("scenario", "shadows"),
    [("server-reconstruct", 5), ("server-aggregate", 0), ("update-watch", 0)],
)
def test_the_audit_is_the_same_to_rounding(
    pair: tuple[Run, Run], scenario: str, shadows: int
) -> None:
    ours, theirs = pair
    with use_owner(Theirs(ours)):
        audits = [
            Auditor(run).attack(scenario, shadows=shadows, clients=1) for run in pair
        ]
    assert ours.config.clients == theirs.config.clients
    expected, found = (audit.results for audit in audits)
    assert expected.keys() == found.keys()
    for name in expected:
        pairs = zip(expected[name].clients, found[name].clients, strict=True)
        for mine, other in pairs:
            # Nats over a noise that is rounding's alone move with it, here by 0.7 %.
            # RMIA counts public records below a ratio: one that rounding moves across
            # the next is a step, 0.028 here.
            steps = {"joint-regression": 0.03, "rmia": 0.15}
            share = next((s for kind, s in steps.items() if kind in name), 2e-3)
            atol = share * np.abs(mine.scores).max()
            np.testing.assert_allclose(other.scores, mine.scores, atol=atol)
            np.testing.assert_array_equal(other.is_member, mine.is_member)
        # Of 18 records one pair that rounding turns is 0.013.
        assert abs(found[name].auroc.value - expected[name].auroc.value) < 0.06
    utilities = [audit.measured_utility for audit in audits]
    assert utilities[0].local.value == pytest.approx(utilities[1].local.value)
    assert replace(utilities[0], gain=None, zero_shot=None).macro_f1 is not None
