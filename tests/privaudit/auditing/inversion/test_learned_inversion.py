"""Regressing batches on uploads, and what is read of texts."""

from dataclasses import replace

import numpy as np
import torch

from privaudit.attacks.upload_inversion import UploadInversion
from privaudit.auditing.inversion.descriptions import Words
from privaudit.auditing.inversion.inverted import InvertedClient
from privaudit.auditing.inversion.learned import ridge
from privaudit.datasets.dialogues import ANSWER
from privaudit.federated.trainer import Records
from privaudit.trainers.lora_fedavg import LoraFedAvg
from tests.attacks.word_world import word_records
from tests.toy_federation import play_toy
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
