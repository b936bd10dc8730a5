import itertools
import math
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import stats

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds, Stream, derive, name_of, remainders

MANY = 200_000
SURE = 1e-6  # p-value below which a fixed stream is taken for wrong


def stream(name: str = "test") -> Stream:
    return Stream.of(bytes(range(32)), name)


def test_the_key_stream_is_that_of_the_standard() -> None:
    """RFC 8439, appendix A.1, test vectors 1 and 2: a key of zeros, blocks 0 and 1."""
    block_0 = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    block_1 = (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert Stream(bytes(32)).take(128).hex() == block_0 + block_1


def test_keys_are_derived_as_the_standard_says() -> None:
    """RFC 5869, test case 1, by the library; ours is that under a salt of its own."""
    found = HKDF(
        SHA256(),
        42,
        bytes.fromhex("000102030405060708090a0b0c"),
        bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"),
    ).derive(b"\x0b" * 22)
    assert found.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        "34007208d5b887185865"
    )
    ours = HKDF(SHA256(), 32, b"privaudit", b"noise").derive(bytes(32))
    assert derive(bytes(32), "noise", 32) == ours


def test_the_first_numbers_are_these_on_every_machine() -> None:
    """Origin: this code; ChaCha20 and HKDF under it are held to their standards."""
    drawn = Seeds(0).stream("batches", round=3, client="client-1")
    assert drawn.below(1000, 6).tolist() == [334, 54, 745, 804, 798, 982]
    assert drawn.permutation(6).tolist() == [4, 5, 2, 3, 1, 0]


def test_a_stream_goes_on_and_does_not_start_again() -> None:
    pieces, whole = stream(), stream()
    some = pieces.take(3) + pieces.take(70) + pieces.take(0) + pieces.take(7)
    assert some == whole.take(80)
    words = [pieces.words(n) for n in (3, 0, 9000)]  # 9000 are drawn in parts
    assert np.concatenate(words).tobytes() == whole.take(8 * 9003)


@pytest.mark.parametrize("bound", [1, 3, 2**32 - 1, 2**32, 2**62 + 1, 2**63 - 1, 2**63])
def test_remainders_are_those_of_whole_numbers(bound: int) -> None:
    most = 2**64 // bound * bound
    edges = [n for n in (0, bound, most, 2**64) for n in (n - 1, n, n + 1)]
    words = [n for n in edges if 0 <= n < 2**64] + stream().words(1000).tolist()
    found = remainders(np.array(words, np.uint64), bound)
    assert found.tolist() == [n % bound for n in words]


def test_no_two_names_are_written_alike() -> None:
    purposes = ("noise", "noise|1", "noise|1|a", "", '["noise", 1', 'noise", 1, "')
    clients = ("a", "1|a", "", '1, "a"', "é", "\\u00e9", '"')
    names = [
        name_of(p, r, c) for p, r, c in itertools.product(purposes, (0, 1, 11), clients)
    ]
    assert len(set(names)) == len(names)
    keys = [Stream.of(bytes(32), name).take(32) for name in names]
    assert len(set(keys)) == len(names)


def test_streams_of_two_names_have_nothing_in_common() -> None:
    some = Seeds(0).stream("noise", client="client-1").uniform(MANY)
    for other in (
        Seeds(0).stream("noise", client="client-2"),
        Seeds(0).stream("noise", round=1, client="client-1"),
        Seeds(1).stream("noise", client="client-1"),
        Seeds(0).child("noise").stream("noise", client="client-1"),
    ):
        assert stats.pearsonr(some, other.uniform(MANY)).pvalue > SURE


def test_uniforms_are_uniform_and_never_one() -> None:
    drawn = stream().uniform((2, MANY // 2))
    assert drawn.shape == (2, MANY // 2)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > SURE
    assert (drawn * 2**53 == np.floor(drawn * 2**53)).all()


def test_normals_are_normal() -> None:
    drawn = stream().normal((MANY,))
    assert stats.kstest(drawn, "norm").pvalue > SURE
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / math.sqrt(MANY)
    assert stream().normal().shape == ()


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 64, 1000])
def test_integers_are_equally_likely(bound: int) -> None:
    counts = np.bincount(stream().below(bound, MANY), minlength=bound)
    assert len(counts) == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > SURE


def test_integers_below_a_bound_that_words_do_not_fill_are_not_biased() -> None:
    """Of 64-bit words modulo 3 * 2^61, the lower two thirds would come twice as often
    as they may: words are dropped instead."""
    bound = 3 * 2**61
    low = (stream().below(bound, MANY) < bound // 3).mean()
    assert abs(low - 1 / 3) < 5 * math.sqrt(2 / 9 / MANY)


def test_orders_are_equally_likely() -> None:
    drawn = stream()
    counts = Counter(tuple(drawn.permutation(4).tolist()) for _ in range(12_000))
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > SURE
    assert sorted(drawn.permutation(1000).tolist()) == list(range(1000))


def test_a_tie_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter([np.array([5, 5, 1], np.uint64), np.array([9, 3, 4], np.uint64)])
    monkeypatch.setattr(Stream, "words", lambda self, count: next(words))
    assert stream().permutation(3).tolist() == [1, 2, 0]


def test_many_orders_at_once_are_those_drawn_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = Stream.words
    monkeypatch.setattr(Stream, "words", lambda *asked: words(*asked) % np.uint64(40))
    several, single = stream(), stream()  # of six in forty, every third order has a tie
    together = several.permutations(6, 50)
    np.testing.assert_array_equal(together, [single.permutation(6) for _ in range(50)])
    assert several.take(8) == single.take(8)


@pytest.mark.parametrize("probability", [0.0, 0.001, 0.5, 0.9, 1.0])
def test_coins_fall_as_often_as_they_should(probability: float) -> None:
    heads = stream().coins(probability, MANY).sum()
    assert stats.binomtest(int(heads), MANY, probability).pvalue > SURE


def test_coins_do_not_follow_the_last_bit_of_their_probability() -> None:
    some = stream().coins(0.1, MANY)
    assert (some == stream().coins(math.nextafter(0.1, 1), MANY)).all()
    assert stream().coin(1.0)
    assert not stream().coin(0.0)


def test_a_numpy_generator_has_a_state_of_its_own() -> None:
    some, again = stream().numpy(), stream().numpy()
    assert (some.random(100) == again.random(100)).all()
    assert stats.kstest(stream("other").numpy().random(MANY), "uniform").pvalue > SURE


def test_what_no_draw_can_be_is_refused() -> None:
    for bound in (0, -1, 2**63 + 1):
        with pytest.raises(ConfigError, match="from 1 to"):
            stream().below(bound, 1)
    for probability in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            stream().coin(probability)
