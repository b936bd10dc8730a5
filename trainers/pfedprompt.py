"""pFedPrompt: a shared prompt, and each client's own memory of few-shot features."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import one_hot

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    ANSWERS,
    TRAINERS,
    ClientId,
    Cohort,
    LocalResult,
    Reconstruction,
    Records,
    Round,
    Signals,
    Task,
    Want,
)
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.prompts.learning import (
    QUERY_CHUNK,
    LocalSgd,
    logits_of,
    mean_losses,
)

STRENGTHS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
KEYS, VALUES, FILLED = "memory keys", "memory values", "memory filled"
BLEND = "memory blend"


@TRAINERS.register("pfedprompt")
@dataclass(frozen=True)
class PFedPrompt(LocalSgd):
    """pFedPrompt: PromptFL plus a local memory of image features.

    The first prompt is drawn by ``LocalSgd.start``, tuning/prompts/learning.py.

    A client's logits are s <f, T_c> + a sum over its memory of class c of
    exp(-b (1 - <f, F>)). The memory holds image features of the client's training
    records as they are, and their labels. Of prompts the server takes the mean weighted
    by shard sizes: ``BaseTrainer.aggregate``, federation/trainer.py.

    Whoever is given the personal model is given those features: a record of which the
    feature stands in the memory is a member for certain, at distance 0. No noise on the
    prompt changes that. Neither memory nor a and b are ever sent in training.

    Source: Guo, Guo and Wang, "pFedPrompt: learning personalized prompt for
    vision-language models in federated learning", WWW 2023. There the memory holds
    every training record; here it has a public number of slots, so that shapes tell no
    size, and a and b are chosen by the loss on records held out of it.

    Attributes:
        memory: Slots, at least 1; records beyond them are not remembered.
        strength: a, at least 0; None chooses one of 0, 1, 2, 5, 10 and 20.
        sharpness: b, at least 0; None chooses one of 1, 2, 5, 10, 20 and 50.
        held_out: Share of a client's records that stay out of its memory to choose by,
            in (0, 1). None do if a and b are given.
    """

    memory: Annotated[int, Field(ge=1)] = 64
    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    sharpness: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.25

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return an empty memory, which adds nothing."""
        dim = task.zero_shot.shape[1]
        return {
            KEYS: torch.zeros(self.memory, dim),
            VALUES: torch.zeros(self.memory, dtype=torch.long),
            FILLED: torch.zeros(self.memory, dtype=torch.bool),
            BLEND: torch.zeros(2),
        }

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train the received context, send it, and fill the memory for own use."""
        contexts, loss = self.train(task, cohort, received["context"], at)
        is_given = self.strength is not None and self.sharpness is not None
        share = 0.0 if is_given else self.held_out
        memory, held_out = fill_memory(cohort, self.memory, share, at.seeds)
        with torch.no_grad():
            logits = logits_of(task, task.prompts(contexts), cohort.features)
        blend = choose_blend(
            memory, cohort, held_out, logits,
            STRENGTHS if self.strength is None else (self.strength,),
            SHARPNESSES if self.sharpness is None else (self.sharpness,),
        )  # fmt: skip
        sent = weighted_upload(cohort, {"context": contexts})
        return LocalResult(sent, memory | {BLEND: blend}, loss)

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the prompt that was seen; no message shows the memory."""
        reconstructed = super().rebuild(task, view, client)
        memory = ("the client's memory of features",)
        return replace(reconstructed, missing=reconstructed.missing + memory)

    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield log-probabilities, with what the memory recalls where there is one."""
        if BLEND not in models:
            yield from super().query(task, models, records, want)
            return
        with torch.no_grad():
            text = task.prompts(models["context"])
            strength, sharpness = models[BLEND].unbind(dim=1)
            for features in records.features.split(QUERY_CHUNK):
                each = features.expand(len(text), *features.shape)
                recalled = recall(models, each, sharpness, text.shape[1])
                blended = strength[:, None, None] * recalled
                logits = logits_of(task, text, each) + blended
                yield {"log_probabilities": logits.log_softmax(dim=-1)}


def fill_memory(
    cohort: Cohort, slots: int, held_out: float, seeds: Seeds
) -> tuple[dict[str, Tensor], Bool[Tensor, "k records"]]:
    """Return each client's memory, and which of its records were held out of it.

    A client's draw is the same in every round. Slots that it has no records for stay
    empty, so that shapes tell nothing of its size.

    A memory has ``slots`` places, a public number; ``held_out`` is the share of records
    that stay out of it, in [0, 1): at least one record, if there are two, unless 0.
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

    ``logits`` are the prompt's alone; strengths are tried in their order, with each
    sharpness.
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
