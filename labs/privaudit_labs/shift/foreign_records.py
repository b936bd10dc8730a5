"""Records of another data set than a run's own, as the run's model reads them."""

import re
from dataclasses import replace

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import torch
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.sources import load_dataset
from privaudit.federation.trainer import Records
from privaudit.runs.config import RunConfig
from privaudit.runs.population import (
    encode_for,
    load_model,
    load_own,
    refuse_mismatch,
)


def records_elsewhere(
    config: RunConfig, dataset: str, data: str | None = None
) -> Records:
    """Return another data set's records as the run's model reads them.

    A classifier knows its own classes only: labels are matched to those by name, case
    and the signs between words aside. The other data set may have fewer classes, in
    another order.

    Raises:
        UnknownNameError: No data set has that name.
        ConfigError: It is the run's own data set; it has a class that the model does
            not know; or, for a model that writes, it has no dialogues.
        MissingFileError: The data set is missing.
    """
    foreign, own_data = load_dataset(dataset, data), load_own(config)
    if foreign.hash == own_data.hash:
        raise ConfigError(
            f"{dataset} is what the run was trained on, so its records are no foreign "
            "non-members. Name another data set."
        )
    refuse_mismatch(config, foreign)
    if config.task == "classification":
        foreign = _with_classes_of(foreign, own_data, dataset)
    return encode_for(config, load_model(config), foreign)


def _with_classes_of(found: Dataset, own: Dataset, name: str) -> Dataset:
    """Return a data set with its labels numbered as another one's."""
    numbers = {_plain(known): n for n, known in enumerate(own.class_names)}
    used = found.labels.unique().tolist()
    unknown = [c for n in used if _plain(c := found.class_names[n]) not in numbers]
    if unknown:
        raise ConfigError(
            f"{len(unknown)} of the {len(used)} classes of {name} are none of the "
            f"{len(own.class_names)} that the run's model tells apart, such as "
            f"{unknown[0]!r}: it knows {', '.join(own.class_names[:4])} and so on. "
            "Use a data set with the same class names, or rename its classes."
        )
    mapped = [numbers.get(_plain(c), 0) for c in found.class_names]
    labels = torch.tensor(mapped)[found.labels]
    return replace(found, labels=labels, class_names=own.class_names)


def _plain(name: str) -> str:
    """Return a class name without what differs between spellings."""
    return " ".join(re.split(r"[\W_]+", name.casefold())).strip()
