"""Federations of real width whose uploads attacks on weights are held against.

Features are frozen, so a federation of heads, adapters or factors trains in milliseconds.
Real ones are read from a folder of data that no user needs; others are drawn with the
spectrum that real ones have.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, normalize, relu

from privaudit.auditing.record_gradients import Move
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Round

LENGTH = 10.0  # of a record's features
START = 0.01  # deviation of a head's first weights
SCALE = 2.0  # of LoRA's product
PROMPT, HIDDEN, LOGITS = (16, 64), 256, 3.0  # a drawn tower, and its logits' scale
PUBLIC = 200  # records that the adversary has beside the candidates
CALTECH, CLIP = "caltech101/caltech101_mnetv1_emb_u8.npz", "clip_flickr8k_1000"
Weights = dict[str, Tensor]
Features = Literal["clip-512", "drawn-768", "caltech-1024", "drawn-4096"]
Model = Literal["head", "adapter", "lora", "mlp", "prompt", "projected head"]
Sent = Literal["upload", "sum", "released", "factor by coin"]


@dataclass(frozen=True)
class Setting:
    """What clients have, how they train, and what is sent.

    Attributes:
        candidates: A client's; a coin for each says whether it is a member.
        clients: Of one federation; each is attacked alone unless a sum is sent.
        size: An adapter's bottleneck, a factor's rank, a hidden layer's width, or how
            many numbers a projected head learns.
        steps: In a round.
        batch: Records of a step; 0 takes all. Of clipped gradients it is the mean, as
            each member has a coin of its own (Poisson): one more moves a sum by C.
        noise: Multiplier z; each client adds noise of deviation z C to its sum of
            gradients clipped to C, which is divided by how many records are expected:
            members are secret, and the noise's size would count them.
        outside: Share of a client's members that are no candidates.
        draws: Federations.
    """

    features: Features = "caltech-1024"
    model: Model = "head"
    classes: int = 100
    size: int = 0
    candidates: int = 320
    clients: int = 1
    sent: Sent = "upload"
    rounds: int = 1
    steps: int = 5
    batch: int = 0
    optimiser: Literal["sgd", "momentum", "adamw"] = "sgd"
    rate: float = 0.1
    decay: float = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    clip: float = 0.0
    noise: float = 0.0
    outside: float = 0.0
    draws: int = 1

    @property
    def ceiling(self) -> float:
        """No AUROC is above it: a record's share of noise in so many releases."""
        if not self.noise:
            return 1.0
        adding = self.clients if self.sent == "sum" else 1
        z = self.noise * adding**0.5
        return 0.5 * math.erfc(-((self.rounds**0.5) / (z * 2**0.5)) / 2**0.5)

    @property
    def batch_share(self) -> float:
        """A member's chance to be in what a round sends: 1 unless it is one batch."""
        if self.steps > 1 or not self.batch:
            return 1.0
        return min(1.0, 2 * self.batch / self.candidates)


@dataclass(frozen=True)
class Table:
    """Records' features and labels."""

    x: Tensor
    y: Tensor

    def __getitem__(self, places: Tensor) -> "Table":
        return Table(self.x[places], self.y[places])


@dataclass(frozen=True)
class Attacked:
    """What an adversary has of one client, or of one sum.

    Attributes:
        moves: Of weights, round by round.
        end: The model whose losses are looked at.
        candidates: Whose membership is asked.
        public: Records that are nobody's.
        is_member: The truth.
    """

    moves: list[Move]
    end: Weights
    candidates: Table
    public: Table
    is_member: Tensor

    def beside_public(self) -> Table:
        """Return the candidates, and public records behind them."""
        both = self.candidates, self.public
        return Table(torch.cat([t.x for t in both]), torch.cat([t.y for t in both]))


@cache
def records(data: Path, features: Features, classes: int) -> Table:
    """Return records; classes beyond those that there are, are a drawn linear map's.

    Raises:
        ConfigError: The data are not in this folder.
    """
    labels: Tensor | None = None
    if features == "clip-512":
        x = torch.from_numpy(_load(data / CLIP / "clip_embeddings.npy")).float()
    else:
        table = _load(data / CALTECH)
        x = torch.from_numpy(table["emb"]).float()
        x = (x - x.mean(dim=0)) / (x.std(dim=0) + 1e-3)
        labels = torch.from_numpy(table["label"]).long()
        if features != "caltech-1024":
            x, labels = _drawn(x, int(features.split("-")[1])), None
    x = normalize(x, dim=1) * LENGTH
    if labels is None or classes > int(labels.max()) + 1:
        generator = torch.Generator().manual_seed(classes)
        drawn = torch.randn(classes, x.shape[1], generator=generator)
        centred = x - x.mean(dim=0)
        return Table(x, (centred @ drawn.T).argmax(dim=1))
    return Table(x, labels % classes)


def _load(path: Path) -> Any:
    if not path.exists():
        raise ConfigError(
            f"Features were requested from {path}, which is not there. Give the folder "
            "that holds them as --data."
        )
    return np.load(path)


def _drawn(real: Tensor, width: int, count: int = 3000) -> Tensor:
    """Return Gaussian features with the spectrum of real ones, stretched to a width."""
    spectrum = torch.linalg.svdvals(real).square().flip(0).numpy()
    places = np.linspace(0, len(spectrum) - 1, width)
    spread = np.interp(places, np.arange(len(spectrum)), spectrum) ** 0.5
    generator = np.random.default_rng(width)
    values = generator.normal(size=(count, width)) * spread
    turned = dct(values * generator.choice([-1.0, 1.0], width), norm="ortho", axis=1)
    return torch.from_numpy(turned / turned.std()).float()


def first_weights(setting: Setting, width: int, seed: int) -> tuple[Weights, Weights]:
    """Return what is learned, as it begins, and what is frozen beside it."""
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=generator)
    head = START * draw(setting.classes, width)
    size = setting.size
    if setting.model == "head":
        return {"head": head}, {}
    if setting.model == "mlp":
        first = draw(size, width) / width**0.5
        return {"first": first, "head": draw(setting.classes, size) / size**0.5}, {}
    if setting.model == "adapter":
        down, up = draw(size, width) / width**0.5, START * draw(width, size)
        return {"down": down, "up": up}, {"head": 10 * head}
    if setting.model == "lora":
        factors = {"A": draw(size, width) / width**0.5}
        return {**factors, "B": torch.zeros(setting.classes, size)}, {"head": head}
    if setting.model == "projected head":
        bucket = torch.randint(size, (head.numel(),), generator=generator)
        sign = torch.randint(2, (head.numel(),), generator=generator) * 2.0 - 1
        projected = {"head": head, "bucket": bucket, "sign": sign}
        return {"numbers": torch.zeros(size)}, projected
    tower = {
        "inner": draw(HIDDEN, PROMPT[0] * PROMPT[1]) / 32,
        "names": draw(setting.classes, HIDDEN),
        "outer": draw(width, HIDDEN) / HIDDEN**0.5,
    }
    return {"prompt": draw(*PROMPT)}, tower


def logits(model: Model, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return a model's logits; learned and frozen weights are in one mapping."""
    if model == "mlp":
        return linear(relu(linear(x, weights["first"])), weights["head"])
    if model == "adapter":
        x = x + linear(relu(linear(x, weights["down"])), weights["up"])
    if model == "prompt":
        inner = linear(weights["prompt"].flatten(), weights["inner"])
        texts = linear(torch.tanh(inner + weights["names"]), weights["outer"])
        return LOGITS * x @ normalize(texts, dim=1).T
    head = weights["head"]
    if model == "projected head":
        moved = weights["sign"] * weights["numbers"][weights["bucket"]]
        head = head + moved.view_as(head)
    said = linear(x, head)
    if model == "lora":
        said = said + SCALE * linear(linear(x, weights["A"]), weights["B"])
    return said


def federation(setting: Setting, table: Table, draw: int) -> list[Attacked]:
    """Train a federation, and return what is seen of each client, or of the sum."""
    generator = torch.Generator().manual_seed(draw)
    order = torch.randperm(len(table.x), generator=generator)
    count = setting.candidates
    public, order = order[:PUBLIC], order[PUBLIC:]
    pools = [order[k * count : (k + 1) * count] for k in range(setting.clients)]
    if len(pools[-1]) < count:
        raise ConfigError(f"{setting} asks for more records than the {len(order)}.")
    coins = [torch.rand(count, generator=generator) < 0.5 for _ in pools]
    rest = order[setting.clients * count :]
    members = [
        _members(setting, pool[coin], rest[k * count : (k + 1) * count])
        for k, (pool, coin) in enumerate(zip(pools, coins, strict=True))
    ]
    server, frozen = first_weights(setting, table.x.shape[1], draw)
    base, kept = dict(server), [dict(server) for _ in pools]
    seen = [dict(server) for _ in pools]  # a client's factors, as the server knows them
    moves: list[list[Move]] = [[] for _ in pools]
    sums: list[Move] = []
    for index in range(setting.rounds):
        at = Round(index, Seeds(draw), ())
        sent: list[Weights] = []
        for k, mine in enumerate(members):
            names = _factor(setting, generator) or tuple(server)
            begun = {n: (server if n in names else kept[k])[n] for n in server}
            kept[k] = trained(setting, begun, frozen, table[mine], generator)
            sent.append({n: _rounded(setting, kept[k][n]) for n in names})
            known = {**seen[k], **{n: server[n] for n in names}}
            moves[k].append(Move.of(sent[k], known, at))
            seen[k].update(sent[k])
        sizes = [1 if setting.clip else len(mine) for mine in members]
        averaged = {n: _average(sent, n, sizes) for n in server}
        after = {n: server[n] if a is None else a for n, a in averaged.items()}
        sums.append(Move.of(after, server, at))
        server = after
    if setting.sent in ("sum", "released"):
        if setting.sent == "released":
            published = {n: _rounded(setting, server[n]) for n in base}
            sums = [Move.of(published, base, Round(0, Seeds(draw), ()))]
        pools, coins = [torch.cat(pools)], [torch.cat(coins)]
        moves, seen = [sums], [server]
    return [
        Attacked(moved, {**frozen, **end}, table[pool], table[public], coin)
        for moved, end, pool, coin in zip(moves, seen, pools, coins, strict=True)
    ]


def _members(setting: Setting, members: Tensor, others: Tensor) -> Tensor:
    """Return a client's members, with those that are no candidates, or these alone."""
    if setting.outside == 1:
        return others[: len(members)]
    extra = round(len(members) * setting.outside / (1 - setting.outside))
    return torch.cat([members, others[:extra]])


def _factor(setting: Setting, generator: torch.Generator) -> tuple[str, ...]:
    """Return the factor that a client gets and sends this round; none means both."""
    if setting.sent != "factor by coin":
        return ()
    return ("A" if torch.rand(1, generator=generator) < 0.5 else "B",)


def _rounded(setting: Setting, weights: Tensor) -> Tensor:
    return weights.to(getattr(torch, setting.precision)).float()


def _average(sent: list[Weights], name: str, sizes: list[int]) -> Tensor | None:
    """Return the average by sizes of those that sent something."""
    by = [(one[name].double(), n) for one, n in zip(sent, sizes, strict=True)
          if name in one]  # fmt: skip
    if not by:
        return None
    return (sum(w * n for w, n in by) / sum(n for _, n in by)).float()  # type: ignore[union-attr]


def trained(
    setting: Setting,
    begun: Weights,
    frozen: Weights,
    mine: Table,
    generator: torch.Generator,
) -> Weights:
    """Return what a client's weights are after its local steps of one round."""
    weights = {n: w.clone().requires_grad_() for n, w in begun.items()}
    optimiser = _optimiser(setting)(weights.values())
    for _ in range(setting.steps):
        places = torch.arange(len(mine.x))
        if setting.batch and not setting.clip:
            places = torch.randperm(len(mine.x), generator=generator)[: setting.batch]
        some = mine[places]
        optimiser.zero_grad()
        if setting.clip:
            weights["head"].grad = _private(setting, weights["head"], some, generator)
        else:
            said = logits(setting.model, {**frozen, **weights}, some.x)
            cross_entropy(said, some.y).backward()
        optimiser.step()
    return {n: w.detach() for n, w in weights.items()}


def _optimiser(setting: Setting) -> Callable[[Any], torch.optim.Optimizer]:
    how: dict[str, Any] = {"lr": setting.rate, "weight_decay": setting.decay}
    if setting.optimiser == "adamw":
        return partial(torch.optim.AdamW, **how)
    momentum = 0.9 if setting.optimiser == "momentum" else 0.0
    return partial(torch.optim.SGD, momentum=momentum, **how)


def output_gradients(head: Tensor, some: Table, clip: float = 0.0) -> Tensor:
    """Return the loss's gradients by a head's logits, of records' clipped gradients."""
    deltas = torch.softmax(some.x @ head.T, dim=1)
    deltas[torch.arange(len(some.y)), some.y] -= 1
    if clip:
        sizes = deltas.norm(dim=1) * some.x.norm(dim=1)
        deltas = deltas * (clip / sizes).clamp(max=1)[:, None]
    return deltas


def _private(
    setting: Setting, head: Tensor, mine: Table, generator: torch.Generator
) -> Tensor:
    with torch.no_grad():
        noise = torch.randn(head.shape, generator=generator)
        expected, some = setting.candidates / 2, mine
        if setting.batch:
            coins = torch.rand(len(mine.x), generator=generator)
            some = mine[coins < setting.batch / expected]
            expected = setting.batch
        summed = output_gradients(head, some, setting.clip).T @ some.x
        return (summed + setting.noise * setting.clip * noise) / expected
