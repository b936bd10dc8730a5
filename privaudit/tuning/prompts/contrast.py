"""FedPGP's contrast: be like the hand-written prompt, and unlike the personal one."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Batch
from privaudit.federation.trainer import ClientId, Task
from privaudit.tuning.prompts.learning import (
    CONTEXT_STD,
    logits_of,
    mean_losses,
    prompt_losses,
)


def contrast(
    hand: Float[Tensor, "classes d"],
    shared: Float[Tensor, "k classes d"],
    personal: Float[Tensor, "k classes d"],
    temperature: float,
) -> Float[Tensor, " k"]:
    """Return the cross-entropy of telling the hand-written from the personal prompt.

    With pos = cos(hand, shared) and neg = cos(shared, personal) for each class, the
    mean over classes of ln(1 + exp((neg - pos) / temperature)).

    Source: Cui et al., "Harmonizing generalization and personalization in federated
    prompt learning", ICML 2024, equation 9.

    Text features are of the hand-written prompt, of each client's global one, and of
    its global and low-rank prompt together; the temperature is above 0.
    """
    positive = cosine_similarity(hand, shared, dim=-1)
    negative = cosine_similarity(shared, personal, dim=-1)
    return softplus((negative - positive) / temperature).mean(dim=-1)


def low_rank_start(
    task: Task, client: ClientId, rank: int, seeds: Seeds
) -> dict[str, Tensor]:
    """Return a client's own random factors, U and V, both N(0, 0.02^2)."""
    stream = seeds.stream("low-rank prompt", client=client)
    tokens, width = task.prompts.context_tokens, task.prompts.width
    u = stream.normal_tensor((tokens, rank))
    v = stream.normal_tensor((rank, width))
    return {"u": u * CONTEXT_STD, "v": v * CONTEXT_STD}


def personal_context(parameters: Stacked) -> Float[Tensor, "k tokens width"]:
    """Return sigma + U V."""
    return parameters["context"] + parameters["u"] @ parameters["v"]


def contrasted_losses(
    task: Task, parameters: Stacked, batch: Batch, weight: float, temperature: float
) -> Float[Tensor, " k"]:
    """Return each client's cross-entropy under its personal prompt, with the contrast.

    Both prompts go through the text tower together; at weight 0 only one does.
    """
    personal = personal_context(parameters)
    if not weight:
        return prompt_losses(task, personal, batch)
    texts = task.prompts(torch.cat([parameters["context"], personal]))
    shared, personal_texts = texts.split(len(personal))
    logits = logits_of(task, personal_texts, batch.features)
    losses = mean_losses(logits, batch.labels, batch.mask)
    return losses + weight * contrast(
        task.zero_shot, shared, personal_texts, temperature
    )


def prompts_contrast(
    task: Task, parameters: Stacked, temperature: float
) -> Float[Tensor, " k"]:
    """Return the contrast of each client's prompts; no record has a part in it."""
    sigma = parameters["context"]
    both = torch.cat([sigma, personal_context(parameters)])
    shared, personal = task.prompts(both).split(len(sigma))
    return contrast(task.zero_shot, shared, personal, temperature)
