"""What a surrogate reaches on records that it has not seen."""

import torch
from jaxtyping import Float, Int
from pydantic.dataclasses import dataclass as options
from torch import Tensor

from privaudit.dataset import Dataset
from privaudit.models.feature_cache import encoded_features
from privaudit.models.promptable_clip import PromptableCLIP

_CONTEXTS, _CONTEXT_TOKENS, _DEVIATION = 5, 16, 0.02


@options(frozen=True)
class Accuracies:
    """Zero-shot accuracies, from 0 to 1.

    They are measured when the training is over, and nothing is chosen by them.

    Attributes:
        records: How many were classified.
        template: With the data set's hand-written prompt.
        template_by_class: The same, as the mean of the classes' accuracies.
        random_context: Behind 16 vectors drawn N(0, 0.02^2): the mean of five draws.
        random_context_lowest: Of the five.
    """

    records: int
    template: float
    template_by_class: float
    random_context: float
    random_context_lowest: float


@torch.no_grad()
def measure(
    model: PromptableCLIP, dataset: Dataset, indices: Int[Tensor, " n"], seed: int = 0
) -> Accuracies:
    """Classify records by hand-written prompts and behind random contexts.

    Args:
        model: The surrogate.
        dataset: Of which only the records at ``indices`` are read.
        indices: At least one.
        seed: Of the random contexts.
    """
    features = encoded_features(model, dataset.pictures, indices.tolist())
    labels = dataset.labels[indices]
    texts = model.template_features(dataset.class_names, dataset.template)
    by_template = _hits(features, texts, labels)
    prompts = model.prompts(dataset.class_names, _CONTEXT_TOKENS)
    generator = torch.Generator().manual_seed(seed)
    shape = (_CONTEXTS, _CONTEXT_TOKENS, model.width)
    contexts = _DEVIATION * torch.randn(shape, generator=generator)
    behind = [_hits(features, t, labels).mean().item() for t in prompts(contexts)]
    classes = [by_template[labels == label].mean() for label in labels.unique()]
    return Accuracies(
        records=len(labels),
        template=by_template.mean().item(),
        template_by_class=torch.stack(classes).mean().item(),
        random_context=sum(behind) / len(behind),
        random_context_lowest=min(behind),
    )


def _hits(
    features: Float[Tensor, "n dim"],
    texts: Float[Tensor, "classes dim"],
    labels: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    return ((features @ texts.T).argmax(1) == labels).float()
