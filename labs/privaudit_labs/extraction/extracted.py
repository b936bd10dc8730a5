"""Extracted texts: how many can be drawn out of a model, of members and of others.

A text that many records resemble is drawn for others, too: candidates that nobody
trained on are of the same clients, by a fair coin, and what is drawn of them was not
memorised but foreseen. So only the difference tells of memory.

Source: Hayes et al., "Measuring memorization in language models via probabilistic
extraction", NAACL 2025.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.report.wording import interval, point, rate
from privaudit.runs.ledger import Ledger
from privaudit.statistics.verdict import Sampling
from privaudit_labs.extraction.answer_table import AnswerTable
from privaudit_labs.extraction.drawn_texts import (
    ExtractedClient,
    Extracts,
    is_extractable,
)
from privaudit_labs.member_shares import Hits, MemberShares, share

PREFIXES = (0.0, 25.0, 50.0, 75.0)  # percent of an answer that is shown
TRIES = (1, 10, 100, 1_000, 10_000)


@dataclass(frozen=True)
class ExtractedTexts:
    """What can be drawn.

    Attributes:
        p: The probability from which an extraction within n draws counts.
        shares: By how much of an answer was shown, and greedily or by n draws.
        drawn: By what was really drawn, of some candidates of each client.
    """

    p: float
    shares: Mapping[str, MemberShares]
    drawn: Mapping[str, MemberShares]


def shown(prefix: float, how: str) -> str:
    """Return the name of a share.

    Example:
        >>> shown(50.0, "n = 100")
        '50 % shown, n = 100'
    """
    return f"{prefix:g} % shown, {how}"


def _measure(played: PlayedScenario) -> ExtractedTexts | None:
    attack = next(
        a for a in played.scenario.attacks.values() if isinstance(a, Extracts)
    )
    found = [attack.extract(played.adversary, target) for target in played.targets]
    truth = [played.truth[one.client] for one in found]
    hits = [_extracted(one.table, attack.p) for one in found]
    shares = {}
    for name in hits[0]:
        by_unit = [  # of records that share a coin one is enough
            played.by_unit(one.client, of_one[name].astype(float)) > 0
            for one, of_one in zip(found, hits, strict=True)
        ]
        if (measured := share(by_unit, truth)) is not None:
            shares[name] = measured
    records = [played.records(one.client) for one in found]
    drawn = drawn_shares(played.run.ledger, attack, found, records)
    return ExtractedTexts(attack.p, shares, drawn)


def _extracted(table: AnswerTable, p: float) -> dict[str, Hits]:
    """Return which of one client's candidates are extracted, by how."""
    hits = {}
    for prefix in PREFIXES:
        hits[shown(prefix, "greedy")] = table.greedy(prefix)
        logs = table.suffixes(prefix)
        for n in TRIES:
            hits[shown(prefix, f"n = {n:,}")] = is_extractable(logs, n, p)
    return hits


def drawn_shares(
    ledger: Ledger,
    attack: Extracts,
    found: Sequence[ExtractedClient],
    records: Sequence[Int[np.ndarray, " candidates"]],
) -> dict[str, MemberShares]:
    """Return what came of real draws; empty where none were made."""
    tries = found[0].draws.tries
    within = [of[one.drawn] for of, one in zip(records, found, strict=True)]
    units = [ledger.units(rows) for rows in within]
    truth = [
        ledger.is_member[rows[of.first]] for rows, of in zip(within, units, strict=True)
    ]
    counts = {
        "exact": [one.draws.exact for one in found],
        f"up to {attack.near:g} % of tokens differ": [one.draws.near for one in found],
    }
    measured = {
        shown(attack.prefix, f"{what} within {tries} draws"): share(
            [  # of records that share a coin one is enough, as above
                of.mean((count > 0).astype(float)) > 0
                for of, count in zip(units, hits, strict=True)
            ],
            truth,
        )
        for what, hits in counts.items()
    }
    return {name: one for name, one in measured.items() if one is not None}


SHOWN_DRAWS = tuple(
    shown(50.0, how) for how in ("greedy", "n = 1", "n = 100", "n = 10,000")
)


def sentences(found: ExtractedTexts | None, sampling: Sampling) -> list[str]:
    """Say how many texts can be drawn."""
    if found is None:
        return []
    said = [
        f"{name}: {rate(share.members)} of members, {rate(share.others)} of others, "
        f"difference {point(share.beyond, signed=True)} {interval(share.beyond)}"
        for name, share in {**found.shares, **found.drawn}.items()
        if name in (*SHOWN_DRAWS, *found.drawn)
    ]
    return [
        f"Extracted with probability {found.p:g} within n draws of the rest of an "
        f"answer, or greedily. {'. '.join(said)}."
    ]


def numbers(found: ExtractedTexts) -> Mapping[str, Any]:
    """Return all shares, as a table shows them."""
    return {
        "p": found.p,
        "shares": {name: str(one) for name, one in found.shares.items()},
        "drawn": {name: str(one) for name, one in found.drawn.items()},
    }


EXTRACTION = AuditPart(
    "extraction",
    ExtractedTexts | None,
    applies=lambda played: any(
        isinstance(attack, Extracts) for attack in played.scenario.attacks.values()
    ),
    compute=_measure,
    nothing=None,
    title="Texts extracted from the model",
    says=sentences,
    numbers=numbers,
)
