"""BLEU, ROUGE-L, CIDEr: by hand, against published numbers, and what always holds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.bleu import BleuCounts, bleu, bleu_counts
from privaudit.statistics.captions.cider import cider_d
from privaudit.statistics.captions.corpus import Corpus
from privaudit.statistics.captions.rouge import longest_common, rouge_l
from tests.privaudit.statistics.captions.conftest import words

Case = tuple[Corpus, dict[str, np.ndarray]]

CAPTION = st.lists(st.sampled_from(list("abcde")), max_size=9).map(tuple)
SOME = st.lists(CAPTION.filter(bool), min_size=1, max_size=3).map(tuple)
Pairs = list[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]]
PAIRS = st.lists(st.tuples(CAPTION, SOME), min_size=1, max_size=5)


def paired(pairs: Pairs) -> Corpus:
    return Corpus(tuple(c for c, _ in pairs), tuple(r for _, r in pairs))


def test_bleu_equals_the_published_code(case: Case) -> None:
    corpus, expected = case
    counts = bleu_counts(corpus)
    np.testing.assert_allclose(
        bleu(counts.summed()), expected["bleu"], rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(
        bleu(counts).T, expected["bleu_per_image"], rtol=0, atol=1e-9
    )


def test_rouge_l_equals_the_published_code(case: Case) -> None:
    corpus, expected = case
    found = rouge_l(corpus)
    np.testing.assert_allclose(found, expected["rouge_l_per_image"], rtol=0, atol=1e-9)
    assert found.mean() == pytest.approx(float(expected["rouge_l"]), abs=1e-9)


def test_cider_d_equals_the_published_code(case: Case) -> None:
    corpus, expected = case
    found = cider_d(corpus)
    np.testing.assert_allclose(found, expected["cider_d_per_image"], rtol=0, atol=1e-9)
    assert found.mean() == pytest.approx(float(expected["cider_d"]), abs=1e-9)


def test_bleu_of_the_published_counts_is_the_published_bleu(
    golden: dict[str, np.ndarray],
) -> None:
    counts = BleuCounts(
        *(
            golden[f"published_{name}"].astype(np.float64)
            for name in ("correct", "guess", "testlen", "reflen")
        )
    )
    found = bleu(counts)
    np.testing.assert_allclose(
        found, golden["published_bleu_from_counts"], rtol=0, atol=1e-9
    )
    assert found.round(3).tolist() == golden["published_bleu_3dec"].tolist()


def test_bleu_by_hand() -> None:
    """2 of 3 words, 1 of 2 bigrams; the reference is longer by one word."""
    corpus = Corpus(words("a red dog"), (words("a red cat sits"),))
    brevity = math.exp(1 - 4 / 3)
    found = bleu(bleu_counts(corpus).summed())
    assert found[0] == pytest.approx(brevity * 2 / 3)
    assert found[1] == pytest.approx(brevity * math.sqrt(2 / 3 * 1 / 2))
    assert found[3] < 1e-3


def test_of_two_lengths_as_near_the_shorter_counts() -> None:
    corpus = Corpus(words("a b c"), (words("a b c d", "a b"),))
    assert bleu_counts(corpus).closest.tolist() == [2.0]


def test_a_word_matches_as_often_as_one_reference_has_it() -> None:
    corpus = Corpus(words("the the the"), (words("the cat the", "the dog"),))
    assert bleu_counts(corpus).matches[0].tolist() == [2.0, 0.0, 0.0, 0.0]


def test_rouge_takes_the_best_precision_and_the_best_recall() -> None:
    """Precision 2/3 from the first, recall 1 from the second."""
    corpus = Corpus(words("a b c"), (words("a b x y"),))
    both = Corpus(words("a b c"), (words("a b x y", "a"),))
    beta = 1.2**2
    assert rouge_l(corpus)[0] == pytest.approx(
        (1 + beta) * (2 / 3) * (1 / 2) / (1 / 2 + beta * 2 / 3)
    )
    assert rouge_l(both)[0] == pytest.approx(
        (1 + beta) * (2 / 3) * 1 / (1 + beta * 2 / 3)
    )


def test_cider_by_hand() -> None:
    """Two images of one word: the same word scores 1 of the 4 orders, times 10."""
    corpus = Corpus(words("cat", "cow"), (words("cat"), words("dog")))
    assert cider_d(corpus).tolist() == pytest.approx([2.5, 0.0])


def test_cider_d_punishes_length_and_repetition() -> None:
    references = (words("red dog"), words("blue cat"))
    again = cider_d(Corpus(words("red dog red dog", "blue cat"), references))
    once = cider_d(Corpus(words("red dog", "blue cat"), references))
    assert again[0] < once[0]
    assert again[1] == once[1]


@given(PAIRS)
def test_metrics_stay_in_their_ranges(pairs: Pairs) -> None:
    corpus = paired(pairs)
    for found, top in [
        (bleu(bleu_counts(corpus)), 1.0), (rouge_l(corpus), 1.0),
        (cider_d(corpus), 10.0),
    ]:  # fmt: skip
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert (found <= top + 1e-9).all()


@given(PAIRS)
def test_the_order_of_images_and_references_does_not_matter(pairs: Pairs) -> None:
    corpus = paired(pairs)
    turned = paired([(caption, refs[::-1]) for caption, refs in pairs[::-1]])
    np.testing.assert_allclose(cider_d(turned), cider_d(corpus)[::-1], atol=1e-12)
    np.testing.assert_allclose(rouge_l(turned), rouge_l(corpus)[::-1], atol=1e-12)
    np.testing.assert_allclose(
        bleu(bleu_counts(turned).summed()), bleu(bleu_counts(corpus).summed())
    )


@given(CAPTION.filter(lambda caption: len(caption) >= 4), SOME)
def test_a_caption_equal_to_a_reference_is_perfect(
    caption: tuple[str, ...], others: tuple[tuple[str, ...], ...]
) -> None:
    corpus = Corpus((caption,), ((*others, caption),))
    assert bleu(bleu_counts(corpus).summed())[3] == pytest.approx(1.0, abs=1e-6)
    assert rouge_l(corpus)[0] == pytest.approx(1.0)


@given(CAPTION, CAPTION)
def test_the_common_subsequence_is_as_long_as_the_table_says(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            up = max(table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else up
    assert longest_common(first, second) == table[-1, -1]


def test_what_is_no_corpus_is_said() -> None:
    with pytest.raises(ConfigError, match="1 captions and references for 0 images"):
        Corpus(words("a"), ())
    with pytest.raises(ConfigError, match="at least one image"):
        Corpus((), ())
    with pytest.raises(ConfigError, match="Image 1 of 2 has no reference"):
        Corpus(words("a", "b"), (words("a"), ()))
    with pytest.raises(ConfigError, match="one here is a string"):
        Corpus.of(["a"], ["a"])
