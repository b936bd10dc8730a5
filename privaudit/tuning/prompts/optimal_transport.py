"""Entropic optimal transport between a picture's parts and a class's prompts, and logits by it.

A plan says how much of each part goes to each prompt. Many small problems are solved
side by side; the axis of classes is the last, so that every pass runs over contiguous
memory and sums over parts never cross it. The plan is a constant to gradients: so a loss
and its gradient by the text features come from one sweep over some records at a time, and
memory stays flat however many there are.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked
from privaudit.datasets.records import PictureTokens
from privaudit.federation.batches import Batch
from privaudit.federation.trainer import ANSWERS, Records, Signals, Task, Want
from privaudit.tuning.prompts.learning import QUERY_CHUNK, PromptTrainer, pair_texts

LOOK_BACK = 8  # iterations between two looks at what has changed
THRESHOLD = 1e-3  # mean change of a scaling vector below which iterations stop
FLOAT32_ENTROPY, FLOAT64_ENTROPY = 0.08, 0.01
"""From here on, no quotient or product of scalings leaves the type's range: costs are
at most 2, so the logarithms stay within 3 * 2 / entropy."""

Stop = Literal["record", "batch", "never"]
Problems = Float[Tensor, "prompts clients parts records classes"]
RowMass = Float[Tensor, "#clients #parts #records #classes"]
ColumnMass = Float[Tensor, "#prompts #clients #records #classes"]


@pydantic.dataclasses.dataclass(frozen=True)
class Transport:
    """Which problem is solved, and how far.

    Attributes:
        entropy: Weight of the entropy, above 0: the smaller, the sharper the plan, and
            the further a plan is from converged after so many iterations.
        mass: Part of the picture that is transported, in (0, 1]; 1 is all of it.
        iterations: At most so many.
        stop: When a record's problems stop early. "record": the mean over its classes
            and prompts of |change of v| falls below 0.001. "batch", as published: the
            mean over the batch does, so that one record's plan depends on the others.
            "never": all iterations, always.
        balanced: Whether parts must be used up exactly, not at most; then all the mass
            is transported, whatever ``mass`` says.
    """

    entropy: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    mass: Annotated[float, Field(gt=0, le=1)] = 0.8
    iterations: Annotated[int, Field(ge=1)] = 100
    stop: Stop = "record"
    balanced: bool = False


@dataclass(frozen=True)
class TransportPlan:
    """What goes where.

    Attributes:
        weights: Of each part to each prompt; they sum to the mass.
        iterations: How many were done, for each record.
    """

    weights: Problems
    iterations: Int[Tensor, "clients records"]


@torch.no_grad()
def transport_plan(
    similarity: Problems,
    transport: Transport,
    *,
    rows: RowMass | None = None,
    columns: ColumnMass | None = None,
    mask: Tensor | None = None,
) -> TransportPlan:
    """Return plans that bring similar parts and prompts together.

    With K = exp((similarity - 1) / entropy), u = min(1, a / (K v)) and v = b / (K.T u)
    in turn from v = 1; the plan is u K v. A part gives at most its mass, a prompt gets
    exactly its own. Balanced: u = a / (K v), and what is watched is the change of u.

    Scaling vectors are kept as they are, in float32 or float64, while the entropy is
    large enough that no overflow is possible; below 0.01 their logarithms are. Either
    way the numbers are those of the published recurrence, converged or not.

    Source: Li et al., "Global and local prompts cooperation via optimal transport for
    federated learning", CVPR 2024, equations 8 to 10 and algorithm 1; Benamou et al.,
    "Iterative Bregman projections for regularized transportation problems", SIAM J.
    Sci. Comput. 37 (2015), proposition 5. Their code works in float16 or float32 and
    overflows at an entropy of 0.01; it always stops by batch.

    Args:
        similarity: Cosines, in [-1, 1].
        transport: Entropy, mass, and when to stop.
        rows: What each part can give, a; by default 1 / parts.
        columns: What each prompt gets, b; by default mass / prompts.
        mask: Which records count where the batch decides when to stop.
    """
    prompts, _, parts = similarity.shape[:3]
    mass = 1.0 if transport.balanced else transport.mass
    kind = similarity.dtype
    double = kind == torch.float64 or transport.entropy < FLOAT32_ENTROPY
    rows = similarity.new_tensor(1 / parts) if rows is None else rows
    columns = similarity.new_tensor(mass / prompts) if columns is None else columns
    if double:
        similarity, rows, columns = similarity.double(), rows.double(), columns.double()
    scaled = transport.entropy >= FLOAT64_ENTROPY
    make: type[_Problem] = _Scalings if scaled else _Logarithms
    problem = make(similarity, rows, columns, transport)
    before, after, iterations = _iterate(problem, transport, mask)
    return TransportPlan(problem.plan(before, after).to(kind), iterations)


class _Problem(ABC):
    """One form of the recurrence; potentials are v, or their logarithms.

    Potentials have the axes [prompts, clients, records, classes], u has [clients,
    parts, records, classes].
    """

    def __init__(
        self, similarity: Tensor, rows: Tensor, columns: Tensor, transport: Transport
    ) -> None:
        self._rows, self._columns = rows, columns
        self._entropy, self._balanced = transport.entropy, transport.balanced
        self._u = similarity.new_ones(())  # of the last step that was looked at
        self._prepare(similarity)

    @abstractmethod
    def _prepare(self, similarity: Tensor) -> None: ...
    @abstractmethod
    def start(self) -> Tensor: ...
    @abstractmethod
    def next(self, potential: Tensor) -> Tensor: ...
    @abstractmethod
    def u(self, potential: Tensor) -> Tensor: ...
    @abstractmethod
    def v(self, potential: Tensor) -> Tensor: ...
    @abstractmethod
    def plan(self, before: Tensor, after: Tensor) -> Tensor: ...

    def moves(self, path: Tensor) -> Tensor:
        """Return by how much v, or u, changes in each step, [steps, k, records]."""
        if not self._balanced:
            return self.v(path).diff(dim=0).abs_().mean((1, 4))
        us = [self._u, *(self.u(potential) for potential in path[:-1])]
        self._u = us[-1]
        return torch.stack([(b - a).abs_().mean((1, 3)) for a, b in pairwise(us)])


def _iterate(
    problem: _Problem, transport: Transport, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each record's last two potentials, and after how many iterations.

    Looks back every few iterations only, which on small problems saves half the time;
    what stands then is what stood when the record's change first was small enough.
    """
    before = after = end = problem.start()
    count = torch.zeros(end.shape[1:3], dtype=torch.long)
    if transport.stop == "never":  # nobody asks for the steps between
        for _ in range(transport.iterations):
            before, after = after, problem.next(after)
        return before, after, count + transport.iterations
    settled = torch.zeros(end.shape[1:3], dtype=torch.bool)
    for first in range(0, transport.iterations, LOOK_BACK):
        steps = [end]
        for _ in range(min(LOOK_BACK, transport.iterations - first)):
            steps.append(problem.next(steps[-1]))
        path, end = torch.stack(steps), steps[-1]
        last, quiet = _stops(problem.moves(path), transport.stop, mask)
        held = settled[:, :, None]
        before = torch.where(held, before, _pick(path, last))
        after = torch.where(held, after, _pick(path, last + 1))
        count += torch.where(settled, 0, last + 1)
        settled = settled | quiet
        if settled.all():
            break
    return before, after, count


def _stops(moves: Tensor, stop: Stop, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each record's last step [k, records], and whether it stops there."""
    if stop == "batch":
        weight = torch.ones_like(moves[0]) if mask is None else mask.to(moves.dtype)
        total = weight.sum(1, keepdim=True).clamp(min=1)
        moves = ((moves * weight).sum(2, keepdim=True) / total).expand_as(moves)
    quiet = moves < THRESHOLD
    stops = quiet.any(dim=0)
    return torch.where(stops, quiet.int().argmax(dim=0), len(moves) - 1), stops


def _pick(path: Tensor, steps: Tensor) -> Tensor:
    """Return [prompts, k, records, classes], of each record at its own step."""
    index = steps[None, None, :, :, None].expand(1, *path.shape[1:])
    return path.gather(0, index)[0]


class _Scalings(_Problem):
    """Scaling vectors as they are.

    With R = K / K_0 for all prompts but the first, and w = K_0 u, an iteration is
    w = min(K_0, a / (v_0 + sum R v)), v_0 = b / sum w, v = b / sum R w: for two prompts
    six passes over memory, in two buffers.
    """

    def _prepare(self, similarity: Tensor) -> None:
        first = similarity[0]
        self._kernel = first.sub(1).div_(self._entropy).exp_()
        self._ratios = [(s - first).div_(self._entropy).exp_() for s in similarity[1:]]
        self._left = torch.empty_like(first)
        self._scratch = torch.empty_like(first)
        self._shape = similarity[:, :, 0].shape

    def start(self) -> Tensor:
        return torch.ones(self._shape, dtype=self._kernel.dtype)

    def next(self, potential: Tensor) -> Tensor:
        left = self._make_left(potential)
        new = torch.empty(self._shape, dtype=left.dtype)
        torch.sum(left, 1, out=new[0])
        for ratio, place in zip(self._ratios, new[1:], strict=True):
            torch.sum(torch.mul(left, ratio, out=self._scratch), 1, out=place)
        return torch.div(self._columns, new, out=new)

    def _make_left(self, potential: Tensor) -> Tensor:
        """Return w, in a buffer that the next call overwrites."""
        left, first = self._left, potential[0, :, None]
        if not self._ratios:
            left.copy_(first.expand_as(left))
        for ratio, other in zip(self._ratios, potential[1:, :, None], strict=True):
            torch.addcmul(first, ratio, other, out=left)
            first = left
        torch.div(self._rows, left, out=left)
        return left if self._balanced else _least(left, self._kernel)

    def u(self, potential: Tensor) -> Tensor:
        return self._make_left(potential) / self._kernel

    def v(self, potential: Tensor) -> Tensor:
        return potential

    def plan(self, before: Tensor, after: Tensor) -> Tensor:
        left = self._make_left(before)
        parts = [left * after[0, :, None]]
        for ratio, potential in zip(self._ratios, after[1:, :, None], strict=True):
            parts.append((left * ratio).mul_(potential))
        return torch.stack(parts)


def _least(values: Tensor, others: Tensor) -> Tensor:
    """Return the lesser of two positive numbers each, in the memory of the first ones.

    Positive floats are in the order of their bits. ATen's portable kernel compares
    integers 18 times as fast as floats.
    """
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    whole = values.view(kind)
    torch.minimum(whole, others.view(kind), out=whole)
    return values


class _Logarithms(_Problem):
    """Their logarithms f and g, which cannot overflow, and are slower.

    f = min(0, ln a - lse(ln K + g)), g = ln b - lse(ln K + f).
    """

    def _prepare(self, similarity: Tensor) -> None:
        self._kernel = (similarity - 1) / self._entropy
        self._rows, self._columns = self._rows.log(), self._columns.log()

    def start(self) -> Tensor:
        return torch.zeros_like(self._kernel[:, :, 0])

    def next(self, potential: Tensor) -> Tensor:
        left = self._make_left(potential)
        return self._columns - torch.logsumexp(self._kernel + left, dim=2)

    def _make_left(self, potential: Tensor) -> Tensor:
        total = torch.logsumexp(self._kernel + potential[:, :, None], dim=0)
        left = self._rows - total
        return left if self._balanced else left.clamp(max=0)

    def u(self, potential: Tensor) -> Tensor:
        return self._make_left(potential).exp_()

    def v(self, potential: Tensor) -> Tensor:
        return potential.exp()

    def plan(self, before: Tensor, after: Tensor) -> Tensor:
        left = self._make_left(before)
        return (left + self._kernel + after[:, :, None]).exp()


ENTRIES = 200_000  # of a plan, for one prompt: what the caches of a core hold

Texts = Float[Tensor, "k prompts classes d"]
Tokens = Float[Tensor, "k b parts d"]


def tokens_of(records: Records | Batch) -> PictureTokens:
    """Return the parts of pictures, not yet read.

    Raises:
        ConfigError: The records have none.
    """
    if records.tokens is None:
        raise ConfigError(
            "Optimal transport matches prompts with the parts of a picture, and these "
            "records are pooled features without parts. Use a data set of pictures, "
            'or a method that needs no parts, such as "promptfl".'
        )
    return records.tokens


@dataclass(frozen=True)
class _Part:
    """Some clients' plans for some records."""

    clients: slice
    records: slice
    tokens: Float[Tensor, "k rows d"]
    plan: Float[Tensor, "prompts k parts b classes"]
    logits: Float[Tensor, "k b classes"]


def _solve(
    text: Texts,
    tokens: Tokens,
    scale: float,
    transport: Transport,
    mask: Bool[Tensor, "k b"] | None,
) -> Iterator[_Part]:
    """Yield the plans of all records, as many at once as fit a cache."""
    clients, records, parts, width = tokens.shape
    prompts, classes = text.shape[1:3]
    entries = parts * classes
    some_records = max(1, ENTRIES // entries)
    if transport.stop == "batch":
        some_records = records
    some_clients = max(1, ENTRIES // (entries * records))
    for first in range(0, clients, some_clients):
        who = slice(first, first + some_clients)
        for start in range(0, records, some_records):
            what = slice(start, start + some_records)
            shown = None if mask is None else mask[who, what]
            chunk = tokens[who, what].transpose(1, 2)
            k, b = len(chunk), chunk.shape[2]
            flat = chunk.reshape(k, parts * b, width)
            similarity = flat.new_empty(prompts, k, parts, b, classes)
            for row, out in zip(text[who].unbind(1), similarity, strict=True):
                torch.bmm(flat, row.mT, out=out.view(k, parts * b, classes))
            plan = transport_plan(similarity, transport, mask=shown).weights
            logits = scale * similarity.mul_(plan).sum((0, 2))
            yield _Part(who, what, flat, plan, logits)


@torch.no_grad()
def transported_logits(
    text: Texts, tokens: Tokens, scale: float, transport: Transport
) -> Float[Tensor, "k b classes"]:
    """Return scale * sum(plan * similarity), not divided by the transported mass.

    Source: Li et al., CVPR 2024 (FedOTP), equation 6, as its code computes it.
    """
    logits = text.new_empty(*tokens.shape[:2], text.shape[2])
    for part in _solve(text, tokens, scale, transport, None):
        logits[part.clients, part.records] = part.logits
    return logits


def transported_losses(
    task: Task, text: Texts, batch: Batch, transport: Transport
) -> Float[Tensor, " k"]:
    """Return each client's mean cross-entropy, differentiable by the text features."""
    scale = task.logit_scale
    return _Losses.apply(text, batch, scale, transport)  # type: ignore[no-untyped-call]


def transported_record_losses(
    task: Task, text: Texts, batch: Batch, transport: Transport
) -> Float[Tensor, "k b"]:
    """Return every record's cross-entropy, differentiable by the text features.

    Takes much more memory than :func:`transported_losses`: text features for each
    record. A record's loss is its own if the transport doesn't stop by batch.
    """
    drawn = text.new_empty(*batch.mask.shape, *text.shape[1:])
    with torch.no_grad():
        for part in _solve_batch(text.detach(), batch, task.logit_scale, transport):
            tokens = part.tokens.view(*part.plan.shape[1:4], -1)
            drawn[part.clients, part.records] = torch.einsum(
                "pkmbc,kmbd->kbpcd", part.plan, tokens
            )
    logits = task.logit_scale * torch.einsum("kbpcd,kpcd->kbc", drawn, text)
    return cross_entropy(logits.mT, batch.labels, reduction="none")


@torch.no_grad()
def query_transported(
    task: Task,
    text: Float[Tensor, "models prompts classes d"],
    records: Records,
    transport: Transport,
) -> Iterator[Signals]:
    """Yield log-probabilities [models, chunk, classes] by transport."""
    held = tokens_of(records)
    for chosen in torch.arange(len(held)).split(QUERY_CHUNK):
        tokens = held[chosen].read(text.device)
        # In the order of the products: else they are copied for each model.
        tokens = tokens.transpose(0, 1).contiguous().transpose(0, 1)
        expanded = tokens.expand(len(text), *tokens.shape)
        logits = transported_logits(text, expanded, task.logit_scale, transport)
        yield {"log_probabilities": logits.log_softmax(-1)}


@pydantic.dataclasses.dataclass(frozen=True)
class PromptPair(PromptTrainer):
    """A trainer whose models are a "global" and a "local" prompt, matched by transport.

    Attributes:
        entropy: Entropic regularisation of the transport, above 0; published 0.1, and
            0.01 for few shots.
        mass: Part of a picture that is transported, in (0, 1]; published 0.8.
        iterations: Of the transport, at the most; published 100.
    """

    entropy: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    mass: Annotated[float, Field(gt=0, le=1)] = 0.8
    iterations: Annotated[int, Field(ge=1)] = 100

    @property
    @abstractmethod
    def transport(self) -> Transport:
        """The problem that is solved for each picture and class."""

    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield the log-probabilities of transported similarities, or of one context."""
        if "context" in models:
            return super().query(task, models, records, want)
        texts = pair_texts(task, models)
        return query_transported(task, texts, records, self.transport)


class _Losses(torch.autograd.Function):
    """Mean losses, whose gradients are made in the same sweep."""

    @staticmethod
    def forward(
        context: Any, text: Tensor, batch: Batch, scale: float, transport: Transport
    ) -> Tensor:
        total, gradient = text.new_zeros(len(text)), torch.zeros_like(text)
        for part in _solve_batch(text, batch, scale, transport):
            place = part.clients, part.records
            labels, shown = batch.labels[place], batch.mask[place]
            losses = cross_entropy(part.logits.mT, labels, reduction="none")
            total[part.clients] += (losses * shown).sum(1)
            errors = part.logits.softmax(-1) - one_hot(labels, part.logits.shape[-1])
            errors.mul_(scale * shown[..., None])
            carried = part.plan.mul_(errors[:, None]).flatten(2, 3)
            for prompt, weights in enumerate(carried):
                gradient[part.clients, prompt] += weights.mT @ part.tokens
        sizes = batch.sizes.clamp(min=1).to(text.dtype)
        context.save_for_backward(gradient / sizes[:, None, None, None])
        return total / sizes

    @staticmethod
    def backward(context: Any, *outer: Any) -> Any:
        (gradient,) = context.saved_tensors
        return outer[0][:, None, None, None] * gradient, None, None, None


def _solve_batch(
    text: Texts, batch: Batch, scale: float, transport: Transport
) -> Iterator[_Part]:
    tokens = tokens_of(batch).read(text.device)
    return _solve(text, tokens, scale, transport, batch.mask)
