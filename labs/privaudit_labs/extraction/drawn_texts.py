"""Extraction: how likely a model writes its records out again, and what it really draws.

The prefix is what a model is shown of a record: its picture, its question and the first
part of its answer. The suffix is what is left of the answer, with the token that ends
it. Its probability p_z is a product over its tokens, so one pass that reads the text
gives it for every prefix, and nothing need be drawn.

Draws of one record part where their tokens do: those that begin alike are one branch
with a count, which its next token splits by a multinomial draw. So a text that is
memorised costs one pass for each token, however often it is drawn, and a branch that is
too far from the record's own suffix ends. One that draws the end token is at its end:
tokens that it lacks are wrong.

Source: Hayes et al., "Measuring memorization in language models via probabilistic
extraction", NAACL 2025: a text is (n, p)-discoverably extractable where
1 - (1 - p_z)^n >= p. Their prefixes and suffixes are of 50 tokens each; here answers
are short, and a prefix is a share of one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.auditing.answer_values import ROWS_AT_ONCE, answered
from privaudit.auditing.attack import Adversary, Target
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.datasets.records import ANSWER, PictureTokens, TokenSequences
from privaudit.federation.trainer import ClientId, Records, Task
from privaudit.models.interfaces import Tuning
from privaudit_labs.extraction.answer_table import AnswerTable, SamplingScheme


def is_extractable(
    log_probabilities: Float[np.ndarray, " records"], tries: int, p: float
) -> Bool[np.ndarray, " records"]:
    """Say which suffixes come within n draws, at least 1, with probability p in (0, 1).

    Example:
        >>> is_extractable(np.log([0.5, 0.1, 0.0699, 0.06]), tries=10, p=0.5)
        array([ True,  True,  True, False])
    """
    return log_probabilities >= math.log(-math.expm1(math.log1p(-p) / tries))


@dataclass(frozen=True)
class Draws:
    """How often suffixes came, of as many draws for each record.

    Attributes:
        exact: Draws that are the record's own suffix.
        near: Draws that differ from it in at most the allowed tokens, place by place.
    """

    exact: Int[np.ndarray, " records"]
    near: Int[np.ndarray, " records"]
    tries: int


@dataclass(frozen=True)
class _Branch:
    """Draws of one record that are alike so far."""

    row: int
    tokens: tuple[int, ...]
    wrong: int
    count: int
    ended: bool


@dataclass(frozen=True)
class SuffixDraws:
    """Draws suffixes of records from one model.

    Attributes:
        tuning: What the one model adds to it.
        near: Percent of a suffix's tokens that may differ, place by place.

    Source: Hayes et al., NAACL 2025, for suffixes that are not verbatim, with the
    Hamming distance.
    """

    task: Task
    tuning: Tuning
    scheme: SamplingScheme
    near: float
    tries: int

    @torch.no_grad()
    def of(
        self,
        records: Records,
        starts: Int[Tensor, " records"],
        rng: np.random.Generator,
    ) -> Draws:
        """Draw the suffixes of some records, each from a place in its answer on."""
        exact, near = (np.zeros(len(records), np.int64) for _ in range(2))
        if not len(records):
            return Draws(exact, near, self.tries)
        words, pictures = answered(records)
        firsts = (words.kinds == ANSWER).int().argmax(dim=1)
        sizes = (words.kinds == ANSWER).sum(dim=1)
        begin, end = (firsts + starts).tolist(), (firsts + sizes).tolist()
        branches = [
            _Branch(row, (), 0, self.tries, ended=False) for row in range(len(records))
        ]
        while branches:
            grown = [
                one
                for branch, p in self._expected(words, pictures, begin, branches)
                for one in self._grow(branch, p, words, begin, end, rng)
            ]
            branches = []
            for one in grown:
                if not one.ended:
                    branches.append(one)
                    continue
                near[one.row] += one.count
                exact[one.row] += one.count * (one.wrong == 0)
        return Draws(exact, near, self.tries)

    def _expected(
        self,
        words: TokenSequences,
        pictures: PictureTokens,
        begin: Sequence[int],
        branches: Sequence[_Branch],
    ) -> Iterator[tuple[_Branch, Float[np.ndarray, " vocabulary"]]]:
        """Yield each branch with the probabilities of its next token."""
        language = self.task.language
        for first in range(0, len(branches), ROWS_AT_ONCE):
            some = branches[first : first + ROWS_AT_ONCE]
            positions = torch.tensor([begin[b.row] + len(b.tokens) for b in some])
            rows = torch.tensor([b.row for b in some])
            ids = words.ids[rows]
            for drawn, branch in zip(ids, some, strict=True):
                start = begin[branch.row]
                suffix = torch.tensor(branch.tokens, dtype=drawn.dtype)
                drawn[start : start + len(suffix)] = suffix
            # Nothing sees what stands behind it: there stands the record's own.
            read = TokenSequences(ids, words.kinds[rows])[:, : int(positions.max())]
            ahead, column = (positions - 1).unique(return_inverse=True)
            logits = language.logits(
                pictures[rows].read(language.device)[None],
                read.repeated(1).to(language.device),
                self.tuning,
                ahead.to(language.device),
            )[0].cpu()
            for number, branch in enumerate(some):
                logs = self.scheme.log_probabilities(logits[number, column[number]])
                yield branch, logs.exp().numpy()

    def _grow(
        self,
        branch: _Branch,
        p: Float[np.ndarray, " vocabulary"],
        words: TokenSequences,
        begin: Sequence[int],
        end: Sequence[int],
        rng: np.random.Generator,
    ) -> Iterator[_Branch]:
        """Yield what a branch becomes, but for what is too far from the record's own."""
        row, position = branch.row, begin[branch.row] + len(branch.tokens)
        own, last = int(words.ids[row, position]), int(words.ids[row, end[row] - 1])
        allowed = int(self.near * (end[row] - begin[row]) / 100)
        counts = rng.multinomial(branch.count, p / p.sum())
        for token in np.flatnonzero(counts).tolist():
            wrong = branch.wrong + (token != own)
            ended = token == last or position + 1 == end[row]
            if token == last:
                wrong += end[row] - position - 1  # it ends too early: the rest lacks
            if wrong <= allowed:
                tokens = (*branch.tokens, token)
                yield _Branch(row, tokens, wrong, int(counts[token]), ended)


@dataclass(frozen=True)
class ExtractedClient:
    """What one client's model says of the client's candidates.

    Attributes:
        drawn: Candidates whose suffixes were drawn, chosen without their membership.
    """

    client: ClientId
    table: AnswerTable
    drawn: Int[np.ndarray, " some"]
    draws: Draws


@runtime_checkable
class Extracts(Protocol):
    """An attack that has texts written, not only says whose they are."""

    @property
    def prefix(self) -> float:
        """Percent of an answer that is shown, for scores and draws."""

    @property
    def p(self) -> float:
        """The probability from which an extraction counts."""

    @property
    def near(self) -> float:
        """Percent of a suffix's tokens that may differ in a near match."""

    def extract(self, adversary: Adversary, target: Target) -> ExtractedClient:
        """Return what the target's model says of its candidates' texts."""
