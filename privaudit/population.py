"""The encoded records of a run, and who owns them; the truth about members is apart."""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from privaudit.config import RunConfig
from privaudit.dataset import DATASETS, Pictures
from privaudit.partition import PUBLIC, TEST, Deal, deal_records
from privaudit.seeds import Seeds
from privaudit.trainer import ClientId, PublicTask, Records
from privaudit.transcript import digest


@dataclass(frozen=True)
class Population:
    """Everything a configuration determines before anybody trains.

    Attributes:
        pictures: The data set.
        records: The same, encoded.
        deal: Who owns which record.
        task: What every party knows.
        model_hash: Of the frozen model's weights.
    """

    pictures: Pictures
    records: Records
    deal: Deal
    task: PublicTask
    model_hash: str

    @cached_property
    def data_hash(self) -> str:
        """The SHA-256 of the data set: pixels, labels, class names and template."""
        names = [self.pictures.template, *self.pictures.class_names]
        parts = [digest(self.pictures.pixels), digest(self.pictures.labels), *names]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def indices(self, client: ClientId) -> np.ndarray:
        """Return the positions of a client's candidates in the data set."""
        return self.deal.of(self.task.clients.index(client))

    def candidates(self, client: ClientId) -> Records:
        """Return a client's candidates, members and others alike."""
        return self.records.pick(torch.from_numpy(self.indices(client)))

    @property
    def tests(self) -> Records:
        """The records that utility is measured on."""
        return self.records.pick(torch.from_numpy(self.deal.of(TEST)))

    def own_classes(self, client: ClientId) -> Tensor:
        """Return the classes that a client has candidates of."""
        return self.candidates(client).labels.unique()


def populate(config: RunConfig) -> Population:
    """Load, encode and deal a run's records.

    Raises:
        UnknownNameError: No data set or model has that name.
        ConfigError: The partition is impossible.
        MissingFileError: A checkpoint is missing.
    """
    from privaudit.models.feature_cache import cached_features
    from privaudit.models.loading import load_model

    pictures = _load_pictures(config.dataset)
    deal = deal_records(
        pictures.labels.numpy(),
        config.deal(),
        clients=config.clients,
        test_share=config.test_share,
        public_share=config.public_share,
        seeds=Seeds(config.seed),
    )
    checkpoint = Path(config.checkpoint) if config.checkpoint else None
    model = load_model(config.model, checkpoint)
    records = Records(
        cached_features(model, model.preprocess_batch(pictures.pixels)), pictures.labels
    )
    task = PublicTask(
        prompts=model.prompts(pictures.class_names, config.context_tokens),
        logit_scale=model.logit_scale,
        zero_shot=model.template_features(pictures.class_names, pictures.template),
        public=records.pick(torch.from_numpy(deal.of(PUBLIC))),
        candidates={
            f"client-{number}": len(deal.of(number)) for number in range(config.clients)
        },
        rounds=config.rounds,
    )
    return Population(pictures, records, deal, task, model.model_hash)


@lru_cache(maxsize=4)
def _load_pictures(name: str) -> Pictures:
    return DATASETS.find(name)()
