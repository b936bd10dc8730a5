"""pFedMoAP: a shared prompt, other clients' prompts as experts, and a private gate."""

from pydantic.dataclasses import dataclass

from privaudit.core.tensors import Stacked
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.tuning.prompts.experts import PromptExperts
from privaudit.tuning.prompts.learning import LocalSgd


@TRAINERS.register("pfedmoap")
@dataclass(frozen=True)
class PFedMoAP(PromptExperts, LocalSgd):
    """pFedMoAP: a local gate mixes the client's prompt with other clients' prompts.

    In its first round a client trains the mean prompt alone. From then on it also gets
    the prompts of its nearest others, as they stood after the round before, without
    names and in an order of chance; trains its own prompt and its gate together; and
    sends the prompt. The personal model is the client's prompt after its last training,
    its gate and the experts it got last (with the last broadcast).
    ``PromptExperts.start``, its broadcast of experts, ``PromptExperts.aggregate`` by
    weight into the pool, and release: tuning/prompts/experts.py.

    Published: 10 clients, 10 rounds of 5 epochs, rates of 0.002 for the prompt and 0.01
    for the gate, ViT-B/16 or ResNet-50. Not copied from the published code: its nearest
    neighbours are never reached (experts are random), gates leak between clients in
    their first round, and a schedule that is shared gives every other client a third of
    the rate.

    Source: Luo et al., "Mixture of experts made personalized: federated prompt learning
    for vision-language models", ICLR 2025, algorithm 1, equations 7 to 11; the
    "aggregated" and "linear" gates: table 7.
    """

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train prompt and gate with the experts, or the prompt alone without any."""
        parameters, objective = self.begin_mixture(task, received, kept)
        rates = self.rates(parameters, self.learning_rate)
        trained, loss = self.fit(task, cohort, parameters, objective, at, rates)
        weight = cohort.sizes.to(trained["context"].dtype)
        return LocalResult(self.upload(trained, weight), self.keep(kept, trained), loss)
