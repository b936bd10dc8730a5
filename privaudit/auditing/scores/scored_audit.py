"""An audit of scores that somebody else computed: evaluated as any attack's are."""

from dataclasses import dataclass
from typing import get_args

import numpy as np
from jaxtyping import Float

from privaudit.auditing.attack_result import (
    AttackResult,
    ClientScores,
    evaluate_scores,
)
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.panoramia import (
    PANORAMIA,
    BeyondBaseline,
    beyond_known,
)
from privaudit.auditing.scenario import OF_SCORES
from privaudit.auditing.scores.score_table import ScoreTable
from privaudit.core.errors import ConfigError, UnknownNameError, shown
from privaudit.federated.runs.ledger import Coin, Ledger
from privaudit.recording.origins.scores import SCORES, ScoredConfig, ScoredRun
from privaudit.statistics.verdict import Sampling

HALF = "median of the client's scores: half of its records are guessed members"
_LONGEST = 60  # characters of a name


@dataclass(frozen=True)
class Declared:
    """What is said of scores, by whoever computed them.

    Attributes:
        attack: What the scores are called.
        sampling: "coin" if an independent fair coin chose each member, before training;
            else no verdict on membership is given.
        settings: The attack's parameters, in words.
        model: What was attacked, in words.
        dataset: What the records are, in words.
    """

    attack: str = SCORES
    sampling: Sampling = "unknown"
    settings: str = ""
    model: str = ""
    dataset: str = ""


def audit_scores(
    table: ScoreTable, declared: Declared | None = None, name: str = SCORES
) -> Audit:
    """Return the audit of a table of scores, in memory.

    :func:`privaudit.auditing.storage.save.save_audit` writes it to a folder, which
    report, gate, compare and export take as they take any run.

    Raises:
        ConfigError: A name is none.
        UnknownNameError: There is no such sampling.
    """
    said = declared or Declared()
    for what, words in (
        ("attack", said.attack),
        ("model", said.model or "-"),
        ("data set", said.dataset or "-"),
    ):
        _check_name(what, words)
    if said.sampling not in get_args(Sampling):
        raise UnknownNameError("sampling", said.sampling, get_args(Sampling))
    config = ScoredConfig(
        clients=len(table.clients),
        sampling=said.sampling,
        model=said.model,
        dataset=said.dataset,
    )
    coin = None if said.sampling == "coin" else Coin("none")
    ledger = Ledger(
        table.client,
        table.is_member,
        group=table.group,
        coin=coin,
        cluster=table.cluster,
    )
    run = ScoredRun.of(name, ledger, config, table.classes, table.names_hash)
    clients = [_of_client(table, ledger, n) for n in range(len(table.clients))]
    result = evaluate_scores(
        said.attack, said.settings, HALF, clients, sampling=said.sampling
    )
    parts = {}
    if table.known is not None:
        parts[PANORAMIA.name] = _beyond(table.known, ledger, result)
    return Audit(
        run, OF_SCORES, {said.attack: result}, utility=None, seed=0, parts=parts,
        computed=run.header["computed"],
    )  # fmt: skip


def _beyond(
    known: Float[np.ndarray, "records columns"], ledger: Ledger, result: AttackResult
) -> BeyondBaseline | None:
    """Return what scores tell beyond what is known; of records that share a coin, the mean."""
    units = ledger.units(np.arange(len(known)))
    records = np.concatenate([client.records for client in result.clients])
    return beyond_known(result, units.mean(known.T).T[units.unit[records]])


def _check_name(what: str, name: str) -> None:
    if not name.strip() or len(name) > _LONGEST or not name.isprintable():
        raise ConfigError(
            f"The {what} was to be called {shown(name)}. A name has 1 to {_LONGEST} "
            "printable characters."
        )


def _of_client(table: ScoreTable, ledger: Ledger, number: int) -> ClientScores:
    """Return a client's scores, of records that share a coin their mean."""
    records = np.flatnonzero(table.client == number)
    units = ledger.units(records)
    scores = units.mean(table.scores[records])
    records = records[units.first]
    return ClientScores(
        client=table.clients[number],
        records=records,
        labels=table.label[records],
        scores=scores,
        guesses=scores > np.median(scores),
        is_member=table.is_member[records],
        cluster=None if table.cluster is None else table.cluster[records],
    )
