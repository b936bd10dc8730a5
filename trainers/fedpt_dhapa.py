"""FedPT with DHAPA: clients weigh by what they say of their records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, beside, stack
from privaudit.federation.batches import Batch, in_parts
from privaudit.federation.client_statistics import (
    EMBEDDING,
    IMPROVEMENT,
    PRESENT,
    SIZE,
    UNCERTAINTY,
    has_records,
    parameters_of,
)
from privaudit.federation.on_device import computes
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    LocalResult,
    Reconstruction,
    Records,
    Round,
    Task,
)
from privaudit.federation.uploads import UNTRAINED
from privaudit.privacy.certificate import Certificate, certify
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import MechanismEvent
from privaudit.tuning.transformers.dhapa import (
    as_batch,
    as_cohort,
    client_weights,
    embeddings,
    entropies,
    find_centres,
    first_best,
    gaps_to_mean,
    held_out,
    nearest_centre,
    part_of,
    shares_in_groups,
    total,
)
from privaudit.tuning.transformers.objectives import objective_of
from privaudit.tuning.transformers.prompt_tuning import PromptTuner

NO_CLIP = 1e30  # the norm in the record of a release that nothing clips
VALIDATED_AT_ONCE = 64  # records of each client
CENTRES = "centres of clusters"
PICKED = "picked cluster"


@TRAINERS.register("fedpt-dhapa")
@dataclass(frozen=True)
class FedPTDhapa(PromptTuner):
    """FedPT with DHAPA: aggregation weights from statistics of the clients' records.

    In each round a client begins at the prompt that does best on its validation part
    (the first of equal ones), trains it, and sends it with the statistics that the
    weights need: the mean entropy of its trained model and the mean feature f(x) over
    all its records, and by how much its validation loss fell. A client without records
    says so, and counts for nothing. f(x) is the frozen model's feature of the whole
    record (of a CLIP, the output of its image tower; of a model that reads pictures as
    tokens, their mean), which is there anyway.

    The server averages inside each cluster; a cluster in which nobody is keeps its
    prompt. Before a round has as many clients with distinct embeddings as there are
    clusters, all prompts get the mean of everyone. The personal model is the last
    broadcast's prompt of the cluster that a client last began at.

    A weight depends on every client's numbers, so the server needs each client's:
    secure aggregation cannot hide them, nor the prompts that they weigh.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", section 2.3, which gives no values for alpha, beta and gamma.
    Performance is minus the loss here, since few validation records make few different
    accuracies.

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

    aggregation: ClassVar[Literal["sum", "individual"]] = "individual"

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    gamma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    weighting: Literal["dhapa", "sizes"] = "dhapa"
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    clusters: Annotated[int, Field(ge=1)] = 1
    statistics_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _check_noise(self) -> "FedPTDhapa":
        if self.statistics_noise and (self.needs(IMPROVEMENT) or self.needs(SIZE)):
            raise ConfigError(
                f"Noise of {self.statistics_noise:g} on the statistics was requested, "
                "and it covers the uncertainty and the mean embedding: a change of "
                "loss has no bound, and a size would be exact. Set gamma = 0 and "
                'weighting = "dhapa".'
            )
        return self

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return every cluster's parameters, all the same, [clusters, ...] each.

        Raises:
            ConfigError: There are more clusters than clients.
        """
        if self.clusters > len(task.clients):
            raise ConfigError(
                f"{self.clusters} clusters of {len(task.clients)} clients were "
                "requested. Use fewer clusters, or more clients."
            )
        return stack([super().start(task, seeds)] * self.clusters)

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return the first cluster as the one picked, where there are several."""
        return {PICKED: torch.tensor(0)} if self.clusters > 1 else {}

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send all clusters' prompts to everyone; a single one without that axis."""
        prompts = {n: t for n, t in server.items() if n != CENTRES}
        return prompts if self.clusters > 1 else {n: t[0] for n, t in prompts.items()}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what suits best, and send it with what DHAPA needs, unweighted."""
        validated = held_out(cohort, at, self.validation_share)
        checked = part_of(cohort, validated)
        starts = self._starts(received)
        before = torch.stack([self.performance(task, s, checked) for s in starts])
        picked = first_best(before)
        begun = _pick(starts, picked)
        trained_on = as_cohort(cohort, cohort.mask & ~validated)
        trained, loss = self.train(task, trained_on, begun, at)
        statistics = self.statistics(task, cohort, trained, at)
        if self.needs(IMPROVEMENT):
            after = self.performance(task, trained, checked)
            statistics[IMPROVEMENT] = after - before.max(dim=0).values
        return LocalResult(
            {**trained, **statistics},
            {PICKED: picked} if self.clusters > 1 else {},
            loss,
            self.noised_events(task, len(at.participants)),
        )

    def aggregate(
        self, task: Task, server: Tensors, inbox: Mapping[ClientId, Tensors], at: Round
    ) -> tuple[Tensors, Events]:
        """Return each cluster's mean, weighted by DHAPA, and the clusters' centres."""
        heard = [sent for sent in inbox.values() if has_records(sent)]
        if not heard:
            return server, ()
        uploads = stack(heard)
        new, shares = dict(server), self.weights(uploads).expand(self.clusters, -1)
        if self.clusters > 1:
            seed = int(at.seeds.stream("clusters").below(2**31, 1)[0])
            before = server.get(CENTRES)
            centres = find_centres(uploads[EMBEDDING], self.clusters, before, seed)
            if centres is not None:
                groups = nearest_centre(uploads[EMBEDDING], centres)
                shares = shares_in_groups(shares[0], groups, self.clusters)
                new[CENTRES] = centres
        for name, sent in parameters_of(uploads).items():
            means = torch.einsum("cn,n...->c...", shares, sent.to(shares))
            alone = shares.sum(dim=1) == 0
            new[name] = torch.where(beside(alone, means), server[name], means.to(sent))
        return new, ()

    def weights(self, uploads: Stacked) -> Float[Tensor, " clients"]:
        """Return what each upload counts, in float64; they sum to 1."""
        count = len(next(iter(uploads.values())))
        if self.weighting == "sizes":
            sizes = uploads[SIZE].double()
            return sizes / sizes.sum()
        absent = torch.zeros(count, dtype=torch.float64)
        gaps = absent
        if self.needs(EMBEDDING):
            gaps = gaps_to_mean(uploads[EMBEDDING].double())
        return client_weights(
            uploads.get(UNCERTAINTY, absent).double(),
            gaps,
            uploads.get(IMPROVEMENT, absent).double(),
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
        )

    def _starts(self, received: Stacked) -> list[Stacked]:
        if self.clusters == 1:
            return [received]
        return [
            {name: tensor[:, number] for name, tensor in received.items()}
            for number in range(self.clusters)
        ]

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the prompt of the cluster that each client last began at."""
        if self.clusters == 1:
            return received
        return _pick(self._starts(received), kept[PICKED])

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return what the client last trained where it is seen, else the broadcast.

        Of several clusters' prompts their mean, since nothing says which one is the
        client's.
        """
        uploads = view.updates_of(client) if view.sees_updates_of(client) else ()
        if uploads and has_records(uploads[-1].tensors):
            return Reconstruction(parameters_of(uploads[-1].tensors))
        if view.has_release_of(client):
            return Reconstruction(view.release_of(client).tensors)
        last = view.last_broadcast(client).tensors
        if self.clusters == 1:
            return Reconstruction(last, (UNTRAINED,))
        return Reconstruction(_mean(last), (UNTRAINED, "which cluster it picked"))

    def own_model(self, server: Tensors) -> Tensors:
        """Return the server's own model: the plain mean of the clusters' prompts."""
        return _mean({n: t for n, t in server.items() if n != CENTRES})

    def single_step(self) -> Any:
        """Return the same trainer with one step on the whole shard, and no statistics.

        Of several clusters' prompts it then begins at the first.
        """
        return replace(
            super().single_step(),
            alpha=0.0,
            beta=0.0,
            gamma=0.0,
            weighting="dhapa",
            validation_share=0.0,
            statistics_noise=0.0,
        )

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


def _pick(starts: Sequence[Stacked], picked: Int[Tensor, " k"]) -> dict[str, Tensor]:
    """Return each client's own choice of several stacks."""
    rows = torch.arange(len(picked))
    return {
        name: torch.stack([start[name] for start in starts])[picked, rows]
        for name in starts[0]
    }


def _mean(stacked: Stacked) -> dict[str, Tensor]:
    return {name: tensor.mean(dim=0) for name, tensor in stacked.items()}
