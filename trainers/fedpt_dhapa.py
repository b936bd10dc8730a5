"""FedPT with DHAPA: clients weigh by what they say of their records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors, stack
from privaudit.federated.client_statistics import (
    EMBEDDING,
    IMPROVEMENT,
    SIZE,
    UNCERTAINTY,
    has_records,
    parameters_of,
)
from privaudit.federated.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    Events,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federated.transcripts.threat_models import View
from privaudit.federated.weighted_mean import UNTRAINED
from privaudit.tuning.transformers.dhapa import (
    client_weights,
    find_centres,
    first_best,
    gaps_to_mean,
    nearest_centre,
    shares_in_groups,
)
from privaudit.tuning.transformers.dhapa_client import DhapaClient
from privaudit.tuning.transformers.dhapa_statistics import as_cohort, held_out, part_of

CENTRES = "centres of clusters"
PICKED = "picked cluster"


@TRAINERS.register("fedpt-dhapa")
@dataclass(frozen=True)
class FedPTDhapa(DhapaClient):
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
    """

    aggregation: ClassVar[Literal["sum", "individual"]] = "individual"

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
        return prompts if self.clusters > 1 else _first(prompts)

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
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

    def _starts(self, received: Stacked) -> list[Stacked]:
        if self.clusters == 1:
            return [received]
        return [
            {name: tensor[:, number] for name, tensor in received.items()}
            for number in range(self.clusters)
        ]

    def aggregate(
        self,
        task: Task,
        server: Tensors,
        inbox: Mapping[ClientId, Tensors],
        at: Round,
    ) -> tuple[Tensors, Events]:
        """Return each cluster's mean, weighted by DHAPA, and the clusters' centres."""
        heard = [sent for sent in inbox.values() if has_records(sent)]
        if not heard:
            return server, ()
        uploads = stack(heard)
        new, shares = dict(server), self.weights(uploads).expand(self.clusters, -1)
        if self.clusters > 1:
            centres = self._centres(server, uploads, at)
            if centres is not None:
                groups = nearest_centre(uploads[EMBEDDING], centres)
                shares = shares_in_groups(shares[0], groups, self.clusters)
                new[CENTRES] = centres
        for name, sent in parameters_of(uploads).items():
            means = torch.einsum("cn,n...->c...", shares, sent.to(shares))
            alone = shares.sum(dim=1) == 0
            alone = alone.view(-1, *[1] * (sent.ndim - 1))
            new[name] = torch.where(alone, server[name], means.to(sent))
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

    def _centres(
        self, server: Tensors, uploads: Stacked, at: Round
    ) -> Float[Tensor, "clusters dim"] | None:
        seed = int(at.seeds.stream("clusters").below(2**31, 1)[0])
        before = server.get(CENTRES)
        return find_centres(uploads[EMBEDDING], self.clusters, before, seed)

    def release(
        self,
        task: Task,
        clients: Sequence[ClientId],
        received: Stacked,
        kept: Stacked,
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


def _pick(starts: Sequence[Stacked], picked: Int[Tensor, " k"]) -> dict[str, Tensor]:
    """Return each client's own choice of several stacks."""
    rows = torch.arange(len(picked))
    return {
        name: torch.stack([start[name] for start in starts])[picked, rows]
        for name in starts[0]
    }


def _first(stacked: Stacked) -> dict[str, Tensor]:
    return {name: tensor[0] for name, tensor in stacked.items()}


def _mean(stacked: Stacked) -> dict[str, Tensor]:
    return {name: tensor.mean(dim=0) for name, tensor in stacked.items()}
