"""Shadow models: their splits, their training, and the signals that attacks compare.

*Splits.* "public": shadows train on records that belong to nobody, so that every candidate
is out of every shadow. "candidates": on the target's own candidates, each by a fair coin, as
the target itself was trained: an adversary who asks about a record has it. Every candidate
is in one shadow of a pair and out of the other.

*Training.* An adversary who saw broadcasts and uploads replays them: round by round, shadow
clients train on what the target client received, with the adversary's records in its place.
Whoever saw no upload (a buyer of a prompt, a server that sees sums) trains whole federations
on public records, from starts of its own. Either way the adversary then looks at its own
shadows exactly as it looked at the real run: through the same threat model, and with the
same ``reconstruct``.

*Signals.* One :class:`ShadowSignals` for each target serves LiRA, RMIA and the shadow
attack: it is computed once, and the shadows' part of it is kept beside the run. The models
are not: they are asked and forgotten some at a time, so that memory does not grow with
their number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from jaxtyping import Bool, Float, Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.linkage import link
from privaudit.auditing.signal_cache import content_hash
from privaudit.auditing.signals import (
    SignalTable,
    ask_signals,
    keep_signals,
    kept_signals,
    target_signals,
)
from privaudit.core.devices import memory_limit, use_records_at_once
from privaudit.core.errors import AttackError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked, Tensors, stack, unstack
from privaudit.federation.rounds import (
    ClientInput,
    Federation,
    Stacking,
    give_away,
    run_round,
    update_clients,
    update_of,
)
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    ClientId,
    Cohort,
    Reconstruction,
    Records,
    Round,
    ShowsChoices,
    Task,
    Trainer,
    remembers_steps,
    start_client,
)
from privaudit.federation.transcript import Message
from privaudit.statistics.progress import Phase

Source = Literal["public", "candidates"]

NOBODY = -1  # owns what is out of a whole shadow federation


def _wanted_share(adversary: Adversary, target: Target) -> Float[Tensor, " public"]:
    """Return how likely a shadow of the target is trained on each public record.

    Half of the candidates are members, so of each class about half their number is
    drawn, but never more than half of the public records of that class.
    """
    public, wanted = adversary.task.public, target.candidates.labels
    classes = int(max(public.labels.max(), wanted.max())) + 1
    quota = torch.bincount(wanted, minlength=classes) / 2
    there = torch.bincount(public.labels, minlength=classes).clamp(min=1)
    return (quota / there).clamp(max=0.5)[public.labels]


@dataclass(frozen=True)
class ShadowSplit:
    """What shadows of one target train on.

    Attributes:
        records: All that a shadow may be trained on.
        is_in: Which shadow is trained on which of them.
        public_in: The same about every public record.
        public_out: Which public record nobody around a shadow is trained on.
    """

    source: Source
    records: Records
    is_in: Bool[Tensor, "shadows records"]
    public_in: Bool[Tensor, "shadows public"]
    public_out: Bool[Tensor, "shadows public"]

    @classmethod
    def draw(
        cls,
        adversary: Adversary,
        target: Target,
        shadows: int,
        source: Source = "public",
    ) -> "ShadowSplit":
        """Toss coins so that a shadow is as large as the target probably is."""
        public = adversary.task.public
        stream = adversary.seeds.stream("shadow-coin", client=target.client)
        nothing = torch.zeros(shadows, len(public), dtype=torch.bool)
        if source == "candidates":
            is_in = paired_coins(target.candidates, shadows, stream)
            return cls(source, target.candidates, is_in, nothing, ~nothing)
        share = _wanted_share(adversary, target)
        used = share > 0
        drawn = stream.uniform_tensor((shadows, int(used.sum())))
        nothing[:, used] = drawn < share[used]
        return cls(source, public.pick(used), nothing[:, used], nothing, ~nothing)

    def shard(self, shadow: int) -> Records:
        """Return what one shadow trains on.

        Candidates in the order of their contents: batches and sums are then the same
        in whatever order the adversary asks about them.
        """
        return self.records.pick(self._order[self.is_in[shadow, self._order]])

    @cached_property
    def _order(self) -> Int[Tensor, " records"]:
        if self.source == "public":
            return torch.arange(len(self.records))
        return order_of_contents(self.records)


def paired_coins(
    records: Records, shadows: int, stream: Stream
) -> Bool[Tensor, "shadows records"]:
    """Return which shadow is trained on which record: one of each pair of shadows.

    A record's coins follow the record as it came, wherever it stands among the others
    and whatever a processor makes of it; copies of one record share them.
    """
    contents = _contents(records)
    number_of = {
        content: number for number, content in enumerate(sorted(set(contents)))
    }
    pairs = (shadows + 1) // 2
    coins = torch.from_numpy(stream.coins(0.5, (pairs, len(number_of))))
    is_in = coins[:, [number_of[content] for content in contents]]
    return torch.stack([is_in, ~is_in], dim=1).flatten(0, 1)[:shadows]


def order_of_contents(records: Records) -> Int[Tensor, " records"]:
    """Return positions in an order that is the same however the records stand."""
    contents = _contents(records)
    return torch.tensor(sorted(range(len(contents)), key=contents.__getitem__))


def _contents(records: Records) -> list[bytes]:
    return [row.tobytes() for row in records.identities.numpy()]


@dataclass(frozen=True)
class FederatedShadowSplit:
    """What the clients of each shadow federation train on.

    A public record has one owner at the most, so that what is out of the target is out
    of the whole federation, as the target's non-members are out of the real one.

    Attributes:
        owner: Of each public record, in each shadow federation.
        splits: The targets' shadows, where these train on candidates.
    """

    task: Task
    owner: Int[Tensor, "shadows public"]
    splits: Mapping[ClientId, ShadowSplit]

    @classmethod
    def draw(
        cls,
        adversary: Adversary,
        targets: Sequence[Target],
        shadows: int,
        source: Source = "public",
    ) -> "FederatedShadowSplit":
        """Split as the targets' classes ask; bystanders get any class alike."""
        task, count = adversary.task, len(adversary.task.public)
        splits: dict[ClientId, ShadowSplit] = {}
        wanted_shares = {
            target.client: _wanted_share(adversary, target) for target in targets
        }
        if source == "candidates":
            splits = {
                target.client: ShadowSplit.draw(adversary, target, shadows, source)
                for target in targets
            }
            wanted_shares = dict.fromkeys(splits, torch.zeros(count))
        shares = torch.stack(
            [
                wanted_shares.get(client, torch.full((count,), candidates / 2 / count))
                for client, candidates in task.candidates.items()
            ]
        )
        shares = shares / (shares.sum(dim=0) / 0.5).clamp(min=1)  # half stays out
        draw = adversary.seeds.stream("shadow deal").uniform_tensor((shadows, count))
        owner = torch.searchsorted(
            shares.cumsum(dim=0).T.contiguous(), draw.T.contiguous(), right=True
        ).T
        return cls(task, torch.where(owner < len(shares), owner, NOBODY), splits)

    def split_of(self, client: ClientId) -> ShadowSplit:
        """Return the records that a client's shadows hold, and which.

        Of public ones, those of classes that they hold.
        """
        is_out = self.owner == NOBODY
        if client in self.splits:
            return replace(self.splits[client], public_out=is_out)
        is_in = self.owner == self.task.clients.index(client)
        classes = self.task.public.labels[is_in.any(dim=0)].unique()
        used = torch.isin(self.task.public.labels, classes)
        records = self.task.public.pick(used)
        return ShadowSplit("public", records, is_in[:, used], is_in, is_out)

    def shards(self, shadow: int) -> dict[ClientId, Records]:
        """Return what each client of one shadow federation trains on."""
        return {
            client: self.splits[client].shard(shadow)
            if client in self.splits
            else self.task.public.pick(self.owner[shadow] == number)
            for number, client in enumerate(self.task.clients)
        }

    def candidates(self, shadow: int, client: ClientId) -> Records:
        """Return a shadow's candidates, as a real client has them.

        Its members, and of each class as many records that nobody has, if there are.
        """
        if client in self.splits:
            return self.splits[client].records
        labels = self.task.public.labels
        is_in = self.owner[shadow] == self.task.clients.index(client)
        chosen = is_in.clone()
        for label, count in zip(*labels[is_in].unique(return_counts=True), strict=True):
            free = (self.owner[shadow] == NOBODY) & (labels == label)
            chosen[free.nonzero().flatten()[: int(count)]] = True
        return self.task.public.pick(chosen)


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
    if needs_federations(adversary, plain):
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
    """Draw what the shadows of each target, and of whole federations, train on.

    None in place of the second where no attack needs federations.
    """
    if not needs_federations(adversary, targets):
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


def needs_federations(adversary: Adversary, targets: Sequence[Target]) -> bool:
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
        asked = tuple(m.receiver for m in sent if m.kind == "broadcast")
        received = adversary.view.received_in(client, index)
        yield Round(index, adversary.seeds, asked or (client,)), received.tensors


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


@dataclass(frozen=True)
class SignalsWithMembership:
    """What shadows say of some records, and which shadow was trained on which.

    Attributes:
        signals: Of every shadow about every record.
        is_in: Which shadow was trained on which record.
        is_out: Which record nobody around the shadow was trained on. In a shadow
            federation a record may be neither: it was another client's.
        target: What the target says of the same records, as a table of one model.
    """

    signals: SignalTable
    is_in: Bool[Tensor, "shadows records"]
    is_out: Bool[Tensor, "shadows records"]
    target: SignalTable

    def pick(self, records: Tensor) -> "SignalsWithMembership":
        """Return the columns that an index or a mask picks."""
        return SignalsWithMembership(
            self.signals.pick(records),
            self.is_in[:, records],
            self.is_out[:, records],
            self.target.pick(records),
        )


@dataclass(frozen=True)
class ShadowSignals:
    """What the shadows of one target, and the target itself, say about records.

    Attributes:
        public: About all public records. Of the target, each is out.
    """

    candidates: SignalsWithMembership
    public: SignalsWithMembership
    source: Source

    @classmethod
    def beside(
        cls,
        adversary: Adversary,
        target: Target,
        split: ShadowSplit,
        signals: Sequence[SignalTable],
    ) -> "ShadowSignals":
        """Put shadows' signals beside those of a target, which is asked anew."""
        of_target = target_signals(adversary, target)
        is_in = torch.zeros(len(split.is_in), len(target.candidates), dtype=torch.bool)
        if split.source == "candidates":
            is_in = split.is_in
        public_in, public_out = split.public_in, split.public_out
        return cls(
            SignalsWithMembership(signals[0], is_in, ~is_in, of_target[0]),
            SignalsWithMembership(signals[1], public_in, public_out, of_target[1]),
            split.source,
        )

    @property
    def training_set(self) -> SignalsWithMembership:
        """The records that an attack model learns from: shadows may be trained on them.

        Of the public ones, those of classes that are: others would tell of nothing.
        """
        if self.source == "candidates":
            return self.candidates
        labels = self.public.signals.labels
        return self.public.pick(
            torch.isin(labels, labels[self.public.is_in.any(dim=0)].unique())
        )


def shadow_signals(
    adversary: Adversary,
    targets: Sequence[Target],
    shadows: int,
    source: Source = "public",
) -> list[ShadowSignals]:
    """Return the signals for each target, training the shadows on first use."""
    about = tuple((t.client, content_hash(t.candidates)) for t in targets)
    known = adversary.once(
        ("shadows", shadows, source, about, are_linked(targets)),
        lambda: _kept_or_trained(adversary, targets, shadows, source),
    )
    return [
        ShadowSignals.beside(adversary, target, split, signals)
        for target, (split, signals) in zip(targets, known, strict=True)
    ]


def _kept_or_trained(
    adversary: Adversary, targets: Sequence[Target], shadows: int, source: Source
) -> list[tuple[ShadowSplit, list[SignalTable]]]:
    """Return what is kept beside the run, or train shadows of those of whom nothing is.

    The signals of a target are kept as soon as all of its shadows were asked.
    """
    splits, federated = draw_splits(adversary, targets, shadows, source)
    if source == "public" and adversary.task.kind == "classification":
        _refuse_empty(targets, splits)
    names = [  # what signals depend on, beside the adversary
        {
            "client": target.client,
            "shadows": shadows,
            "together": [other.client for other in targets] if federated else [],
            "linked": are_linked(targets),
            "source": source,
            "candidates": content_hash(target.candidates),
        }
        for target in targets
    ]
    known = [kept_signals(adversary, name) for name in names]
    missing = [number for number, signals in enumerate(known) if signals is None]
    asked: dict[int, list[list[SignalTable]]] = {number: [] for number in missing}
    for number, models in train_shadows(
        adversary, targets, splits, federated, only=missing
    ):
        about = targets[number].candidates, adversary.task.public
        asked[number].append([ask_signals(adversary, models, some) for some in about])
        if sum(len(one.log_likelihood) for one, _ in asked[number]) == shadows:
            signals = [
                SignalTable.join(parts)
                for parts in zip(*asked.pop(number), strict=True)
            ]
            keep_signals(adversary, signals, names[number])
            known[number] = signals
    return [
        (split, signals)
        for split, signals in zip(splits, known, strict=True)
        if signals is not None
    ]


def _refuse_empty(targets: Sequence[Target], splits: Sequence[ShadowSplit]) -> None:
    """Refuse before anything is trained what no attack model can be learned from.

    A client of two records has shadows of one record on average, and e^-n of n none.
    """
    for target, split in zip(targets, splits, strict=True):
        if not split.is_in.any():
            raise AttackError(
                f"{len(split.is_in)} shadow models of {target.client} were requested, "
                f"and with its {len(target.candidates)} candidates chance gave none of "
                "them a record to train on. Use more shadow models, such as 16, or "
                "more public records of the client's classes."
            )
