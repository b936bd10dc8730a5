from dataclasses import replace

import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.statistics.captions.bootstrap import bootstrap_sums
from privaudit.statistics.captions.scores import (
    METRICS,
    CaptionScores,
    caption_scores,
    mean_estimates,
)
from tests.privaudit.statistics.captions.conftest import read_text

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
def scores(golden: dict[str, np.ndarray]) -> CaptionScores:
    references: list[list[str]] = [[] for _ in golden["c0_cands"]]
    for text, image in zip(golden["c0_refs"], golden["c0_ref_image"], strict=True):
        references[image].append(str(text))
    return caption_scores([str(text) for text in golden["c0_cands"]], references)


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
        monkeypatch.setattr("privaudit.statistics.captions.bootstrap.CHUNK", chunk)
        found = bootstrap_sums(columns, lambda s: s, np.random.default_rng(0), 201)
        draws.append(found)
    np.testing.assert_allclose(draws[0], draws[1])
