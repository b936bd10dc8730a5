"""FedPT: prompts of any transformer, learned by clients and averaged."""

from pydantic.dataclasses import dataclass

from privaudit.federation.trainer import TRAINERS
from privaudit.tuning.transformers.prompt_tuning import AveragedTuner


@TRAINERS.register("fedpt")
@dataclass(frozen=True)
class FedPT(AveragedTuner):
    """FedPT: prompt tuning of any transformer, averaged by the server.

    ``PromptTuner.start`` draws what is learned, ``AveragedTuner.local_update`` trains
    it, and ``AveragedTuner.aggregate`` takes the mean weighted by shard sizes: all in
    tuning/transformers/prompt_tuning.py.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", sections 2.1 and 2.2, with plain averaging.
    """
