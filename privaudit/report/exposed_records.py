"""The most exposed records, as pictures and as captions coloured by entropy.

Sensitive as the data are, so only on request. The colours are what the attacked model says
about each token. An audit keeps none of it: the adversary builds its models anew from the
view, which gives the same ones.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from os.path import commonprefix

import numpy as np
from jaxtyping import Int, Shaped
from markupsafe import Markup

from privaudit.auditing.attack import Adversary, SaysScores, Target
from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.played_scenario import audit_parts
from privaudit.auditing.scenario import GridCell
from privaudit.auditing.token_tables import table_of
from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.datasets.dataset import FeatureBank, Texts
from privaudit.datasets.records import ANSWER
from privaudit.federation.trainer import Records
from privaudit.models.interfaces import LanguageModel
from privaudit.models.token_table import TokenTable
from privaudit.report.page_template import fragment
from privaudit.report.report_data import ReportData

STEPS = (
    ("#f7fbff", "#1f2328"),
    ("#d6e6f4", "#1f2328"),
    ("#abd0e6", "#1f2328"),
    ("#6aaed6", "#1f2328"),
    ("#2f74b0", "#ffffff"),
    ("#105ba4", "#ffffff"),
    ("#08306b", "#ffffff"),
)
"""Background and text, from sure to unsure: one hue whose lightness falls, so that it
is read with any colour blindness and in grey; text at least 4.5 to 1 against it.

Source: ColorBrewer's "Blues", Harrower and Brewer, 2003, its fifth made darker.
"""


@dataclass(frozen=True)
class ColouredText:
    """One text, piece by piece.

    Attributes:
        heading: What is said above it, such as how exposed the record is.
        pieces: Tokens as text, with their blanks.
        entropies: Of the distribution that each piece was drawn from, in nats; None
            where there is none: the piece stays without a colour.
    """

    heading: str
    pieces: tuple[str, ...]
    entropies: tuple[float | None, ...]
    tag: str = ""
    strong: bool = False
    picture: str | None = None

    @property
    def scored(self) -> list[tuple[str, float | None]]:
        """Each piece with its entropy."""
        return list(zip(self.pieces, self.entropies, strict=True))


def coloured_texts(texts: Sequence[ColouredText], name: str) -> str:
    """Return an HTML fragment: texts coloured by entropy, and what colours mean.

    Nothing outside of it is needed. A piece says its number when pointed at.
    """
    for text in texts:
        _check(text)
    known = [e for text in texts for e in text.entropies if e is not None]
    top = max(known, default=0.0) or 1.0
    return fragment(
        "coloured_texts.html.jinja", name=name, texts=texts, top=top, steps=STEPS
    )


def _check(text: ColouredText) -> None:
    if len(text.pieces) != len(text.entropies):
        raise ConfigError(
            f"The text {text.heading!r} has {len(text.pieces)} pieces and "
            f"{len(text.entropies)} entropies. Give one for each, None where there is "
            "none."
        )
    wrong = [
        e for e in text.entropies if e is not None and not (isfinite(e) and e >= 0)
    ]
    if wrong:
        raise ConfigError(
            f"The text {text.heading!r} has an entropy of {wrong[0]}, and a colour "
            "needs a finite number from 0. Leave the record out."
        )


SHOWN = 8  # of each client


@dataclass(frozen=True)
class ExposedRecord:
    """A record that an attack found out, as the page shows it.

    Attributes:
        picture: A PNG as a data address; None where there are embeddings or texts.
        above: Share of the client's non-members that score at least as high.
        text: What it says, where records are texts.
    """

    picture: str | None
    label: str
    above: float
    text: str = ""


def record_sections(data: ReportData) -> list[tuple[str, str]]:
    """Return headings and what parts of audits show of single records."""
    return [
        (f"{part.title}: {one.label}", shown)
        for part in audit_parts()
        for one in data.runs
        if part.of_records and (found := one.audit.part(part))
        if (shown := part.of_records(found, partial(picture_of, one.audit)))
    ]


def most_exposed(audit: Audit) -> dict[str, list[ExposedRecord]]:
    """Return each client's members that the headline attack scores highest."""
    return {
        client.client: _exposed(audit, client)
        for client in audit.headline.clients
        if all(map(len, client.groups))
    }


def _exposed(audit: Audit, client: ClientScores) -> list[ExposedRecord]:
    names, (_, others) = audit.run.class_names, client.groups
    order = np.argsort(-client.scores, kind="stable")
    members = [index for index in order if client.is_member[index]][:SHOWN]
    return [
        ExposedRecord(
            picture=picture_of(audit, int(client.records[index])),
            label=names[int(client.labels[index])],
            above=float((others >= client.scores[index]).mean()),
            text=_text_of(audit, int(client.records[index])),
        )
        for index in members
    ]


def picture_of(audit: Audit, index: int) -> str | None:
    """Return a record as a PNG in a data address; None where there is no picture."""
    population = audit.run.population
    images, canaries = population.dataset.images, population.canaries
    if isinstance(images, FeatureBank | Texts):
        return None
    shown = images[index] if canaries is None else canaries.shown(index, images[index])
    return _as_address(shown)


def _text_of(audit: Audit, index: int) -> str:
    images = audit.run.population.dataset.images
    return " / ".join(images.texts[index]) if isinstance(images, Texts) else ""


def _as_address(pixels: Shaped[Tensor, "channels height width"]) -> str:
    """Return a picture, grey or colour, as a PNG in a data address."""
    if pixels.is_floating_point():
        pixels = (pixels.clamp(0, 1) * 255).round().byte()
    array = pixels.numpy()
    grey = len(array) == 1
    from PIL import Image

    image = Image.fromarray(array[0] if grey else array.transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


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
    alpha = float(
        getattr(audit.scenario.attacks.get(audit.headline.attack), "alpha", 2.0)
    )
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
        for number, record in enumerate(chosen, 1):
            client = clients[record.client]
            target = named[client.client]
            one = target.candidates.pick(torch.tensor([record.row]))
            table = table_of(adversary, one, target.reconstructed.model)
            is_member = bool(client.is_member[record.row])
            texts.append(
                ColouredText(
                    f"{title} {number} · {client.client}, "
                    f"{abs(record.height):.1f} standard deviations "
                    f"{'above' if record.height >= 0 else 'below'} its mean score"
                    f"{_in_words(audit, float(client.scores[record.row]))}"
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


def _ends(records: Sequence[ScoredRecord]) -> list[tuple[str, Sequence[ScoredRecord]]]:
    """Return both ends, which share no record."""
    count = min(SHOWN_CAPTIONS, len(records) // 2)
    return [
        ("Most exposed", records[:count]),
        ("Least exposed", records[len(records) - count :][::-1]),
    ]


def _in_words(audit: Audit, score: float) -> str:
    """Return what a score says by itself, if the attack tells.

    Where records share a coin the score is a mean over them, and no text's.
    """
    attack = audit.scenario.attacks.get(audit.headline.attack)
    if not isinstance(attack, SaysScores) or audit.run.ledger.group is not None:
        return ""
    return f" · {attack.said(score)}"


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
    positions = (kinds == ANSWER).nonzero().flatten()
    entropies, scored = table.entropy(alpha)[0], table.scored("description")[0]
    drawn = [
        float(entropies[position - 1]) if position and scored[position - 1] else None
        for position in positions.tolist()
    ]
    return pieces(language, ids[positions]), tuple(drawn)


def pieces(language: LanguageModel, ids: Int[Tensor, " tokens"]) -> tuple[str, ...]:
    """Return what each token adds to the text; a last one without text is the end.

    Blanks belong to a text and not to a token, so each beginning is written out.
    """
    parts, before = [], ""
    for count in range(1, len(ids) + 1):
        text = language.decode(ids[:count].tolist())
        parts.append(text[len(commonprefix((before, text))) :])  # noqa: RUF071
        before = text
    if parts and not parts[-1]:
        parts[-1] = END
    return tuple(parts)
