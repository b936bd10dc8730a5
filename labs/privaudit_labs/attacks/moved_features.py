"""Records moved on the sphere of features, for attacks that ask around one."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from privaudit.auditing.attack import Adversary
from privaudit.core.errors import AttackError
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.models.interfaces import OwnersModel


def reads_features_alone(trainer: Trainer, task: Task) -> bool:
    """Return whether a model reads the feature of a record, and it alone."""
    words = task.public.words is not None
    owners = isinstance(task.backbone, OwnersModel)
    return not (owners or words or trainer.image_tokens)


def refuse_unmovable(adversary: Adversary, attack: str) -> None:
    """Refuse where a model does not read the feature of a record, and it alone."""
    owners = isinstance(adversary.task.backbone, OwnersModel)
    if not reads_features_alone(adversary.trainer, adversary.task):
        raise AttackError(
            f"{attack} was requested, which asks around a record by moving its feature, "
            f"and models of {type(adversary.trainer).__name__} read "
            f"{'what only their owner has' if owners else 'parts of records'}. Use it on "
            "prompts of CLIP, such as promptfl's, or use loss-threshold."
        )


def directions(
    adversary: Adversary, attack: str, count: int
) -> Float[Tensor, "count dim"]:
    """Draw directions on the sphere of features: the same ones for all records.

    So that scores follow the record, and records differ by no luck of the draw.
    """
    width = adversary.task.public.features.shape[1]
    return functional.normalize(
        adversary.seeds.stream(attack).normal_tensor((count, width)), dim=1
    )


def moved_records(records: Records, steps: Float[Tensor, "steps dim"]) -> Records:
    """Return each record after each step, all of the first record's first.

    Features are of length 1, and again after the step.
    """
    moved = functional.normalize(records.features[:, None] + steps, dim=2).flatten(0, 1)
    return Records(moved, records.labels.repeat_interleave(len(steps)))
