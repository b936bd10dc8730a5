"""FedAvg with full fine-tuning: every weight is trained and sent."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.federation.trainer import TRAINERS
from privaudit.tuning.transformers.prompt_tuning import AveragedTuner


@TRAINERS.register("full-fedavg")
@dataclass(frozen=True)
class FullFedAvg(AveragedTuner):
    """FedAvg of all weights of the transformer: the baseline for communication cost.

    ``PromptTuner.start`` draws what is learned, ``AveragedTuner.local_update`` trains
    it, and ``AveragedTuner.aggregate`` takes the mean weighted by shard sizes: all in
    tuning/transformers/prompt_tuning.py.

    Source: McMahan et al., "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017, algorithm 1.

    Attributes:
        peft_method: "full", and no other.
        learning_rate: Step size, above 0.
    """

    peft_method: Literal["full"] = "full"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.001
