"""Extraction: a text that the model writes out again was trained on."""

from collections.abc import Sequence
from math import exp
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import FARTHEST, PUBLIC_MEDIAN, score_beside_public
from privaudit.core.lazy_torch import torch
from privaudit.core.tensors import stack
from privaudit.federation.query import as_writer
from privaudit.federation.trainer import Records
from privaudit_labs.extraction.answer_table import SamplingScheme, answer_table
from privaudit_labs.extraction.drawn_texts import ExtractedClient, SuffixDraws


@ATTACKS.register("extraction")
@dataclass(frozen=True)
class Extraction:
    """Score a candidate by the log-probability that the rest of its text is drawn.

    The model is shown the picture, the question and the first part of the answer, and
    draws the rest token by token. A text that cannot be drawn, as one of its tokens is
    not among the likeliest ``top_k``, scores -1e30.

    Source: Hayes et al., "Measuring memorization in language models via probabilistic
    extraction", NAACL 2025, definition of (n, p)-discoverable extraction; there
    prefixes are of 50 tokens, and records never trained on are another data set's.

    Attributes:
        prefix: Percent of the answer that is shown, for the score.
        temperature: Logits are divided by it before a token is drawn.
        top_k: Only so many of the likeliest tokens are drawn; 0 draws from all.
        p: An extraction within n draws counts if it has at least this probability.
        near: Percent of the rest's tokens that may differ in a near match.
        tries: Draws of each text for near matches; 0 draws none.
        texts: Candidates of each client that near matches are drawn for, at most.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"
    reads_texts: ClassVar[bool] = True

    prefix: Annotated[float, Field(ge=0, lt=100)] = 50.0
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 40
    p: Annotated[float, Field(gt=0, lt=1)] = 0.5
    near: Annotated[float, Field(ge=0, lt=100)] = 20.0
    tries: Annotated[int, Field(ge=0, le=10_000)] = 20
    texts: Annotated[int, Field(ge=1)] = 20

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats, at most 0."""

        def score(target: Target, records: Records) -> Float[np.ndarray, " records"]:
            model = target.reconstructed.model
            table = answer_table(adversary, model, records, self.scheme)
            return table.suffixes(self.prefix).clip(min=-FARTHEST)

        return score_beside_public(adversary, targets, score)

    def said(self, score: float) -> str:
        """Say how likely the rest of a text is drawn."""
        return f"probability {exp(score):.2g} of what is behind {self.prefix:g} %"

    @property
    def scheme(self) -> SamplingScheme:
        """How tokens are drawn."""
        return SamplingScheme(self.temperature, self.top_k)

    def extract(self, adversary: Adversary, target: Target) -> ExtractedClient:
        """Return what the target's model says of its candidates' texts, and draws."""
        model, candidates = target.reconstructed.model, target.candidates
        table = answer_table(adversary, model, candidates, self.scheme)
        stream = adversary.seeds.stream("extraction", client=target.client)
        count = self.texts if self.tries else 0
        drawn = np.sort(stream.permutation(len(candidates))[:count])
        rows = torch.from_numpy(drawn)
        tuning = as_writer(adversary.trainer).tuning(adversary.task, stack([model]))
        draws = SuffixDraws(
            adversary.task, tuning, self.scheme, self.near, self.tries
        ).of(candidates.pick(rows), table.starts(self.prefix)[rows], stream.numpy())
        return ExtractedClient(target.client, table, drawn, draws)
