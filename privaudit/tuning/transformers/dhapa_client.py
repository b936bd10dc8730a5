"""DHAPA's parameters, and what its clients say of their records."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch, in_parts
from privaudit.federated.client_statistics import (
    EMBEDDING,
    IMPROVEMENT,
    PRESENT,
    SIZE,
    UNCERTAINTY,
)
from privaudit.federated.on_device import computes
from privaudit.federated.trainer import Cohort, Events, Records, Round, Task
from privaudit.privacy.certificate import Certificate, certify
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import MechanismEvent
from privaudit.tuning.transformers.dhapa_statistics import (
    as_batch,
    embeddings,
    entropies,
    part_of,
    total,
)
from privaudit.tuning.transformers.objectives import objective_of
from privaudit.tuning.transformers.prompt_tuning import PromptTuner

NO_CLIP = 1e30  # the norm in the record of a release that nothing clips
VALIDATED_AT_ONCE = 64  # records of each client


@pydantic.dataclasses.dataclass(frozen=True)
class DhapaClient(PromptTuner):
    """A client that also sends statistics of all its records.

    Attributes:
        alpha: Factor of the uncertainty: the softmax over clients of the mean entropy
            of a client's trained model on its records. The softmax shares out 1 among
            all, so with many clients it counts little beside the others.
        beta: Factor of closeness: 1 less the gap between a client's mean embedding and
            the clients' mean of those, scaled to [0, 1].
        gamma: Factor of improvement: by how much training lowered the loss on the
            client's own validation part, scaled to [0, 1].
        weighting: "dhapa", or "sizes": by the number of records, as plain averaging.
        validation_share: Part of a client's records that is not trained on, drawn once
            for all rounds; 0 validates nothing. They are members all the same: what is
            sent depends on them.
        clusters: Groups of clients, by their mean embeddings; each group has a prompt,
            and every client gets all of them. 1 is no grouping.
        statistics_noise: Standard deviation of the noise on a client's sums of
            statistics, over their sensitivity to one record; 0 sends exact means. It
            hides nothing of the prompt, which is sent as it is.
    """

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    weighting: Literal["dhapa", "sizes"] = "dhapa"
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    clusters: Annotated[int, Field(ge=1)] = 1
    statistics_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _check_noise(self) -> "DhapaClient":
        if self.statistics_noise and (self.needs(IMPROVEMENT) or self.needs(SIZE)):
            raise ConfigError(
                f"Noise of {self.statistics_noise:g} on the statistics was requested, "
                "and it covers the uncertainty and the mean embedding: a change of "
                "loss has no bound, and a size would be exact. Set gamma = 0 and "
                'weighting = "dhapa".'
            )
        return self

    def needs(self, statistic: str) -> bool:
        """Say whether clients send a statistic: only if something depends on it."""
        weighs = self.weighting == "dhapa"
        return {
            UNCERTAINTY: weighs and self.alpha > 0,
            EMBEDDING: (weighs and self.beta > 0) or self.clusters > 1,
            IMPROVEMENT: weighs and self.gamma > 0,
            SIZE: not weighs,
            PRESENT: weighs and not self.statistics_noise,
        }[statistic]

    @torch.no_grad()
    def performance(
        self, task: Task, parameters: Stacked, batch: Batch
    ) -> Float[Tensor, " k"]:
        """Return minus the mean loss; 0 where a client has no record in the batch.

        Also 0 where nothing depends on it, for it takes time.
        """
        negative_loss = torch.zeros(len(batch.mask))
        if self.clusters == 1 and not self.needs(IMPROVEMENT):
            return negative_loss

        count = objective_of(task).predictions
        whole = count(batch).clamp(min=1)
        for part in in_parts(batch, VALIDATED_AT_ONCE):
            negative_loss -= count(part) / whole * self.losses(task, parameters, part)
        return negative_loss

    @computes
    def contributions(
        self, task: Task, models: Stacked, records: Records
    ) -> Mapping[str, Float[Tensor, "models records width"]]:
        """Return each record's feature, and its entropy under each sent model."""
        count = len(next(iter(models.values())))
        return self._contributions(task, models, as_batch(records, count))

    @property
    def is_noised(self) -> bool:
        """Whether statistics carry noise."""
        return self.statistics_noise > 0

    def noise_std(self, task: Task) -> Mapping[str, float]:
        """Return the standard deviation of the noise on each sum; empty without."""
        if not self.statistics_noise:
            return {}
        bounds = self._bounds(task)
        std = self.statistics_noise * math.sqrt(len(bounds))
        return {name: std * bound for name, bound in bounds.items()}

    def certify_statistics(self, task: Task, delta: float = 1e-5) -> Certificate:
        """Return what noise proves about all rounds' statistics by themselves.

        Given the prompts, at which entropies are taken: those are sent without noise,
        and so the run itself has no certificate.
        """
        rounds = [self.noised_events(task, 1)[:1]] * task.rounds
        return certify(rounds, "server", delta)

    def noised_events(self, task: Task, parties: int) -> Events:
        """Describe the noise of a round, and the prompt beside it, which has none."""
        count = sum(map(self.needs, (EMBEDDING, UNCERTAINTY)))
        if not self.statistics_noise or not count:
            return ()
        noised = MechanismEvent(
            release="upload",
            noise_multiplier=self.statistics_noise,
            sensitivity=1.0,
            clip_norm=math.sqrt(count),
            sampling_rate=1.0,
            sampling="fixed-batch",
            noise_at="client",
            parties=parties,
        )
        width = task.public.features.shape[-1] if self.needs(EMBEDDING) else 0
        values = width + self.needs(UNCERTAINTY)
        prompt = replace(
            noised, noise_multiplier=0.0, clip_norm=NO_CLIP, noise_at="none"
        )
        return noised.on(Grid.of(1.0), values), prompt  # no grid has a smaller scale

    def statistics(
        self, task: Task, cohort: Cohort, trained: Stacked, at: Round
    ) -> dict[str, Tensor]:
        """Return the means over all of a client's records, noised where it is asked."""
        batch = part_of(cohort, cohort.mask)
        sizes = batch.sizes.float()
        sums = total(self._contributions(task, trained, batch), batch.mask)
        divisor = sizes.clamp(min=1)
        if self.statistics_noise:
            sums = self._noised(task, cohort, sums, at)
            divisor = torch.full_like(sizes, task.expected_members)
        statistics = {
            name: summed / divisor.unsqueeze(1) for name, summed in sums.items()
        }
        if self.needs(SIZE):
            statistics[SIZE] = sizes
        if self.needs(PRESENT):
            statistics[PRESENT] = (sizes > 0).float()
        return {
            n: t.squeeze(1) if n == UNCERTAINTY else t for n, t in statistics.items()
        }

    def _contributions(
        self, task: Task, models: Stacked, batch: Batch
    ) -> dict[str, Float[Tensor, "k n width"]]:
        contributions = {}
        if self.needs(EMBEDDING):
            within = 1.0 if self.statistics_noise else None
            contributions[EMBEDDING] = embeddings(batch, within=within)
        if self.needs(UNCERTAINTY):
            tuning = self.tuning(task, models)
            contributions[UNCERTAINTY] = entropies(task, tuning, batch).unsqueeze(2)
        return contributions

    def _bounds(self, task: Task) -> dict[str, float]:
        """Return by how much one record more or less moves each sum at most."""
        bounds = {EMBEDDING: 1.0, UNCERTAINTY: math.log(objective_of(task).outcomes)}
        return {name: bound for name, bound in bounds.items() if self.needs(name)}

    def _noised(
        self, task: Task, cohort: Cohort, sums: Stacked, at: Round
    ) -> dict[str, Tensor]:
        """Add each client's own noise to its sums."""
        bounds, stds = self._bounds(task), self.noise_std(task)
        streams = [at.secret("statistics noise", c) for c in cohort.clients]
        grids = {name: Grid.of(std) for name, std in stds.items()}
        drawn = {
            name: grids[name].noises(summed.shape[1:], streams)
            for name, summed in sums.items()
        }
        if at.trace is not None:
            scaled = {name: noise / bounds[name] for name, noise in drawn.items()}
            at.trace.noise("upload", scaled, 1.0)
        return {n: grids[n].add(summed, drawn[n]) for n, summed in sums.items()}
