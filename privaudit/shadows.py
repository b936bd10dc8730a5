"""Shadow models: the adversary repeats the training with records of its own.

An adversary who saw broadcasts and uploads *replays* them: round by round, shadow
clients train on what the target client received, with the adversary's records in its
place. Whoever saw no upload (a buyer of a prompt, a server that sees sums) trains whole
federations on public records, from starts of its own. Either way the adversary then
looks at its own shadows exactly as it looked at the real run: through the same threat
model, and with the same ``rebuild``.

One :class:`ShadowTable` for each target, computed once, serves every shadow attack.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.asking import ask_each
from privaudit.attack import Adversary, Target
from privaudit.federation import Federation, give_away, run_round
from privaudit.linking import link
from privaudit.shadow_records import Dealt, Pool
from privaudit.tensors import Stacked, Tensors, stack
from privaudit.threats import View
from privaudit.trainer import ClientId, Cohort, Records, Round
from privaudit.transcript import SERVER, Kind, Message

REPLAY_CHUNK = 256  # shadow clients stacked at once


@dataclass(frozen=True)
class ShadowTable:
    """What the shadow models of one target say about the adversary's own records.

    Attributes:
        pool: The adversary's records, with the target's classes.
        log_probabilities: Of every shadow for every record of the pool.
        is_in: Which shadow was trained on which record.
        is_out: Which record nobody around the shadow was trained on. In a shadow
            federation a record may be neither: it was another client's.
    """

    pool: Records
    log_probabilities: Float[Tensor, "shadows pool classes"]
    is_in: Bool[Tensor, "shadows pool"]
    is_out: Bool[Tensor, "shadows pool"]


def shadow_tables(
    adversary: Adversary, targets: Sequence[Target], shadows: int
) -> list[ShadowTable]:
    """Return a table for each target, training the shadows on first use.

    Args:
        adversary: Whose shadows they are.
        targets: Clients under attack.
        shadows: Shadow models for each target.
    """
    names = tuple(target.client for target in targets)
    key = ("shadows", shadows, names, _are_linked(targets))
    if key not in adversary.shared:
        adversary.shared[key] = _train_tables(adversary, targets, shadows)
    tables = adversary.shared[key]
    assert isinstance(tables, list)
    return tables


def _train_tables(
    adversary: Adversary, targets: Sequence[Target], shadows: int
) -> list[ShadowTable]:
    if adversary.view.messages and not all(
        adversary.view.sees_updates_of(target.client) for target in targets
    ):
        dealt = Dealt.draw(adversary, targets, shadows)
        pools = [dealt.pool_of(target.client) for target in targets]
        models = _federated(adversary, targets, dealt)
    else:
        pools = [Pool.draw(adversary, target, shadows) for target in targets]
        train = _replayed if adversary.view.messages else _blind_models
        models = [
            train(adversary, target, pool)
            for target, pool in zip(targets, pools, strict=True)
        ]
    return [
        ShadowTable(
            pool.records,
            ask_each(adversary.trainer, adversary.task, some, pool.records),
            pool.is_in,
            pool.is_out,
        )
        for some, pool in zip(models, pools, strict=True)
    ]


def _blind_models(adversary: Adversary, target: Target, pool: Pool) -> list[Tensors]:
    """Return what is rebuilt from nothing: no shadow needs training for that."""
    rebuilt = adversary.trainer.rebuild(adversary.task, adversary.view, target.client)
    return [rebuilt.model] * len(pool.is_in)


def _replayed(adversary: Adversary, target: Target, pool: Pool) -> list[Tensors]:
    """Train shadows of one client on the broadcasts that it received."""
    models: list[Tensors] = []
    for first in range(0, len(pool.is_in), REPLAY_CHUNK):
        some = range(first, min(first + REPLAY_CHUNK, len(pool.is_in)))
        uploads = _replay(adversary, target, [pool.shard(i) for i in some], some)
        models.extend(_rebuild_replayed(adversary, target.client, uploads))
    return models


def _replay(
    adversary: Adversary, target: Target, shards: Sequence[Records], some: range
) -> dict[int, list[dict[str, Tensor]]]:
    """Return what each shadow would have sent, by round."""
    trainer, task = adversary.trainer, adversary.task
    names = [f"shadow-{i} of {target.client}" for i in some]
    cohort = Cohort.of(names, shards)
    kept: Stacked = stack(
        [trainer.start_client(task, name, adversary.seeds) for name in names]
    )
    uploads: dict[int, list[dict[str, Tensor]]] = {}
    for at, received in _rounds_to_replay(adversary, target.client, bool(kept)):
        down = {k: v.expand(len(names), *v.shape) for k, v in received.items()}
        result = trainer.local_update(task, cohort, down, kept, at)
        kept = result.kept
        uploads[at.index] = result.uploads()
    return uploads


def _rounds_to_replay(
    adversary: Adversary, client: ClientId, has_state: bool
) -> Iterator[tuple[Round, Tensors]]:
    """Yield the rounds that a rebuilt model depends on: mostly all.

    The last upload's alone, if the client keeps nothing and no other upload counts.
    """
    received = {m.round: m.tensors for m in adversary.view.broadcasts_to(client)}
    trained = [message.round for message in adversary.view.updates_of(client)]
    needs_all = has_state or adversary.trainer.rebuilds_from_all
    for index in trained if needs_all else trained[-1:]:
        peers = tuple(
            m.sender
            for m in adversary.view.messages
            if m.round == index and m.receiver == SERVER
        )
        yield Round(index, adversary.seeds, peers), received[index]


def _rebuild_replayed(
    adversary: Adversary, client: ClientId, uploads: Mapping[int, Sequence[Tensors]]
) -> list[Tensors]:
    """Rebuild each shadow as the target was rebuilt, with its uploads in place."""
    others = tuple(m for m in adversary.view.messages if m.sender != client)
    kind: Kind = (
        "update" if adversary.trainer.aggregation == "sum" else "individual-update"
    )
    models = []
    for shadow in range(len(next(iter(uploads.values())))):
        mine = tuple(
            Message(index, client, SERVER, kind, sent[shadow])
            for index, sent in uploads.items()
        )
        view = View(adversary.view.adversary, others + mine)
        models.append(adversary.trainer.rebuild(adversary.task, view, client).model)
    return models


def _are_linked(targets: Sequence[Target]) -> bool:
    return any(target.rebuilt.suspects for target in targets)


def _federated(
    adversary: Adversary, targets: Sequence[Target], dealt: Dealt
) -> list[list[Tensors]]:
    """Rebuild the targets' places in whole federations; link them if they are linked.

    The federations are trained once, whether their models are linked or not.
    """
    names = tuple(target.client for target in targets)
    key = ("shadow federations", len(dealt.owner), names)
    if key not in adversary.shared:
        adversary.shared[key] = [
            [adversary.trainer.rebuild(adversary.task, view, name) for name in names]
            for view in _shadow_views(adversary, dealt)
        ]
    found = adversary.shared[key]
    assert isinstance(found, list)
    if _are_linked(targets):
        found = [
            link(
                adversary.trainer,
                adversary.task,
                rebuilt,
                [dealt.candidates(shadow, name) for name in names],
            )
            for shadow, rebuilt in enumerate(found)
        ]
    return [
        [rebuilt.model for rebuilt in column] for column in zip(*found, strict=True)
    ]


def _shadow_views(adversary: Adversary, dealt: Dealt) -> list[View]:
    """Train whole federations side by side, and look at each as at the real one."""
    federations = [
        Federation.begin(
            adversary.trainer,
            adversary.task,
            dealt.shards(index),
            adversary.seeds.child("shadow federation", index),
            name=f"shadow-{index}",
        )
        for index in range(len(dealt.owner))
    ]
    messages: list[list[Message]] = [[] for _ in federations]
    for index in range(adversary.task.rounds):
        records = run_round(
            adversary.trainer,
            adversary.task,
            federations,
            index,
            participation=adversary.participation,
            cohort_size=REPLAY_CHUNK,
        )
        for sent, record in zip(messages, records, strict=True):
            sent.extend(record.messages)
    for sent, federation in zip(messages, federations, strict=True):
        given = give_away(
            adversary.trainer, adversary.task, federation, adversary.task.rounds
        )
        sent.extend(given[1])
    return [adversary.threat(sent) for sent in messages]
