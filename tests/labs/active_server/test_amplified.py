"""A server that sends one client a model which amplifies one record."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.core.errors import AttackError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.rounds import Federation, run_round
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.statistics.roc import auroc
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.active_server.amplified import (
    ActiveServer,
    Amplified,
    Amplifier,
    amplify,
)
from privaudit_labs.active_server.broadcast_checks import distance
from tests.conftest import toy_records, with_noise

RECORDS = 24
IS_MEMBER = np.arange(RECORDS) % 2 == 0
CLIENT = "client-0"


def played(
    task: Task, trained: Records, candidates: Records, how: Amplifier, seed: int = 3
) -> Amplified:
    """Return scores of candidates, of a client that trains on some records."""
    trainer = PromptFL(epochs=4)
    start, own, clients = (Seeds(seed + n) for n in range(3))
    server = ActiveServer(trainer, task, trainer.start(task, start), own)

    def ask(index: int, received: Tensors) -> Tensors:
        federation = Federation({CLIENT: trained}, clients, server=server.by_rule)
        crafted = {CLIENT: received}
        (done,) = run_round(trainer, task, [federation], index, crafted=crafted)
        return next(m.tensors for m in done.messages if m.is_update)

    return amplify(server, candidates, range(RECORDS), ask, how)


@pytest.fixture
def candidates() -> Records:
    return with_noise(toy_records(RECORDS, seed=7), 7)


HOW = Amplifier(copies=20, rounds=16, shadows=8)


def test_members_move_back_what_amplifies_them(task: Task, candidates: Records) -> None:
    members = candidates.pick(torch.from_numpy(IS_MEMBER))
    found = played(task, members, candidates, HOW)
    active = auroc(found.active[IS_MEMBER], found.active[~IS_MEMBER])
    passive = auroc(found.passive[IS_MEMBER], found.passive[~IS_MEMBER])
    assert active.value > 0.85
    assert active.low > 0.6
    assert active.value > passive.value + 0.1


def test_nothing_is_found_where_no_candidate_was_trained_on(
    task: Task, candidates: Records
) -> None:
    """The client has other records: all that differs are names of members."""
    strangers = with_noise(toy_records(12, seed=70), 70)
    amplified = played(task, strangers, candidates, HOW)
    for scores in (amplified.active, amplified.passive):
        found = auroc(scores[IS_MEMBER], scores[~IS_MEMBER])
        assert found.low < 0.5 < found.high


def test_what_is_sent_stays_within_a_bound(task: Task, candidates: Records) -> None:
    trainer = PromptFL(epochs=4)
    server = ActiveServer(trainer, task, trainer.start(task, Seeds(3)), Seeds(4))
    free = HOW.craft(server, candidates, 0)
    far = distance(free, server.by_rule)
    near = replace(HOW, within=far / 4).craft(server, candidates, 0)
    assert 0.2 * far < distance(near, server.by_rule) <= far / 4
    still = replace(HOW, within=0.0).craft(server, candidates, 0)
    assert distance(still, server.by_rule) == 0


def test_clients_that_keep_a_state_are_refused(task: Task, candidates: Records) -> None:
    trainer: Trainer = DPFPL(epsilon=None)
    server = ActiveServer(trainer, task, trainer.start(task, Seeds(3)), Seeds(4))
    with pytest.raises(AttackError, match="Use a run of promptfl"):
        HOW.craft(server, candidates, 0)
