"""One CoOp prompt of few shots a class, released: what its vectors tell of a record.

PIPRA (Bian et al., AAAI 2026), of which only the abstract was to be had, reports a mean AUC of
.876 for prompts that one party tuned. ``python -m privaudit_tools.benchmarks.one_prompt`` builds
that setting. Non-members are left out of the same records by a coin, or are of a test split. The
adversary has prompts of its own, on *other* records of the same two kinds. It tells members by

- ``contrast``, after a re-implementation of the paper's equations 4 to 12: one projector for text
  and picture, taught by InfoNCE within each shadow prompt, and a classifier of [t, f, |t - f|,
  t * f] behind it, both together;
- ``linear``, the ridge regression of :mod:`privaudit.attacks.prompt_discriminant`;
- ``linear, own coins``, which is that attack: shadow prompts on the candidates themselves;
- ``loss``, which asks the prompt for an answer, as a measure.

``control`` is the same scores beside a prompt that was trained on other records: what is above
.5 there the records tell, not the prompt.

Data: ``digits`` on tiny-clip, whose test split is the last third, by writers of its own; or
``--caltech FILE``, a bank of features with CoOp's split, behind a drawn text tower around the
classes' means of the validation part, which no language model made.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, normalize, relu

from privaudit.attacks.prompt_discriminant import _discriminant, _pairs
from privaudit.core.seeds import Seeds
from privaudit.datasets.images.digits import digits
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.models.interfaces import Classifier
from privaudit.models.registry import ModelRequest
from privaudit.models.tiny_clip.loading import load_tiny_clip
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainers.coop import CoOp
from privaudit.tuning.prompts.learning import logits_of, start_context, text_of
from privaudit_tools.benchmarks.measuring import machine

TEMPERATURE, HIDDEN, RATE, PASSES = 0.1, 64, 1e-3, 100  # of the contrast
TOKENS, WIDTH, BETWEEN, DIM, SCALE = 4, 32, 64, 128, 30.0  # of the drawn text tower
Groups = list[tuple[np.ndarray, np.ndarray]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of AUROCs by shots, split and attack."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shots", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--owners", type=int, default=8)
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.005)
    parser.add_argument("--caltech", type=Path)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    bank = caltech(asked.caltech, asked.classes) if asked.caltech else scans()
    coop = CoOp(epochs=asked.epochs, learning_rate=asked.rate, optimizer="adam")
    head = "| shots | split | attack | AUROC | control | n | different records |"
    print(f"{machine()}\n{asked}\n\n{head}\n{'|---' * 7}|")
    for shots in asked.shots:
        for split in ("coin", "train/test"):
            game = Game(bank, coop, shots, split == "coin", asked.shadows)
            found, asked_about = game.play(asked.owners, asked.seed)
            both = [np.concatenate(one) for one in zip(*asked_about, strict=True)]
            size, different = (
                " + ".join(str(len(one)) for one in sides)
                for sides in (both, map(np.unique, both))
            )
            for name, sides in found.items():
                told = " | ".join(_told(groups, asked_about) for groups in sides)
                shown = f"{told} | {size} | {different}"
                print(f"| {shots} | {split} | {name} | {shown} |", flush=True)


def _told(groups: Groups, records: Groups) -> str:
    found = pooled_auroc(groups, clusters=records)  # owners share records
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


@dataclass(frozen=True)
class Bank:
    """Pictures' features behind a text tower, and which pictures the test split has."""

    classifier: Classifier
    records: Records
    is_test: np.ndarray

    def pick(self, positions: np.ndarray) -> Records:
        return self.records.pick(torch.from_numpy(positions))


def scans() -> Bank:
    """Return the scanned digits as tiny-clip sees them."""
    data, model = digits(), load_tiny_clip(ModelRequest("tiny-clip"))
    classifier = model.backbone(data.class_names, data.template)
    place = np.arange(len(data.labels))
    return Bank(classifier, model.read(data), place >= len(place) * 2 // 3)


@dataclass(frozen=True)
class DrawnTower:
    """Text features that a prompt moves away from classes' means, as drawn weights say."""

    means: Tensor
    context_tokens: int = TOKENS
    width: int = WIDTH

    def __call__(self, contexts: Tensor) -> Tensor:
        drawn = torch.Generator().manual_seed(0)
        shapes = (TOKENS * WIDTH, BETWEEN), (DIM, BETWEEN), (BETWEEN, DIM)
        into, of_class, out = (
            torch.randn(shape, generator=drawn) / shape[0] ** 0.5 for shape in shapes
        )
        inside = torch.tanh(10 * contexts.flatten(1) @ into)[:, None]
        moved = (inside * torch.tanh(DIM**0.5 * self.means @ of_class)) @ out
        return normalize(self.means + moved, dim=-1)


def caltech(file: Path, classes: int) -> Bank:
    """Return the most frequent classes of a bank of embeddings with a split."""
    with np.load(file) as bank:
        labels, split = bank["label"].astype(np.int64), bank["split"].astype(str)
        chosen = np.argsort(-np.bincount(labels), kind="stable")[:classes]
        used = np.isin(labels, chosen)
        features = torch.from_numpy(bank["emb"][used].astype(np.float32))
    labels, split = np.searchsorted(np.sort(chosen), labels[used]), split[used]
    features = features - features.mean(dim=0)
    axes = torch.linalg.eigh(features.T @ features)[1][:, -DIM:]
    features = normalize(features @ axes, dim=-1)
    is_known = torch.from_numpy(split == "val")
    own = [features[is_known & torch.from_numpy(labels == k)] for k in range(classes)]
    means = normalize(torch.stack([one.mean(dim=0) for one in own]), dim=-1)
    rest = ~is_known
    records = Records(features[rest], torch.from_numpy(labels)[rest])
    classifier = Classifier(DrawnTower(means), SCALE, means)
    return Bank(classifier, records, split[rest.numpy()] == "test")


@dataclass(frozen=True)
class Shown:
    """Prompts beside records of which each was trained on some.

    Attributes:
        text: What each prompt makes of the classes.
        records: Beside each prompt.
        is_in: Which of them it was trained on.
    """

    text: Tensor
    records: Sequence[Records]
    is_in: np.ndarray

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Text feature of each record's class, and the record's own, by prompt."""
        pairs = zip(self.text, self.records, strict=True)
        return (
            torch.stack([text[one.labels] for text, one in pairs]),
            torch.stack([one.features for one in self.records]),
        )

    def linear(self, text: Tensor, records: Records) -> np.ndarray:
        """Return scores by the attack's ridge regression."""
        centre = self.text.double().mean(dim=0)
        pairs = zip(self.text.double(), self.records, strict=True)
        known = torch.cat([_pairs((one - centre)[None], own) for one, own in pairs])
        asked = _pairs((text.double() - centre)[None], records)[0]
        return _discriminant(known, torch.from_numpy(self.is_in), asked)


class Contrast(nn.Module):
    """A projector learned by contrast, and a classifier of what it makes of both sides."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, HIDDEN), nn.Linear(HIDDEN, HIDDEN)])
        self.head = nn.Sequential(
            nn.Linear(4 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
        )

    @classmethod
    def fit(cls, shown: Shown, seed: int) -> "Contrast":
        text, pictures = shown.sides
        is_in = torch.from_numpy(shown.is_in)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = cls(text.shape[-1])
        optimiser = torch.optim.Adam(model.parameters(), RATE)
        for _ in range(PASSES):
            optimiser.zero_grad()
            model.loss(text, pictures, is_in).backward()
            optimiser.step()
        return model

    def loss(self, text: Tensor, pictures: Tensor, is_in: Tensor) -> Tensor:
        t, f = self.project(text), self.project(pictures)
        cosines = (t * f).sum(dim=-1) / TEMPERATURE
        others = cosines.masked_fill(is_in, -torch.inf).logsumexp(dim=1, keepdim=True)
        contrast = torch.logaddexp(cosines, others.expand_as(cosines)) - cosines
        told = binary_cross_entropy_with_logits(self.judge(t, f), is_in.float())
        return contrast[is_in].mean() + told

    def project(self, features: Tensor) -> Tensor:
        inner, outer = self.layers
        return normalize(outer(relu(inner(features))), dim=-1)

    def judge(self, t: Tensor, f: Tensor) -> Tensor:
        told: Tensor = self.head(torch.cat([t, f, (t - f).abs(), t * f], dim=-1))
        return told.squeeze(-1)

    @torch.no_grad()
    def scores(self, text: Tensor, records: Records) -> np.ndarray:
        """Return the logit of each record's membership, given a prompt's text features."""
        t, f = self.project(text[records.labels]), self.project(records.features)
        return np.asarray(self.judge(t, f))


@dataclass(frozen=True)
class Game:
    """One setting: who trains on what, and what is asked about."""

    bank: Bank
    coop: CoOp
    shots: int
    by_coin: bool
    shadows: int

    def play(
        self, owners: int, seed: int
    ) -> tuple[dict[str, tuple[Groups, Groups]], Groups]:
        """Return scores by attack, beside a prompt and a control, and whose they are.

        All by owner, of members and of others; a record may be asked about of several owners.
        """
        rng = np.random.default_rng(seed)
        pool = self._draw(rng, np.zeros(0, int), 1 if self.by_coin else 2)
        drawn = [self._split(rng, pool) for _ in range(self.shadows)]
        of_others = Shown(
            self._trained([self.bank.pick(p[i]) for p, i in drawn], f"others {seed}"),
            [self.bank.pick(positions) for positions, _ in drawn],
            np.stack([is_in for _, is_in in drawn]),
        )
        contrast = Contrast.fit(of_others, seed)
        found: dict[str, tuple[Groups, Groups]] = {}
        asked_about: Groups = []
        for owner in range(owners):
            positions, is_in = self._split(
                rng, self._draw(rng, np.concatenate(pool), 1)
            )
            asked_about.append((positions[is_in], positions[~is_in]))
            taken = np.concatenate([*pool, positions])
            other, is_used = self._split(rng, self._draw(rng, taken, 1))
            records = self.bank.pick(positions)
            half = rng.random(((self.shadows + 1) // 2, len(positions))) < 0.5
            coins = np.stack([half, ~half], axis=1).reshape(-1, len(positions))
            shards = [*(records.pick(torch.from_numpy(row)) for row in (is_in, *coins))]
            shards.append(self.bank.pick(other[is_used]))
            text = self._trained(shards, f"owner {seed} {owner}")
            own = Shown(text[1:-1], [records] * len(coins), coins)
            for place, prompt in enumerate((text[0], text[-1])):
                told = {
                    "contrast": contrast.scores(prompt, records),
                    "linear": of_others.linear(prompt, records),
                    "linear, own coins": own.linear(prompt, records),
                    "loss": self._loss(prompt, records),
                }
                for name, scores in told.items():
                    side = found.setdefault(name, ([], []))[place]
                    side.append((scores[is_in], scores[~is_in]))
        return found, asked_about

    def _draw(
        self, rng: np.random.Generator, taken: np.ndarray, times: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return so many times the shots of each class, of both sides, that are free."""
        labels = self.bank.records.labels.numpy()
        free = ~np.isin(np.arange(len(labels)), taken)
        here, there = ~self.bank.is_test & free, self.bank.is_test & free
        count = times * self.shots
        members, others = [], []
        for kind in range(int(labels.max()) + 1):
            own = rng.permutation(np.flatnonzero((labels == kind) & here))
            if self.by_coin:
                rest = own[count:]
            else:
                rest = rng.permutation(np.flatnonzero((labels == kind) & there))
            members.append(own[:count])
            others.append(rest[:count])
        return np.concatenate(members), np.concatenate(others)

    def _split(
        self, rng: np.random.Generator, sides: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return records of a prompt and which it trains on: as many in as out."""
        count = self.shots * len(self.bank.classifier.zero_shot)
        if self.by_coin:
            drawn = rng.permutation(np.concatenate(sides))[: 2 * count]
            return drawn, rng.permutation(np.arange(len(drawn)) < len(drawn) // 2)
        parts = [rng.permutation(side)[:count] for side in sides]
        size = min(map(len, parts))
        drawn = np.concatenate([part[:size] for part in parts])
        return drawn, np.arange(2 * size) < size

    def _trained(self, shards: Sequence[Records], name: str) -> Tensor:
        """Return the text features of a prompt for each shard."""
        task = Task(self.bank.classifier, self.bank.records, {}, 1)
        names, seeds = [f"{name} {n}" for n in range(len(shards))], Seeds(0)
        start = torch.stack([start_context(task, seeds, one) for one in names])
        cohort, at = Cohort.of(names, shards), Round(0, seeds, tuple(names))
        return text_of(task, self.coop.train(task, cohort, start, at)[0]).detach()

    def _loss(self, text: Tensor, records: Records) -> np.ndarray:
        task = Task(self.bank.classifier, self.bank.records, {}, 1)
        logs = logits_of(task, text[None], records.features[None])[0].log_softmax(
            dim=-1
        )
        return logs.gather(1, records.labels[:, None])[:, 0].numpy()


if __name__ == "__main__":
    main()
