import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.statistics.captions.tokenisation import tokenise
from tests.privaudit.statistics.captions.conftest import read_text

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
