"""The data set interface, and the names of all data sets."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from privaudit.registry import Registry


@dataclass(frozen=True)
class Pictures:
    """A data set of labelled pictures.

    Attributes:
        pixels: Grey (1 channel) or colour (3), in [0, 1].
        labels: Class indices.
        class_names: By index, as a prompt would write them.
        template: A hand-written prompt with {} for the class name.
    """

    pixels: Float[Tensor, "n channels height width"]
    labels: Int[Tensor, " n"]
    class_names: tuple[str, ...]
    template: str = "a photo of a {}."

    def __len__(self) -> int:
        return len(self.labels)


DATASETS: Registry[Callable[[], Pictures]] = Registry("data set", "privaudit.datasets")
