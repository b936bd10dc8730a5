"""Who owns which record of a run: its configuration on its data set."""

from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Int

from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.groups import group_records
from privaudit.datasets.left_out import leave_out, read_positions
from privaudit.datasets.split import (
    Split,
    refuse_empty,
    split_groups,
    split_records,
)
from privaudit.federated.runs.config import RunConfig


def deal(
    config: RunConfig, dataset: Dataset, known: Int[np.ndarray, " known"] | None
) -> Split:
    """Deal records, or groups of them, to clients, tests and the public.

    Args:
        config: Of the run.
        dataset: Its records.
        known: Those that the frozen model has seen.

    Where a coin decides for a client, its candidates are one group.

    Raises:
        ConfigError: The partition, groups or what is left out are impossible.
    """
    split = split_records
    if config.groups is not None:
        split = partial(split_groups, group_records(dataset, config.groups))
    whole = split(
        dataset.labels.numpy(),
        config.split(),
        config.shares(),
        clients=config.clients,
        seeds=Seeds(config.seed),
        split=None if dataset.split is None else dataset.split.numpy(),
        domains=None if dataset.domains is None else dataset.domains.numpy(),
        known=known,
    )
    dealt = whole
    if config.without is not None:
        dealt = leave_out(whole, read_positions(config.without))
        refuse_empty(dealt.owner, config.clients)
    if config.members != "clients":
        return dealt
    first, coins = (_first_of_client(one, config.clients) for one in (dealt, whole))
    return replace(dealt, group=first, coins=coins)


def _first_of_client(split: Split, clients: int) -> Int[np.ndarray, " n"]:
    """Return for each record the position of its client's first."""
    first = np.arange(len(split.owner))
    for client in range(clients):
        own = split.of(client)
        first[own] = own[0]
    return first
