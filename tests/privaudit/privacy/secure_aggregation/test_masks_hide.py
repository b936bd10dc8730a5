"""Masked uploads look uniform, and tell nothing of what they mask.

Every test has a control that fails it: the same uploads without masks, or with one mask
used twice. A p-value below 1e-4 counts as a difference: seeds are fixed, so nothing
flickers.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from privaudit.privacy.secure_aggregation import client
from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from tests.privaudit.privacy.secure_aggregation.conftest import summed

CLIENTS, LENGTH, SEEDS = 4, 50, 60
ALPHA = 1e-4
Codes = NDArray[np.uint64]


def updates(scale: float = 1.0) -> NDArray[np.float64]:
    return scale * np.random.default_rng(7).normal(size=(CLIENTS, LENGTH))


def uploads_of_all(numbers: NDArray[np.float64]) -> Codes:
    """Return what each client sends under each seed, [clients, seeds, length]."""
    sent = np.empty((CLIENTS, SEEDS, LENGTH), dtype=np.uint64)
    for seed in range(SEEDS):
        for packet in summed(numbers.tolist(), seed=seed).packets:
            if packet.kind == "masked":
                sent[packet.sender, seed] = packet.arrays["masked"]
    return sent


def uploads(numbers: NDArray[np.float64]) -> Codes:
    """Return what client 1 sends under each seed, [seeds, length]."""
    return uploads_of_all(numbers)[1]


def unmasked(numbers: NDArray[np.float64], client: int = 1) -> Codes:
    code = FixedPoint(CLIENTS, 64, 8.0)
    return np.stack([code.encode(numbers[client])] * SEEDS)


@pytest.fixture(scope="module")
def masked_of_all() -> Codes:
    return uploads_of_all(updates())


@pytest.fixture(scope="module")
def masked(masked_of_all: Codes) -> Codes:
    return masked_of_all[1]


def p_of_bytes(codes: Codes, place: int) -> float:
    """Chi-square of one byte of all numbers against equal counts of 256 values."""
    counts = np.bincount(codes.view(np.uint8).reshape(-1, 8)[:, place], minlength=256)
    return float(stats.chisquare(counts).pvalue)


def p_of_bits(codes: Codes) -> float:
    """The smallest binomial p of 64 bits being one half the time, times 64."""
    bits = np.unpackbits(codes.view(np.uint8).reshape(-1, 8), axis=1)
    ones, count = bits.sum(axis=0), len(bits)
    return 64 * min(stats.binomtest(int(k), count).pvalue for k in ones)


def p_of_size(codes: Codes) -> float:
    """Kolmogorov and Smirnov against uniform numbers."""
    return float(stats.kstest(codes.ravel() / 2.0**64, "uniform").pvalue)


def p_of_neighbours(codes: Codes) -> float:
    """Correlation of a number with the next one of the same upload."""
    shares = codes / 2.0**64
    return float(stats.pearsonr(shares[:, :-1].ravel(), shares[:, 1:].ravel()).pvalue)


def p_between(one: Codes, other: Codes) -> float:
    """Two-sample Kolmogorov and Smirnov, the smallest of all places, times them."""
    pairs = zip(one.T / 2.0**64, other.T / 2.0**64, strict=True)
    return LENGTH * min(stats.ks_2samp(a, b).pvalue for a, b in pairs)


@pytest.mark.parametrize("place", range(8))
def test_every_byte_is_uniform(masked: Codes, place: int) -> None:
    assert p_of_bytes(masked, place) > ALPHA
    assert p_of_bytes(unmasked(updates()), place) < ALPHA


@pytest.mark.parametrize("measure", [p_of_bits, p_of_size, p_of_neighbours])
def test_bits_sizes_and_neighbours_are_as_of_uniform_numbers(
    masked: Codes, measure: object
) -> None:
    assert callable(measure)
    assert measure(masked) > ALPHA
    if measure is not p_of_neighbours:  # independent updates are uncorrelated, too
        assert measure(unmasked(updates())) < ALPHA


@pytest.mark.parametrize("known", ["self_mask", "pair_mask"])
def test_either_kind_of_mask_hides_alone(
    monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """A server learns survivors' own masks, or the pair masks of those who are lost."""

    def nothing(_: bytes, like: Codes, *__: object) -> Codes:
        return np.zeros_like(like)

    monkeypatch.setattr(client, known, nothing)
    assert p_of_bits(uploads(updates())) > ALPHA
    for other in ("self_mask", "pair_mask"):
        monkeypatch.setattr(client, other, nothing)
    assert p_of_bits(uploads(updates())) < ALPHA


def test_neighbours_would_show_a_mask_that_is_used_for_all_numbers() -> None:
    rng = np.random.default_rng(1)
    one_mask = rng.integers(0, 2**64, size=(SEEDS, 1), dtype=np.uint64)
    assert p_of_neighbours(unmasked(updates()) + one_mask) < ALPHA


def test_an_upload_is_the_same_whatever_it_masks(masked: Codes) -> None:
    """Another update of the same client, with other seeds' masks in between."""
    other = uploads(np.vstack([updates()[:1], 5 * np.ones((1, LENGTH)), updates()[2:]]))
    assert p_between(masked[: SEEDS // 2], other[SEEDS // 2 :]) > ALPHA
    plain = unmasked(updates()), unmasked(5 * np.ones((CLIENTS, LENGTH)))
    assert p_between(*plain) < ALPHA


def test_an_upload_moves_with_its_update_under_the_same_masks_only(
    masked: Codes,
) -> None:
    """The difference of two updates under one seed's masks is that of the updates.

    So masks of equal seeds must never meet two updates: rounds have masks of their own.
    """
    other = uploads(updates(2.0))
    code = FixedPoint(CLIENTS, 64, 8.0)
    found = code.decode((other - masked).ravel()).reshape(SEEDS, LENGTH)
    np.testing.assert_allclose(found, np.stack([updates()[1]] * SEEDS), atol=1e-9)


def test_even_the_sum_of_all_but_one_stays_masked(masked_of_all: Codes) -> None:
    """Pair masks with the one that is missing do not cancel."""
    sums = masked_of_all[:-1].sum(axis=0)
    assert p_of_size(sums) > ALPHA
    assert p_of_bits(sums) > ALPHA


def test_uploads_of_seeds_and_clients_are_not_alike(masked_of_all: Codes) -> None:
    assert len(np.unique(masked_of_all)) == masked_of_all.size
