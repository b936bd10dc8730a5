"""A shared and a private prompt for each client, of one shape, encoded together."""

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.tensors import Stacked
from privaudit.trainer import PublicTask


def pair_texts(
    task: PublicTask, prompts: Stacked
) -> Float[Tensor, "k prompts classes d"]:
    """Return the text features of each client's "global" and "local" prompt."""
    both = torch.stack([prompts["global"], prompts["local"]], dim=1)
    texts = task.prompts(both.flatten(0, 1))
    return texts.view(*both.shape[:2], *texts.shape[1:])
