from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from privaudit.checks.lint.evidence import Evidence, fingerprints
from privaudit.federation.trainer import Records, Task, claim_of
from privaudit.privacy.certificate import Certificate, privacy_record
from privaudit.runs.config import build_trainer
from tests.toy_federation import play_toy

Look = Callable[..., Evidence]
TOY: dict[str, dict[str, Any]] = {
    "dp-fpl": {"rank": 2, "batch_size": 5},
    "dp-promptfl": {"steps": 2, "batch_size": 5},
    "dp-fedotp": {"steps": 2, "batch_size": 5, "iterations": 5},
    "dp-fedpgp": {"steps": 2, "batch_size": 5, "rank": 2},
    "dp-pfedmoap": {"steps": 2, "batch_size": 5, "epochs": 2},
}


def look_at(
    task: Task,
    shards: dict[str, Records],
    name: str = "dp-fpl",
    rounds: int = 6,
    **settings: Any,
) -> Evidence:
    """Train a toy federation in memory, as a run would be read."""
    task = replace(task, rounds=rounds)
    settings = TOY.get(name, {}) | settings
    trainer = build_trainer(name, settings)
    played = play_toy(trainer, task=task, shards=shards, traced=True)
    messages = played.messages
    events = [record.events for record in played.rounds]
    said = privacy_record(
        claim_of(trainer, task),
        [[event.to_json() for event in some] for some in events],
        sends_updates=any(message.is_update for message in messages),
    )
    return Evidence(
        trainer=trainer,
        name=name,
        settings=settings,
        task=task,
        claim=claim_of(trainer, task),
        certified={v: Certificate.from_json(c) for v, c in said["certified"].items()},
        rounds=events,
        messages=messages,
        trace=[record.trace for record in played.rounds],
        members={
            client: fingerprints(shard.identities) for client, shard in shards.items()
        },
        dataset="toy",
        seed=0,
    )


@pytest.fixture
def look(task: Task, shards: dict[str, Records]) -> Look:
    def at(name: str = "dp-fpl", **settings: Any) -> Evidence:
        return look_at(task, shards, name, **settings)

    return at
