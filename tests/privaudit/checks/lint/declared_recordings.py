"""Recordings whose declared mechanisms are true, and others whose are not.

Each is a loop of numbers, recorded as anybody would. What it declares and what it does
are set apart: a wrong one does something else than it says.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from privaudit import Recorder, Run
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.privacy.events import Claim, MechanismEvent
from privaudit.runs.ledger import Coin, Ledger

Model = dict[str, Tensor]
SHAPES = {"weight": (12, 20), "bias": (20,)}


def drawn(count: int) -> Callable[..., Sequence[int]]:
    def draw(index: int, clients: int, rng: np.random.Generator) -> Sequence[int]:
        chosen: list[int] = rng.choice(clients, count, replace=False).tolist()
        return sorted(chosen)

    return draw


def by_coins(rate: float) -> Callable[..., Sequence[int]]:
    def draw(index: int, clients: int, rng: np.random.Generator) -> Sequence[int]:
        chosen: list[int] = np.flatnonzero(rng.random(clients) < rate).tolist()
        return chosen or [0]

    return draw


@dataclass(frozen=True)
class Draw:
    """Which noise is to be drawn: the standard deviation is the declared one."""

    rng: np.random.Generator
    index: int
    party: int
    name: str
    shape: tuple[int, ...]
    std: float


def gaussian(draw: Draw) -> np.ndarray:
    return draw.std * draw.rng.standard_normal(draw.shape)


def none(draw: Draw) -> np.ndarray:
    return np.zeros(draw.shape)


@dataclass(frozen=True)
class Loop:
    """A federation in numbers, and what its recording declares.

    Attributes:
        noise_at: Who adds noise, and is declared to.
        noise: Its standard deviation over the clip norm, of the heaviest upload's move
            for the server's.
        draw: How the noise is drawn.
        clip: What updates are shortened to; ``clips`` False leaves them.
        length: Of an update before that.
        share: Of the noise that each client adds, of its variance.
        taking: Who takes part in a round.
        weigh: What a client's upload weighs.
        summed: Whether the server learns sums alone; ``voices`` says who is in them.
        declared: Fields of the mechanism that differ.
        declares: Rounds that the mechanism is declared for; None is all.
        keep: What the server's model is stored as.
    """

    noise_at: Literal["server", "client", "distributed"] = "server"
    noise: float = 2.0
    draw: Callable[[Draw], np.ndarray] = gaussian
    clip: float = 1.0
    clips: bool = True
    length: float = 3.0
    rounds: int = 4
    clients: int = 5
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(SHAPES))
    taking: Callable[..., Sequence[int]] = lambda index, clients, rng: range(clients)
    weigh: Callable[[int], float] = lambda client: 1.0
    summed: bool = False
    voices: Callable[[Sequence[int]], Sequence[int]] = lambda some: some
    declared: Mapping[str, Any] = field(default_factory=dict)
    declares: Sequence[int] | None = None
    more: Sequence[MechanismEvent] = ()
    claim: Claim = Claim(1e9, 1e-5, "a formula")  # noqa: RUF009 # frozen
    uploads: Literal["models", "differences"] = "models"
    keep: torch.dtype = torch.float32
    clip_later: bool = False
    last: bool = True
    start: float = 0.0
    rate_of_learning: float = 1.0
    seed: int = 0

    def event(self, parties: int, clip: float) -> MechanismEvent:
        """Return what is declared of a round."""
        return MechanismEvent(
            **{
                "release": "upload" if self.noise_at == "client" else "global",
                "noise_multiplier": self.noise,
                "sensitivity": 2.0,
                "clip_norm": clip,
                "sampling_rate": 1.0,
                "sampling": "without-replacement",
                "noise_at": self.noise_at,
                "parties": parties,
                "per_record": False,
                "unit": "client",
                "adjacency": "replace-one",
                **self.declared,
            }
        )

    def record(self, folder: Path) -> Run:
        """Play it, record it, and return the run."""
        rng = np.random.default_rng(self.seed)
        settings = {"clipped_by": "server"} if self.clip_later else {}
        with Recorder(
            folder,
            ledger=ledger(self.clients),
            weight="n" if not self.summed else None,
            aggregation="sum" if self.summed else "mean",
            uploads=self.uploads,
            settings=settings,
            claim=self.claim,
        ) as recorder:
            self._play(recorder, rng)
        assert recorder.run is not None
        return recorder.run

    def _play(self, recorder: Recorder, rng: np.random.Generator) -> None:
        names = [f"client-{n}" for n in range(self.clients)]
        server = {
            n: torch.full(shape, self.start, dtype=self.keep)
            for n, shape in self.shapes.items()
        }
        for index in range(self.rounds):
            chosen = list(self.taking(index, self.clients, rng))
            recorder.broadcast(index, [names[c] for c in chosen], server)
            moves = {c: self._move(rng, index, c, len(chosen)) for c in chosen}
            sent = {c: self._sent(server, move) for c, move in moves.items()}
            if self.declares is None or index in self.declares:
                recorder.mechanism(index, self.event(len(chosen), self.clip))
                for event in self.more:
                    recorder.mechanism(index, event)
            if self.summed:
                voices = list(self.voices(chosen))
                total = {
                    n: torch.stack([sent[c][n] for c in voices]).sum(dim=0)
                    for n in server
                }
                recorder.summed(index, [names[c] for c in voices], total)
            else:
                for c in chosen:
                    recorder.update(index, names[c], sent[c], weight=self.weigh(c))
            server = self._next(rng, index, server, moves)
        if self.last:
            recorder.broadcast(self.rounds, names, server)

    def _move(
        self, rng: np.random.Generator, index: int, client: int, parties: int
    ) -> Model:
        """Return by what a client moves the model, with its noise."""
        shift = {n: rng.standard_normal(shape) for n, shape in self.shapes.items()}
        norm = np.sqrt(sum(float((s**2).sum()) for s in shift.values()))
        length = min(self.length, self.clip if self.clips else np.inf)
        move = {n: s * length / norm for n, s in shift.items()}
        if self.noise_at != "server":
            shares = parties if self.noise_at == "distributed" else 1
            std = self.noise * self.clip / np.sqrt(shares)
            for name, shape in self.shapes.items():
                drawn = self.draw(Draw(rng, index, client, name, shape, std))
                move[name] = move[name] + drawn
        rate = self.rate_of_learning
        return {n: torch.tensor(rate * m, dtype=torch.float64) for n, m in move.items()}

    def _sent(self, server: Model, move: Model) -> Model:
        if self.uploads == "differences":
            return {n: m.to(server[n].dtype) for n, m in move.items()}
        return {n: (server[n] + m).to(server[n].dtype) for n, m in move.items()}

    def _next(
        self,
        rng: np.random.Generator,
        index: int,
        server: Model,
        moves: Mapping[int, Model],
    ) -> Model:
        """Return the mean's model, with the server's noise."""
        weights = {c: self.weigh(c) for c in moves}
        total = sum(weights.values()) or 1.0
        after = {}
        for name, before in server.items():
            step = sum(weights[c] * m[name] for c, m in moves.items()) / total
            mean = np.asarray(before.double() + step)
            if self.noise_at == "server":
                std = self.noise * self.clip * max(weights.values()) / total
                shape = tuple(before.shape)
                mean = mean + self.draw(Draw(rng, index, -1, name, shape, std))
            after[name] = torch.as_tensor(mean).to(self.keep)
        return after


def ledger(clients: int) -> Ledger:
    owner = [*np.repeat(np.arange(clients), 12), *[PUBLIC] * 40, *[TEST] * 12]
    owned = np.array(owner, dtype=np.int64)
    coin = np.random.default_rng(0).random(len(owned)) < 0.5
    return Ledger(owned, coin & (owned >= 0), coin=Coin("system", None))


# What is drawn otherwise than is declared.


def fixed(draw: Draw) -> np.ndarray:
    """Draw the same in every round, for each party and tensor."""
    rng = np.random.default_rng([abs(draw.party), len(draw.name)])
    return draw.std * rng.standard_normal(draw.shape)


def common(draw: Draw) -> np.ndarray:
    """Draw the same for all clients of a round."""
    rng = np.random.default_rng([draw.index, len(draw.name)])
    return draw.std * rng.standard_normal(draw.shape)


def constant(draw: Draw) -> np.ndarray:
    """Draw one sign for all numbers."""
    return np.full(draw.shape, draw.std * draw.rng.choice([-1, 1]))


def first_only(draw: Draw) -> np.ndarray:
    return gaussian(draw) if draw.name == "weight" else none(draw)


def seeded(draw: Draw) -> np.ndarray:
    """Draw as torch does after ``manual_seed`` of the round's number."""
    generator = torch.Generator().manual_seed(draw.index)
    drawn: np.ndarray = torch.randn(draw.shape, generator=generator).numpy()
    return draw.std * drawn


def exempting(draw: Draw) -> np.ndarray:
    """Draw nothing for one client."""
    return none(draw) if draw.party == 0 else gaussian(draw)


def missing_once(draw: Draw) -> np.ndarray:
    """Draw nothing in one round."""
    return none(draw) if draw.index == 1 else gaussian(draw)


class ClippedAfter(Loop):
    """Clips what a client sends behind its noise, and not before."""

    def _move(
        self, rng: np.random.Generator, index: int, client: int, parties: int
    ) -> Model:
        move = super()._move(rng, index, client, parties)
        norm = math.sqrt(sum(float(m.square().sum()) for m in move.values()))
        return {n: m * min(1.0, self.clip / norm) for n, m in move.items()}


def times(factor: float) -> Callable[[Draw], np.ndarray]:
    return lambda draw: factor * gaussian(draw)


COUNT = MechanismEvent(
    release="global", noise_multiplier=2.0, sensitivity=1.0, clip_norm=1.0,
    sampling_rate=1.0, sampling="without-replacement", noise_at="server", parties=5,
    per_record=False, unit="client", adjacency="replace-one",
)  # fmt: skip
LARGE = {"weight": (100, 200), "bias": (200,)}
ADDED = {"adjacency": "add/remove-one", "sensitivity": 1.0}
RECORD = {"unit": "record", **ADDED, "per_record": True, "sampling": "fixed-batch"}
MINE: dict[str, Any] = {"noise_at": "client"}

FAULTS: dict[str, dict[str, Loop]] = {
    "sensitivity-covers-unit": {
        "sensitivity 0.01": Loop(declared={"sensitivity": 0.01}),
        "sensitivity 0.01, no epsilon claimed": Loop(
            declared={"sensitivity": 0.01}, claim=Claim()
        ),
        "replace-one, sensitivity 1": Loop(declared={"sensitivity": 1.0}),
        "one record's unit, whole clients clipped, sensitivity 1": Loop(
            declared={"unit": "record", **ADDED}
        ),
    },
    "noise-in-transcript": {
        "client noise that no upload holds": Loop(**MINE, draw=none),
        "client noise of a quarter": Loop(**MINE, draw=times(0.25)),
        "server noise reused each round": Loop(draw=fixed),
        "one client noise for all clients": Loop(**MINE, draw=common),
        "a client's noise reused each round": Loop(**MINE, draw=fixed),
        "server noise of one sign for all numbers": Loop(draw=constant),
        "client noise on one of two tensors": Loop(**MINE, draw=first_only, length=0.5),
        "server noise rounded away": Loop(
            noise=0.01, start=30.0, keep=torch.float16, clip=0.1
        ),
        "server noise of a small seed": Loop(draw=seeded),
        "clipped after the noise": ClippedAfter(**MINE, clips=False),
        "one client without noise": Loop(**MINE, draw=exempting),
        "one round without clients' noise": Loop(**MINE, draw=missing_once),
        "clients' noises added up, of unequal weight": Loop(
            **MINE,
            weigh=lambda client: 100.0 if client == 0 else 1.0,
            declared={"release": "global"},
        ),
    },
    "noise-as-claimed": {
        "server noise of a half": Loop(draw=times(0.5)),
        "no server noise": Loop(draw=none),
        "server noise on one of two tensors": Loop(draw=first_only),
        "one round without the server's noise": Loop(draw=missing_once),
        "noise of a mean over twice as many": Loop(draw=times(0.5), seed=1),
    },
    "clients-as-drawn": {
        "round-robin, said to be drawn": Loop(
            taking=lambda i, clients, _: [2 * i % clients, (2 * i + 1) % clients],
            clients=8,
            rounds=20,
            declared={"sampling_rate": 0.25},
        ),
        "the same two clients, said to be drawn": Loop(
            taking=lambda *_: [0, 1],
            clients=10,
            rounds=12,
            declared={"sampling_rate": 0.2},
        ),
        "everybody, at a rate of 0.1": Loop(declared={"sampling_rate": 0.1}),
    },
    "secure-sum": {
        "a secure sum over one": Loop(
            noise_at="distributed",
            summed=True,
            voices=lambda some: some[:1],
            declared={"parties": 1},
        ),
    },
    "steps-counted": {
        "a secure sum of fewer than declared": Loop(
            noise_at="distributed", summed=True, voices=lambda some: some[:3]
        ),
        "half of the rounds declared": Loop(declares=range(3)),
    },
    "clipped-norms": {
        "updates beyond the clip norm": Loop(clips=False),
        "noised updates beyond the clip norm": Loop(**MINE, clips=False, length=300.0),
    },
    "delta-below-one-record": {
        "delta of one half": Loop(claim=Claim(1e9, 0.5, "a formula")),
    },
    "claim-covers-certificate": {
        "epsilon 0 claimed, nothing declared": Loop(
            claim=Claim(0.0, 1e-5, "a formula"), declares=()
        ),
        "epsilon of one round of four": Loop(
            claim=Claim(gaussian_epsilon(1.0, 1e-5), 1e-5, "of one round")
        ),
    },
}
"""Wrong recordings by the rule that has to find them."""
WRONG = {
    name: (loop, rule) for rule, some in FAULTS.items() for name, loop in some.items()
}

HONEST: dict[str, Loop] = {
    "server noise": Loop(),
    "server noise, weighted": Loop(weigh=lambda client: 5.0 + client % 3),
    "server noise, nobody claims an epsilon": Loop(claim=Claim()),
    "server noise, one round": Loop(rounds=1),
    "server noise, two clients": Loop(clients=2),
    "server noise, small": Loop(noise=0.02),
    "server noise, large": Loop(noise=60.0),
    "server noise, large clip norm": Loop(clip=50.0, length=0.1),
    "server noise, three numbers": Loop(shapes={"bias": (3,)}, rounds=8),
    "server noise, a large model": Loop(shapes=LARGE, rounds=3, clients=4),
    "server noise, add or remove": Loop(declared=ADDED),
    "server noise, more sensitive than it need be": Loop(declared={"sensitivity": 3.0}),
    "server noise, clipped by the server": Loop(clips=False, clip_later=True),
    "server noise, and a count of clipped clients": Loop(more=[COUNT]),
    "server noise, last model not sent": Loop(last=False),
    "server noise, idle client": Loop(weigh=lambda client: float(client > 0)),
    "server noise, halves": Loop(keep=torch.float16, start=1.0, noise=3.0),
    "drawn clients": Loop(
        taking=drawn(2), clients=8, rounds=20, declared={"sampling_rate": 0.25}
    ),
    "drawn clients, three rounds": Loop(
        taking=drawn(2), rounds=3, declared={"sampling_rate": 0.4}
    ),
    "clients by coins": Loop(
        taking=by_coins(0.3),
        rounds=12,
        declared={"sampling_rate": 0.3, "sampling": "poisson", **ADDED},
    ),
    "client noise": Loop(**MINE),
    "client noise, differences": Loop(**MINE, uploads="differences"),
    "client noise, small": Loop(**MINE, noise=0.05),
    "client noise, weighted": Loop(**MINE, weigh=lambda client: 1.0 + client),
    "client noise that adds up": Loop(**MINE, declared={"release": "global"}),
    "client noise, a batch of one record, one step": Loop(
        **MINE, declared={**RECORD, "release": "upload"}
    ),
    "client noise in five steps of a small rate": Loop(
        **MINE, rate_of_learning=0.01, declared={**RECORD, "steps": 5}
    ),
    "a secure sum": Loop(noise_at="distributed", summed=True),
}
