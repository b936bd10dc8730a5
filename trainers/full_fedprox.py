"""FedProx with full fine-tuning: FedAvg's weights, held back by a proximal term."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Penalty
from privaudit.federation.trainer import TRAINERS
from privaudit.tuning.optimiser import pull_to
from privaudit.tuning.transformers.prompt_tuning import AveragedTuner


@TRAINERS.register("full-fedprox")
@dataclass(frozen=True)
class FullFedProx(AveragedTuner):
    """FedProx of all weights: loss plus mu / 2 times the squared distance to the server.

    ``PromptTuner.start`` draws what is learned, ``AveragedTuner.local_update`` trains
    it, and ``AveragedTuner.aggregate`` takes the mean weighted by shard sizes: all in
    tuning/transformers/prompt_tuning.py.

    Source: Li et al., "Federated optimization in heterogeneous networks", MLSys 2020,
    equation 2.

    Attributes:
        peft_method: "full", and no other.
        learning_rate: Step size, above 0.
        mu: Strength of the proximal term, at least 0; 0.01 is a published value.
    """

    peft_method: Literal["full"] = "full"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.001
    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01

    def penalty(self, received: Stacked) -> Penalty:
        """Return the proximal term, which pulls back to what was received."""
        return pull_to(received, self.mu)
