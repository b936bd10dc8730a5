"""What all cards have said of one ledger, up to a budget, and what a reader makes of them.

Numbers are noted before a card says them. A file for each lies in ``accounts/`` beside the
owner's key, signed with it. They are counted together where their candidates' coins are the
same, whatever the runs, clients and data sets around them. A number that was noted costs
nothing again, as its noise is the same; a run notes its own, too, so that none is forgotten
with a file.

The adversary who reads cards has candidates and scores, and so knows which sum over
memberships each number gives; memberships are fair coins to it. Two readers: the best
linear one, and for clients of few candidates a search of all their memberships that fit. An
export tries both on its own card and all earlier ones of the ledger before it writes.

That a run leaks is no fault of its card: who has the scores then knows memberships
without it, and any reader who hears that they leak believes the scores. What counts is
what a reader explains of the coins beyond the best linear rule in the scores, corrected
for having been fitted to these coins. By chance that is at most a few times
sqrt(2 k) / N for k rules and N coins; with a number by client it is nearly all.

Source: Dinur and Nissim, "Revealing information while preserving privacy", PODS 2003
(the linear reader); Horowitz and Sahni, "Computing partitions with applications to the
knapsack problem", J. ACM 21 (1974) (the search by halves); Ezekiel, "Methods of
correlation analysis", 1930 (the correction).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.signing import check_signature, keys_folder, sign
from privaudit.core.storage import (
    make_private_folder,
    read_json,
    write_json,
)
from privaudit.privacy.noised_auroc import DELTA, RankQuery, epsilon_of
from privaudit.recording.origins.scores import SCORES
from privaudit.runs.run import Run
from privaudit.runs.run_folder import lock_run

FEW = 30  # candidates of a client whose memberships are searched
MARGIN = 4.0  # standard deviations of what chance explains
_MOST = 2**18  # halves that fit together; where more do, little is told
_REACH = 4.0  # standard deviations within which a membership fits
_EXACT = 1e-9  # of a number's range: what rounding leaves of an exact one


@dataclass(frozen=True)
class CardNumber:
    """A sum over memberships that somebody has read.

    Attributes:
        sd: Standard deviation of the noise in it; 0 where it is exact.
    """

    coefficients: Float[np.ndarray, " candidates"]
    value: float
    sd: float = 0.0


@dataclass(frozen=True)
class Reading:
    """What a reader made of numbers.

    Attributes:
        belief: Each candidate's chance to be a member, as the reader sees it.
    """

    belief: Float[np.ndarray, " candidates"]

    def right(self, is_member: Bool[np.ndarray, " candidates"]) -> int:
        """Return how many memberships it guesses right."""
        return int(((self.belief > 0.5) == is_member).sum())

    def explained(self, is_member: Bool[np.ndarray, " candidates"]) -> float:
        """Return the share of the coins' variance that it explains: 1 if it knows all."""
        return float(1 - 4 * ((is_member - self.belief) ** 2).mean())

    def is_beyond_chance(
        self,
        is_member: Bool[np.ndarray, " candidates"],
        scores: Float[np.ndarray, "rules candidates"],
    ) -> bool:
        """Say whether it knows more of single coins than who has the scores does.

        Scores are ranks about 0, by attack.
        """
        rules, count = scores.shape
        if rules >= count:
            return True  # one more number than coins to hide
        by_scores, *_ = np.linalg.lstsq(scores.T, is_member - 0.5, rcond=None)
        left = Reading(0.5 + scores.T @ by_scores).explained(is_member)
        corrected = 1 - (1 - left) * count / (count - rules)
        gained = self.explained(is_member) - max(corrected, 0.0)
        return gained > MARGIN * (2 * rules) ** 0.5 / count


def read_numbers(
    numbers: Sequence[CardNumber], clients: Sequence[Int[np.ndarray, " _"]]
) -> dict[str, Reading]:
    """Return what each reader believes, of clients given by candidates' positions."""
    linear = _linear(numbers)
    searched = linear.copy()
    for positions in clients:
        if len(positions) <= FEW:
            found = _search(numbers, positions)
            searched[positions] = linear[positions] if found is None else found
    return {"least squares": Reading(linear), "search": Reading(searched)}


def card_numbers(
    queries: Sequence[RankQuery], noised: Sequence[int]
) -> tuple[list[CardNumber], Int[np.ndarray, " candidates"], list[np.ndarray]]:
    """Return noised sums as their reader sees them.

    Returns:
        The numbers; the records that they are about, in order; and each client's
        candidates by position there, of every query.
    """
    records = np.unique(np.concatenate([one.records for one in queries]))
    numbers, clients = [], []
    for query, value in zip(queries, noised, strict=True):
        positions = np.searchsorted(records, query.records)
        coefficients = np.zeros(len(records))
        np.add.at(coefficients, positions, query.ranks)
        sd = query.scale / query.fine
        numbers.append(CardNumber(coefficients, value / query.fine, sd))
        clients += np.split(positions, np.cumsum(query.sizes)[:-1])
    return numbers, records, clients


def _linear(numbers: Sequence[CardNumber]) -> Float[np.ndarray, " candidates"]:
    """Return the linear estimate of least mean squared error, coins being fair."""
    coefficients = np.stack([one.coefficients for one in numbers])
    noise = np.diag([one.sd**2 for one in numbers])
    values = np.array([one.value for one in numbers]) - coefficients.sum(1) / 2
    explained = coefficients @ coefficients.T / 4 + noise
    weights, *_ = np.linalg.lstsq(explained, values, rcond=1e-12)
    return np.asarray(0.5 + coefficients.T @ weights / 4)


def _search(
    numbers: Sequence[CardNumber], positions: Int[np.ndarray, " few"]
) -> Float[np.ndarray, " few"] | None:
    """Return the chance of each membership among all that fit; None where too many do.

    What a number says of other clients is noise to this search, of a coin's variance.
    """
    about = [one for one in numbers if one.coefficients[positions].any()]
    if not about:
        return None
    rows = np.stack([one.coefficients[positions] for one in about])
    rests = np.stack([np.delete(one.coefficients, positions) for one in about])
    values = np.array([one.value for one in about]) - rests.sum(1) / 2
    noise = np.array([one.sd**2 for one in about]) + (rests**2).sum(1) / 4
    spread = np.maximum(np.sqrt(noise), _EXACT * np.abs(rows).sum(1))
    rows, values = rows / spread[:, None], values / spread
    # A sum with weights of no common measure is hit where all numbers are at once.
    weights = np.sqrt(2 + np.arange(len(rows)) + 1 / np.pi)
    weights /= np.sqrt((weights**2).sum())
    return _weigh(
        np.vstack([weights @ rows, rows]), np.append(weights @ values, values)
    )


def _weigh(
    rows: Float[np.ndarray, "numbers few"], values: Float[np.ndarray, " numbers"]
) -> Float[np.ndarray, " few"] | None:
    """Return the mean of the memberships that fit, by their likelihood.

    Rows are in units of their noise; the first one is of all others together.
    """
    half = rows.shape[1] // 2
    left, right = _all_of(half), _all_of(rows.shape[1] - half)
    sums, others = left @ rows[:, :half].T, right @ rows[:, half:].T
    order = np.argsort(others[:, 0], kind="stable")
    right, others = right[order], others[order]
    wanted = values[0] - sums[:, 0]
    first = np.searchsorted(others[:, 0], wanted - _REACH)
    count = np.searchsorted(others[:, 0], wanted + _REACH, "right") - first
    if not 0 < count.sum() <= _MOST:
        return None
    ours = np.repeat(np.arange(len(left)), count)
    begins = np.repeat(first - np.cumsum(count) + count, count)
    theirs = begins + np.arange(count.sum())
    missed = np.zeros(len(ours))
    each = list(zip(sums.T, others.T, values, strict=True))
    for ahead, behind, value in each[1:]:
        off = ahead[ours] + behind[theirs] - value
        fits = np.abs(off) <= _REACH
        ours, theirs, missed = ours[fits], theirs[fits], (missed + off**2)[fits]
    if not len(ours):
        return None
    weights = np.exp(-(missed - missed.min()) / 2)
    weights /= weights.sum()
    return np.concatenate([weights @ left[ours], weights @ right[theirs]])


def _all_of(count: int) -> Float[np.ndarray, "memberships few"]:
    """Return all memberships of so many candidates, a row each."""
    numbers = np.arange(2**count)[:, None] >> np.arange(count)
    return (numbers & 1).astype(np.float64)


BUDGET = 2.0  # epsilon of all cards of a ledger
FOLDER = "accounts"
_PURPOSE = "number on a card"
_PATIENCE = 60.0  # seconds for which another export is waited for
_TOLD = 10  # candidates in common from which equal coins are no chance
_BEYOND = 5.0  # standard deviations
_ALIGNED = 20_000  # coins in their order that are compared
_CHANCE = 1e-3  # that independent ones are taken for the same


class NotedNumber(BaseModel):
    """A number that a card may have said.

    Attributes:
        data: The hash of the data set, or of what stands for it.
        placed: Whether records are known by their place in a data set.
        sizes: As in :class:`RankQuery`, and so the next two.
        members: A digit for each candidate, 1 for a member.
        noised: The number that was said, in steps of the noise.
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
        if not self.placed or run.origin == SCORES:  # known by their order alone
            order = np.argsort(self.records)
            owned = np.flatnonzero(ledger.owner >= 0)
            coins = ledger.is_member[owned[ledger.units(owned).first]]
            return are_aligned(self.is_member[order], coins)
        there = np.array(self.records) < len(ledger.owner)
        records = np.array(self.records)[there]
        common = ledger.owner[records] >= 0
        agree = (ledger.is_member[records] == self.is_member[there])[common]
        surplus = 2 * int(agree.sum()) - len(agree)
        enough = len(agree) >= _TOLD
        return enough and (bool(agree.all()) or surplus > _BEYOND * len(agree) ** 0.5)


def are_aligned(
    first: Bool[np.ndarray, " coins"], second: Bool[np.ndarray, " _"]
) -> bool:
    """Say whether two rows of fair coins are one, some of whose coins either may lack.

    Of independent rows of m <= n coins a common subsequence of k > n / 2 has at most the
    chance C(m, k) P(Binomial(n, 1/2) >= k), as k of the first are to be found in the
    second, and that at most C(m, k) C(n, k) n / 2^n. The longest one is counted by bits:
    Hyyrö, "Bit-parallel LCS-length computation revisited", AWOCA 2004.
    """
    rows = first[:_ALIGNED], second[:_ALIGNED]
    if any(4 * np.count_nonzero(np.diff(row)) < len(row) for row in rows):
        return False  # sorted by membership, and in no order that coins have
    short, long = sorted(rows, key=len)
    whole = (1 << len(long)) - 1
    heads = int("".join("01"[one] for one in long[::-1].astype(int)) or "0", 2)
    left, of_coin = whole, (whole & ~heads, heads)
    for coin in short.tolist():
        both = left & of_coin[coin]
        left = ((left + both) | (left - both)) & whole
    common = len(long) - left.bit_count()
    if 2 * common <= len(long):
        return False
    choices = sum(
        math.lgamma(n + 1) - math.lgamma(common + 1) - math.lgamma(n - common + 1)
        for n in (len(short), len(long))
    )
    chance = choices + math.log(len(long)) - len(long) * math.log(2)
    return chance < math.log(_CHANCE)


@dataclass(frozen=True)
class Account:
    """What was noted about one ledger."""

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
        tables = defaultdict[str, list[NotedNumber]](list)  # each has its own places
        for one in self.noted.values():
            tables["" if one.placed else one.ledger].append(one)
        for noted in tables.values():
            self._check_table(noted)

    @staticmethod
    def _check_table(noted: Sequence[NotedNumber]) -> None:
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
        everything = map(_load, sorted(folder.glob("*.json")))
        account = Account({n.key: n for n in everything if n.is_about(run)})
        yield account, lambda number: _note(folder, number)


def _note(folder: Path, number: NotedNumber) -> None:
    content = number.model_dump(mode="json")
    signed = {"number": content, "signature": sign(_PURPOSE, content)}
    name = f"{number.ledger[:16]}-{number.query.digest[:32]}-{number.noised}.json"
    write_json(folder / name, signed)


def _load(path: Path) -> NotedNumber:
    stored = read_json(path)
    content: Any = stored.get("number")
    check_signature(_PURPOSE, content, stored.get("signature"), path)
    try:
        return NotedNumber.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise TranscriptError(
            f"{path} is none of this version's account of cards ({first['msg']}). Use "
            "the version that wrote it."
        ) from None
