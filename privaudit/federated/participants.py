"""Participants: the clients whose training reached an adversary."""

from privaudit.federated.runs.runs import Run
from privaudit.federated.trainer_abilities import start_client
from privaudit.federated.transcripts.transcript import MASKED_KINDS


def trained_clients(run: Run, threat: str) -> tuple[str, ...]:
    """Return the clients that an adversary's view was trained on, in their order.

    Participation is public, and drawn without a look at any record; the run wrote down
    who took part. Where uploads may be lost only those count of whom one arrived;
    behind masks, in a sum that was not aborted. The server knows which: what the others
    trained reached nobody, unless they gave it away. Damaged uploads rebuild nobody.
    """
    config, clients = run.config, run.population.task.clients
    arrived: dict[int, list[int]] = {}
    if (config.is_masked or config.dropout) and not _has_own(run, threat):
        arrived = _arrived(run) if config.is_masked else _unlost(run)
    damaged = run.left_out if threat == "server" else ()
    seen: set[str] = set()
    for index, drawn in enumerate(run.participants):
        places = arrived.get(index, range(len(drawn)))
        seen |= {drawn[place] for place in places}
    return tuple(c for c in clients if c in seen and c not in damaged)


def _has_own(run: Run, threat: str) -> bool:
    """Say whether the view holds what clients trained for themselves."""
    seeds, task = run.config.seeds, run.population.task
    return threat == "released" and any(
        start_client(run.trainer, task, client, seeds) for client in task.clients
    )


def _unlost(run: Run) -> dict[int, list[int]]:
    """Return for each round whose upload arrived, by place; {} where none is sent."""
    senders: dict[int, set[str]] = {}
    for message in run.transcript:
        if message.is_update:
            senders.setdefault(message.round, set()).add(message.sender)
    if not senders:
        return {}
    return {
        index: [n for n, one in enumerate(clients) if one in senders.get(index, set())]
        for index, clients in enumerate(run.participants)
    }


def _arrived(run: Run) -> dict[int, list[int]]:
    """Return for each round with masks who is in its sum, by place among the asked."""
    arrived: dict[int, list[int]] = {}
    summed = {m.round for m in run.transcript if m.kind == "sum"}
    for message in run.transcript:
        if message.kind in MASKED_KINDS:
            there = arrived.setdefault(message.round, [])
            if message.round in summed and not there and message.kind == "survivors":
                there.extend(message.tensors["clients"].tolist())
    return arrived
