"""Words and texts read off weights, judged beside candidates that nobody trained on.

The reading knows no candidate. Tokens that all public texts hold, such as those that begin
and end a text, count nowhere. Candidates that nobody trained on are of the same clients, by
a fair coin, so what is read of them was not trained on but is usual.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privaudit.auditing.attack import Target
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.record_gradients import chosen_moves, why_no_moves
from privaudit.auditing.signals import reference_records
from privaudit.models.interfaces import OwnersModel
from privaudit.statistics.estimate import mean_with_t, paired_difference
from privaudit_labs.member_shares import MemberShares, share
from privaudit_labs.words.span_words import (
    HOSTS,
    ReadTexts,
    Speaker,
    Text,
    read_texts,
)

ROUNDS = 20  # of a client's, from which moves are taken
Row = dict[str, tuple[float, float]]  # by measure, of members and of others


@dataclass(frozen=True)
class ReadWords:
    """How many words and whole texts weights told.

    Attributes:
        tokens: Precision and recall, by what told them; a client is a replicate.
        texts: Share of texts rebuilt to the last token; of groups that share a coin, one.
        untold: Why something could not be read, with the number of clients.
    """

    tokens: Mapping[str, MemberShares]
    texts: MemberShares | None
    untold: Mapping[str, int]


def _applies(played: PlayedScenario) -> bool:
    adversary = played.adversary
    if played.scenario.unit != "record" or why_no_moves(
        adversary, played.targets[:1], 1
    ):
        return False
    if adversary.task.public.words is not None:
        return True
    if not isinstance(adversary.task.backbone, OwnersModel):
        return False
    speaker, asked = _speaker(played), [target.candidates for target in played.targets]
    # An owner may look up tokens by other rows than records.
    return bool(len(speaker.table)) and all(
        len(speaker.texts(some)) == len(some) for some in asked
    )


def _speaker(played: PlayedScenario) -> Speaker:
    adversary, first = played.adversary, played.targets[0].client
    (move,) = chosen_moves(adversary, first, 1)
    return Speaker(
        adversary, move.received, reference_records(adversary, "texts", HOSTS)
    )


def _measure(played: PlayedScenario) -> ReadWords:
    single = played.adversary.view.sees_updates_of(played.targets[0].client)
    groups = [[t] for t in played.targets] if single else [[*played.targets]]
    speaker, ledger = _speaker(played), played.run.ledger
    rows, hits, remarks = list[Row](), [], list[str]()
    for group in groups:
        read = read_texts(played.adversary, group[0].client, ROUNDS)
        remarks += [read.remark] if read.remark else []
        texts = [speaker.texts(target.candidates) for target in group]
        truth = [ledger.is_member[played.records(t.client)] for t in group]
        rows.append(
            judge(
                read,
                [t for of in texts for t in of],
                np.concatenate(truth),
                speaker.usual,
            )
        )
        hits += [
            _rebuilt(played, t, of, read) for t, of in zip(group, texts, strict=True)
        ]
    names = dict.fromkeys(name for row in rows for name in row)
    return ReadWords(
        {name: _mean([row[name] for row in rows if name in row]) for name in names},
        share(hits, [played.truth[t.client] for group in groups for t in group]),
        {remark: remarks.count(remark) for remark in dict.fromkeys(remarks)},
    )


def judge(
    read: ReadTexts, texts: Sequence[Text], is_member: np.ndarray, usual: set[int]
) -> Row:
    """Return precision and recall of the tokens of members, and of others."""
    held = [
        {v for text, m in zip(texts, is_member, strict=True) if m == of for v in text}
        - usual
        for of in (True, False)
    ]
    places = None
    if read.places is not None:
        places = frozenset(token for token, _ in read.places)
    row: Row = {}
    for how, found in (("rows of the table", read.rows), ("the span", places)):
        if found is not None and all(held):
            own = found - usual
            right = [len(own & some) for some in held]
            first, second = (n / max(1, len(own)) for n in right)
            row[f"precision by {how}"] = first, second
            first, second = (n / len(some) for n, some in zip(right, held, strict=True))
            row[f"recall by {how}"] = first, second
    return row


def _mean(pairs: Sequence[tuple[float, float]]) -> MemberShares:
    members, others = np.array(pairs).T
    return MemberShares(
        mean_with_t(members), mean_with_t(others), paired_difference(members, others)
    )


def _rebuilt(
    played: PlayedScenario, target: Target, texts: Sequence[Text], read: ReadTexts
) -> np.ndarray:
    hit = np.array([text in read.texts for text in texts], float)
    return played.by_unit(target.client, hit) > 0


def numbers(found: ReadWords) -> Mapping[str, Any]:
    """Return precision and recall, and the share of texts, as a table shows them."""
    return {
        "tokens": {name: str(one) for name, one in found.tokens.items()},
        "texts": found.texts and str(found.texts),
        "untold": found.untold,
    }


WORDS: AuditPart[ReadWords | None] = AuditPart(
    "words",
    ReadWords | None,
    applies=_applies,
    compute=_measure,
    nothing=None,
    title="Words read off weights",
    numbers=numbers,
)
