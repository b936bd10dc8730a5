"""Tokens of texts, read off the rows of a trained embedding table that moved.

A token's row gets a gradient from the texts that hold it and from no others, and SGD
and Adam without weight decay move nothing else. So the rows that are not as they were
received are exactly the tokens of a client's texts, after any number of local steps.
Where every row moved, by noise or by decay, nothing is read.

Source: Melis, Song, De Cristofaro and Shmatikov, "Exploiting unintended feature leakage
in collaborative learning", IEEE S&P 2019, section 4.1; after it Gupta et al.,
"Recovering private text in federated learning of language models", NeurIPS 2022.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from privaudit.auditing.attack import Adversary
from privaudit.auditing.inversion.uploads import SeenUpload
from privaudit.datasets.dialogues import PADDING
from privaudit.federated.trainer import Records
from privaudit.federated.weighted_mean import WEIGHT
from privaudit.models.interfaces import Classifier, EmbedsTokens

MISTAKE = 1e-6  # that rounding hides a token's row, or moves another


@dataclass(frozen=True)
class ReadTokens:
    """Which tokens a client's texts hold.

    Attributes:
        held: Those that were read.
        expected: How probably a batch of as many public texts holds each, in (0, 1).
    """

    held: Bool[Tensor, " vocabulary"]
    expected: Float[Tensor, " vocabulary"]

    def guessed(self) -> "ReadTokens":
        """Return what public texts alone say."""
        return ReadTokens(self.expected > 0.5, self.expected)

    def of(self, records: Records) -> Bool[Tensor, " vocabulary"]:
        """Return which tokens some records hold together."""
        together = torch.zeros_like(self.held)
        together[tokens_of(records)[1]] = True
        return together

    def scores(self, records: Records) -> Float[Tensor, " records"]:
        """Return how much likelier what was read is if a record was in the batch.

        The logarithm of a ratio of probabilities: a member's tokens are all read, and
        another's by chance.
        """
        chance = torch.where(self.held, self.expected, 1 - self.expected)
        surely = torch.where(self.held, 1 - MISTAKE, MISTAKE)
        rows, tokens = tokens_of(records)
        gains = (surely.double() / chance).log()[tokens]
        return gains.new_zeros(len(records)).index_add(0, rows, gains)


def tokens_of(records: Records) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return each pair of a record and a token that it holds, once."""
    assert records.words is not None
    ids, kinds = records.words.ids, records.words.kinds
    rows, columns = (kinds != PADDING).nonzero(as_tuple=True)
    pairs = torch.stack([rows, ids[rows, columns]]).unique(dim=1)
    return pairs[0], pairs[1]


def read_tokens(
    adversary: Adversary, uploads: Sequence[SeenUpload], count: float
) -> ReadTokens | None:
    """Return which tokens uploads of so many records tell; None where they tell none.

    So it is without a table, where nothing of it moved or all did, where weights decay,
    which moves each row that is not zero, and of sums, whose rounding moves rows, too.
    """
    task = adversary.task
    if task.public.words is None or not isinstance(task.backbone, Classifier):
        return None
    tower = task.backbone.tower
    decays = getattr(adversary.trainer, "weight_decay", 0.0) > 0
    if decays or not isinstance(tower, EmbedsTokens):
        return None
    name = tower.embedding_name
    found = [moved_rows(one, name) for one in uploads if one.clients == 1]
    moved = [rows for rows in found if rows is not None]
    if not moved or not (held := torch.stack(moved).any(dim=0)).any():
        return None
    empty = (uploads[0].received[name] == 0).all(dim=1)  # nothing shrinks a zero
    if (held | empty).all():
        return None
    _, tokens = tokens_of(task.public)
    shares = (tokens.bincount(minlength=len(held)) + 0.5) / (len(task.public) + 1)
    expected = 1 - (1 - shares.double()) ** count
    return ReadTokens(held, expected.clamp(MISTAKE, 1 - MISTAKE))


def moved_rows(one: SeenUpload, table: str) -> Bool[Tensor, " rows"] | None:
    """Return which rows of a table are not as they were received; None if it is not sent.

    To the last bit: what one client does not train is sent as it came, times the
    upload's weight, or as a move of zero.
    """
    place = one.place(table)
    if place is None:
        return None
    before = one.received[table]
    if table not in one.sent:  # but all that moved, in a row
        return (one.delta[place].view(before.shape) != 0).any(dim=1)
    sent, weight = one.sent[table], one.sent.get(WEIGHT, torch.tensor(1.0))
    as_it_came = (sent == before * weight).all(dim=1)
    by_nothing = (sent == 0).all(dim=1)
    return ~(as_it_came | by_nothing)
