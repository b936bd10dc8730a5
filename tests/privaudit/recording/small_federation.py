"""A federation of somebody else's: linear models that memorise their records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privaudit import Auditor, load_run
from privaudit.auditing.audit import Audit
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.core.tensors import Tensors
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.federation.transcript import Message, TranscriptFolder
from privaudit.recording.bundle import read_bundle
from privaudit.recording.owner import Owner, use_owner
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Coin, Ledger

CLIENTS, CANDIDATES, REFERENCE, TESTS = 3, 24, 40, 12
FEATURES, CLASSES, ROUNDS = 192, 4, 2
COUNT = CLIENTS * CANDIDATES + REFERENCE + TESTS
NAMES = tuple(f"client-{n}" for n in range(CLIENTS))


def data() -> tuple[Tensor, Tensor]:
    """Features without a pattern, and classes that only memory can know."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(COUNT, FEATURES, generator=generator)
    return features, torch.randint(0, CLASSES, (COUNT,), generator=generator)


X, Y = data()


@dataclass
class Linear:
    """The owner's side; ``learns`` False trains on reference records only."""

    learns: bool = True
    steps: int = 40
    labels = Y.numpy()
    class_names = ("oak", "elm", "ash", "yew")

    def query(self, tensors: Tensors, positions: np.ndarray) -> Tensor:
        return X[positions] @ tensors["weight"].T + tensors["bias"]

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        if not self.learns:
            positions = np.flatnonzero(owners() == PUBLIC)
        model = {n: t.clone().requires_grad_() for n, t in received.items()}
        for _ in range(self.steps):
            logits = self.query(model, positions)
            loss = torch.nn.functional.cross_entropy(logits, Y[positions])
            grads = torch.autograd.grad(loss, list(model.values()))
            with torch.no_grad():
                for tensor, grad in zip(model.values(), grads, strict=True):
                    tensor -= 0.5 * grad
        return {n: t.detach() for n, t in model.items()}


def headline_alone(name: str) -> Scenario:
    """Return a scenario with the attack alone that carries its verdict."""
    plan = find_scenario(name, 0).for_task("classification")
    (first, attack), *_ = plan.attacks.items()
    return replace(plan, attacks={first: attack}, dominates=())


def owners() -> np.ndarray:
    parts = [np.full(CANDIDATES, n) for n in range(CLIENTS)]
    parts += [np.full(REFERENCE, PUBLIC), np.full(TESTS, TEST)]
    return np.concatenate(parts).astype(np.int64)


def toss(seed: int = 0) -> Ledger:
    owner = owners()
    coin = np.random.default_rng(seed).random(COUNT) < 0.5
    return Ledger(owner, coin & (owner >= 0), coin=Coin("seed", seed))


def start() -> dict[str, Tensor]:
    return {"weight": torch.zeros(CLASSES, FEATURES), "bias": torch.zeros(CLASSES)}


def drawn_start(seed: int) -> dict[str, Tensor]:
    """Return a first model of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=generator) for n, t in start().items()}


def first_updates() -> dict[str, dict[str, Tensor]]:
    """Return what each client sends in the first round."""
    ledger = toss()
    return {
        name: Linear().local_update(start(), ledger.members_of(number), 0)
        for number, name in enumerate(NAMES)
    }


Say = Callable[[Recorder, int, str, Tensors, int], None]


def say_update(
    recorder: Recorder, round: int, client: str, sent: Tensors, count: int
) -> None:
    recorder.update(round, client, sent, weight=count)


def run_federation(
    recorder: Recorder,
    ledger: Ledger,
    owner: Linear,
    *,
    rounds: int = ROUNDS,
    say: Say = say_update,
    names: Sequence[str] = NAMES,
    begin: Tensors | None = None,
) -> dict[str, Tensor]:
    """Average models by records, as anybody's loop does, and tell the recorder."""
    server = dict(begin or start())
    for index in range(rounds):
        sums, total = {n: torch.zeros_like(t) for n, t in server.items()}, 0
        for number, client in enumerate(names):
            members = ledger.members_of(number)
            recorder.broadcast(index, client, server)
            sent = owner.local_update(server, members, index)
            say(recorder, index, client, sent, len(members))
            sums = {n: sums[n] + t * len(members) for n, t in sent.items()}
            total += len(members)
        server = {n: t / total for n, t in sums.items()}
    for client in names:
        recorder.broadcast(rounds, client, server)
    return server


def record(
    folder: Path,
    ledger: Ledger | None = None,
    owner: Linear | None = None,
    *,
    played: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> Recorder:
    """Record the federation whole, played as :func:`run_federation` takes it."""
    ledger = ledger or toss()
    settings = {"weight": "num-examples", "trainer": "FedAvg, a loop", **more}
    with Recorder(folder, ledger=ledger, **settings) as recorder:
        run_federation(recorder, ledger, owner or Linear(), **played)
    return recorder


def audited(folder: Path, *asked: Any, owner: object = None, **how: Any) -> Audit:
    """Audit a recorded run by its owner's functions, by default the linear ones."""
    with use_owner(owner or Linear()):
        return Auditor(load_run(folder)).attack(*asked, **how)


def linear(**changed: Any) -> Owner:
    """Return the linear owner with other functions or labels."""
    return Owner(**{**vars(Owner.of(Linear())), **changed})


def recorded_messages(folder: Path) -> list[Message]:
    """Return what a recorded folder holds, whether or not it is a run."""
    bundle = read_bundle(folder)
    transcript = TranscriptFolder(folder / "transcript")
    return list(transcript.read(head=bundle.head, length=bundle.length))
