"""Captions of the records that an attack finds most and least exposed.

Sensitive as pictures of records are, so only on request. The colours are what the
attacked model says about each token. An audit keeps none of it: the adversary builds
its models anew from the view, which gives the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import exp

import torch
from jaxtyping import Int
from markupsafe import Markup
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.default_attacks import GridCell
from privaudit.auditing.extraction.extracted import Extracts
from privaudit.auditing.signals.token_attack import table_of
from privaudit.datasets.dialogues import ANSWER
from privaudit.federated.trainer import Records
from privaudit.models.interfaces import LanguageModel
from privaudit.models.token_table import TokenTable
from privaudit.report.galleries.pictures import picture_of
from privaudit.report.galleries.token_entropy import ColouredText, coloured_texts

SHOWN_CAPTIONS = 6  # at either end
END = " ▪"  # the token that ends an answer, which has no text


@dataclass(frozen=True)
class ScoredRecord:
    """A candidate among all clients' that an attack scored.

    Attributes:
        client: Number of its client among the attacked.
        row: Its number among the client's candidates.
        height: Its score, in standard deviations above the client's mean: scores of
            different clients come from different models.
    """

    client: int
    row: int
    height: float


def exposed_captions(audit: Audit) -> Markup:
    """Return an audit's most and least exposed answers, coloured by entropy."""
    adversary, targets = Auditor(audit.run).prepare(audit.scenario, seed=audit.seed)
    alpha = float(getattr(audit.scenario.attacks[audit.headline.attack], "alpha", 2.0))
    texts = caption_texts(audit, adversary, targets, alpha)
    order = GridCell("description", 0, alpha).order
    return Markup(coloured_texts(texts, f"Rényi entropy of order {order}"))  # escapes


def caption_texts(
    audit: Audit, adversary: Adversary, targets: Sequence[Target], alpha: float
) -> list[ColouredText]:
    """Return the texts of :func:`exposed_captions`, the most exposed first."""
    clients, named = audit.headline.clients, {t.client: t for t in targets}
    texts = []
    for title, chosen in _ends(ranked(clients)):
        for place, record in enumerate(chosen, 1):
            client = clients[record.client]
            target = named[client.client]
            one = target.candidates.pick(torch.tensor([record.row]))
            table = table_of(adversary, one, target.reconstructed.model)
            is_member = bool(client.is_member[record.row])
            texts.append(
                ColouredText(
                    f"{title} {place} · {client.client}, "
                    f"{abs(record.height):.1f} standard deviations "
                    f"{'above' if record.height >= 0 else 'below'} its mean score"
                    f"{_drawn(audit, float(client.scores[record.row]))}"
                    f"{_question(one)}",
                    *coloured_answer(adversary.task.language, one, table, alpha),
                    tag="trained on" if is_member else "not trained on",
                    strong=is_member,
                    picture=picture_of(audit, int(client.records[record.row])),
                )
            )
    return texts


def ranked(clients: Sequence[ClientScores]) -> list[ScoredRecord]:
    """Return all candidates, the most exposed first; equal ones in their order."""
    records = [
        ScoredRecord(number, row, float(height))
        for number, client in enumerate(clients)
        for row, height in enumerate(_heights(client))
    ]
    return sorted(records, key=lambda record: -record.height)


def _heights(client: ClientScores) -> list[float]:
    scores = client.scores
    spread = scores.std() if len(scores) else 0.0
    return list((scores - scores.mean()) / spread if spread > 0 else 0 * scores)


def _ends(
    records: Sequence[ScoredRecord],
) -> list[tuple[str, Sequence[ScoredRecord]]]:
    """Return both ends, which share no record."""
    count = min(SHOWN_CAPTIONS, len(records) // 2)
    return [
        ("Most exposed", records[:count]),
        ("Least exposed", records[len(records) - count :][::-1]),
    ]


def _drawn(audit: Audit, score: float) -> str:
    """Return how likely the rest of the answer is drawn, where that is the score.

    Where records share a coin the score is a mean over them, and no text's.
    """
    attack = audit.scenario.attacks[audit.headline.attack]
    if not isinstance(attack, Extracts) or audit.run.ledger.group is not None:
        return ""
    return f" · probability {exp(score):.2g} of what is behind {attack.prefix:g} %"


def _question(record: Records) -> str:
    """Return what was asked, where it says more than "describe the picture"."""
    if not record.dialogues or not record.dialogues[0].choices:
        return ""
    return f" · {record.dialogues[0].question}"


def coloured_answer(
    language: LanguageModel, record: Records, table: TokenTable, alpha: float
) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    """Return the pieces of one record's answer, and the entropy each was drawn with.

    None for the first: as published, the description is scored within itself.
    """
    assert record.words is not None
    kinds, ids = record.words.kinds[0], record.words.ids[0]
    places = (kinds == ANSWER).nonzero().flatten()
    entropies, scored = table.entropy(alpha)[0], table.scored("description")[0]
    drawn = [
        float(entropies[place - 1]) if place and scored[place - 1] else None
        for place in places.tolist()
    ]
    return pieces(language, ids[places]), tuple(drawn)


def pieces(language: LanguageModel, ids: Int[Tensor, " tokens"]) -> tuple[str, ...]:
    """Return what each token adds to the text; a last one without text is the end.

    Blanks belong to a text and not to a token, so each beginning is written out.
    """
    parts, before = [], ""
    for count in range(1, len(ids) + 1):
        text = language.decode(ids[:count].tolist())
        parts.append(text[_alike(before, text) :])
        before = text
    if parts and not parts[-1]:
        parts[-1] = END
    return tuple(parts)


def _alike(first: str, second: str) -> int:
    """Return how many letters two texts begin alike with."""
    pairs = zip(first, second, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
