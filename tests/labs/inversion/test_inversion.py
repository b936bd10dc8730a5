"""Inversion: batches regressed on uploads, and tokens read off a table's rows that moved.

All tokens of a client's texts are read, no others, or none at all.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.datasets.dataset import Texts
from privaudit.datasets.records import ANSWER
from privaudit.federation.trainer import Records, Task
from privaudit.models.transformers.text_classifier import TextClassifier
from privaudit.trainers.dp_fedpt import DPFedPT
from privaudit.trainers.dp_promptfl import DPPromptFL
from privaudit.trainers.full_fedavg import FullFedAvg
from privaudit.trainers.full_fedprox import FullFedProx
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.inversion.inversion import (
    InvertedClient,
    Words,
    ridge,
    seen_uploads,
    tokens_of,
)
from privaudit_labs.inversion.judged import judge
from privaudit_labs.inversion.upload_inversion import UploadInversion
from tests.attacks.word_world import word_records
from tests.small_records import text_data
from tests.small_transformers import NAMES, text_model, text_tokenizer
from tests.toy_federation import Play, Shards, play_toy
from tests.toy_language import toy_dialogues, toy_writing_task


def test_what_uploads_add_up_is_read_off_them() -> None:
    """Ridge regression finds what is linear, and says so."""
    generator = torch.Generator().manual_seed(0)
    held = (torch.rand(128, 6, generator=generator) < 0.3).double()
    mixing = torch.randn(6, 20, generator=generator).double()
    sent = held @ mixing
    found, known = ridge(sent - sent.mean(dim=0), held, sent[0] - sent.mean(dim=0))
    assert known.min() > 0.99
    torch.testing.assert_close(found, held[0], atol=0.05, rtol=0)


def test_what_uploads_do_not_tell_is_what_batches_have_on_average() -> None:
    generator = torch.Generator().manual_seed(0)
    held = (torch.rand(128, 6, generator=generator) < 0.3).double()
    noise = torch.randn(129, 20, generator=generator).double()
    found, known = ridge(noise[:128] - noise[:128].mean(dim=0), held, noise[128])
    assert known.max() < 0.1
    torch.testing.assert_close(found, held.mean(dim=0), atol=0.1, rtol=0)


def test_words_are_those_of_answers() -> None:
    public, asked = word_records(30, seed=1), word_records(5, seed=2)
    words = Words.learn(public)
    assert asked.words is not None
    for row, described in enumerate(words.of(asked)):
        answer = asked.words.ids[row][asked.words.kinds[row] == ANSWER]
        assert set(words.ids[described > 0].tolist()) == set(answer.tolist())


def test_words_are_read_from_adapters_of_a_language_model_and_not_of_strangers() -> (
    None
):
    clients = [f"client-{number}" for number in range(8)]
    task = replace(
        toy_writing_task(),
        public=toy_dialogues(400, seed=5),
        candidates=dict.fromkeys(clients, 16),
    )
    records = toy_dialogues(64, seed=9)
    shards = {
        client: records.pick(torch.arange(8 * number, 8 * number + 8))
        for number, client in enumerate(clients)
    }
    trainer = LoraFedAvg(epochs=1, batch_size=0, optimizer="sgd")
    played = play_toy(trainer, 1, task=task, shards=shards)
    adversary, targets = played.watched()
    found = UploadInversion(examples=512, rounds=1).invert(adversary, targets)
    own = [likeness(read, shards[read.client]) for read in found]
    strangers = toy_dialogues(80, seed=13)  # nobody trained on them
    batches = [strangers.pick(torch.arange(n, n + 8)) for n in range(0, 80, 8)]
    others = [likeness(read, batch) for read in found for batch in batches]
    assert np.mean(own) > 0.3
    assert abs(np.mean(others)) < 0.1


def likeness(read: InvertedClient, batch: Records) -> float:
    """Correlate which words were read with those that a batch holds, beyond the usual."""
    estimate = read.estimate
    actual = read.description.of(batch).mean(dim=0)
    about = torch.stack([estimate.found - estimate.prior, actual - estimate.prior])
    return float(torch.corrcoef(about)[0, 1])


pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 4}
FEW = UploadInversion(examples=8, rounds=1, matched=0)


@cache
def texts() -> tuple[Task, Shards]:
    """Return a small encoder, and two clients whose texts are of other subjects."""
    data = text_data(48)
    assert isinstance(data.images, Texts)
    model = TextClassifier(
        "small", text_model("bert"), text_tokenizer("bert"), "all-linear"
    )
    words = model.words(data.images)
    records = Records(model.features(words), data.labels, words=words)
    about = torch.tensor([texts[0].endswith("film") for texts in data.images.texts])
    films, others = records.pick(about), records.pick(~about)
    shards = {
        "films": films.pick(torch.arange(6)),
        "others": others.pick(torch.arange(6)),
    }
    task = Task(
        backbone=model.backbone(NAMES, "{}"),
        public=records.pick(torch.arange(24, 48)),
        candidates=dict.fromkeys(shards, 12),
        rounds=1,
    )
    return task, shards


def read(trainer: Any, play: Play) -> tuple[Shards, list[InvertedClient]]:
    task, shards = texts()
    adversary, targets = play(trainer, 1, task=task, shards=shards).watched()
    return shards, FEW.invert(adversary, targets)


@pytest.mark.parametrize(
    "trainer",
    [
        FullFedAvg(**SHORT),
        FullFedAvg(**SHORT, optimizer="sgd", learning_rate=0.1, sends="deltas"),
        FullFedProx(**SHORT, optimizer="adam"),
        DPFedPT(**SHORT, peft_method="full", epsilon=8, noise_by="server"),
    ],
    ids=["adamw", "sgd, deltas", "fedprox, adam", "noise that comes later"],
)
def test_all_tokens_of_a_clients_texts_and_no_others_are_read(
    trainer: Any, play: Play
) -> None:
    shards, found = read(trainer, play)
    for one, other in zip(found, reversed(found), strict=True):
        assert one.tokens is not None
        measured = judge(one, shards[one.client], shards[other.client])
        assert measured["token-precision"][0] == measured["token-recall"][0] == 1
        assert measured["token-precision"][1] < 1  # of records that were not there
        assert measured["token-recall"][1] < 1
        own, others = (one.tokens.scores(shards[c.client]) for c in (one, other))
        assert own.min() > others.max()


@pytest.mark.parametrize(
    "trainer",
    [
        DPFedPT(**SHORT, peft_method="full", epsilon=8, noise_by="each-client"),
        FullFedAvg(**SHORT, weight_decay=0.01),
    ],
    ids=["noise", "decay"],
)
def test_where_all_rows_move_nothing_is_read_rather_than_everything(
    trainer: Any, play: Play
) -> None:
    shards, found = read(trainer, play)
    for one, other in zip(found, reversed(found), strict=True):
        assert one.tokens is None
        measured = judge(one, shards[one.client], shards[other.client])
        assert "token-precision" not in measured


def test_of_sums_no_tokens_are_read(play: Play) -> None:
    """Rounding of a sum moves rows that nobody trained."""
    task, shards = texts()
    played = play(FullFedAvg(**SHORT), 1, task=task, shards=shards)
    adversary, targets = played.watched("server-aggregate")
    assert all(one.tokens is None for one in FEW.invert(adversary, targets))


@pytest.mark.parametrize("trainer", [PromptFL(epochs=1), DPPromptFL(epsilon=8.0)])
def test_a_sum_is_read_as_the_mean_of_who_is_in_it(trainer: Any, play: Play) -> None:
    """Which moves as the broadcasts do, with a weight or without."""
    adversary, _ = play(trainer, dropout=0.3, seed=3).watched("server-aggregate")
    sent = [m.tensors["context"] for m in adversary.view.broadcasts_to("client-0")]
    seen = seen_uploads(adversary, "client-0", len(sent))
    assert [one.clients for one in seen] == [2, 3, 2]
    for one, (before, after) in zip(seen, pairwise(sent), strict=True):
        moved = (after - before).double().flatten()
        torch.testing.assert_close(one.delta, moved, rtol=0, atol=1e-5)


def test_records_of_pictures_have_no_tokens(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1), 1).watched()
    assert all(one.tokens is None for one in FEW.invert(adversary, targets))


def test_a_token_counts_once_for_each_text_that_holds_it() -> None:
    words = texts()[1]["films"].words
    assert words is not None
    rows, tokens = tokens_of(texts()[1]["films"])
    for row, ids in enumerate(words.ids):
        held = ids[words.kinds[row] > 0].unique()
        assert torch.equal(tokens[rows == row], held)
