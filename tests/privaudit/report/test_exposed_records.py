import base64
import io
import re
from dataclasses import dataclass, replace
from math import exp

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from privaudit.attacks.token_attacks import TokenLoss
from privaudit.auditing.attack import Adversary, Attack, Target
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.token_tables import table_of
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.datasets.records import ANSWER, PADDING
from privaudit.federation.threat_models import View, server
from privaudit.federation.trainer import Reconstruction
from privaudit.report.exposed_records import (
    END,
    SHOWN,
    SHOWN_CAPTIONS,
    STEPS,
    ColouredText,
    caption_texts,
    coloured_answer,
    coloured_texts,
    most_exposed,
    pieces,
    ranked,
)
from privaudit.runs.ledger import Ledger
from privaudit.trainers.lora_fedavg import LoraFedAvg
from tests.privaudit.made_audits import make_audit, make_writer
from tests.privaudit.report.test_page import Page
from tests.toy_language import toy_dialogues, toy_language, toy_writing_task

NAME = "Rényi entropy of order 2"


def one(*pairs: tuple[str, float | None], heading: str = "record 1") -> ColouredText:
    pieces, entropies = zip(*pairs, strict=True)
    return ColouredText(heading, pieces, entropies)


def background(page: str, piece: str) -> str | None:
    found = re.search(rf'background:(#\w+);color:#\w+">{piece}<', page)
    return found[1] if found else None


def test_sure_words_are_pale_and_unsure_ones_dark() -> None:
    page = coloured_texts([one(("two", 0.0), (" red", 1.0), (" dots", 2.0))], NAME)
    assert background(page, "two") == STEPS[0][0]
    assert background(page, " red") == STEPS[3][0]
    assert background(page, " dots") == STEPS[-1][0]
    assert 'title="1.000 nats"' in page


def test_the_legend_says_each_colours_numbers() -> None:
    page = coloured_texts([one(("a", 3.5))], NAME)
    text = Page(page).text
    assert f"{NAME}, nats: 0.00 to 0.500.50 to 1.00" in text
    assert "3.00 and more" in text
    for back, _ in STEPS:
        assert back in page


def test_a_piece_without_an_entropy_has_no_colour() -> None:
    page = coloured_texts([one(("first", None), (" next", 1.0))], NAME)
    assert background(page, "first") is None
    assert "first" in page


def test_nothing_but_zeros_and_nothing_at_all_can_be_shown() -> None:
    assert background(coloured_texts([one(("a", 0.0))], NAME), "a") == STEPS[0][0]
    assert NAME in coloured_texts([], NAME)


@given(st.lists(st.tuples(st.text(), st.floats(0, 50)), min_size=1), st.text())
def test_any_text_is_shown_as_it_is(pairs: list[tuple[str, float]], name: str) -> None:
    page = Page(coloured_texts([one(*pairs, heading=name)], NAME))
    written = "".join(piece for piece, _ in pairs)
    assert page.text.replace("\n", "").endswith((name + written).replace("\n", ""))


@pytest.mark.parametrize("step", STEPS)
def test_letters_stand_out_from_every_colour(step: tuple[str, str]) -> None:
    """By WCAG's contrast of luminances; 4.5 to 1 is asked of small text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted(map(luminance, step), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 4.5


def test_the_colours_darken_from_sure_to_unsure() -> None:
    greys = [sum(int(back[i : i + 2], 16) for i in (1, 3, 5)) for back, _ in STEPS]
    assert greys == sorted(greys, reverse=True)


def test_pieces_and_entropies_must_be_as_many() -> None:
    with pytest.raises(ConfigError, match="2 pieces and 1 entropies"):
        coloured_texts([ColouredText("x", ("a", "b"), (1.0,))], NAME)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_an_entropy_that_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="a colour needs a finite number"):
        coloured_texts([one(("a", wrong))], NAME)


def test_a_picture_and_a_mark_stand_beside_the_text() -> None:
    text = ColouredText("x", ("a",), (1.0,), tag='"<b>', picture='data:"<i>')
    page = coloured_texts([text], NAME)
    Page(page)  # every element is closed in its turn
    assert "&lt;b&gt;" in page
    assert 'src="data:&#34;&lt;i&gt;"' in page


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_those_of_the_highest_scoring_members(channels: int) -> None:
    audit = make_audit(first=0, clients=1)
    (client,) = audit.headline.clients
    pixels = torch.zeros(len(client.records), channels, 2, 2)
    pixels[:, 0] = torch.arange(len(client.records))[:, None, None] / 255
    object.__setattr__(audit.run.population.dataset, "images", PixelImages(pixels))
    shown = most_exposed(audit)["client-0"]
    members = client.records[client.is_member]
    best = members[np.argsort(-client.scores[client.is_member])][:SHOWN]
    assert [_first_pixel(record.picture) for record in shown] == list(best)


def test_the_share_above_counts_nonmembers_that_score_as_high() -> None:
    audit = make_audit(first=0, clients=1)
    _, others = audit.headline.clients[0].groups
    members = np.sort(audit.headline.clients[0].groups[0])[::-1]
    shown = most_exposed(audit)["client-0"]
    assert [record.above for record in shown] == [
        np.mean([other >= score for other in others]) for score in members[:SHOWN]
    ]


def test_embeddings_are_shown_as_label_and_share_alone() -> None:
    audit = make_audit(first=0, clients=1)
    bank = FeatureBank(torch.zeros(len(audit.headline.clients[0].records), 3))
    object.__setattr__(audit.run.population.dataset, "images", bank)
    shown = most_exposed(audit)["client-0"]
    assert [record.picture for record in shown] == [None] * SHOWN


def _first_pixel(address: str | None) -> int:
    assert address is not None
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    pixel = Image.open(io.BytesIO(content)).getpixel((0, 0))
    return int(pixel[0] if isinstance(pixel, tuple) else pixel or 0)


def adversary_and_target() -> tuple[Adversary, Target]:
    task, trainer = toy_writing_task(), LoraFedAvg(rank=2)
    model: Tensors = trainer.start(task, Seeds(0))
    adversary = Adversary(trainer, task, server, View("server", ()), Seeds(1))
    return adversary, Target("client-0", Reconstruction(model), toy_dialogues(24))


def scores_of(scores: list[float], name: str = "client-0") -> ClientScores:
    count = len(scores)
    return ClientScores(
        client=name,
        records=np.arange(count),
        labels=np.zeros(count, dtype=np.int64),
        scores=np.array(scores),
        guesses=np.zeros(count, dtype=bool),
        is_member=np.arange(count) % 2 == 0,
    )


@pytest.fixture
def audit() -> Audit:
    joined = [scores_of([float(i) for i in range(24)])]
    leak = evaluate_scores("max-renyi", "settings", "beforehand", joined)
    return replace(make_writer(first=0), results={"max-renyi": leak})


def test_both_ends_are_shown_with_the_truth_beside_them(audit: Audit) -> None:
    adversary, target = adversary_and_target()
    texts = caption_texts(audit, adversary, [target], 2.0)
    assert len(texts) == 2 * SHOWN_CAPTIONS
    assert texts[0].heading.startswith("Most exposed 1 · client-0, 1.7 standard dev")
    assert texts[SHOWN_CAPTIONS].heading.startswith("Least exposed 1 · client-0, 1.7")
    assert "above its mean" in texts[0].heading
    assert "below its mean" in texts[-1].heading
    assert [text.tag for text in texts[:2]] == ["not trained on", "trained on"]
    assert all((text.picture or "").startswith("data:image/png") for text in texts)


@dataclass(frozen=True)
class Told(TokenLoss):
    def said(self, score: float) -> str:
        return f"a score of {exp(score):.2g}"


def test_what_a_score_says_is_given_of_one_text_and_of_no_group(audit: Audit) -> None:
    adversary, target = adversary_and_target()
    attacks: dict[str, Attack] = {"max-renyi": Told()}
    asked = replace(audit, scenario=replace(audit.scenario, attacks=attacks))
    ledger = Ledger(np.zeros(24, np.int64), np.arange(24) % 4 < 2)
    asked.run.__dict__["ledger"] = ledger
    heading = caption_texts(asked, adversary, [target], 2.0)[SHOWN_CAPTIONS].heading
    assert " · a score of 1" in heading
    asked.run.__dict__["ledger"] = replace(ledger, group=np.arange(24) // 2 * 2)
    assert all(
        "a score of" not in text.heading
        for text in caption_texts(asked, adversary, [target], 2.0)
    )


def test_an_answers_colours_are_the_attacked_models_entropies() -> None:
    """Each piece's entropy is that of the position before it, in the answer only."""
    adversary, target = adversary_and_target()
    records, model = target.candidates, target.reconstructed.model
    table = table_of(adversary, records, model)
    for row in range(len(records)):
        one = records.pick(torch.tensor([row]))
        alone = table_of(adversary, one, model)
        parts, entropies = coloured_answer(toy_language(), one, alone, 2.0)
        assert records.words is not None
        places = (records.words.kinds[row] == ANSWER).nonzero().flatten().tolist()
        assert len(parts) == len(entropies) == len(places)
        assert entropies[0] is None
        wanted = [float(table.entropy(2.0)[row, place - 1]) for place in places[1:]]
        assert list(entropies[1:]) == pytest.approx(wanted, rel=1e-4)


def test_pieces_make_the_text_and_the_end_is_seen() -> None:
    language = toy_language()
    assert pieces(language, torch.tensor([4, 10, 4, 1])) == ("4", " 10", " 4", END)
    assert pieces(language, torch.tensor([4, 10])) == ("4", " 10")
    assert pieces(language, torch.tensor([], dtype=torch.long)) == ()


def test_clients_scores_are_compared_by_their_own_spread() -> None:
    """A client with large scores does not fill the list alone."""
    small, large = scores_of([0.0, 0.1, 0.3]), scores_of([100.0, 200.0, 240.0], "b")
    order = [(record.client, record.row) for record in ranked([small, large])]
    assert order[:2] == [(0, 2), (1, 2)]


def test_equal_scores_keep_their_order() -> None:
    order = [record.row for record in ranked([scores_of([1.0, 1.0, 1.0])])]
    assert order == [0, 1, 2]


def test_few_candidates_are_shown_once(audit: Audit) -> None:
    adversary, target = adversary_and_target()
    leak = replace(audit.headline, clients=[scores_of([3.0, 1.0, 2.0])])
    texts = caption_texts(
        replace(audit, results={"max-renyi": leak}), adversary, [target], 2.0
    )
    assert len(texts) == 2


def test_padding_is_no_piece() -> None:
    records = toy_dialogues(3)
    assert records.words is not None
    assert (records.words.kinds == PADDING).any()
    adversary, target = adversary_and_target()
    one = target.candidates.pick(torch.tensor([0]))
    table = table_of(adversary, one, target.reconstructed.model)
    parts, _ = coloured_answer(toy_language(), one, table, 2.0)
    assert "".join(parts).removesuffix(END) == one.dialogues[0].answers[0]
