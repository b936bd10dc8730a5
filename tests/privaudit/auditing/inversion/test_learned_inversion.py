"""Regressing batches on uploads, and what is read of texts."""

from dataclasses import replace

import torch

from privaudit.attacks.upload_inversion import UploadInversion
from privaudit.auditing.inversion.descriptions import Words
from privaudit.auditing.inversion.learned import ridge
from privaudit.datasets.dialogues import ANSWER
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


def test_the_tokens_of_texts_are_read_from_adapters_of_a_language_model() -> None:
    """Each client's answers hold half of the words, and its upload tells which."""
    task = replace(toy_writing_task(), public=toy_dialogues(120, seed=5))
    records = toy_dialogues(200, seed=9)
    assert records.words is not None
    held = Words.learn(task.public).of(records)
    shards = {
        client: records.pick(held[:, number] > 0).pick(torch.arange(8))
        for number, client in enumerate(task.clients)
    }
    trainer = LoraFedAvg(epochs=1, batch_size=0, optimizer="sgd")
    played = play_toy(trainer, 1, task=task, shards=shards)
    adversary, targets = played.watched()
    alike = []
    for read in UploadInversion(rounds=1).invert(adversary, targets):
        told = read.estimate
        actual = read.description.of(shards[read.client]).mean(dim=0)
        about = torch.stack([told.found - told.prior, actual - told.prior])
        alike.append(torch.corrcoef(about)[0, 1])
    assert torch.stack(alike).mean() > 0.2, alike
