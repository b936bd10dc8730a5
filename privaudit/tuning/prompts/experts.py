"""Mixtures of prompt experts, as pFedMoAP has them: gates, the server's pool, and who gets what.

A gate goes from the text features of experts to one picture's logits; the local expert
comes first, the others after it. All of it is stacked over clients: every client has its
own gate, and no client's numbers reach another's. What a client trains with the experts
that it got is the trainer's.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds, Stream
from privaudit.core.tensors import Stacked, Tensors, below
from privaudit.federation.batches import Batch, Objective
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    ANSWERS,
    ClientId,
    Events,
    Inbox,
    Reconstruction,
    Records,
    Round,
    Signals,
    Task,
    Want,
)
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import WEIGHT, times_weight
from privaudit.tuning.prompts.learning import (
    PromptTrainer,
    mean_losses,
    prompt_losses,
    start_context,
)

GateScale = float | Literal["sqrt"]
PARTS = ("query", "key", "value", "output")


def gate_size(gate_dim: int, dim: int) -> int:
    """Return the size of a pooled feature: ``gate_dim``, or all of a smaller feature.

    Raises:
        ConfigError: Features cannot be pooled to that size.

    Example:
        >>> gate_size(128, 512), gate_size(128, 64)
        (128, 64)
    """
    size = min(gate_dim, dim)
    if dim % size:
        fits = [n for n in range(1, dim + 1) if dim % n == 0 and n >= 32]
        raise ConfigError(
            f"gate_dim = {gate_dim} was requested, but pooling takes every n-th of "
            f"{dim} features. Use one of {', '.join(map(str, fits))}."
        )
    return size


def pool(features: Float[Tensor, "*rest d"], size: int) -> Float[Tensor, "*rest g"]:
    """Return every (d / size)-th feature, without parameters, not normalised again."""
    return features[..., :: features.shape[-1] // size]


def start_attention(size: int, stream: Stream) -> dict[str, Tensor]:
    """Return four linear layers, uniform in +-1/sqrt(size) as torch begins them."""
    layers: dict[str, Tensor] = {}
    for part in PARTS:
        layers |= start_linear(part, size, size, stream)
    return layers


def start_linear(
    part: str, outputs: int, inputs: int, stream: Stream
) -> dict[str, Tensor]:
    """Return a linear layer by ``part``'s name, uniform in +-1/sqrt(inputs) as in torch."""
    bound = 1 / math.sqrt(inputs)

    def draw(*shape: int) -> Tensor:
        return (2 * stream.uniform_tensor(shape) - 1) * bound

    return {f"{part}_weight": draw(outputs, inputs), f"{part}_bias": draw(outputs)}


def attention(
    gate: Stacked,
    images: Float[Tensor, "k b g"],
    experts: Float[Tensor, "k c e g"],
    *,
    heads: int,
    scale: GateScale,
) -> Float[Tensor, "k heads b c e"]:
    """Return each head's attention of every picture to each class's experts.

    Sums to 1 over experts. One gate serves all classes.

    Args:
        gate: As :func:`start_attention` makes it, stacked.
        images: Pooled image features: the queries.
        experts: Pooled text features: the keys.
        heads: At the most: the greatest common divisor with the gate's size is taken.
        scale: What scores are multiplied by; "sqrt": 1 / sqrt(size of a head).
    """
    queries = _split(_apply(gate, "query", images), heads)
    keys = _split(_apply(gate, "key", experts.flatten(1, 2)), heads)
    factor = queries.shape[-1] ** -0.5 if scale == "sqrt" else scale
    scores = factor * queries @ keys.mT
    return scores.unflatten(-1, experts.shape[1:3]).softmax(dim=-1)


def attention_match(
    gate: Stacked,
    images: Float[Tensor, "k b g"],
    experts: Float[Tensor, "k c e g"],
    *,
    heads: int,
    scale: GateScale,
) -> Float[Tensor, "k b c"]:
    """Return the products of pooled pictures with the mixture's text features.

    The mixture sum_e a_e v_e, put through the output layer W and multiplied by a
    picture f, is sum_e a_e <W^T f, v_e> head by head: so no text feature is made for
    each picture and class, only one number for each expert.

    Source: Luo et al., "Mixture of experts made personalized: federated prompt learning
    for vision-language models", ICLR 2025, equation 11.
    """
    weights = attention(gate, images, experts, heads=heads, scale=scale)
    values = _split(_apply(gate, "value", experts.flatten(1, 2)), heads)
    projected = _split(images @ gate["output_weight"], heads)
    matches = (projected @ values.mT).unflatten(-1, experts.shape[1:3])
    constant = (images * gate["output_bias"].unsqueeze(1)).sum(dim=-1)
    return (weights * matches).sum(dim=(1, 4)) + constant.unsqueeze(-1)


def linear_match(
    gate: Stacked,
    images: Float[Tensor, "k b d"],
    experts: Float[Tensor, "k c e d"],
    size: int,
) -> Float[Tensor, "k b c"]:
    """Return the products of pictures with text features mixed by a linear layer.

    The layer sees the pooled picture; its outputs are the weights of experts after a
    softmax, the same for all classes. It has a fixed number of them: fewer experts use
    the first ones, and of more the last are left out.

    Source: Luo et al., section 3.3 and table 7; Shazeer et al., "Outrageously large
    neural networks", ICLR 2017, without noise or sparsity.
    """
    count = min(len(gate["share_bias"][0]), experts.shape[2])
    scores = _apply(gate, "share", pool(images, size))[..., :count]
    matches = torch.einsum("kbd,kced->kbce", images, experts[:, :, :count])
    return (scores.softmax(dim=-1).unsqueeze(2) * matches).sum(dim=-1)


def gate_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gate's tensors among others, under their own names.

    Example:
        >>> gate_part({"context": torch.ones(1), "gate/bias": torch.zeros(1)})
        {'bias': tensor([0.])}
    """
    return below("gate/", tensors)


def named_gate(gate: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a gate's tensors under names that tell them from others."""
    return {f"gate/{name}": tensor for name, tensor in gate.items()}


def _apply(
    gate: Stacked, part: str, features: Float[Tensor, "k n inputs"]
) -> Float[Tensor, "k n outputs"]:
    return features @ gate[f"{part}_weight"].mT + gate[f"{part}_bias"].unsqueeze(1)


def _split(
    features: Float[Tensor, "k n g"], heads: int
) -> Float[Tensor, "k heads n part"]:
    parts = math.gcd(heads, features.shape[-1])
    return features.unflatten(-1, (parts, -1)).transpose(1, 2)


Choose = Literal["nearest", "random", "all"]
PREFIX = "pool/"
ENCODED_AT_ONCE = 64  # prompts in one pass of the text tower: bounds memory


def into_pool(prompts: Mapping[ClientId, Tensor]) -> dict[str, Tensor]:
    """Return prompts under the names they have in the server's state."""
    return {f"{PREFIX}{client}": prompt for client, prompt in prompts.items()}


def draw_experts(
    pool: Mapping[ClientId, Tensor],
    client: ClientId,
    at: Round,
    count: int,
    choose: Choose,
) -> Float[Tensor, "experts tokens width"] | None:
    """Return other clients' prompts for a client, or None where it gets none.

    They come in an order of chance, so that it tells neither owner nor distance nor
    age. A client without a prompt of its own in the pool gets none.

    The pool is as it stood after the round before. Chosen are the ``count`` "nearest"
    by l2 over the flattened prompts, ties in the order of names; so many "random" ones;
    or "all".
    """
    others = [pool[name] for name in sorted(pool) if name != client]
    if client not in pool or not others or not count:
        return None
    stacked = torch.stack(others)
    if choose == "nearest":
        distances = (stacked - pool[client]).flatten(1).norm(dim=1)
        stacked = stacked[distances.argsort(stable=True)[:count]]
    order = at.stream("experts", client).permutation(len(stacked))
    return stacked[order if choose == "all" else order[:count]]


@torch.no_grad()
def expert_features(
    task: Task, experts: Float[Tensor, "k experts tokens width"]
) -> Float[Tensor, "k classes experts dim"]:
    """Return the text features of experts, without gradient.

    Clients share most of their experts: each is encoded once.
    """
    flat = experts.flatten(0, 1)
    distinct, where = torch.unique(flat.flatten(1), dim=0, return_inverse=True)
    encoded = [
        task.prompts(chunk)
        for chunk in distinct.unflatten(1, flat.shape[1:]).split(ENCODED_AT_ONCE)
    ]
    features = torch.cat(encoded)[where]
    return features.unflatten(0, experts.shape[:2]).transpose(1, 2)


NUMBERS_AT_ONCE = 2**22  # in one tensor of attention: bounds memory
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@pydantic.dataclasses.dataclass(frozen=True)
class PromptExperts(PromptTrainer):
    """Clients get each other's prompts as experts, and mix them by a gate.

    Kept: the client's gate; its own prompt after training; and, once the gate has been
    trained, a mark that says so. A personal model is {"context"}, or with a trained
    gate {"context", "gate/...", "experts"}.

    Attributes:
        experts: Prompts of others that a client gets in a round, published 9; 0 is
            PromptFL with prompts of one's own.
        choose: Which: the "nearest" by l2 to the client's own last prompt, "random"
            ones, or "all" others.
        gate: "attention"; "linear" (for comparison): see
            :func:`linear_match`; "aggregated": an
            attention gate that is sent and averaged like the prompt, so not private.
        gate_dim: Size of pooled features, 32 to 1024, at most a feature's own; it must
            divide that.
        heads: Attention heads; if they do not divide the gate's size, the greatest
            common divisor.
        gate_scale: What attention scores are multiplied by, above 0: 10 in the
            published code, or "sqrt" for 1 / sqrt(size of a head).
        mixing: The paper's lambda, at least 0: weight of the local prompt's own logits
            beside the mixture's.
        gate_learning_rate: Step size of the gate, above 0; published 0.01.
    """

    aggregation: ClassVar[Literal["sum", "individual"]] = "individual"

    experts: Annotated[int, Field(ge=0)] = 9
    choose: Choose = "nearest"
    gate: Literal["attention", "linear", "aggregated"] = "attention"
    gate_dim: Annotated[int, Field(ge=32, le=1024)] = 128
    heads: Annotated[int, Field(ge=1)] = 8
    gate_scale: Rate | Literal["sqrt"] = 10.0
    mixing: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    gate_learning_rate: Rate = 0.003

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context and an empty pool; the gate, if it is everybody's."""
        server = {"context": start_context(task, seeds)}
        if self.gate == "aggregated" and self.experts:
            server |= self.new_gate(task, seeds.stream("gate"))
        return server

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a random gate of the client's own."""
        if self.gate == "aggregated" or not self.experts:
            return {}
        return self.new_gate(task, seeds.stream("gate", client=client))

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the mean prompt, and experts to whoever has a prompt in the pool."""
        sent = {"context": server["context"]}
        given = draw_experts(
            below(PREFIX, server), client, at, self.experts, self.choose
        )
        if given is None:
            return sent
        return {**sent, "experts": given, **named_gate(gate_part(server))}

    def arranged(self, received: Stacked) -> Float[Tensor, "k experts tokens width"]:
        """Return the experts as the gate takes them.

        They come in an order of chance, to which attention is blind. A linear gate is
        not: its client sorts them by distance from the mean prompt that came with them,
        so that an output stands for about the same kind of expert in every round.
        """
        experts = received["experts"]
        if self.gate != "linear":
            return experts
        gaps = (experts - received["context"].unsqueeze(1)).flatten(2).norm(dim=2)
        order = gaps.argsort(dim=1, stable=True)
        return experts[torch.arange(len(experts)).unsqueeze(1), order]

    def begin_mixture(
        self, task: Task, received: Stacked, kept: Stacked
    ) -> tuple[dict[str, Tensor], Objective]:
        """Return what a client trains from where, and its loss.

        Prompt and gate with the experts it got, or the prompt alone without any.
        """
        start = {"context": received["context"]}
        if "experts" not in received:
            return start, lambda some, batch: prompt_losses(
                task, some["context"], batch
            )
        others = expert_features(task, self.arranged(received))

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            local = task.prompts(parameters["context"]).unsqueeze(2)
            experts = torch.cat([local, others], dim=2)
            logits = self.logits(task, gate_part(parameters), experts, batch.features)
            return mean_losses(logits, batch.labels, batch.mask)

        return start | named_gate(gate_part(kept) or gate_part(received)), objective

    def rates(self, parameters: Stacked, of_context: float) -> dict[str, float]:
        """Return the learning rate of each parameter."""
        gate = dict.fromkeys(parameters, self.gate_learning_rate)
        return gate | {"context": of_context}

    def upload(
        self, trained: Stacked, weight: Float[Tensor, " k"]
    ) -> dict[str, Tensor]:
        """Return what is sent: prompt (and averaged gate) times the weight, and that.

        As in PromptFL; whoever gets it divides.
        """
        shared = {"context": trained["context"]}
        if self.gate == "aggregated":
            shared |= named_gate(gate_part(trained))
        return times_weight(shared, weight)

    def keep(self, kept: Stacked, trained: Stacked) -> dict[str, Tensor]:
        """Return the private state after a round of local training."""
        state = {**kept, "context": trained["context"]}
        gate = named_gate(gate_part(trained))
        if gate:
            state["gated"] = torch.ones(len(trained["context"]), dtype=torch.bool)
        return state if self.gate == "aggregated" else {**state, **gate}

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Average by weight, and put each prompt in its client's place in the pool.

        A client that weighs nothing, having no records, changes nothing.
        """
        heard = {c: sent for c, sent in inbox.items() if sent[WEIGHT] > 0}
        if not heard:
            return server, ()
        prompts = {c: own_prompt(sent) for c, sent in heard.items()}
        shared = {name for sent in heard.values() for name in sent} - {WEIGHT}
        means = {name: _mean(heard.values(), name) for name in sorted(shared)}
        return {**server, **means, **into_pool(prompts)}, ()

    def release(
        self, task: Task, clients: Sequence[ClientId], received: Stacked, kept: Stacked
    ) -> Stacked:
        """Release the client's own prompt, its gate and the experts it got last.

        Without the gate as long as that is untrained, and the mean prompt where the
        client never trained.
        """
        model = {"context": kept.get("context", received["context"])}
        if "gated" not in kept or "experts" not in received:
            return model
        gate = gate_part(kept) or gate_part(received)
        return {**model, **named_gate(gate), "experts": self.arranged(received)}

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return an upload, or what may be the client's.

        Who sees uploads takes the last one that was trained without experts: beside a
        gate a prompt learns little of its client's records, as the gate learns them
        first. (On digits, 8 runs, attack by loss: AUROC 0.556 on that upload, 0.511 on
        the last one. To train a gate on public records in the missing one's place added
        nothing to the latter in 3 runs.) An averaged gate is known, and so the whole
        model.
        A peer has the mean, and prompts of which one may be the client's: nothing says
        whose they are. (When they were trained is known, where all clients take part:
        in the round before.)
        """
        if view.sees_updates_of(client):
            heard = [m for m in view.updates_of(client) if m.tensors[WEIGHT] > 0]
            if heard:
                return self.from_uploads(task, view, client, heard)
        context = view.last_broadcast(client).tensors["context"]
        suspects = view.once("suspects", lambda: _suspects(view))
        missing = "the client's own training in its last round"
        if suspects:
            missing = "whose the prompts of others are, and the experts beside them"
        return Reconstruction({"context": context}, (missing,), suspects=suspects)

    def from_uploads(
        self, task: Task, view: View, client: ClientId, heard: Sequence[Message]
    ) -> Reconstruction:
        """Return the best model that a client's uploads give.

        ``heard`` are its uploads that weigh something: at least one.
        """
        received = {m.round: m.tensors for m in view.broadcasts_to(client)}
        last = heard[-1]
        if "experts" not in received[last.round]:
            return Reconstruction({"context": own_prompt(last.tensors)})
        if self.gate == "aggregated":
            got = view.last_broadcast(client).tensors
            gate = named_gate(gate_part(got))
            model = {"context": own_prompt(last.tensors), "experts": got["experts"]}
            return Reconstruction({**model, **gate})
        plain = [m for m in heard if "experts" not in received[m.round]]
        return Reconstruction(
            {"context": own_prompt(plain[-1].tensors)},
            missing=("the gate, and what was trained beside it",),
            staleness=last.round - plain[-1].round,
        )

    def new_gate(self, task: Task, stream: Stream) -> dict[str, Tensor]:
        """Return an untrained gate."""
        size = self.gate_size(task)
        if self.gate != "linear":
            return named_gate(start_attention(size, stream))
        others = len(task.clients) - 1 if self.choose == "all" else self.experts
        return named_gate(start_linear("share", others + 1, size, stream))

    def gate_size(self, task: Task) -> int:
        """Return the size of pooled features."""
        return gate_size(self.gate_dim, task.zero_shot.shape[-1])

    def logits(
        self,
        task: Task,
        gate: Stacked,
        experts: Float[Tensor, "k classes experts d"],
        images: Float[Tensor, "k b d"],
    ) -> Float[Tensor, "k b classes"]:
        """Return s <f, mixture> + mixing * s <f, local>; the local expert is the first.

        Source: Luo et al., "Mixture of experts made personalized: federated prompt
        learning for vision-language models", ICLR 2025, equation 10.
        """
        size = self.gate_size(task)
        of_local = torch.einsum("kbd,kcd->kbc", images, experts[:, :, 0])
        if self.gate == "linear":
            of_mixture = linear_match(gate, images, experts, size)
        else:
            of_mixture = attention_match(
                gate,
                pool(images, size),
                pool(experts, size),
                heads=self.heads,
                scale=self.gate_scale,
            )
        return task.logit_scale * (of_mixture + self.mixing * of_local)

    @torch.no_grad()
    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield the log-probabilities of mixtures, or of prompts without a gate."""
        if "experts" not in models:
            yield from super().query(task, models, records, want)
            return
        gate, local = gate_part(models), task.prompts(models["context"]).unsqueeze(2)
        experts = torch.cat([local, expert_features(task, models["experts"])], dim=2)
        numbers = experts[0, ..., 0].numel() * self.heads
        for images in records.features.split(max(1, NUMBERS_AT_ONCE // numbers)):
            answers = [
                self.logits(
                    task,
                    {name: tensor[i : i + 1] for name, tensor in gate.items()},
                    experts[i : i + 1],
                    images.unsqueeze(0),
                )
                for i in range(len(experts))
            ]
            yield {"log_probabilities": torch.cat(answers).log_softmax(dim=-1)}


def own_prompt(sent: Mapping[str, Tensor]) -> Tensor:
    """Return the prompt that an upload holds; its weight must be above 0."""
    return sent["context"] / sent[WEIGHT]


def _mean(uploads: Iterable[Tensors], name: str) -> Tensor:
    """Return the weighted mean over those who sent it."""
    contributions = [sent for sent in uploads if name in sent]
    total = torch.stack([sent[name] for sent in contributions]).sum(dim=0)
    return total / torch.stack([sent[WEIGHT] for sent in contributions]).sum()


def _suspects(view: View) -> tuple[Tensors, ...]:
    """Return the distinct experts that a peer received, in the order of arrival."""
    if view.adversary != "peer":
        return ()
    seen: dict[bytes, Tensor] = {}
    for message in view.messages:
        for expert in message.tensors.get("experts", ()):
            seen.setdefault(expert.numpy().tobytes(), expert)
    return tuple({"context": expert} for expert in seen.values())
