"""Inversion, judged: what was read of records, beside records that were not there.

The attack that read them knew nothing of the candidates. Here the truth is opened, and
what was read is compared with the client's members, and, in the same way, with its
candidates that nobody trained on: those come from the same shard by a fair coin, so what
fits both alike was not read but guessed. What public records alone would have said is
judged in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from markupsafe import Markup

from privaudit.auditing.attack import Target
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.datasets.dataset import FeatureBank, Texts
from privaudit.datasets.split import PUBLIC
from privaudit.federation.trainer import ClientId, Records
from privaudit.runs.run import Run
from privaudit.statistics.estimate import Estimate, mean_with_t, paired_difference
from privaudit_labs.inversion.inversion import (
    ClassesAndFeatures,
    InvertedClient,
    Inverts,
    Words,
)

Measured = Literal[
    "batch-cosine",
    "nearest-cosine",
    "label-share",
    "retrieval",
    "picture-psnr",
    "token-precision",
    "token-recall",
]
TITLES: Mapping[Measured, str] = {
    "batch-cosine": "cosine of what was read with the batch",
    "nearest-cosine": "cosine with the nearest reconstruction",
    "label-share": "share of labels recovered",
    "retrieval": "nearest candidate of a reconstruction is one",
    "picture-psnr": "PSNR in dB of the nearest public picture",
    "token-precision": "precision of tokens",
    "token-recall": "recall of tokens",
}
"""What is measured, by its code."""
SHOWN = 8  # pairs of each client


@dataclass(frozen=True)
class ReadMeasure:
    """One measure, a client being one replicate.

    Attributes:
        members: What was read beside the records that the client trained on.
        others: The same beside its candidates that it did not train on.
        guessed: In place of what was read, what public records say, beside the members.
        beyond: What reading adds to guessing for the members, less what it adds for the
            others: above 0 records were read. The coin may give a client members that
            are easier to guess than its others, so that their mere difference tells
            nothing.
    """

    members: Estimate
    others: Estimate
    guessed: Estimate
    beyond: Estimate


@dataclass(frozen=True)
class PicturePair:
    """What a server would show of a record, and the record: sensitive.

    Attributes:
        public: Position in the data set of the reference picture that is nearest to a
            reconstruction.
        true: That of the client's member which is nearest to it.
        psnr: Of the two, in dB.
    """

    public: int
    true: int
    psnr: float


@dataclass(frozen=True)
class Inversion:
    """How well records were read, by measure.

    Attributes:
        matched: Clients whose single records were matched.
        tokens_read: Clients whose tokens were read off a table's rows that moved; of
            the others all rows moved, or none were sent.
        pairs: By client, some reconstructions beside its members.
    """

    measures: Mapping[Measured, ReadMeasure]
    matched: int
    clients: int
    tokens_read: int = 0
    pairs: Mapping[str, tuple[PicturePair, ...]] = field(default_factory=dict)


Pair = tuple[float, float]  # of members, of others
Row = Mapping[Measured, Pair]


def judge(
    read: InvertedClient, members: Records, others: Records
) -> dict[Measured, Pair]:
    """Compare what was read of one client with its members and its others, one at least."""
    batch = _each(lambda records: _batch_cosine(read, records), members, others)
    row: dict[Measured, Pair] = {"batch-cosine": batch}
    if isinstance(read.description, Words):
        return row | _tokens(read, read.description, members, others)
    row["label-share"] = _each(lambda records: _labels(read, records), members, others)
    if read.tokens is not None:
        row |= _overlaps(read.tokens.held, read.tokens.of, members, others)
    if len(read.description.axes):
        row |= _features(read, members, others)
    return row


def _each(
    measure: Callable[[Records], float], members: Records, others: Records
) -> Pair:
    return measure(members), measure(others)


def _batch_cosine(read: InvertedClient, records: Records) -> float:
    """Return it for what differs from public batches, in units of their spread."""
    estimate = read.estimate
    unit = estimate.spread.sqrt()
    actual = read.description.of(records).mean(dim=0)
    found, actual = ((x - estimate.prior) / unit for x in (estimate.found, actual))
    return float(torch.cosine_similarity(found, actual, dim=0))


def _labels(read: InvertedClient, records: Records) -> float:
    assert isinstance(read.description, ClassesAndFeatures)
    shares = read.description.shares(read.estimate.found)
    counts = torch.bincount(records.labels, minlength=len(shares)).double()
    return float(torch.minimum(shares, counts / counts.sum()).sum())


def _features(
    read: InvertedClient, members: Records, others: Records
) -> dict[Measured, Pair]:
    found = functional.normalize(read.features(), dim=1)
    candidates = torch.cat([members.features, others.features]).double()
    nearest = (found @ functional.normalize(candidates, dim=1).T).argmax(dim=1)
    hit = float((nearest < len(members)).double().mean())
    return {
        "nearest-cosine": _each(
            lambda records: _closest(found, records), members, others
        ),
        "retrieval": (hit, len(members) / len(candidates)),
    }


def _closest(found: Float[Tensor, "found dim"], records: Records) -> float:
    features = functional.normalize(records.features.double(), dim=1)
    return float((features @ functional.normalize(found, dim=1).T).amax(dim=1).mean())


def _tokens(
    read: InvertedClient, words: Words, members: Records, others: Records
) -> dict[Measured, Pair]:
    """Compare the tokens that at least one record probably holds."""
    estimate = read.estimate
    expected = estimate.found * estimate.records > 0.5
    return _overlaps(
        expected, lambda records: words.of(records).any(dim=0), members, others
    )


def _overlaps(
    expected: Bool[Tensor, " tokens"],
    held_by: Callable[[Records], Tensor],
    members: Records,
    others: Records,
) -> dict[Measured, Pair]:
    """Return precision and recall of some tokens beside those that records hold."""
    pairs = []
    for records in (members, others):
        held = held_by(records)
        right = float((expected & held).sum())
        predicted, there = int(expected.sum()), int(held.sum())
        pairs.append((right / max(1, predicted), right / max(1, there)))
    (precision, recall), (no_precision, no_recall) = pairs
    return {
        "token-precision": (precision, no_precision),
        "token-recall": (recall, no_recall),
    }


def _pictures(run: Run, read: InvertedClient, positions: Sequence[Tensor]) -> Row:
    """Compare the public picture nearest to each reconstruction with the client's.

    Empty where records are no pictures of one size. The positions are those of public
    records, of members and of others.
    """
    public, *own = positions
    members, others = (_pairs(run, read, public, records) for records in own)
    if not members or not others:
        return {}
    first, second = (
        float(np.mean([pair.psnr for pair in pairs])) for pairs in (members, others)
    )
    return {"picture-psnr": (first, second)}


def _pairs(
    run: Run, read: InvertedClient, public: Tensor, own: Tensor
) -> list[PicturePair]:
    """Return the public picture nearest to each reconstruction, and the client's.

    Nobody decodes a feature here: a public picture is what the server would show.
    """
    images = run.population.dataset.images
    if isinstance(read.description, Words) or not len(read.description.axes):
        return []
    if isinstance(images, FeatureBank | Texts):
        return []
    features = run.population.records.features
    found = functional.normalize(read.features(), dim=1)
    nearest = []
    for of in (public, own):
        alike = found @ functional.normalize(features[of].double(), dim=1).T
        nearest.append(of[alike.argmax(dim=1)])
    pairs = []
    for shown, true in torch.stack(nearest, dim=1).tolist():
        one, other = images[shown], images[true]
        if one.shape != other.shape:
            return []
        pairs.append(PicturePair(shown, true, psnr(one, other)))
    return pairs


def psnr(one: Tensor, other: Tensor) -> float:
    """Return the peak signal-to-noise ratio of two pictures, in dB; 99 where equal.

    Example:
        >>> round(psnr(torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.1)), 3)
        20.0
    """
    first, second = (
        x.double() if x.is_floating_point() else x.double() / 255 for x in (one, other)
    )
    error = float((first - second).square().mean())
    return min(99.0, float(-10 * np.log10(max(error, 1e-12))))


def numbers(found: Inversion) -> Mapping[str, Any]:
    """Return what a table shows: measures by their titles, and no pair, which names records."""
    measures = {TITLES[code]: one for code, one in found.measures.items()}
    return {**vars(found), "measures": measures, "pairs": {}}


def record_section(found: Inversion, picture: Callable[[int], str | None]) -> Markup:
    """Return reconstructions beside true pictures, by client, as HTML; empty without any."""
    if not found.pairs:
        return Markup()
    lines = Markup("\n")
    clients = lines.join(
        Markup('<p>{}</p>\n<div class="records">\n{}\n</div>').format(
            client, lines.join(_figure(pair, picture) for pair in pairs)
        )
        for client, pairs in found.pairs.items()
    )
    return _PAIRS + lines + clients


_PAIRS = Markup(
    "<p>Per client, above the reference picture nearest to what was read, below it the "
    "client's own picture nearest to it. Nothing is decoded: a stranger's picture says "
    "what such a record looks like. Below: the PSNR of the two.</p>"
)


def _figure(pair: PicturePair, picture: Callable[[int], str | None]) -> Markup:
    shown = (
        (pair.public, "The nearest reference picture"),
        (pair.true, "The client's picture"),
    )
    images = Markup().join(
        Markup('<img src="{}" alt="{}">').format(picture(at) or "", alt)
        for at, alt in shown
    )
    caption = Markup("<figcaption>{:.1f} dB</figcaption>").format(pair.psnr)
    return Markup("<figure>{}{}</figure>").format(images, caption)


def _measure(played: PlayedScenario) -> Inversion | None:
    attack = next(a for a in played.scenario.attacks.values() if isinstance(a, Inverts))
    found = attack.invert(played.adversary, played.targets)
    both = list(zip(played.targets, found, strict=True))
    rows = [row for row in (_rows(played, *one) for one in both) if row]
    if not rows:
        return None
    matched = sum(read.matched is not None for read in found)
    tokens_read = sum(read.tokens is not None for read in found)
    shown = {read.client: _shown(played.run, read) for read in found}
    pairs = {client: some for client, some in shown.items() if some}
    return Inversion(_summary(rows), matched, len(found), tokens_read, pairs)


def _shown(run: Run, read: InvertedClient) -> tuple[PicturePair, ...]:
    positions, truth = _asked_about(run, read.client)
    if not truth.any():
        return ()
    public = torch.from_numpy(run.population.split.of(PUBLIC))
    return tuple(_pairs(run, read, public, positions[truth])[:SHOWN])


def _asked_about(
    run: Run, client: ClientId
) -> tuple[Int[Tensor, " candidates"], Bool[Tensor, " candidates"]]:
    """Return the positions of a client's candidates, and which it trained on."""
    positions = run.population.asked_about(client, canaries=False)
    return (
        torch.from_numpy(positions),
        torch.from_numpy(run.ledger.is_member[positions]),
    )


def _rows(played: PlayedScenario, target: Target, read: InvertedClient) -> list[Row]:
    """Judge what was read of one client, and what would be guessed without uploads.

    Empty where the client lacks members, or others.
    """
    run = played.run
    where, truth = _asked_about(run, target.client)
    if truth.all() or not truth.any():
        return []
    members, others = (target.candidates.pick(mask) for mask in (truth, ~truth))
    public = torch.from_numpy(run.population.split.of(PUBLIC))
    positions = [public, where[truth], where[~truth]]
    estimate = read.estimate
    blank = replace(
        read,
        estimate=replace(estimate, found=estimate.prior),
        matched=None,
        tokens=read.tokens and read.tokens.guessed(),
    )
    return [
        {**judge(one, members, others), **_pictures(run, one, positions)}
        for one in (read, blank)
    ]


def _summary(found: Sequence[Sequence[Row]]) -> dict[Measured, ReadMeasure]:
    """Return each measure's means over clients, of rows read and guessed."""
    measures = {}
    for name in dict.fromkeys(name for rows in found for name in rows[0]):
        read, guessed = (
            np.array([rows[how][name] for rows in found if name in rows[how]])
            for how in (0, 1)
        )
        if len(read) == len(guessed):
            gain = read - guessed
            measures[name] = ReadMeasure(
                mean_with_t(read[:, 0]),
                mean_with_t(read[:, 1]),
                mean_with_t(guessed[:, 0]),
                paired_difference(gain[:, 0], gain[:, 1]),
            )
    return measures


INVERSION = AuditPart(
    "inversion",
    Inversion | None,
    applies=lambda played: any(
        isinstance(attack, Inverts) for attack in played.scenario.attacks.values()
    ),
    compute=_measure,
    nothing=None,
    title="Records read out of uploads",
    numbers=numbers,
    of_records=record_section,
)
