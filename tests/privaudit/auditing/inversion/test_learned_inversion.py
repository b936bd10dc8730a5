"""Regressing batches on uploads, and what is read of texts."""

import torch

from privaudit.auditing.inversion.descriptions import Words
from privaudit.auditing.inversion.learned import ridge
from privaudit.datasets.dialogues import ANSWER
from tests.attacks.word_world import word_records


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
