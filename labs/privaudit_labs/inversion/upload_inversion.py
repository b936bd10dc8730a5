"""Upload inversion: read records out of what clients sent, and see who fits."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import PUBLIC_MEDIAN, score_beside_public
from privaudit_labs.inversion.inversion import InvertedClient, invert


@ATTACKS.register("upload-inversion")
@dataclass(frozen=True)
class UploadInversion:
    """Score a candidate by how well it fits what was read out of uploads.

    Nothing of the candidates is known to the adversary while it reads. Classes and
    features of a client's batch, or the words of its texts, are regressed on uploads of
    simulated clients: the adversary trains them on as many public records, with the
    client's local steps and noise. Where an upload is of few records, dummy records
    are then moved until they would send the same. Where only sums are seen, sums of
    simulated clients are regressed on.

    Source: Wu, Chen, Guo and Weinberger, "Learning to invert: simple adaptive attacks
    for gradient inversion in federated learning", UAI 2023; Geiping, Bauermeister,
    Dröge and Moeller, "Inverting gradients: how easy is it to break privacy in
    federated learning?", NeurIPS 2020; on prompts, arXiv 2403.07901.

    Attributes:
        examples: Stand-ins for each start of training.
        rounds: Uploads of each client that are read together, at most.
        matched: Records of an upload that are matched one by one, at most; 0 matches
            none.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"
    reads_texts: ClassVar[bool] = True

    examples: Annotated[int, Field(ge=8)] = 128
    rounds: Annotated[int, Field(ge=1)] = 2
    matched: Annotated[int, Field(ge=0)] = 2

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates by a logarithm of densities' ratio.

        Raises:
            ViewError: The adversary sees neither uploads nor sums of them.
            AttackError: Records are texts of which nothing is known.
        """
        read = {one.client: one for one in self.invert(adversary, targets)}
        return score_beside_public(
            adversary,
            targets,
            lambda target, records: read[target.client].scores(records).numpy(),
        )

    def invert(
        self, adversary: Adversary, targets: Sequence[Target]
    ) -> list[InvertedClient]:
        """Return what is read of each target's records; read once."""
        return adversary.once(
            ("inversion", self, *((t.client, len(t.candidates)) for t in targets)),
            lambda: invert(
                adversary,
                targets,
                examples=self.examples,
                rounds=self.rounds,
                most_matched=self.matched,
            ),
        )
