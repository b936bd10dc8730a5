"""Every attack: the module that a look-up imports, and records where the leak is certain.

Those are few, and a prompt has room for all: it is the text feature of each class itself.
Features of random direction have random labels, so that what one record teaches says nothing
of another. Where nothing can leak the contracts test every attack.
"""

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.attacks import MODULES
from privaudit.auditing.attack import ATTACKS
from privaudit.core.errors import ViewError
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import Records, Task
from privaudit.models.interfaces import Classifier
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import CLIENTS, Play, auroc_of, play_toy

LOOK_UP = """
import os, sys
from privaudit.auditing.attack import ATTACKS
for name in sys.argv[1:]:  # each in a fork, which has imported no attack
    if not os.fork():
        ATTACKS.find(name)
        print(*(m for m in sys.modules if m.startswith("privaudit.attacks.")))
        break
    os.wait()
"""


def test_a_look_up_imports_one_module_of_attacks() -> None:
    names = "min-k", "loss-threshold", "lira"
    command = [sys.executable, "-c", LOOK_UP, *names]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    stems = [MODULES.get(name, name.replace("-", "_")) for name in names]
    assert found.stdout.split() == [f"privaudit.attacks.{stem}" for stem in stems]


def test_each_attack_stands_where_a_look_up_expects_it() -> None:
    own = [name for name in ATTACKS.names() if not ATTACKS.package_of(name)]
    homes = {name: ATTACKS.find(name).__module__ for name in own}
    expected = {n: MODULES.get(n, n.replace("-", "_")) for n in [*homes, *MODULES]}
    assert homes == {n: f"privaudit.attacks.{m}" for n, m in expected.items()}


KINDS, WIDE = 8, 128
CANDIDATES = 16  # of each client; every other one is a member
ELSEWHERE = (  # what is certain of these is in their own tests
    "projection-residual",  # no layer multiplies by what is sent here
    "shared-statistics",  # clients send no mean over their records here
    "upload-inversion",  # one step on one record; of the labs
)
NAMES = [
    name
    for name in ATTACKS.names()
    if ATTACKS.find(name).task != "generation" and name not in ELSEWHERE  # type: ignore[attr-defined]
]


@dataclass(frozen=True)
class FreePrompts:
    """A text tower that says what the prompt says, a token for each class."""

    context_tokens: int = KINDS
    width: int = WIDE

    def __call__(self, contexts: Tensor) -> Tensor:
        return normalize(contexts + torch.eye(KINDS, WIDE), dim=-1)


def drawn(count: int, seed: int) -> Records:
    """Draw features in any direction, with any labels."""
    generator = torch.Generator().manual_seed(seed)
    features = normalize(torch.randn(count, WIDE, generator=generator), dim=-1)
    return Records(features, torch.randint(KINDS, (count,), generator=generator))


@pytest.mark.parametrize("name", NAMES)
def test_members_are_certain_where_each_record_is_memorised(name: str) -> None:
    task = Task(
        backbone=Classifier(FreePrompts(), 20.0, torch.eye(KINDS, WIDE)),
        public=drawn(320, seed=99),
        candidates=dict.fromkeys(CLIENTS, CANDIDATES),
        rounds=1,
    )
    asked = {client: drawn(CANDIDATES, seed) for seed, client in enumerate(CLIENTS)}
    member = torch.arange(CANDIDATES) % 2 == 0
    shards = {client: records.pick(member) for client, records in asked.items()}
    trainer = PromptFL(epochs=60, batch_size=0, learning_rate=0.5)
    played = play_toy(trainer, task=task, shards=shards)
    kind = ATTACKS.find(name)
    attack = kind(shadows=16) if kind.trains_shadows else kind()  # type: ignore[attr-defined]
    truth = member.numpy()
    scores = attack(*played.watched("server", asked))
    found = auroc_of(scores, [truth] * len(scores))
    assert found.value > 0.95
    assert found.low > 0.8


@pytest.mark.parametrize(
    ("name", "threat"),
    [
        ("fedmia", "server-aggregate"),
        ("shared-statistics", "peer:client-0"),
        ("update-alignment", "released"),
        ("upload-inversion", "released"),
    ],
)
def test_who_sees_no_uploads_is_refused(name: str, threat: str, play: Play) -> None:
    adversary, targets = play(PromptFL()).watched()
    blind = replace(adversary, view=find_threat(threat)(adversary.view.messages))
    with pytest.raises(ViewError, match="holds no update"):
        ATTACKS.find(name)()(blind, targets)
