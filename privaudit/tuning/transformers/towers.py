"""What trainers ask of a tower: logits of many records, and a head to begin with."""

from collections.abc import Iterator

import torch
from torch import Tensor

from privaudit.core.streams import Stream
from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import Records, Signals, Task
from privaudit.models.interfaces import Tower, Tuning

HEAD = "head."
HEAD_SPREAD = 0.02
LOGITS_AT_ONCE = 4096  # models times records


def start_head(task: Task, stream: Stream) -> Tensors:
    """Return a small random head where the classifier needs one, else nothing."""
    head = None if task.writes else task.classifier.tower.head
    if head is None:
        return {}
    weight = stream.normal_tensor((head.classes, head.width))
    return {
        f"{HEAD}weight": HEAD_SPREAD * weight,
        f"{HEAD}bias": torch.zeros(head.classes),
    }


@torch.no_grad()
def query_classes(
    tower: Tower, tuning: Tuning, count: int, records: Records
) -> Iterator[Signals]:
    """Yield log-probabilities of classes [models, chunk, classes] of each model."""

    def each(tensor: Tensor) -> Tensor:
        return tensor.expand(count, *tensor.shape)

    for chosen in torch.arange(len(records)).split(max(1, LOGITS_AT_ONCE // count)):
        some = records.pick(chosen)
        tokens = None if some.tokens is None else each(some.tokens)
        words = None if some.words is None else some.words.repeated(count)
        logits = tower.logits(each(some.features), tokens, words, tuning)
        yield {"log_probabilities": logits.log_softmax(dim=-1)}
