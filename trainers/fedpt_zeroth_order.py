"""FedPT for clients who may only ask the model: gradients from its answers."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from privaudit.core.errors import ConfigError
from privaudit.federated.batches import Gradients, gradients_of
from privaudit.federated.trainer import TRAINERS, Cohort, Round, Task
from privaudit.tuning.transformers.prompt_tuning import PromptTuner
from privaudit.tuning.transformers.zeroth_order import two_point


@TRAINERS.register("fedpt-zeroth-order")
@dataclass(frozen=True)
class FedPTZerothOrder(PromptTuner):
    """FedPT with query access only: zeroth-order gradient estimates.

    What must be sent to the model with every query is what the PEFT method learns: a soft
    prompt stands in front of the input, and an interface that takes embedded input
    takes it. "prefix", "lora" and "p-tuning" run too, for an interface that takes keys
    and values, changes of layers, or embedded input. "full" is refused: who may hand in
    all weights has the model.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", section 2.2, black-box scenarios: there for one number, here
    for all at once (see :func:`privaudit.tuning.transformers.zeroth_order.two_point`).

    Attributes:
        directions: In which each step looks, at two queries for each record. 0 asks for
            the gradient itself, as an interface might give it: for comparison.
        perturbation: How far it looks, in each number, in root mean square.
        models_at_once: At most so many differently prompted models run in one pass.
    """

    directions: Annotated[int, Field(ge=0)] = 16
    perturbation: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    models_at_once: Annotated[int, Field(ge=2)] = 256

    @model_validator(mode="after")
    def _check_mechanism(self) -> "FedPTZerothOrder":
        if self.peft_method == "full":
            raise ConfigError(
                'peft_method = "full" was requested, but clients of this trainer have no '
                'more than an interface to the model. Use "soft-prompt", or fedpt'
            )
        if self.tiers != "none":
            raise ConfigError(
                f"tiers = {self.tiers!r} was requested, but clients who only ask have "
                "no machines that differ. Leave it out"
            )
        if self.micro_batch:
            raise ConfigError(
                f"micro_batch = {self.micro_batch} was requested, but values need no "
                "memory for gradients. Lower models_at_once"
            )
        return self

    def gradients(self, task: Task, cohort: Cohort, at: Round) -> Gradients:
        """Return how gradients are found: each client has directions of its own."""
        if not self.directions:
            return gradients_of
        streams = [at.stream("directions", client) for client in cohort.clients]
        step, most = self.perturbation, self.models_at_once
        return two_point(self.directions, step, streams, most)

    def model_queries(self, records: int) -> int:
        """Return how many a client with so many records makes in a round.

        One query is one record, answered by one model; a gradient counts as one, too.
        """
        return self.epochs * records * max(1, 2 * self.directions)

    def single_step(self) -> Any:
        """Return the same trainer with one exact step on the whole shard.

        Whoever attacks may have the model itself.
        """
        return replace(self, epochs=1, batch_size=0, directions=0)
