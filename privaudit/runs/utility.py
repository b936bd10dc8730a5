"""Utility of personal models: on a client's own classes, and on its neighbours'."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field

from privaudit.core.errors import TooFewRecordsError
from privaudit.core.parameters import to_plain
from privaudit.core.tensors import Tensors, distinct
from privaudit.federation.trainer import ClientId, MeasuresItself, Trainer
from privaudit.runs.population import Population
from privaudit.runs.tasks import (
    EXACT,
    LIKENESS,
    RUN_TASKS,
    RepeatedRows,
    TaskScores,
    client_means,
)
from privaudit.statistics.captions.answers import F1
from privaudit.statistics.estimate import Estimate, half_width, normal_quantile

_MEAN = "mean over clients, linearised over test records"
_SAMPLED = (
    "mean over sampled clients, linearised over test records, with finite-population "
    "correction"
)

OWNERS = "utility"  # what an owner's own function measures
METRICS = ("accuracy", EXACT, F1, LIKENESS, OWNERS)


@dataclass(frozen=True)
class Utility:
    """Scores of the personal models, averaged over clients.

    A score is whether a class is right; for models that write, whether an answer is, or
    how much of a caption people wrote too.

    Attributes:
        local: On the test records of the client's own classes, and its own domain.
        neighbour: On all others; None if every client owns all.
        mix: On test records mixed as the client's candidates are, by class and domain:
            what tables on Dirichlet partitions report.
        gain: Local score beyond the zero-shot model's, on the same records; None where
            there is no model to compare with.
        zero_shot: The zero-shot model's local score; None likewise.
        server: The same as ``mix`` over all test records, of the server's own model;
            None where there is no such model, or nobody asked.
        everywhere: The clients' models on all test records, to stand beside the
            server's; None where there is no server's.
        captions: For models that write captions, every metric of captions over all test
            records: of the clients' models on average, and of the server's.
        macro_f1: For models that classify, of the clients' models on all test records.
        tested_clients: How many clients' models were measured, where not all were: their
            sampling is in the intervals, but for those of captions and macro F1.
        all: On all test records, each counting once for every client: what compares
            one client that has everything with many; not stored.
    """

    local: Estimate
    neighbour: Estimate | None
    mix: Estimate
    gain: Annotated[Estimate | None, Field(alias="gain_over_zero_shot")]
    zero_shot: Estimate | None
    metric: str = "accuracy"
    server: Estimate | None = None
    everywhere: Estimate | None = None
    captions: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    macro_f1: Estimate | None = None
    tested_clients: int | None = None
    all: Annotated[Estimate | None, Field(exclude=True)] = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for audit.json."""
        return dict(to_plain(Utility, self))


def measure_clients(
    trainer: Trainer,
    population: Population,
    models: Mapping[ClientId, Tensors],
    server: Tensors | None = None,
) -> Utility:
    """Return the utility of clients' personal models, and of the server's.

    Of those clients that the population names, where it names some.

    Raises:
        ConfigError: The models generate text, and only their owner can ask them.
    """
    tested = population.tested_clients
    if tested is not None:
        models = {client: models[client] for client in tested if client in models}
    share = len(models) / len(population.task.candidates) if tested else 1.0
    mean = partial(mean_accuracy, fraction=share)
    measured = measure_tests(trainer, population, list(models.values()))
    correct, plain = measured.rows, population.untrained_scores
    own = population.own_rows(list(models))
    others = replace(own, rows=~own.rows)
    mix = population.mix_rows(list(models))
    gain = zero_shot = None
    if plain is not None:
        gain = mean(replace(correct, rows=correct.rows - plain), own)
        zero_shot = mean(_everybody(plain, len(models)), own)
    return Utility(
        local=mean(correct, own),
        neighbour=mean(correct, others) if others.rows.any() else None,
        gain=gain,
        zero_shot=zero_shot,
        mix=mean(correct, mix),
        all=mean(correct, _all_records(correct)),
        metric=measured.metric,
        macro_f1=measured.macro_f1,
        tested_clients=len(models) if tested else None,
        **_of_server(trainer, population, server, measured, mean),
    )


def _of_server(
    trainer: Trainer,
    population: Population,
    server: Tensors | None,
    clients: TaskScores,
    mean: Callable[[RepeatedRows, RepeatedRows], Estimate],
) -> dict[str, Any]:
    """Return the server's part of the utility; captions with the clients' beside."""
    captions = {"clients": clients.captions} if clients.captions else {}
    if server is None:
        return {"captions": captions}
    measured = measure_tests(trainer, population, [server])
    if measured.captions:
        captions["server"] = measured.captions
    return {
        "server": mean_accuracy(measured.rows, _all_records(measured.rows)),
        "everywhere": mean(clients.rows, _all_records(clients.rows)),
        "captions": captions,
    }


def _all_records(scores: RepeatedRows) -> RepeatedRows:
    """Return weights by which every record counts for every client."""
    return _everybody(np.ones(scores.rows.shape[1], dtype=bool), len(scores.which))


def _everybody(row: Shaped[np.ndarray, " tests"], clients: int) -> RepeatedRows:
    return RepeatedRows(row[None], np.zeros(clients, dtype=np.int64))


def measure_tests(
    trainer: Trainer, population: Population, models: Sequence[Tensors]
) -> TaskScores:
    """Return how every model does on every test record."""
    task, tests = population.task, population.tests
    if isinstance(trainer, MeasuresItself):
        positions, places = distinct(models)
        scores = trainer.measure([models[i] for i in positions], tests)
        if scores is not None:
            return TaskScores(OWNERS, RepeatedRows(scores, np.array(places)))
    return RUN_TASKS[task.kind].measure(trainer, task, models, tests)


def mean_accuracy(
    scores: RepeatedRows | Float[np.ndarray, "clients tests"],
    counted: RepeatedRows
    | Bool[np.ndarray, "clients tests"]
    | Float[np.ndarray, "clients tests"],
    confidence: float = 0.95,
    *,
    fraction: float = 1.0,
) -> Estimate:
    """Return the mean over clients of each client's mean over its test records.

    A test record serves several clients, so the replicate is the record: the variance
    is the sum over records of its squared influence (linearisation, normal interval).
    It says how the number would move with other test records, not with other clients.

    Where clients are a random sample, without replacement, the variance of their mean
    is added: (1 - f) s^2 / n, of the n clients' means, f being the share that they are.
    As s^2 holds what single records make of single clients too, the interval is rather
    too wide than too narrow.

    Source: Cochran, "Sampling techniques", 3rd edition, Wiley 1977, equations 2.20 and
    10.14 (two-stage sampling), without the factor f of the second stage: here all
    clients are asked about the same records.

    Args:
        scores: 0 or 1 for each client and record, or a difference of two such.
        counted: Which records count for which client, or how much: weights of 0 or
            more, of any sum.
        confidence: Coverage, in (0, 1).
        fraction: The share that these clients are of all, in (0, 1].

    Raises:
        TooFewRecordsError: No record counts for any client.
    """
    scores, counted = RepeatedRows.of(scores), RepeatedRows.of(counted)
    used = (counted.rows != 0).any(axis=1)[counted.which]
    if not used.any():
        raise TooFewRecordsError(
            f"None of {counted.rows.shape[1]} test records counts for any of "
            f"{len(counted.which)} clients, so that there is no accuracy. Use a larger "
            "test_share, or data whose test records are of the clients' classes."
        )
    scores = replace(scores, which=scores.which[used])
    counted = replace(counted, which=counted.which[used])
    means, influence = client_means(scores, counted)
    records = int(counted.rows[np.unique(counted.which)].any(axis=0).sum())
    half = half_width(influence, records, confidence)
    if fraction < 1:
        spread = means.var(ddof=1) if len(means) > 1 else 1.0  # of one, nobody knows
        variance = (1 - fraction) * spread / len(means)
        half = float(np.hypot(half, normal_quantile(confidence) * np.sqrt(variance)))
    value = min(float(means.mean()), 1.0)  # shares of float32 add up to a little more
    least = scores.rows[np.unique(scores.which)].min(initial=0.0)
    low = min(max(float(value - half), float(least)), value)
    high = min(float(value + half), 1.0)
    method = _MEAN if fraction == 1 else _SAMPLED
    return Estimate(value, low, high, (records,), method, confidence)


def logged(utility: Utility | None) -> dict[str, Any]:
    """Return what metrics.jsonl says of a utility; None for each number without one."""
    estimates = {
        f"{name}_accuracy": utility and getattr(utility, name)
        for name in ("local", "neighbour", "mix", "all")
    }
    estimates["macro_f1"] = utility and utility.macro_f1
    values = {name: one and one.value for name, one in estimates.items()}
    return values | _captions(utility) if utility else values


def _captions(utility: Utility) -> dict[str, float]:
    """Return caption metrics as "server BLEU-1", and a writing server's own score."""
    values = {
        f"{who} {name}": estimate.value
        for who, metrics in utility.captions.items()
        for name, estimate in metrics.items()
    }
    if utility.server is not None and utility.metric != "accuracy":
        values[f"server {utility.metric}"] = utility.server.value
    if utility.everywhere is not None and utility.metric != "accuracy":
        values[f"clients {utility.metric}"] = utility.everywhere.value
    return values
