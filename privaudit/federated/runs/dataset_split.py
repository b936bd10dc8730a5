"""Who owns which record of a run: its configuration on its data set."""

from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Int

from privaudit.datasets.dataset import Dataset
from privaudit.datasets.groups import group_records
from privaudit.datasets.left_out import leave_out, read_positions
from privaudit.datasets.split import Split, refuse_empty, split_groups, split_records
from privaudit.federated.runs.config import RunConfig


def split_dataset(
    config: RunConfig, dataset: Dataset, known: Int[np.ndarray, " known"] | None
) -> Split:
    """Split records, or groups of them, into clients' candidates, tests and the public.

    ``known`` are records that the frozen model has seen.

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
        seeds=config.seeds,
        split=None if dataset.split is None else dataset.split.numpy(),
        domains=None if dataset.domains is None else dataset.domains.numpy(),
        known=known,
    )
    remaining = whole
    if config.without is not None:
        remaining = leave_out(whole, read_positions(config.without))
        refuse_empty(remaining.owner, config.clients)
    if config.members != "clients":
        return remaining
    first, coins = (_first_of_client(one, config.clients) for one in (remaining, whole))
    return replace(remaining, group=first, coins=coins)


def _first_of_client(split: Split, clients: int) -> Int[np.ndarray, " n"]:
    """Return for each record the position of its client's first."""
    first = np.arange(len(split.owner))
    for client in range(clients):
        own = split.of(client)
        first[own] = own[0]
    return first
