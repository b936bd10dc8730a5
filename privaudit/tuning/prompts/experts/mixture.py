"""What a mixture of prompt experts answers: gates, logits, queries."""

from collections.abc import Iterator
from typing import Annotated, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.core.streams import Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.trainer import Records, Signal, Signals, Task
from privaudit.tuning.prompts.experts.gate import (
    attention,
    attention_match,
    gate_part,
    gate_size,
    linear_match,
    linear_shares,
    named_gate,
    pool,
    start_attention,
    start_linear,
)
from privaudit.tuning.prompts.experts.pool import Choose, expert_features
from privaudit.tuning.prompts.learning import PromptTrainer

NUMBERS_AT_ONCE = 2**22  # in one tensor of attention: bounds memory
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@pydantic.dataclasses.dataclass(frozen=True)
class ExpertMixture(PromptTrainer):
    """A prompt trainer whose personal models mix experts by a gate.

    Attributes:
        experts: Prompts of others that a client gets in a round, published 9; 0 is
            PromptFL with prompts of one's own.
        choose: Which: the "nearest" by l2 to the client's own last prompt, "random"
            ones, or "all" others.
        gate: "attention"; "linear" (for comparison): see
            :func:`privaudit.tuning.prompts.experts.gate.linear_match`; "aggregated": an
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

    experts: Annotated[int, Field(ge=0)] = 9
    choose: Choose = "nearest"
    gate: Literal["attention", "linear", "aggregated"] = "attention"
    gate_dim: Annotated[int, Field(ge=32, le=1024)] = 128
    heads: Annotated[int, Field(ge=1)] = 8
    gate_scale: Rate | Literal["sqrt"] = 10.0
    mixing: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    gate_learning_rate: Rate = 0.003

    def new_gate(self, task: Task, stream: Stream) -> dict[str, Tensor]:
        """Return an untrained gate."""
        size = self.gate_size(task)
        if self.gate != "linear":
            return named_gate(start_attention(size, stream))
        others = len(task.clients) - 1 if self.choose == "all" else self.experts
        return named_gate(start_linear(size, others + 1, stream))

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
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        """Yield the log-probabilities of mixtures, or of prompts without a gate."""
        if "experts" not in models:
            yield from super().query(task, models, records, want)
            return
        gate, experts = gate_part(models), self._all_experts(task, models)
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

    @torch.no_grad()
    def expert_shares(
        self, task: Task, model: Tensors, records: Records
    ) -> Float[Tensor, "records experts"]:
        """Return each expert's share in a personal model's mixture, the local first.

        The mean over heads and classes, picture by picture.
        """
        models = {name: tensor.unsqueeze(0) for name, tensor in model.items()}
        gate, experts = gate_part(models), self._all_experts(task, models)
        images, size = records.features.unsqueeze(0), self.gate_size(task)
        if self.gate == "linear":
            return linear_shares(gate, images, experts.shape[2], size)[0]
        shares = [
            attention(
                gate,
                pool(chunk, size),
                pool(experts, size),
                heads=self.heads,
                scale=self.gate_scale,
            ).mean(dim=(1, 3))
            for chunk in images.split(64, dim=1)
        ]
        return torch.cat(shares, dim=1)[0]

    def _all_experts(
        self, task: Task, models: Stacked
    ) -> Float[Tensor, "k classes experts d"]:
        local = task.prompts(models["context"]).unsqueeze(2)
        return torch.cat([local, expert_features(task, models["experts"])], dim=2)
