"""Whole clients as what is asked about: did this one take part at all?

A coin for each client decides, before training, whether it takes part with all of its
candidates or not at all, so that both kinds come from one distribution. The adversary
has the model that comes of it, and sample records of every client, of both kinds. A
client's score is the mean of its records' scores; the client counts once.

Who sees single messages, or who gets a model of a client's own, knows who took part:
there is nothing to ask. So the adversary is an outsider with the one model that all
release.

Source: as user inference of Kandpal et al., "User inference attacks on large language
models", EMNLP 2024, which tests a user's mean statistic on fresh samples of the user;
there log-likelihood ratios against a reference model, here what a scenario's attacks
score.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.scenario import Scenario
from privaudit.core.errors import AttackError
from privaudit.federated.runs.runs import Run
from privaudit.federated.trainer import Reconstruction
from privaudit.federated.transcripts.threat_models import without_names
from privaudit.federated.transcripts.view_messages import EVERYBODY


def refuse_unit(run: Run, scenario: Scenario) -> None:
    """Refuse a question about clients or records that no coin was tossed for."""
    by_client = run.config.members == "clients"
    if scenario.unit == "client" and not by_client:
        raise AttackError(
            f"{scenario.name} asks which clients took part, and no coin decided that in "
            f"{run.name}: all of its clients are in. Train with --members clients."
        )
    if scenario.unit == "record" and by_client:
        raise AttackError(
            f"{scenario.name} asks about records, and in {run.name} a coin decided for "
            "whole clients: each has members or non-members, and no record can be "
            "compared with others of its client. Use --scenario client-membership."
        )


def all_candidates(run: Run) -> Int[np.ndarray, " candidates"]:
    """Return the positions of all clients' candidates, whether they took part or not."""
    return np.flatnonzero(run.population.split.owner >= 0)


def seen_from_outside(adversary: Adversary, run: str) -> Adversary:
    """Return an adversary who has the released model, and not from whom.

    Raises:
        AttackError: Nothing was released, or clients released models of their own.
    """
    view = without_names(adversary.view)
    count = len(view.messages)
    if count != 1:
        what = f"{count} models that differ" if count else "no model"
        raise AttackError(
            f"Who took part in {run} was asked, and its clients released {what}: the "
            "question is what one model that all share tells. Train with a method "
            "that averages, such as promptfl, and release it (--publish)."
        )
    return replace(adversary, view=view)


def target_clients(adversary: Adversary, run: Run) -> list[Target]:
    """Return the one target: the released model, and sample records of every client."""
    model = adversary.view.release_of(EVERYBODY).tensors
    candidates = run.population.pick(all_candidates(run))
    return [Target(EVERYBODY, Reconstruction(model), candidates)]
