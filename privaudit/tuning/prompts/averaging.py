"""What trainers share whose server averages prompts, weighted by shard sizes."""

import pydantic.dataclasses
import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.trainer import (
    Task,
)
from privaudit.tuning.prompts.learning import LocalSgd, start_context


@pydantic.dataclasses.dataclass(frozen=True)
class AveragingTrainer(LocalSgd):
    """A trainer whose clients send the prompt that they trained, as in PromptFL.

    Source: Guo et al., "PromptFL: let federated participants cooperatively learn
    prompts instead of models", IEEE TMC 2023, algorithm 1.
    """

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context."""
        return {"context": start_context(task, seeds)}


def pair_texts(task: Task, prompts: Stacked) -> Float[Tensor, "k prompts classes d"]:
    """Return the text features of each client's "global" and "local" prompt."""
    both = torch.stack([prompts["global"], prompts["local"]], dim=1)
    texts = task.prompts(both.flatten(0, 1))
    return texts.view(*both.shape[:2], *texts.shape[1:])
