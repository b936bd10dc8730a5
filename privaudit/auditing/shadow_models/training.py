"""Shadow models: the adversary repeats the training with records of its own.

An adversary who saw broadcasts and uploads *replays* them: round by round, shadow
clients train on what the target client received, with the adversary's records in its
place. Whoever saw no upload (a buyer of a prompt, a server that sees sums) trains whole
federations on public records, from starts of its own. Either way the adversary then
looks at its own shadows exactly as it looked at the real run: through the same threat
model, and with the same ``reconstruct``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.linkage import link
from privaudit.auditing.shadow_models.splits import (
    FederatedShadowSplit,
    ShadowSplit,
    Source,
)
from privaudit.core.memory import memory_limit, use_records_at_once
from privaudit.core.tensors import Stacked, Tensors, stack, unstack
from privaudit.federated.federation import Federation, give_away, run_round
from privaudit.federated.local_training import ClientInput, Stacking, update_clients
from privaudit.federated.messages import update_of
from privaudit.federated.trainer import (
    ClientId,
    Cohort,
    Reconstruction,
    Records,
    Round,
    Trainer,
)
from privaudit.federated.trainer_abilities import (
    ShowsChoices,
    remembers_steps,
    start_client,
)
from privaudit.federated.transcripts.threat_models import View
from privaudit.federated.transcripts.transcript import SERVER, Message
from privaudit.statistics.progress import Phase

REPLAY_CHUNK = 256  # shadow clients stacked at once


def shadow_models(
    adversary: Adversary, targets: Sequence[Target], splits: Sequence[ShadowSplit]
) -> list[list[Tensors]]:
    """Return the shadows of each target themselves, for who looks into models.

    As if their models had their owners' names. Nothing of them is kept beside the run.
    """
    plain, federated = [], None
    for target in targets:
        alone = replace(target.reconstructed, suspects=())
        plain.append(replace(target, reconstructed=alone))
    if _needs_federations(adversary, plain):
        shadows = len(splits[0].is_in)
        drawn = FederatedShadowSplit.draw(adversary, plain, shadows, "candidates")
        names = [target.client for target in plain]
        federated = replace(drawn, splits=dict(zip(names, splits, strict=True)))
        adversary = replace(adversary)  # nothing kept is reused
    models: list[list[Tensors]] = [[] for _ in targets]
    everybody = range(len(targets))
    for number, some in train_shadows(adversary, plain, splits, federated, everybody):
        models[number] += some
    return models


def draw_splits(
    adversary: Adversary, targets: Sequence[Target], shadows: int, source: Source
) -> tuple[list[ShadowSplit], FederatedShadowSplit | None]:
    """Draw what the shadows of each target, and of whole federations if needed, train on."""
    if not _needs_federations(adversary, targets):
        return [ShadowSplit.draw(adversary, t, shadows, source) for t in targets], None
    federated = FederatedShadowSplit.draw(adversary, targets, shadows, source)
    return [federated.split_of(target.client) for target in targets], federated


def train_shadows(
    adversary: Adversary,
    targets: Sequence[Target],
    splits: Sequence[ShadowSplit],
    federated: FederatedShadowSplit | None,
    only: Sequence[int],
) -> Iterator[tuple[int, list[Tensors]]]:
    """Train some targets' shadows, some at a time; yield them with their target's number.

    Whole federations are trained where an upload cannot be replayed.
    """
    if federated is not None:
        for chunk in _federated(adversary, targets, federated) if only else []:
            yield from ((number, chunk[number]) for number in only)
        return
    for number in only:
        target, split = targets[number], splits[number]
        if adversary.view.messages:
            for models in _replayed(adversary, target, split):
                yield number, models
        else:  # what is rebuilt from nothing needs no training
            yield (
                number,
                [adversary.reconstruct(target.client).model] * len(split.is_in),
            )


def are_linked(targets: Sequence[Target]) -> bool:
    """Say whether models came without names, so that targets were matched with them."""
    return any(target.reconstructed.suspects for target in targets)


def _needs_federations(adversary: Adversary, targets: Sequence[Target]) -> bool:
    """Say whether shadows need whole federations: no upload can be replayed."""
    return bool(adversary.view.messages) and not all(
        adversary.view.sees_updates_of(target.client) for target in targets
    )


def _replayed(
    adversary: Adversary, target: Target, split: ShadowSplit
) -> Iterator[list[Tensors]]:
    """Train shadows of one client on the broadcasts that it received."""
    size, records = _shadows_at_once(adversary, target, split)
    for first in range(0, len(split.is_in), size):
        chunk = range(first, min(first + size, len(split.is_in)))
        shards = [split.shard(i) for i in chunk]
        with use_records_at_once(records):
            uploads = _replay(adversary, target, shards, chunk, len(split.is_in))
        yield _rebuild_replayed(adversary, target.client, uploads)


def _shadows_at_once(
    adversary: Adversary, target: Target, split: ShadowSplit
) -> tuple[int, int]:
    """Return how many shadows of one client train together, and on how many records.

    As :class:`Stacking` has them.
    """
    if memory_limit() is None:
        return REPLAY_CHUNK, 0
    name = f"shadow-0 of {target.client}"
    (kept,) = unstack(_start(adversary, [name]), 1)
    at, received = next(_rounds_to_replay(adversary, target.client, bool(kept)))
    one = ClientInput(target.client, name, split.shard(0), received, kept)
    trainer = _with_choices(adversary.trainer, _sent_by(adversary, target)[at.index])
    stacking = Stacking(REPLAY_CHUNK)
    size = stacking.size(trainer, adversary.task, [one] * len(split.is_in), at)
    return size, stacking.records


def _sent_by(adversary: Adversary, target: Target) -> dict[int, Tensors]:
    """Return what the target sent, by round."""
    return {m.round: m.tensors for m in adversary.view.updates_of(target.client)}


def _with_choices(trainer: Trainer, sent: Tensors) -> Trainer:
    """Return the method with the random choices that an upload shows."""
    if not isinstance(trainer, ShowsChoices):
        return trainer
    return trainer.with_choices_of(sent)


def _replay(
    adversary: Adversary,
    target: Target,
    shards: Sequence[Records],
    some: range,
    total: int,
) -> dict[int, list[dict[str, Tensor]]]:
    """Return what each shadow would have sent, by round."""
    names = [f"shadow-{i} of {target.client}" for i in some]
    cohort = Cohort.of(names, shards)
    private_state = _start(adversary, names)
    sent, uploads = _sent_by(adversary, target), dict[int, list[dict[str, Tensor]]]()
    has_state = bool(private_state) or remembers_steps(adversary.trainer)
    rounds = list(_rounds_to_replay(adversary, target.client, has_state))
    for number, (at, received) in enumerate(rounds):
        detail = f"round {number + 1} of {len(rounds)}"
        client, done = target.client, some.start
        adversary.tell(Phase("", "shadows", client, done, total, detail))
        down = {k: v.expand(len(names), *v.shape) for k, v in received.items()}
        trainer = _with_choices(adversary.trainer, sent[at.index])
        result = update_clients(
            trainer, adversary.task, cohort, down, private_state, at
        )
        private_state = result.kept
        uploads[at.index] = result.uploads()
    return uploads


def _start(adversary: Adversary, names: Sequence[str]) -> Stacked:
    """Return what shadows keep before their first round.

    Drawn as clients draw it; where they all begin with the first broadcast, that.
    """
    trainer, task = adversary.trainer, adversary.task
    if not (isinstance(trainer, ShowsChoices) and trainer.starts_from_broadcast):
        return stack(
            [start_client(trainer, task, name, adversary.seeds) for name in names]
        )
    first = adversary.view.of_kind("broadcast")[0]
    return {n: t.expand(len(names), *t.shape) for n, t in first.tensors.items()}


def _rounds_to_replay(
    adversary: Adversary, client: ClientId, has_state: bool
) -> Iterator[tuple[Round, Tensors]]:
    """Yield the rounds that a rebuilt model depends on: mostly all.

    The last upload's alone, if the client keeps nothing and no other upload counts.
    """
    trained = [message.round for message in adversary.view.updates_of(client)]
    needs_all = has_state or adversary.reconstructing.reconstructs_from_all_rounds
    for index in trained if needs_all else trained[-1:]:
        sent = adversary.view.in_round(index)
        peers = tuple(m.sender for m in sent if m.receiver == SERVER)
        received = adversary.view.received_in(client, index)
        yield Round(index, adversary.seeds, peers), received.tensors


def _rebuild_replayed(
    adversary: Adversary, client: ClientId, uploads: Mapping[int, Sequence[Tensors]]
) -> list[Tensors]:
    """Rebuild each shadow as the target was rebuilt, with its uploads in place."""
    models = []
    for shadow in range(len(next(iter(uploads.values())))):
        updates = tuple(
            update_of(adversary.trainer, index, client, sent[shadow])
            for index, sent in uploads.items()
        )
        view = adversary.view.with_uploads(client, updates)
        models.append(replace(adversary, view=view).reconstruct(client).model)
    return models


def _federated(
    adversary: Adversary, targets: Sequence[Target], split: FederatedShadowSplit
) -> Iterator[list[list[Tensors]]]:
    """Yield the targets' shadows in whole federations; linked if they are linked.

    Some federations at a time. Where models are linked, what was rebuilt is kept: it is
    looked at without links too, and the federations are trained once.
    """
    names = tuple(target.client for target in targets)
    at_once = max(1, REPLAY_CHUNK // len(adversary.task.clients))
    for first in range(0, len(split.owner), at_once):
        chunk = range(first, min(first + at_once, len(split.owner)))
        rebuilt = _rebuilt_targets(adversary, split, names, chunk, are_linked(targets))
        if are_linked(targets):
            rebuilt = [
                link(
                    adversary.trainer,
                    adversary.task,
                    reconstructed,
                    [split.candidates(shadow, name) for name in names],
                )
                for shadow, reconstructed in zip(chunk, rebuilt, strict=True)
            ]
        yield [
            [reconstructed.model for reconstructed in column]
            for column in zip(*rebuilt, strict=True)
        ]


def _rebuilt_targets(
    adversary: Adversary,
    split: FederatedShadowSplit,
    names: Sequence[ClientId],
    some: range,
    keep: bool,
) -> list[list[Reconstruction]]:
    """Return what is rebuilt of each federation's targets."""
    source = "candidates" if split.splits else "public"
    key = ("shadow federations", source, len(split.owner), tuple(names), some)

    def rebuild() -> list[list[Reconstruction]]:
        return [
            [replace(adversary, view=view).reconstruct(name) for name in names]
            for view in _shadow_views(adversary, split, some)
        ]

    kept = keep or key in adversary.shared
    return adversary.once(key, rebuild) if kept else rebuild()


def _shadow_views(
    adversary: Adversary, split: FederatedShadowSplit, some: range
) -> list[View]:
    """Train whole federations side by side, and look at each as at the real one."""
    federations = [
        Federation.begin(
            adversary.trainer,
            adversary.task,
            split.shards(index),
            adversary.seeds.child("shadow federation", index),
            name=f"shadow-{index}",
        )
        for index in some
    ]
    messages: list[list[Message]] = [[] for _ in federations]
    stacking = Stacking(REPLAY_CHUNK)
    for index in range(adversary.task.rounds):
        detail = f"round {index + 1} of {adversary.task.rounds}"
        total, what = len(split.owner), "whole federations"
        adversary.tell(Phase("", "shadows", what, some.start, total, detail))
        records = run_round(
            adversary.trainer,
            adversary.task,
            federations,
            index,
            participation=adversary.participation,
            cohort_size=stacking,
        )
        for sent, record in zip(messages, records, strict=True):
            sent.extend(record.messages)
    for sent, federation in zip(messages, federations, strict=True):
        given = give_away(
            adversary.trainer, adversary.task, federation, adversary.task.rounds
        )
        sent.extend(given[1])
    return [adversary.threat(sent) for sent in messages]
