"""FedOTP: a shared and a private prompt, which divide each picture between them."""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import Batch
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Cohort,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federation.uploads import UNTRAINED, last_sent, weighted_upload
from privaudit.tuning.prompts.learning import LocalSgd, pair_texts, start_context
from privaudit.tuning.prompts.optimal_transport import (
    PromptPair,
    Stop,
    Transport,
    transported_losses,
)


@TRAINERS.register("fedotp")
@dataclass(frozen=True)
class FedOTP(PromptPair, LocalSgd):
    """FedOTP: optimal transport with a global prompt, which is sent, and a local one.

    A class's logit is the similarity of the picture's parts and the class's two prompts
    under the plan of an entropic optimal transport, in which a part gives at most its
    share, and each prompt gets half of ``mass``. No gradient goes through the plan.
    The server takes the mean weighted by shard sizes: ``BaseTrainer.aggregate``,
    federation/trainer.py.

    Source: Li et al., "Global and local prompts cooperation via optimal transport for
    federated learning", CVPR 2024, equations 6 to 11 and algorithm 1. Their code stops
    the transport's iterations by the mean over a batch, which makes one record's logits
    depend on the others (``stop="batch"`` does so); ours stop for each record by
    default. Pooled features have no parts: the data set must be one of pictures.

    Attributes:
        stop: When iterations stop early: by "record", by "batch", or "never".
        balanced: Whether to use up every part exactly, whatever ``mass`` says:
            Sinkhorn's algorithm, the paper's other variant.
    """

    image_tokens: ClassVar[bool] = True

    stop: Stop = "record"
    balanced: bool = False

    @property
    def transport(self) -> Transport:
        """The problem that is solved for each picture and class."""
        return Transport(
            self.entropy, self.mass, self.iterations, self.stop, self.balanced
        )

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random global prompt."""
        return {"global": start_context(task, seeds)}

    def start_client(self, task: Task, client: ClientId, seeds: Seeds) -> Tensors:
        """Return a random local prompt of the client's own."""
        return {"local": start_context(task, seeds, client)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train both prompts, and send the global one weighted by the shard's size."""

        def objective(prompts: Stacked, batch: Batch) -> Tensor:
            return transported_losses(
                task, pair_texts(task, prompts), batch, self.transport
            )

        trained, loss = self.fit(task, cohort, {**received, **kept}, objective, at)
        sent = weighted_upload(cohort, {"global": trained["global"]})
        return LocalResult(sent, {"local": trained["local"]}, loss)

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the client's last upload, or the average, in both prompts' places.

        The upload is the client's global prompt after local training, exactly; of the
        local one the view shows nothing. Measured on the embedded model, a local prompt
        trained on public records beside the upload answers more like the client's own
        model, and tells less of its members (AUROC 0.553 against 0.566 over four
        seeds); integrating the global prompt's moves, which dp-fpl's rebuild does,
        tells about as much (0.557): two prompts from two random starts don't move
        alike.
        """
        hidden, sent = "the client's local prompt", last_sent(view, client)
        if sent is not None:
            both = {"global": sent["global"], "local": sent["global"]}
            return Reconstruction(both, (hidden,))
        shared = view.last_broadcast(client).tensors["global"]
        return Reconstruction({"global": shared, "local": shared}, (hidden, UNTRAINED))
