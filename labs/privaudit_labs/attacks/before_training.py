"""Models as they were before training, and by how much they move what is said since."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from privaudit.auditing.attack import Adversary
from privaudit.core.lazy_torch import torch
from privaudit.core.tensors import Tensors
from privaudit.federation.rounds import Federation, give_away
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import ClientId


def models_before_training(
    adversary: Adversary, clients: Sequence[ClientId]
) -> dict[ClientId, Tensors]:
    """Return what each client's model was before its first round.

    The model as the first broadcast has it; an adversary who saw none starts a
    federation of its own, and rebuilds the client before any round.
    """
    view = adversary.view
    sent = [m for m in view.messages if m.kind == "broadcast"]
    if not sent:
        view = _of_no_rounds(adversary, clients)
    else:
        first = {m.receiver: m for m in reversed(sent)}
        view = View(view.adversary, tuple(first.values()))
    return {c: replace(adversary, view=view).reconstruct(c).model for c in clients}


def slope_of(
    before: Float[np.ndarray, " public"], after: Float[np.ndarray, " public"]
) -> float:
    """Return by how much the one moves with the other; 0 where it does not vary."""
    centred = before - before.mean()
    spread = float(centred @ centred)
    return float(centred @ (after - after.mean())) / spread if spread else 0.0


def _of_no_rounds(adversary: Adversary, clients: Sequence[ClientId]) -> View:
    trainer, task = adversary.trainer, adversary.task
    nothing = task.public.pick(torch.arange(0))
    federation = Federation.begin(
        trainer, task, dict.fromkeys(clients, nothing), adversary.seeds, "untrained"
    )
    return adversary.threat(give_away(trainer, task, federation, 0)[1])
