import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.scores import (
    METRICS,
    BleuCounts,
    CaptionScores,
    Corpus,
    bleu,
    bleu_counts,
    bootstrap_sums,
    caption_scores,
    cider_d,
    longest_common,
    mean_estimates,
    rouge_l,
    tokenise,
)
from tests.golden import golden as read_golden
from tests.privaudit.statistics.captions.conftest import read_text, references_of, words

CORENLP = [  # what CoreNLP 3.4.1 gives, less coco-caption's list of punctuation
    ("A black dog , a white dog .", "a black dog a white dog"),
    ("Don't stop, they're can't won't", "do n't stop they 're ca n't wo n't"),
    ("cannot gonna wanna lemme 'tis", "can not gon na wan na lem me 't is"),
    ("It's the dogs' ball; James's.", "it 's the dogs ball james 's"),
    ("A t-shirt (red) and/or a one", "a t-shirt -lrb- red -rrb- and/or a one"),
    ("Mr. S at 5:30 p.m. on St. James St.", "mr. s at 5:30 p.m. on st. james st."),
    ("U.S. flag in the U.S.", "u.s. flag in the u.s."),
    ("3.5 inch 1,000 ft 50% of $5 #1", "3.5 inch 1,000 ft 50 % of $ 5 # 1"),
    ("\"Quoted\" ``so'' \u201cand\u201d it\u2019s", "quoted so and it 's"),
    ("wait... and another\u2026. and .. two", "wait and another and two"),
    ("a - b -- c em\u2014dash pre- -post", "a b c em dash pre post"),
    ("AT&T R&B at&t &amp; more", "at&t r&b at & t & more"),
    ("caf\u00e9 na\u00efve", "caf\u00e9 na\u00efve"),
    ("rock 'n' roll O'Neil '90s 90's", "rock 'n' roll o'neil '90s 90 's"),
    ("wow!!! what??? huh?!", "wow !!! what ??? huh ?!"),
    ("man in no. 5 jersey. no.", "man in no. 5 jersey no"),
    ("6'2\" tall 30-year-old", "6 2 tall 30-year-old"),
    ("the letter a. i.", "the letter a. i."),
    ("+1 -1 -5 5x5", "+1 -1 -5 5x5"),
    ("", ""),
    (" . , ", ""),
]  # fmt: skip


@pytest.mark.parametrize(("caption", "expected"), CORENLP)
def test_words_are_those_of_the_published_tokeniser(
    caption: str, expected: str
) -> None:
    assert " ".join(tokenise(caption)) == expected


def test_the_example_results_have_as_many_words_as_were_published() -> None:
    """9893 words, and so on by order: coco-caption's notebook, `published_guess`."""
    results = read_text("captions_val2014_fakecap_results.json")
    lengths = [len(tokenise(result["caption"])) for result in results]
    orders = [sum(max(0, length - order) for length in lengths) for order in range(4)]
    assert orders == [9893, 8893, 7893, 6893]


@given(st.text(max_size=60))
def test_any_text_gives_words_without_blanks(text: str) -> None:
    for word in tokenise(text):
        assert word
        assert not any(letter.isspace() for letter in word)


@given(st.lists(st.sampled_from(["a", "dog", "'s", "n't", "t-shirt", "u.s.", "5"])))
def test_words_stay_as_they_are(words: list[str]) -> None:
    assert tokenise(" ".join(words)) == tuple(words)


Case = tuple[Corpus, dict[str, np.ndarray]]

CAPTION = st.lists(st.sampled_from(list("abcde")), max_size=9).map(tuple)
SOME = st.lists(CAPTION.filter(bool), min_size=1, max_size=3).map(tuple)
Pairs = list[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]]
PAIRS = st.lists(st.tuples(CAPTION, SOME), min_size=1, max_size=5)


def paired(pairs: Pairs) -> Corpus:
    return Corpus(tuple(c for c, _ in pairs), tuple(r for _, r in pairs))


def assert_equal(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_bleu_equals_the_published_code(case: Case) -> None:
    corpus, expected = case
    counts = bleu_counts(corpus)
    assert_equal(bleu(counts.summed()), expected["bleu"])
    assert_equal(bleu(counts).T, expected["bleu_per_image"])


@pytest.mark.parametrize(
    ("name", "metric"), [("rouge_l", rouge_l), ("cider_d", cider_d)]
)
def test_rouge_l_and_cider_d_equal_the_published_code(
    name: str, metric: Callable[[Corpus], np.ndarray], case: Case
) -> None:
    corpus, expected = case
    found = metric(corpus)
    assert_equal(found, expected[f"{name}_per_image"])
    assert_equal(found.mean(), expected[name])


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
    assert_equal(found, golden["published_bleu_from_counts"])
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


TEST = (["this is a good test"], [["this is a test", "this is also a test"]])


def test_nlg_evals_example_has_its_published_scores() -> None:
    """nlg-eval, test_nlgeval.py: rounded to six places there."""
    both = [read_text(f"nlgeval_ref{number}.txt") for number in (1, 2)]
    scores = caption_scores(read_text("nlgeval_hyp.txt"), list(zip(*both, strict=True)))
    assert list(scores.corpus.values()) == pytest.approx(
        [0.55, 0.428174, 0.284043, 0.201143, 0.522104, 1.242192], abs=1e-6
    )


def test_nlg_evals_single_sentence_has_its_published_scores() -> None:
    assert list(caption_scores(*TEST).corpus.values()) == pytest.approx(
        [0.799999, 0.632455, 0.5108729, 9.03602e-05, 0.9070631, 0.0], abs=1e-6
    )


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("good", [0.6667, 0.4899, 0.3469, 0.0, 0.4280, 0.5637]),
        ("bad", [0.4815, 0.2404, 0.1359, 0.0, 0.3121, 0.2790]),
    ],
)
def test_clipscores_examples_have_their_published_scores(
    which: str, expected: list[float]
) -> None:
    references = read_text("clipscore_refs.json")
    captions = read_text(f"clipscore_{which}_captions.json")
    scores = caption_scores(
        list(captions.values()), [references[image] for image in captions]
    )
    assert list(scores.corpus.values()) == pytest.approx(expected, abs=5.1e-5)


@pytest.fixture
def scores() -> CaptionScores:
    known = read_golden("captions", "c0_")
    return caption_scores(list(map(str, known["cands"])), references_of(known))


def test_estimates_hold_the_corpus_values_and_say_how_they_were_found(
    scores: CaptionScores,
) -> None:
    found = mean_estimates([scores], np.random.default_rng(0))
    assert tuple(found) == METRICS
    for name, estimate in found.items():
        assert estimate.value == pytest.approx(scores.corpus[name], abs=1e-12)
        assert estimate.low < estimate.value < estimate.high
        assert estimate.n == (60,)
        assert estimate.method == "bootstrap over images (BCa, 2000 replicates)"


def test_the_same_generator_gives_the_same_interval(scores: CaptionScores) -> None:
    first, again, other = (
        mean_estimates([scores], np.random.default_rng(seed)) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_a_replicate_is_the_score_of_the_images_it_draws(
    scores: CaptionScores, golden: dict[str, np.ndarray]
) -> None:
    """The mean's interval is near Student's, which knows nothing of replicates."""
    values = scores.per_image["ROUGE-L"]
    half = 2.0 * values.std(ddof=1) / np.sqrt(len(values))
    found = mean_estimates([scores], np.random.default_rng(0))["ROUGE-L"]
    assert found.low == pytest.approx(found.value - half, abs=half / 5)
    assert found.high == pytest.approx(found.value + half, abs=half / 5)


def test_the_mean_over_models_is_the_mean_of_their_scores(
    scores: CaptionScores,
) -> None:
    silent = CaptionScores(
        {**dict.fromkeys(METRICS, 0.0)},
        {name: 0 * values for name, values in scores.per_image.items()},
        replace(scores.counts, matches=0 * scores.counts.matches),
    )
    found = mean_estimates([scores, silent], np.random.default_rng(0))
    alone = mean_estimates([scores], np.random.default_rng(0))
    for name in METRICS:
        assert found[name].value == pytest.approx(scores.corpus[name] / 2, abs=1e-3)
        assert found[name].low == pytest.approx(alone[name].low / 2, abs=1e-3)
        assert found[name].n == (60,)
        assert found[name].method.startswith("mean of 2 models")


def test_models_that_wrote_of_different_images_have_no_mean() -> None:
    one, two = caption_scores(["a"], [["a"]]), caption_scores(["a"] * 2, [["a"]] * 2)
    with pytest.raises(ConfigError, match=r"theirs are \[1, 2\]"):
        mean_estimates([one, two], np.random.default_rng(0))
    with pytest.raises(ConfigError, match="at least one model"):
        mean_estimates([], np.random.default_rng(0))


def test_few_images_have_scores_and_no_interval() -> None:
    found = mean_estimates([caption_scores(*TEST)], np.random.default_rng(0))
    assert found["BLEU-1"].value == pytest.approx(0.8)
    assert str(found["ROUGE-L"]) == (
        "0.907, interval unresolved (needs 10 images, has 1)"
    )


def test_captions_that_are_all_alike_have_an_interval_without_width() -> None:
    scores = caption_scores(["a red dog runs"] * 12, [["a red dog runs"]] * 12)
    found = mean_estimates([scores], np.random.default_rng(0))["BLEU-4"]
    assert found.low == pytest.approx(found.high)
    assert found.value == pytest.approx(1.0)


def test_captions_without_words_score_nothing() -> None:
    scores = caption_scores([""] * 12, [["a dog"]] * 12)
    assert set(scores.corpus.values()) == {0.0}
    assert mean_estimates([scores], np.random.default_rng(0))["BLEU-4"].high == 0.0


def test_intervals_of_a_ratio_of_sums_cover_it_as_often_as_they_say() -> None:
    """Words that match among words written, as in BLEU-1: 0.4 for each."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(400):
        written = rng.poisson(10, size=40) + 1
        columns = np.column_stack([rng.binomial(written, 0.4), written]).astype(float)
        found = bootstrap_sums(columns, lambda s: s[..., :1] / s[..., 1:], rng, 600)
        held.append(found[0, 1] <= 0.4 <= found[0, 2])
    assert 0.91 <= np.mean(held) <= 0.98


def test_drawing_in_pieces_draws_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = np.arange(30.0).reshape(15, 2)
    draws = []
    for chunk in (30, 1_000_000):
        monkeypatch.setattr("privaudit.statistics.captions.scores.CHUNK", chunk)
        found = bootstrap_sums(columns, lambda s: s, np.random.default_rng(0), 201)
        draws.append(found)
    np.testing.assert_allclose(draws[0], draws[1])
