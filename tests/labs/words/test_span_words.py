"""Words off weights: all tokens where there are fewer than directions, none where not."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding, linear

from privaudit.datasets.records import INSTRUCTION, PADDING, TokenSequences
from privaudit.federation.trainer import Records, Task
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import OwnersModel
from privaudit.models.transformers.text_classifier import TextClassifier
from privaudit.privacy.events import Claim
from privaudit.recording.bundle import Aggregation
from privaudit.recording.owner import Owner
from privaudit.recording.recorded_trainer import RecordedTrainer
from privaudit.trainers.full_fedavg import FullFedAvg
from privaudit_labs.words.row_span import RowSpan
from privaudit_labs.words.span_words import ReadTexts, read_texts
from tests.small_transformers import NAMES, random_model, text_tokenizer
from tests.toy_federation import play_toy

VOCABULARY, WIDTH, LONGEST = 500, 96, 8
CLS, SEP, FIRST_WORD = 1, 2, 6
ONE_STEP: dict[str, Any] = {
    "epochs": 1, "batch_size": 0, "optimizer": "sgd", "learning_rate": 0.5,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)


@cache
def encoder() -> TextClassifier:
    """Return a random encoder wide enough for some texts, in front of classes."""
    transformers = import_transformers()
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16,
        pad_token_id=0,
    )  # fmt: skip
    model = random_model(lambda: transformers.BertModel(config))
    return TextClassifier("wide", model, text_tokenizer("bert"), "all-linear")


def texts(count: int, seed: int, longest: int = LONGEST) -> Records:
    """Return texts of drawn tokens and lengths, none twice in a text."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(count, longest, dtype=torch.long)
    for row in ids:
        length = int(torch.randint(4, longest + 1, (1,), generator=generator))
        words = torch.randperm(VOCABULARY - FIRST_WORD, generator=generator)
        row[:length] = torch.tensor(
            [CLS, *(words[: length - 2] + FIRST_WORD).tolist(), SEP]
        )
    kinds = torch.where(ids > 0, INSTRUCTION, PADDING)
    labels = torch.arange(count) % len(NAMES)
    return Records(torch.zeros(count, 1), labels, words=TokenSequences(ids, kinds))


def play(trainer: Any, shard: Records) -> ReadTexts:
    public = texts(40, seed=77)
    task = Task(
        backbone=encoder().backbone(NAMES, "{}"),
        public=public,
        candidates={"one": len(shard)},
        rounds=1,
    )
    played = play_toy(trainer, 1, task=task, shards={"one": shard})
    adversary, _ = played.watched()
    return read_texts(adversary, "one", 2)


def pairs(shard: Records) -> set[tuple[int, int]]:
    assert shard.words is not None
    rows = zip(shard.words.ids.tolist(), shard.words.kinds.tolist(), strict=True)
    return {
        (token, place)
        for ids, kinds in rows
        for place, (token, kind) in enumerate(zip(ids, kinds, strict=True))
        if kind != PADDING
    }


def whole(shard: Records) -> set[tuple[int, ...]]:
    assert shard.words is not None
    return {tuple(t for t in row if t) for row in shard.words.ids.tolist()}


def test_fewer_tokens_than_directions_are_read_with_their_places() -> None:
    shard = texts(4, seed=1)
    read = play(FullFedAvg(**ONE_STEP), shard)
    assert read.rows == frozenset(token for token, _ in pairs(shard))
    assert read.places == frozenset(pairs(shard))
    assert read.texts == whole(shard)


def test_more_tokens_than_directions_leave_their_rows_alone() -> None:
    shard = texts(60, seed=1)
    read = play(FullFedAvg(**ONE_STEP), shard)
    assert read.places is None
    assert "as many different inputs" in read.remark


class CausalOwner:
    """An owner's model of texts in which no token sees later ones, as functions."""

    task = "classification"

    def __init__(self, records: Records) -> None:
        assert records.words is not None
        self.ids, self.labels = records.words.ids, records.labels.numpy()

    def model(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = {
            "words": (VOCABULARY, WIDTH), "places": (LONGEST, WIDTH),
            "value": (WIDTH, WIDTH), "next": (WIDTH, WIDTH), "head": (len(NAMES), WIDTH),
        }  # fmt: skip
        return {
            name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5
            for name, shape in shapes.items()
        }

    def query(self, tensors: Mapping[str, Tensor], positions: np.ndarray) -> Tensor:
        ids = self.ids[torch.from_numpy(positions)]
        states = embedding(ids, tensors["words"]) + tensors["places"]
        before = torch.ones(LONGEST, LONGEST).tril()
        values = (before / before.sum(dim=1, keepdim=True)) @ linear(
            states, tensors["value"]
        )
        states = torch.tanh(linear(torch.tanh(states + values), tensors["next"]))
        real = (ids > 0)[..., None].float()
        return linear((states * real).sum(dim=1) / real.sum(dim=1), tensors["head"])

    def local_update(
        self, received: Mapping[str, Tensor], positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        tensors = {n: t.clone().requires_grad_() for n, t in received.items()}
        labels = torch.from_numpy(self.labels[positions])
        loss = cross_entropy(self.query(tensors, positions), labels)
        steps = torch.autograd.grad(loss, [*tensors.values()])
        return {
            n: (t - 0.5 * g).detach()
            for (n, t), g in zip(tensors.items(), steps, strict=True)
        }


def test_texts_grow_from_the_left_in_a_recorded_federation() -> None:
    shard, public = texts(4, seed=1), texts(40, seed=77)
    owner = CausalOwner(Records.joined([shard, public]))

    def at(first: int, count: int) -> Records:
        places = torch.arange(first, first + count)
        return Records(places[:, None].float(), torch.from_numpy(owner.labels)[places])

    trainer = RecordedTrainer(
        declared=Aggregation(), first=owner.model(), claimed=Claim(),
        owner=Owner.of(owner, "theirs"),
    )  # fmt: skip
    task = Task(
        backbone=OwnersModel("classification"), public=at(4, 40),
        candidates={"one": 4}, rounds=1,
    )  # fmt: skip
    adversary, _ = play_toy(trainer, 1, task=task, shards={"one": at(0, 4)}).watched()
    read = read_texts(adversary, "one", 2)
    assert read.rows == frozenset(token for token, _ in pairs(shard))
    assert read.places is not None
    assert pairs(shard) <= read.places
    assert whole(shard) <= read.texts


def test_noise_as_large_as_the_move_tells_no_input() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(20, 64, generator=generator)
    others = torch.randn(20, 64, generator=generator)
    move = torch.randn(32, 20, generator=generator).double() @ inputs.double()
    noise = torch.randn(32, 64, generator=generator).double()
    clean = RowSpan.of([move], [0.0])
    assert clean is not None
    assert clean.is_whole
    assert clean.outside(inputs).max() < 1 < clean.outside(others).min()
    noised = RowSpan.of([move + 100 * noise], [100.0])
    assert noised is not None
    assert not noised.is_whole
