"""Trainers of another package: what they declare is true of some, and not of others.

Each sends class sums of clipped records, with Gaussian noise. A wrong one does one thing
otherwise than its mechanism says.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Round,
    Task,
)
from privaudit.privacy.events import Claim, MechanismEvent
from tests.class_means import ClassMeans


@dataclass(frozen=True)
class NoisyMeans(ClassMeans):
    """Class sums of records clipped one by one, with noise of each client's own."""

    declared: ClassVar[Mapping[str, Any]] = {}
    server_noise: ClassVar[bool] = False
    is_noised: ClassVar[bool] = True

    noise: float = 1.0
    clip: float = 0.5
    epsilon: float = 50.0

    def claim(self, task: Task) -> Claim:
        return Claim(self.epsilon, 1e-5, "a plugin's formula")

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        each = self.contributions(task, cohort)
        clean = {name: tensor.sum(dim=1) for name, tensor in self.clipped(each).items()}
        sent = clean if self.server_noise else self.noised(clean, cohort, at)
        events = () if self.server_noise else (self.event(at),)
        return LocalResult(sent, self.keeps(clean), torch.zeros(len(cohort)), events)

    def contributions(self, task: Task, cohort: Cohort) -> dict[str, Tensor]:
        classes = one_hot(cohort.labels, len(task.zero_shot)) * cohort.mask[..., None]
        return {"sums": torch.einsum("kbc,kbd->kbcd", classes.float(), cohort.features)}

    def clipped(self, each: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Shorten what each record adds, all tensors together."""
        squares = [t.flatten(2).square().sum(dim=2) for t in each.values()]
        norms = torch.stack(squares).sum(dim=0).sqrt().clamp(min=1e-12)
        factor = (self.clip / norms).clamp(max=1.0)
        return {
            n: t * factor.view(*factor.shape, *[1] * (t.ndim - 2))
            for n, t in each.items()
        }

    def noised(
        self, sums: Mapping[str, Tensor], cohort: Cohort, at: Round
    ) -> dict[str, Tensor]:
        return {
            name: torch.stack(
                [
                    one + self.std * self.draw(at, client, name, one.shape)
                    for client, one in zip(cohort.clients, tensor, strict=True)
                ]
            )
            for name, tensor in sums.items()
        }

    @property
    def std(self) -> float:
        return self.noise * self.clip

    def draw(self, at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
        return at.secret(f"noise {name}", client).normal_tensor(tuple(shape))

    def keeps(self, clean: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def event(self, at: Round) -> MechanismEvent:
        return MechanismEvent(
            **{
                "release": "upload",
                "noise_multiplier": self.noise,
                "sensitivity": 1.0,
                "clip_norm": self.clip,
                "sampling_rate": 1.0,
                "sampling": "poisson",
                "noise_at": "server" if self.server_noise else "client",
                "parties": len(at.participants),
                **self.declared,
            }
        )

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        total = {name: inbox[name] for name in inbox}
        events: Events = ()
        if self.server_noise:
            total = {
                name: tensor + self.std * self.draw(at, "", name, tensor.shape)
                for name, tensor in total.items()
            }
            events = (self.event(at),)
        return {"means": total["sums"], **{n: total[n] for n in total}}, events


class TwoTensors(NoisyMeans):
    """The same, and the class counts beside the sums."""

    def contributions(self, task: Task, cohort: Cohort) -> dict[str, Tensor]:
        each = super().contributions(task, cohort)
        classes = one_hot(cohort.labels, len(task.zero_shot)) * cohort.mask[..., None]
        return {**each, "counts": classes.float()}


class ServerNoise(NoisyMeans):
    """The server adds the noise to the sum."""

    server_noise: ClassVar[bool] = True
    declared: ClassVar[Mapping[str, Any]] = {"release": "global"}


class ForClients(NoisyMeans):
    """A client's sum is clipped as a whole, and a client is protected."""

    declared: ClassVar[Mapping[str, Any]] = {
        "unit": "client", "adjacency": "replace-one", "sensitivity": 2.0,
        "per_record": False, "sampling": "fixed-batch",
    }  # fmt: skip

    def clipped(self, each: Mapping[str, Tensor]) -> dict[str, Tensor]:
        whole = {n: t.sum(dim=1, keepdim=True) for n, t in each.items()}
        return super().clipped(whole)


class Replaced(NoisyMeans):
    """One record in another's place."""

    declared: ClassVar[Mapping[str, Any]] = {
        "adjacency": "replace-one",
        "sensitivity": 2.0,
    }


class Sampled(NoisyMeans):
    """Each record by its own coin, of the secret key."""

    rate: ClassVar[float] = 0.3
    declared: ClassVar[Mapping[str, Any]] = {"sampling_rate": 0.3}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        coins = torch.zeros_like(cohort.mask)
        for place, client in enumerate(cohort.clients):
            tossed = at.secret("sample", client).coins(self.rate, cohort.mask.shape[1])
            coins[place] = torch.as_tensor(tossed)
        object.__setattr__(self, "_coins", coins)
        return super().local_update(task, cohort, received, kept, at)

    def contributions(self, task: Task, cohort: Cohort) -> dict[str, Tensor]:
        each = super().contributions(task, cohort)
        coins = self._coins  # type: ignore[attr-defined]
        return {
            n: t * coins.view(*coins.shape, *[1] * (t.ndim - 2))
            for n, t in each.items()
        }


class KeepsNoised(NoisyMeans):
    """A personal model of what was sent, too."""

    def release(
        self, task: Task, clients: Any, received: Stacked, kept: Stacked
    ) -> Stacked:
        return {"means": received["means"]}


HONEST: dict[str, NoisyMeans] = {
    "records, noise of each client": NoisyMeans(),
    "records, little noise": NoisyMeans(noise=0.3),
    "records, much noise": NoisyMeans(noise=8.0),
    "records, clip norm that never binds": NoisyMeans(clip=3.0),
    "two tensors, clipped together": TwoTensors(),
    "noise of the server": ServerNoise(),
    "clients": ForClients(),
    "one record in another's place": Replaced(),
    "records by coins": Sampled(),
    "a released model of what was sent": KeepsNoised(),
}


Drawn = Callable[[Round, ClientId, str, tuple[int, ...]], Tensor]


def drawing(draw: Drawn, kind: type[NoisyMeans] = NoisyMeans) -> NoisyMeans:
    """Return a trainer that draws its noise otherwise."""
    members = {"draw": lambda self, at, *rest: draw(at, *rest)}
    made: NoisyMeans = type("Drawing", (kind,), members)()
    return made


def declaring(**declared: Any) -> NoisyMeans:
    """Return a trainer that declares something else of its mechanism."""
    made: NoisyMeans = type("Declaring", (NoisyMeans,), {"declared": declared})()
    return made


def no_noise(at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
    return torch.zeros(tuple(shape))


def of_the_seed(at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
    return at.stream(f"noise {name}", client).normal_tensor(tuple(shape))


def of_torch(at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
    return torch.randn(tuple(shape))


def of_a_constant(at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
    generator = torch.Generator().manual_seed(at.index)
    return torch.randn(tuple(shape), generator=generator)


def one_for_all(at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
    return at.secret(f"noise {name}").normal_tensor(tuple(shape))


def one_for_ever(at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
    secrets = at.secrets or at.seeds
    return secrets.stream(name, client=client).normal_tensor(tuple(shape))


class OneExempt(NoisyMeans):
    """One client of several adds no noise."""

    def draw(self, at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
        drawn = super().draw(at, client, name, shape)
        return 0 * drawn if client.endswith("0") else drawn


class NoiseOnACopy(NoisyMeans):
    def noised(
        self, sums: Mapping[str, Tensor], cohort: Cohort, at: Round
    ) -> dict[str, Tensor]:
        copies = {name: tensor.clone() for name, tensor in sums.items()}
        super().noised(copies, cohort, at)
        return dict(sums)


class HalfNoise(NoisyMeans):
    @property
    def std(self) -> float:
        return 0.5 * self.noise * self.clip


class NeverClips(NoisyMeans):
    def clipped(self, each: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(each)


class ClipsLast(NeverClips):
    def noised(
        self, sums: Mapping[str, Tensor], cohort: Cohort, at: Round
    ) -> dict[str, Tensor]:
        noised = super().noised(sums, cohort, at)["sums"]
        norms = noised.flatten(1).norm(dim=1).clamp(min=1e-12)
        return {"sums": noised * (4 * self.clip / norms).clamp(max=1).view(-1, 1, 1)}


class ClipsTheFirst(TwoTensors):
    def clipped(self, each: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**each, **super().clipped({"sums": each["sums"]})}


class NoisesTheFirst(TwoTensors):
    def draw(self, at: Round, client: ClientId, name: str, shape: Any) -> Tensor:
        drawn = super().draw(at, client, name, shape)
        return drawn if name == "sums" else 0 * drawn


class ClipsAtTwice(NoisyMeans):
    times: ClassVar[int] = 2

    def clipped(self, each: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: self.times * t for n, t in super().clipped(each).items()}


class FiveSteps(ClipsAtTwice):
    times: ClassVar[int] = 5


class ClipsTheBatch(ForClients):
    declared: ClassVar[Mapping[str, Any]] = {}


class KeepsClean(NoisyMeans):
    def keeps(self, clean: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"own": clean["sums"]}


class ExactCounts(NoisyMeans):
    def noised(
        self, sums: Mapping[str, Tensor], cohort: Cohort, at: Round
    ) -> dict[str, Tensor]:
        return {**super().noised(sums, cohort, at), "records": cohort.sizes.float()}


WRONG: dict[str, NoisyMeans] = {
    "noise is not added": drawing(no_noise),
    "noise is added to a copy": NoiseOnACopy(),
    "half of the noise": HalfNoise(),
    "one client without noise": OneExempt(),
    "noise of the seed, not the key": drawing(of_the_seed),
    "noise of torch's generator": drawing(of_torch),
    "noise of a fixed seed": drawing(of_a_constant),
    "one noise for all clients": drawing(one_for_all),
    "one noise for all rounds": drawing(one_for_ever),
    "clipped after the noise": ClipsLast(),
    "only the first tensor clipped": ClipsTheFirst(),
    "only the first tensor noised": NoisesTheFirst(),
    "never clipped": NeverClips(),
    "clipped at twice the norm": ClipsAtTwice(),
    "batches clipped, not records": ClipsTheBatch(),
    "sensitivity 0.01": declaring(sensitivity=0.01),
    "replace-one, sensitivity 1": declaring(adjacency="replace-one"),
    "records clipped, clients said to be protected": declaring(**ForClients.declared),
    "rate 0.1 declared, all records taken": declaring(sampling_rate=0.1),
    "a clean state released": KeepsClean(),
    "server noise is not added": drawing(no_noise, ServerNoise),
    "one server noise for all rounds": drawing(one_for_ever, ServerNoise),
    "five steps, declared as one": FiveSteps(),
    "exact counts beside": ExactCounts(),
}
