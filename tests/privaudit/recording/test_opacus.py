"""Opacus, watched as it trains: two clients of 64 records, lots of 8 on average."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import opacus  # noqa: F401 # watched once it is loaded
import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.optimizers.optimizer import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from privaudit import Run, lint
from privaudit.checks.lint.evidence import Evidence
from privaudit.core.errors import ConfigError
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.privacy.certificate import certify
from privaudit.privacy.events import Claim
from privaudit.recording.opacus import (
    EngineNote,
    EngineWatch,
    engines_in_use,
    events_of,
)
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Coin, Ledger

pytestmark = pytest.mark.filterwarnings(
    "ignore:Secure RNG",
    "ignore:Full backward hook",
    "ignore:PrivacyEngine detected new dataset",
)
CLIENTS, RECORDS, LOT, ROUNDS, DELTA = 2, 64, 8, 2, 1e-3
CANDIDATES = np.repeat(np.arange(CLIENTS), 8)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


class Counting(nn.Module):
    """Keeps a running mean of what it sees, as batch norm does."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x):
            self.mean += 0.1 * (x.detach().mean(dim=0) - self.mean)
        return x - self.mean


@dataclass
class Training:
    """A federation whose clients train with Opacus, and one thing that is done otherwise.

    Attributes:
        keeps: Whether a client has one engine for all rounds.
        own_loader: Whether batches come from the loader that was made private.
        exempt: The client that trains without.
        change: What is done to each private optimizer.
    """

    keeps: bool = True
    own_loader: bool = True
    poisson: bool = True
    exempt: int = -1
    build: Callable[[], nn.Module] = network
    change: Callable[[Any], None] = lambda optimizer: None
    options: dict[str, Any] = field(default_factory=dict)
    claim: Claim | None = None
    engines: dict[int, PrivacyEngine] = field(default_factory=dict)

    def record(self, folder: Path) -> Run:
        torch.manual_seed(5)
        owner = np.array([*CANDIDATES, *[PUBLIC] * 10, TEST])
        coin = (np.arange(len(owner)) % 2 == 0) & (owner >= 0)
        ledger = Ledger(owner, coin, coin=Coin("system", None))
        received = self.build().state_dict()
        with Recorder(folder, ledger=ledger, claim=self.claim) as recorder:
            for index in range(ROUNDS):
                for number in range(CLIENTS):
                    recorder.broadcast(index, f"client-{number}", received)
                sent = [self._client(recorder, index, n) for n in range(CLIENTS)]
                received = {
                    n: torch.stack([s[n] for s in sent]).mean(0) for n in sent[0]
                }
        assert recorder.run is not None
        return recorder.run

    def _client(self, recorder: Recorder, index: int, number: int) -> dict[str, Any]:
        watch, net = engines_in_use(), self.build()
        assert watch is not None
        optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(number))
        plain: Any = DataLoader(
            TensorDataset(x, (x[:, 0] > 0).long()), LOT, shuffle=True
        )
        model, loader = net, plain
        if number != self.exempt:
            engine = PrivacyEngine(accountant="rdp")
            if self.keeps:
                engine = self.engines.setdefault(number, engine)
            model, optimizer, private = engine.make_private(
                module=net,
                optimizer=optimizer,
                data_loader=plain,
                **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **self.options},
                poisson_sampling=self.poisson,
            )
            loader = private if self.own_loader else plain
            self.change(optimizer)
        for _ in range(2):
            for some, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(some), labels).backward()
                optimizer.step()
        if number != self.exempt:
            engine.get_epsilon(DELTA)
        name, note = f"client-{number}", watch.take()
        sent = {n: t.detach().clone() for n, t in net.state_dict().items()}
        recorder.update(index, name, sent)
        if note is not None:
            recorder.engine(index, name, note)
        return sent


def halved(optimizer: DPOptimizer) -> None:
    """Add half of the noise: the multiplier is read twice, and is half when noise is drawn."""
    add = optimizer.add_noise

    def less() -> None:
        optimizer.noise_multiplier *= 0.5
        add()
        optimizer.noise_multiplier *= 2

    optimizer.add_noise = less


def seeded(optimizer: DPOptimizer) -> None:
    optimizer.generator = torch.Generator().manual_seed(3)


def errors(run: Run | Evidence) -> str:
    return " ".join(
        f"{f.rule}: {f.sentence}" for f in lint(run) if f.severity == "error"
    )


def test_one_engine_for_all_rounds_gives_what_its_accountant_says(
    tmp_path: Path,
) -> None:
    """Oracle: Opacus' own accountant, of all steps of one client."""
    run = Training().record(tmp_path / "run")
    accountant = RDPAccountant()
    accountant.history = [(1.0, 1 / 8, ROUNDS * 2 * RECORDS // LOT)]
    claimed, stated = run.privacy["claimed"], run.privacy["certified"]["server"]
    assert claimed["epsilon"] == pytest.approx(accountant.get_epsilon(DELTA))
    assert claimed["source"] == "Opacus' accountant, when the app asked it in round 1"
    assert stated["declared"] <= claimed["epsilon"]  # by a tighter accountant
    assert {proof["epsilon"] for proof in run.privacy["certified"].values()} == {None}
    assert errors(run) == ""
    (note, *_) = (note for _, _, note in Evidence.of(run).engines)
    assert note.values == 16 * (6 * 8 + 8 + 8 * 2 + 2)
    assert sum(n for _, n in note.lots) == note.steps == 16


def test_a_new_engine_each_round_gives_the_epsilon_of_one_round(tmp_path: Path) -> None:
    run = Training(keeps=False).record(tmp_path / "run")
    found = errors(run)
    assert "counted 16 of the 32 steps that it took in 2 rounds" in found
    assert "claim-covers-certificate" in found


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (Training(poisson=False), "no Poisson samples (poisson_sampling=False)"),
        (
            Training(own_loader=False),
            "Train on the data loader that make_private returns",
        ),
        (Training(change=halved), "not as large as the noise multiplier says"),
        (
            Training(change=seeded, keeps=False),
            "The noise of two rounds of clients is the same",
        ),
        (
            Training(build=lambda: nn.Sequential(Counting(), network())),
            "1 tensors of the model moved in training, and the private optimizer does not "
            "step them (0.mean)",
        ),
    ],
    ids=[
        "fixed batches",
        "another loader",
        "half of the noise",
        "reused",
        "statistics",
    ],
)
def test_what_the_accountant_does_not_count_is_found(
    training: Training, said: str, tmp_path: Path
) -> None:
    found = errors(training.record(tmp_path / "run"))
    assert "privacy-engine: " in found
    assert said in found


def test_where_one_client_trains_without_nothing_is_declared(tmp_path: Path) -> None:
    run = Training(exempt=1).record(tmp_path / "run")
    assert "declared" not in run.privacy["certified"]["server"]
    assert "claim-covers-certificate" in errors(run)


def test_a_claim_of_ones_own_takes_the_place_of_what_was_printed(
    tmp_path: Path,
) -> None:
    run = Training(claim=Claim(0.5, DELTA, "a paper")).record(tmp_path / "run")
    assert run.privacy["claimed"]["epsilon"] == 0.5
    assert "Claimed is 0.5 at delta 0.001" in errors(run)
    evidence = Evidence.of(run).claiming(Claim(9.0, 1e-5, "mine"))
    again = certify(evidence.rounds, "released", 1e-5).epsilon
    assert evidence.certified["released"].declared == again
    assert again > run.privacy["certified"]["released"]["declared"]
    assert errors(evidence) == ""


def test_adaptive_clipping_counts_its_number_of_clipped_records(tmp_path: Path) -> None:
    """Two releases of a step: what a share of the noise hides, and a count's own noise."""
    adaptive = {
        "clipping": "adaptive", "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2, "max_clipbound": 10.0, "min_clipbound": 0.1,
        "unclipped_num_std": 2.0,
    }  # fmt: skip
    run = Training(options=adaptive).record(tmp_path / "run")
    gradients, count = Evidence.of(run).rounds[0]
    assert gradients.noise_multiplier == pytest.approx((1 - 1 / 16) ** -0.5)
    assert (count.noise_multiplier, count.clip_norm) == (2.0, 1.0)
    assert "noise of" not in errors(run)  # it is as large as theorem 1 has it


NOTE = EngineNote(1.0, 1.0, 0.1, 5, 50, 5, lots=((5, 5),), values=10, square=9.0)


def test_of_clients_that_are_unlike_the_least_protected_counts() -> None:
    other = replace(NOTE, noise_multiplier=0.5, sampling_rate=0.05, steps=9)
    (event,) = events_of([NOTE, other])
    assert (event.noise_multiplier, event.sampling_rate, event.steps) == (0.5, 0.1, 9)
    assert (event.release, event.noise_at, event.parties) == ("upload", "client", 2)
    assert events_of([None, None]) == []
    assert [event.noise_multiplier for event in events_of([NOTE, None])] == [0.0]


@pytest.mark.parametrize(
    "changed",
    [{"steps": 0}, {"noise_multiplier": -1.0}, {"sampling_rate": 2.0}, {"lots": "no"}, {"more": 1},
     {"steps": 10**12}, {"sampling_rate": 1e-300},
     {"first": [0.0] * 17}, {"unprotected": ["a" * 301]},
     {"unprotected": ["a"] * 1001}, {"lots": [[1, 1]] * 100_001}],
)  # fmt: skip
def test_a_note_is_anothers_word_and_checked(changed: dict[str, Any]) -> None:
    assert EngineNote.from_json(NOTE.to_json()) == NOTE
    with pytest.raises(ConfigError, match="A note of Opacus cannot be read"):
        EngineNote.from_json(json.dumps(asdict(NOTE) | changed))


def test_noise_that_is_next_to_none_is_none_and_overflows_nothing() -> None:
    note = EngineNote.from_json(json.dumps(asdict(NOTE) | {"noise_multiplier": 1e-320}))
    assert [event.noise_multiplier for event in events_of([note])] == [0.0]


def test_what_cannot_be_watched_trains_as_before_and_is_not_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = EngineWatch()
    with watch.guarded():
        watch.made_private(None, nn.Linear(1, 1), (None, None))
    assert watch.take() is None
    assert "What Opacus does is not noted" in caplog.text
