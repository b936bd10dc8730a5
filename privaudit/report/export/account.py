"""What all cards have said of one ledger: noted before they say it, up to a budget.

A file for each number lies in ``accounts/`` beside the owner's key, signed with it.
They are counted together where their candidates' coins are the same, whatever the runs,
clients and data sets around them. A number that was noted costs nothing again, as its
noise is the same; a run notes its own, too, so that none is forgotten with a file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.signing import check_signature, keys_folder, sign
from privaudit.core.storage import (
    make_private_folder,
    read_json,
    write_json,
)
from privaudit.federated.runs.folder.run_lock import lock_run
from privaudit.federated.runs.runs import Run
from privaudit.privacy.noised_auroc import DELTA, RankQuery, epsilon_of
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.reader import card_numbers, read_numbers

BUDGET = 2.0  # epsilon of all cards of a ledger
FOLDER = "accounts"
_PURPOSE = "number on a card"
_PATIENCE = 60.0  # seconds for which another export is waited for
_TOLD = 10  # candidates in common from which equal coins are no chance
_BEYOND = 5.0  # standard deviations


class NotedNumber(BaseModel):
    """A number that a card may have said.

    Attributes:
        account: The version of this form.
        ledger: Its hash.
        data: The hash of the data set, or of what stands for it.
        placed: Whether records are known by their place in a data set.
        scenario: Under which it was found.
        sizes: As in :class:`RankQuery`, and so the next two.
        records: Likewise.
        ranks: Likewise.
        members: A digit for each candidate, 1 for a member.
        noised: In steps of the noise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    account: Literal[1] = 1
    ledger: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    data: Annotated[str, Field(max_length=100)]
    placed: bool
    scenario: Annotated[str, Field(max_length=100)]
    sizes: tuple[Annotated[int, Field(ge=1)], ...]
    records: tuple[Annotated[int, Field(ge=0)], ...]
    ranks: tuple[int, ...]
    members: Annotated[str, Field(pattern=r"^[01]+$")]
    noised: int

    @classmethod
    def of(
        cls, query: RankQuery, run: Run, scenario: str, noised: int
    ) -> "NotedNumber":
        """Return a number as it is noted."""
        truth = run.truth.is_member[query.records]
        return cls(
            ledger=run.truth.hash,
            data=run.header["data_hash"],
            placed=run.origin != SCORES,
            scenario=scenario,
            sizes=query.sizes,
            records=tuple(query.records.tolist()),
            ranks=tuple(query.ranks.tolist()),
            members="".join("01"[int(one)] for one in truth),
            noised=noised,
        )

    @property
    def key(self) -> tuple[str, int]:
        """What was asked, and what was said: the same with other noise tells more."""
        return self.query.digest, self.noised

    @property
    def query(self) -> RankQuery:
        """What was asked."""
        return RankQuery(self.sizes, np.array(self.records), np.array(self.ranks))

    @property
    def is_member(self) -> np.ndarray:
        """The truth about its candidates."""
        return np.array([digit == "1" for digit in self.members])

    def is_about(self, run: Run) -> bool:
        """Say whether its coins are those of a run: more agree than fair coins would."""
        ledger = run.truth
        if (self.ledger, self.data) == (ledger.hash, run.header["data_hash"]):
            return True
        if not self.placed or run.origin == SCORES:
            return False
        there = np.array(self.records) < len(ledger.owner)
        records = np.array(self.records)[there]
        common = ledger.owner[records] >= 0
        agree = (ledger.is_member[records] == self.is_member[there])[common]
        surplus = 2 * int(agree.sum()) - len(agree)
        enough = len(agree) >= _TOLD
        return enough and (bool(agree.all()) or surplus > _BEYOND * len(agree) ** 0.5)


@dataclass(frozen=True)
class Account:
    """What was noted about one ledger.

    Attributes:
        noted: By what was asked and said.
    """

    noted: Mapping[tuple[str, int], NotedNumber]

    @property
    def epsilon(self) -> float:
        """What all its numbers may tell, together."""
        return epsilon_of(len(self.noted))

    def with_numbers(self, numbers: Sequence[NotedNumber]) -> "Account":
        """Return the account with further numbers; those that are there are the same."""
        return Account({**{n.key: n for n in numbers}, **self.noted})

    def check_budget(self, budget: float, before: "Account") -> None:
        """Refuse what tells more than it may.

        Raises:
            ConfigError: It is beyond the budget.
        """
        if self.epsilon <= budget:
            return
        asked = len(self.noted) - len(before.noted)
        raise ConfigError(
            f"{asked} more number{'s' * (asked != 1)} about the members of this ledger "
            f"{'were' if asked != 1 else 'was'} asked for, which makes an epsilon of "
            f"{self.epsilon:.3g} over all its cards at delta {DELTA:g}; the budget is "
            f"{budget:g}, and {len(before.noted)} on earlier cards have taken "
            f"{before.epsilon:.3g}. Name fewer audits with --scenario, train with new "
            "coins, or, if its members may be told that much better, raise --budget."
        )

    def check_readers(self) -> None:
        """Attack all cards of the ledger as their reader can.

        Raises:
            ConfigError: A reader guesses more memberships than chance lets it.
        """
        noted = list(self.noted.values())
        if not noted:
            return
        numbers, records, clients = card_numbers(
            [one.query for one in noted], [one.noised for one in noted]
        )
        truth = np.zeros(len(records), bool)
        for one in noted:
            truth[np.searchsorted(records, one.records)] = one.is_member
        scores = np.stack([one.coefficients for one in numbers])
        for name, reading in read_numbers(numbers, clients).items():
            if reading.is_beyond_chance(truth, scores):
                raise ConfigError(
                    f"Nothing was exported: by {name}, a reader of this ledger's cards "
                    f"would learn more of {len(truth)} memberships than chance and the "
                    "scores let it. Name fewer audits with --scenario, or train with new "
                    "coins."
                )


@contextmanager
def opened(run: Run) -> Iterator[tuple[Account, Callable[[NotedNumber], None]]]:
    """Have the account of a run's ledger to oneself.

    Yields:
        The account, and what notes a number in it: before anybody can read it.

    Raises:
        ConfigError: There is no folder for keys.
        RunInUseError: Another export holds it.
        TranscriptError: A number was altered, or is gone that the run has noted.
        TrustError: One is signed by a key that is not trusted.
        StorageError: It cannot be written.
    """
    folder = keys_folder() / FOLDER
    make_private_folder(folder)
    with lock_run(folder, patience=_PATIENCE):
        yield _read(folder, run), lambda number: _note(folder, number)


def _read(folder: Path, run: Run) -> Account:
    everything = map(_load, sorted(folder.glob("*.json")))
    return Account({n.key: n for n in everything if n.is_about(run)})


def _note(folder: Path, number: NotedNumber) -> None:
    content = number.model_dump(mode="json")
    signed = {"number": content, "signature": sign(_PURPOSE, content)}
    name = f"{number.ledger[:16]}-{number.query.digest[:32]}-{number.noised}.json"
    write_json(folder / name, signed)


def _load(place: Path) -> NotedNumber:
    stored = read_json(place)
    content: Any = stored.get("number")
    check_signature(_PURPOSE, content, stored.get("signature"), place)
    try:
        return NotedNumber.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise TranscriptError(
            f"{place} is none of this version's account of cards ({first['msg']}). Use "
            "the version that wrote it."
        ) from None
