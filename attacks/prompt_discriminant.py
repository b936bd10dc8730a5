"""Prompt vectors: does what a prompt holds point at this record? No output is asked."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.shadow_models import ShadowSplit, shadow_models
from privaudit.core.errors import AttackError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import LearnsPrompt, Records, Task, Trainer

PENALTIES = np.geomspace(1e-3, 1e6, 28)
FOLDS = 5
Pairs = Float[Tensor, "shadows records inputs"]


@ATTACKS.register("prompt-discriminant")
@dataclass(frozen=True)
class PromptDiscriminant:
    """Score a candidate by a discriminant of prompt and picture, learned on shadows.

    The open model places prompt and picture in one space: the prompt as the text
    features of the classes, the picture by its own feature. Of each pair stand the
    products, coordinate by coordinate, of the picture with how far the feature of its
    class, and the mean one of the others, lies from the mean shadow's. On these a ridge
    regression of the shadows' coins is fitted, one for all candidates of a client: half
    of the shadows were trained on a candidate. No output of the target is asked.

    Source: after Bian et al., "Your prompts are not safe: output-free membership
    inference via prompt vectors in vision-language tuning" (PIPRA), AAAI 2026, of which
    the abstract was read: features of both in the shared space, a projector learned by
    contrast, and a discriminator. It is another attack: projector and discriminator are
    one linear function, in closed form, whose penalty is chosen by leaving out shadows,
    and shadows train on the candidates, not on other records.

    Attributes:
        shadows: Shadow models for each attacked client.
    """

    threshold: ClassVar[str] = "the prediction of a coin that fell neither way"
    trains_shadows: ClassVar[bool] = True
    task: ClassVar[AnyTask] = "classification"

    shadows: Annotated[int, Field(ge=5)] = 50

    @staticmethod
    def applies_to(trainer: Trainer, task: Task | None) -> bool:
        """Return whether what a trainer releases is one prompt of CLIP."""
        if not isinstance(trainer, LearnsPrompt) or trainer.image_tokens:
            return False
        is_usual = task is None or task.kind == "classification"
        return is_usual and bool(trainer.prompt)

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates; 0 is as likely a member as not.

        Raises:
            AttackError: The client's model is not one prompt.
        """
        for target in targets:
            _prompt_of(adversary, target.reconstructed.model)
        splits = [
            ShadowSplit.draw(adversary, target, self.shadows, "candidates")
            for target in targets
        ]
        models = shadow_models(adversary, targets, splits)
        triples = zip(targets, splits, models, strict=True)
        return [_score(adversary, *one) for one in triples]


def _score(
    adversary: Adversary, target: Target, split: ShadowSplit, models: list[Tensors]
) -> Scores:
    text = torch.stack([_text(adversary, model) for model in models])
    centre = text.mean(dim=0)
    own = _text(adversary, target.reconstructed.model) - centre
    known = _pairs(text - centre, target.candidates)
    asked = _pairs(own[None], target.candidates)[0]
    scores = _discriminant(known, split.is_in, asked)
    return Scores(scores, scores > 0)


def _prompt_of(adversary: Adversary, model: Tensors) -> Tensor:
    trainer = adversary.trainer
    if isinstance(trainer, LearnsPrompt) and trainer.prompt in model:
        return model[trainer.prompt]
    raise AttackError(
        f"prompt-discriminant was requested, which reads a prompt of CLIP, and the models of "
        f"{type(trainer).__name__} hold none in this view. Use rmia, or a trainer of one "
        "prompt, such as promptfl."
    )


@torch.no_grad()
def _text(adversary: Adversary, model: Tensors) -> Float[Tensor, "classes dim"]:
    """Return where the open model places each class behind a prompt."""
    classes = adversary.task.zero_shot
    prompt = _prompt_of(adversary, model).to(classes.device)
    text: Tensor = adversary.task.prompts(prompt[None])[0]
    return text.double().cpu()


def _pairs(text: Float[Tensor, "shadows classes dim"], records: Records) -> Pairs:
    """Return products of each picture with its class's feature, and with the others'."""
    features, labels = records.features.double(), records.labels
    of_class = text[:, labels]
    others = (text.sum(dim=1, keepdim=True) - of_class) / max(text.shape[1] - 1, 1)
    return torch.cat([features * of_class, features * others], dim=2)


def _discriminant(
    known: Pairs,
    is_in: Bool[Tensor, "shadows records"],
    asked: Float[Tensor, "records inputs"],
) -> Float[np.ndarray, " records"]:
    """Return what a ridge regression of the coins, as +1 and -1, says of the target.

    Its penalty has the least error on shadows that were left out. Both of a pair are
    left out together: what one was trained on the other was not.
    """
    scale = known.square().mean(dim=(0, 1)).sqrt().clamp(min=1e-12)
    inputs, coins = (known / scale).numpy(), np.where(is_in.numpy(), 1.0, -1.0)
    fold = np.arange(len(inputs)) // 2 % FOLDS
    sums = [
        _normal_equations(inputs[fold == n], coins[fold == n]) for n in range(FOLDS)
    ]
    gram, product = (sum(parts[1:], parts[0]) for parts in zip(*sums, strict=True))
    errors = np.zeros(len(PENALTIES))
    for number, (some, part) in enumerate(sums):
        weights = _solve(gram - some, product - part)
        missed = inputs[fold == number] @ weights.T - coins[fold == number][..., None]
        errors += np.square(missed).sum(axis=(0, 1))
    best = _solve(gram, product)[int(np.argmin(errors))]
    return (asked / scale).numpy() @ best


def _normal_equations(
    inputs: Float[np.ndarray, "shadows records inputs"],
    coins: Float[np.ndarray, "shadows records"],
) -> tuple[Float[np.ndarray, "inputs inputs"], Float[np.ndarray, " inputs"]]:
    flat = inputs.reshape(-1, inputs.shape[-1])
    return flat.T @ flat, flat.T @ coins.reshape(-1)


def _solve(
    gram: Float[np.ndarray, "inputs inputs"], product: Float[np.ndarray, " inputs"]
) -> Float[np.ndarray, "penalties inputs"]:
    """Return the weights for each penalty, by one decomposition."""
    values, vectors = np.linalg.eigh(gram)
    turned = vectors.T @ product
    damped = turned / (np.clip(values, 0, None) + PENALTIES[:, None])
    return damped @ vectors.T
