"""A memory of few-shot features that sharpens a prompt's logits; pFedPrompt's cache.

It holds image features of training records as they are, with their labels: whoever is
given it can look records up.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.federated.trainer import Cohort
from privaudit.tuning.prompts.learning import mean_losses

KEYS, VALUES, FILLED = "memory keys", "memory values", "memory filled"


def empty_memory(slots: int, dim: int) -> dict[str, Tensor]:
    """Return a memory of nothing."""
    return {
        KEYS: torch.zeros(slots, dim),
        VALUES: torch.zeros(slots, dtype=torch.long),
        FILLED: torch.zeros(slots, dtype=torch.bool),
    }


def fill_memory(
    cohort: Cohort, slots: int, held_out: float, seeds: Seeds
) -> tuple[dict[str, Tensor], Bool[Tensor, "k records"]]:
    """Return each client's memory, and which of its records were held out of it.

    A client's draw is the same in every round. Slots that it has no records for stay
    empty, so that shapes tell nothing of its size.

    Args:
        cohort: Whose records.
        slots: Of each memory: a public number.
        held_out: Share of the records that stay out, in [0, 1); at least one record, if
            there are two, unless 0.
        seeds: Of the run.
    """
    rest = torch.zeros_like(cohort.mask)
    chosen = torch.zeros(len(cohort), slots, dtype=torch.long)
    filled = torch.zeros(len(cohort), slots, dtype=torch.bool)
    for row, client in enumerate(cohort.clients):
        size = int(cohort.sizes[row])
        stream = seeds.stream("memory", client=client)
        order = torch.from_numpy(stream.permutation(size))
        out = max(1, int(held_out * size)) if held_out and size > 1 else 0
        rest[row, order[:out]] = True
        stored = order[out:][:slots]
        chosen[row, : len(stored)] = stored
        filled[row, : len(stored)] = True
    rows = torch.arange(len(cohort)).unsqueeze(1)
    memory = {
        KEYS: cohort.features[rows, chosen] * filled.unsqueeze(-1),
        VALUES: cohort.labels[rows, chosen] * filled,
        FILLED: filled,
    }
    return memory, rest


def recall(
    memory: Stacked,
    features: Float[Tensor, "k b d"],
    sharpness: Float[Tensor, " k"],
    classes: int,
) -> Float[Tensor, "k b classes"]:
    """Return exp(-b (1 - <f, F>)) summed over the memory's records of each class.

    Source: Guo et al., "pFedPrompt: learning personalized prompt for vision-language
    models in federated learning", WWW 2023; after Zhang et al., "Tip-Adapter:
    training-free adaption of CLIP for few-shot classification", ECCV 2022.
    """
    likeness = torch.einsum("kbd,ksd->kbs", features, memory[KEYS])
    weight = torch.exp(-sharpness[:, None, None] * (1 - likeness))
    labels = one_hot(memory[VALUES], classes) * memory[FILLED].unsqueeze(-1)
    return weight @ labels.to(weight.dtype)


def choose_blend(
    memory: Stacked,
    cohort: Cohort,
    held_out: Bool[Tensor, "k records"],
    logits: Float[Tensor, "k records classes"],
    strengths: Sequence[float],
    sharpnesses: Sequence[float],
) -> Float[Tensor, "k 2"]:
    """Return each client's strength and sharpness of least loss on what it held out.

    Ties go to what stands first; so does a client that held nothing out.

    Args:
        memory: Of each client.
        cohort: Whose records.
        held_out: Which of them to judge by.
        logits: Of all records, by the prompt alone.
        strengths: Tried, in this order.
        sharpnesses: Tried with each of them.
    """
    best = torch.full((len(cohort),), torch.inf)
    blend = torch.zeros(len(cohort), 2)
    for sharpness in sharpnesses:
        at = torch.full((len(cohort),), sharpness)
        recalled = recall(memory, cohort.features, at, logits.shape[-1])
        for strength in strengths:
            losses = mean_losses(logits + strength * recalled, cohort.labels, held_out)
            better = losses < best
            best = torch.where(better, losses, best)
            pair = torch.tensor([strength, sharpness])
            blend = torch.where(better.unsqueeze(1), pair, blend)
    return blend
