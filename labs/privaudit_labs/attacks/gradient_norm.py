"""Gradient norm: a record that the model need not learn any more was trained on."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import PUBLIC_MEDIAN, score_beside_public
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import ANSWER, TokenSequences
from privaudit.federation.query import as_writer
from privaudit.federation.trainer import Records, Task
from privaudit.models.interfaces import Tuning

AT_ONCE = 32  # copies of the model, one for each record


@ATTACKS.register("gradient-norm")
@dataclass(frozen=True)
class GradientNorm:
    """Score a candidate by minus the norm of its loss's gradient.

    The gradient is by all that the client tuned, of the mean loss over the tokens of
    the answer, at the model that the adversary has: it needs the model, not its outputs
    only. Training ends where members' gradients are small.

    Source: Wang, Wang, Li and Neel, "Pandora's white-box: precise training data
    detection and extraction in large language models", 2024, section 3, with p = 2;
    before it Nasr, Shokri and Houmansadr, "Comprehensive privacy analysis of deep
    learning", IEEE S&P 2019. There the gradient is by all weights.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "generation"
    reads_texts: ClassVar[bool] = True

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, at most 0."""
        return score_beside_public(
            adversary,
            targets,
            lambda target, some: -_norms(adversary, target.reconstructed.model, some),
        )


def _norms(
    adversary: Adversary, model: Tensors, records: Records
) -> Float[np.ndarray, " records"]:
    parts = torch.arange(len(records)).split(AT_ONCE)
    squares = [_squares(adversary, model, records.pick(part)) for part in parts]
    return torch.cat(squares).sqrt().numpy()


def _squares(
    adversary: Adversary, model: Tensors, records: Records
) -> Float[Tensor, " records"]:
    """Return squared norms: each record is alone with a copy of the model."""
    task, count = adversary.task, len(records)
    leaves = {
        name: tensor.detach().repeat(count, *[1] * tensor.ndim).requires_grad_()
        for name, tensor in model.items()
        if tensor.is_floating_point()
    }
    with torch.enable_grad():
        tuning = as_writer(adversary.trainer).tuning(task, leaves)
        total = _losses(task, tuning, records).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    squares = torch.zeros(count, dtype=torch.float64)
    for gradient in gradients:
        if gradient is not None:  # a server keeps more than models read
            squares += gradient.flatten(1).double().square().sum(dim=1).cpu()
    return squares


def _losses(task: Task, tuning: Tuning, records: Records) -> Float[Tensor, " records"]:
    """Return what one client with nothing but each record would minimise."""
    assert records.words is not None
    assert records.tokens is not None
    words, device = records.words.trimmed(), task.language.device
    is_answer = words.kinds[:, 1:] == ANSWER
    ahead = is_answer.any(dim=0).nonzero().flatten()
    one_each = TokenSequences(words.ids.unsqueeze(1), words.kinds.unsqueeze(1))
    pictures = records.tokens.read(device).unsqueeze(1)
    logits = task.language.logits(
        pictures, one_each.to(device), tuning, ahead.to(device)
    )
    counted = is_answer[:, ahead].to(device)
    following = torch.where(is_answer, words.ids[:, 1:], 0)[:, ahead].to(device)
    logs = logits[:, 0].float().log_softmax(dim=-1).gather(2, following.unsqueeze(2))
    return -(logs.squeeze(2) * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
