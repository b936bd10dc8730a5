"""Metrics of rounds: what they add up to for whoever watches, and certified."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.federation.trainer import Task, claim_of
from privaudit.federation.transcript import UPLOAD_KINDS, Transcript
from privaudit.privacy.certificate import privacy_record
from privaudit.privacy.events import Claim
from privaudit.runs.config import RunConfig
from privaudit.runs.run import Run
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.progress import RoundDone

SHARE = 0.01  # of the time of a training, that accounting may take for those who watch


class RoundNumbers:
    """The numbers of a training so far, from the lines of metrics.jsonl.

    Accounting takes up to a fifth of a second each time, so it is not asked after every
    round of a quick training.
    The claim's delta is the one of the certificates; ``lines`` are of the rounds that
    counted before.
    """

    def __init__(
        self,
        run: str,
        config: RunConfig,
        claim: Claim,
        lines: Sequence[Mapping[str, Any]],
    ) -> None:
        self.run, self.total, self.claim = run, config.rounds, claim
        self.lines, self.randomness = list(lines), config.randomness
        self.leaves_out = config.without is not None
        self.is_declared = not config.applies_mechanisms
        self.bytes_up = sum(line["bytes_up"] for line in lines)
        self.bytes_down = sum(line["bytes_down"] for line in lines)
        self.utility: tuple[Estimate, int] | None = None
        self.epsilon: dict[str, float | None] = {}
        self.epsilon_round = 0
        self.began = time.perf_counter()
        self.spent = self.last = 0.0

    def add(self, line: Mapping[str, Any], utility: Estimate | None) -> RoundDone:
        """Count a round, and return its event."""
        self.lines.append(line)
        self.bytes_up += line["bytes_up"]
        self.bytes_down += line["bytes_down"]
        done = len(self.lines)
        if utility is not None:
            self.utility = (utility, done)
        allowed = SHARE * (time.perf_counter() - self.began)
        is_time = self.spent + self.last <= allowed or not self.epsilon
        if done == self.total or is_time:
            self._account()
        last, measured = self.utility or (None, None)
        return RoundDone(
            run=self.run,
            done=done,
            total=self.total,
            loss=line["training_loss"],
            utility=last,
            utility_round=measured,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            epsilon=self.epsilon,
            delta=self.claim.delta,
            epsilon_round=self.epsilon_round,
            randomness=self.randomness,
        )

    def _account(self) -> None:
        """Ask as the finished run does; after the last round that is its record."""
        began = time.perf_counter()
        rounds = [line["mechanisms"] for line in self.lines]
        sends = any(line["bytes_up"] for line in self.lines)
        record = privacy_record(
            self.claim,
            rounds,
            sends_updates=sends,
            leaves_out=self.leaves_out,
            declared=self.is_declared,
        )
        views = record["certified"].items()
        self.epsilon = {view: one["epsilon"] for view, one in views}
        self.epsilon_round = len(self.lines)
        self.last = time.perf_counter() - began
        self.spent += self.last


def certified(
    run: Run, task: Task, metrics: Sequence[Mapping[str, Any]], transcript: Transcript
) -> dict[str, Any]:
    """Return a run's privacy record, from the mechanisms in its metrics."""
    rounds = [line["mechanisms"] for line in metrics]
    kinds = {message.kind for message in transcript}
    sends = bool(kinds & UPLOAD_KINDS)
    return privacy_record(
        claim_of(run.trainer, task),
        rounds,
        sends_updates=sends,
        randomness=run.config.randomness,
        leaves_out=run.config.without is not None,
        declared=not run.config.applies_mechanisms,
    )


def certify_again(run: Run) -> dict[str, Any]:
    """Return the privacy record that a finished run's mechanisms give.

    Data set and model are held against their hashes on the way.
    """
    task = run.population.task
    return certified(run, task, run.metrics, run.transcript)
