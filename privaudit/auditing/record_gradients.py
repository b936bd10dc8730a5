"""What single records would have sent: gradients of candidates, and moves beside them.

Of trainers that take a single step the step itself says it: clients of one record each
are trained in a stack. Of others' models it is how records enter their layers, found
while the owner's ``query`` runs.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from jaxtyping import Float, Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.gradient_regression import GramBlock, divided_by_size, likeliest
from privaudit.core.errors import AttackError, ViewError, shown
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import Stacked, Tensors, distinct, stack
from privaudit.federation.query import ask
from privaudit.federation.threat_models import EVERYBODY, RoundSum
from privaudit.federation.trainer import (
    Cohort,
    DeclaresBase,
    Records,
    Round,
    TakesSingleStep,
    Task,
    Trainer,
    start_client,
)
from privaudit.federation.uploads import COORDINATES, RANGE, update_deltas, weight_in
from privaudit.models.interfaces import Classifier, OwnersModel
from privaudit.models.layer_factors import LayerFactors
from privaudit.models.token_table import NO_STATISTICS, TOKENS, TokenTable

AT_ONCE = 256  # records whose gradients are taken together
TEXTS_AT_ONCE = 32  # of similar lengths, so that few places are padding
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "learning_rate": 1.0}
"""A step along the gradient itself, so large that few of its digits are rounded away."""
SIMPSON = ((0.0, 1 / 6), (0.5, 4 / 6), (1.0, 1 / 6))
"""Where on the straight path from broadcast to upload, and with which weight."""
RADAU = ((0.0, 1 / 4), (2 / 3, 3 / 4))
"""Likewise, for whole steps, which cost more: two points, of which one is the beginning,
where records that are soon learned by heart still have gradients."""
MOST_NUMBERS = 1 << 14
"""Of a record's gradient of one tensor; larger ones are hashed into so many sums."""
KEPT_NUMBERS = 1 << 26
"""Of moves that attacks of one adversary share; the ones beyond are made again."""
MANY_NUMBERS = 1 << 22
"""Of a whole model: single records' steps on a larger one do not fit into the memory."""

NO_MOVES = "The view shows no moves of weights."
NO_BASE = (
    "What was released has no public base to be compared with: nothing was trained, the "
    "server's seed drew it, or no `base` was declared."
)


@dataclass(frozen=True)
class Move:
    """How weights moved in one round, of one client or of several together.

    Attributes:
        deltas: By how much, by name of what was sent.
        floors: Deviation of a number by rounding alone, as it was sent.
    """

    received: Tensors
    deltas: Tensors
    at: Round
    floors: Mapping[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """How many numbers may have moved."""
        return sum(delta.numel() for delta in self.deltas.values())

    @classmethod
    def of(cls, sent: Tensors, received: Tensors, at: Round) -> "Move":
        """Return the move that an upload shows, or a sum of uploads.

        Raises:
            ViewError: What was sent has another shape than what was received.
        """
        stacked = update_deltas({n: t.unsqueeze(0) for n, t in sent.items()}, received)
        for name, delta in stacked.items():
            before = received.get(name, delta[0])
            if delta.shape[1:] != before.shape and COORDINATES not in sent:
                raise ViewError(
                    f"{shown(name)} was sent in the shape {[*delta.shape[1:]]} and received "
                    f"in {[*before.shape]}: no weights moved that could be read."
                )
        move = cls(received, {name: delta[0] for name, delta in stacked.items()}, at)
        ends = move.point(1.0)
        floors = {name: _rounding(sent, name, ends.get(name)) for name in move.deltas}
        return replace(move, floors=floors)

    def point(self, share: float) -> dict[str, Tensor]:
        """Return the weights after a share of the move, from 0 to 1."""
        moved = {
            name: self.received[name] + share * delta
            for name, delta in self.deltas.items()
            if name in self.received
        }
        return {**self.received, **moved}


def _rounding(sent: Tensors, name: str, weights: Tensor | None) -> float:
    """Return the deviation of a number by the coarsest format that holds what was sent."""
    if RANGE + name in sent:
        low, high, bits = sent[RANGE + name].tolist()
        return float(high - low) / (2**bits - 1) / 12**0.5
    if weights is None:
        return 0.0
    formats, values = (torch.bfloat16, torch.float16), sent[name]
    held = [f for f in formats if torch.equal(values.to(f).to(values.dtype), values)]
    unit = torch.finfo(held[0] if held else torch.float32).eps
    size = weights.double().abs().clamp(min=1e-30).log2().floor()
    return unit * float((2**size).square().mean().sqrt()) / 12**0.5


def _shown(
    adversary: Adversary, client: str
) -> Iterator[tuple[Tensors, Tensors, Round]]:
    """Yield what ended and began each of a client's moves, or those of sums it is in.

    Of a released model it ends as much as has a public base.
    """
    view = adversary.view

    def at(index: int, *parties: str) -> Round:
        return Round(index, adversary.seeds, parties)

    if view.sees_updates_of(client):
        for sent in view.updates_of(client):
            down = view.received_in(client, sent.round).tensors
            yield sent.tensors, down, at(sent.round, client)
    elif view.sums:
        for summed in view.sums:
            yield _as_one(summed), summed.broadcast, at(summed.index, EVERYBODY)
    elif view.has_release_of(client):
        given = view.release_of(client)
        yield *_less_base(adversary, given.tensors), at(given.round, client)
    else:
        received = view.of_kind("broadcast") or view.broadcasts_to(client)
        for one, other in pairwise(received):
            yield other.tensors, one.tensors, at(one.round, EVERYBODY)


def _as_one(summed: RoundSum) -> Tensors:
    """Return a sum as an upload: models that came without a weight as their mean."""
    total = summed.total
    models = [n for n in total if n in summed.broadcast and weight_in(total, n) is None]
    return {**total, **{name: summed.mean(name) for name in models}}


def _less_base(adversary: Adversary, given: Tensors) -> tuple[Tensors, Tensors]:
    """Return what of a released model has a public base, and what the model began as.

    Public is what its owner declares, or what starts alike whatever the seed; the rest
    is taken as if it had not moved.
    """
    trainer = adversary.trainer
    if isinstance(trainer, DeclaresBase):
        base, begun = trainer.public_base, dict(given)
    else:
        start, other = adversary.once(("two starts",), lambda: _two_starts(adversary))
        base = {n: t for n, t in start.items() if torch.equal(t, other[n])}
        begun = {n: given.get(n, t) for n, t in start.items()}
    base = {n: t for n, t in base.items() if n in given and t.shape == given[n].shape}
    if not base:
        raise ViewError(NO_BASE)
    return {name: given[name] for name in base}, {**begun, **base}


def _two_starts(adversary: Adversary) -> list[Tensors]:
    """Return what a client would first receive in two federations of other seeds."""
    trainer, task = adversary.trainer, adversary.task
    received = []
    for seeds in (adversary.seeds.child(f"start {n}") for n in range(2)):
        at = Round(0, seeds, task.clients)
        server = trainer.start(task, seeds)
        received.append(trainer.broadcast(server, task.clients[0], at))
    return received


def of_one_move(
    adversary: Adversary, targets: Sequence[Target]
) -> list[Sequence[Target]]:
    """Return targets by what shows their moves: each alone, or all in a sum.

    Those who released one model are together.
    """
    view, clients = adversary.view, tuple(target.client for target in targets)
    if all(map(view.sees_updates_of, clients)):
        return [[target] for target in targets]
    if not all(map(view.has_release_of, clients)):
        return [targets]
    _, places = adversary.once(
        ("released alike", clients),
        lambda: distinct([view.release_of(client).tensors for client in clients]),
    )
    groups: dict[int, list[Target]] = {}
    for place, target in zip(places, targets, strict=True):
        groups.setdefault(place, []).append(target)
    return [*groups.values()]


def chosen_moves(adversary: Adversary, client: str, most: int) -> Sequence[Move]:
    """Return a client's moves, or so many of them, spread evenly; 0 takes all.

    Attacks of one adversary share them, while there is room.

    Raises:
        ViewError: The view shows neither uploads nor sums nor two broadcasts, or a
            released model without a public base.
    """
    view = adversary.view
    is_summed = not view.sees_updates_of(client) and bool(view.sums)
    key = EVERYBODY if is_summed else client, most
    kept: dict[object, Sequence[Move]] = adversary.once(("moves of weights",), dict)
    if key in kept:
        return kept[key]
    sent = list(_shown(adversary, client))
    if most and len(sent) > most:
        places = torch.linspace(0, len(sent) - 1, most).round().int().tolist()
        sent = [sent[place] for place in places]
    moves = [Move.of(*one) for one in sent]
    together = [move for some in (moves, *kept.values()) for move in some]
    if sum(move.numbers for move in together) <= KEPT_NUMBERS:
        kept[key] = moves
    return moves


def of_one_broadcast(moves: Sequence[Move]) -> list[list[int]]:
    """Return the positions of moves by what they began at."""
    groups: dict[int, list[int]] = {}
    _, places = distinct([move.received for move in moves])
    for position, place in enumerate(places):
        groups.setdefault(place, []).append(position)
    return [*groups.values()]


def why_no_moves(adversary: Adversary, targets: Sequence[Target], rounds: int) -> str:
    """Return why what was sent moves no weights that can be read; empty if it does."""
    try:
        moves = [m for t in targets for m in chosen_moves(adversary, t.client, rounds)]
    except ViewError as error:
        return str(error)
    if not moves:
        return NO_MOVES
    if not all(bool(d.isfinite().all()) for m in moves for d in m.deltas.values()):
        return "What was sent holds numbers that are not finite."
    return ""


def why_no_gradients(
    adversary: Adversary, targets: Sequence[Target], rounds: int
) -> str:
    """Return why candidates' gradients tell nothing of what was sent; empty if they may.

    One record's gradient is taken to find out.
    """
    if lacking := why_no_moves(adversary, targets, rounds):
        return lacking
    moves = chosen_moves(adversary, targets[0].client, rounds)
    one = targets[0].candidates.pick(torch.arange(1))
    try:
        blocks = gram_blocks(adversary, moves[0], one)
    except AttackError as error:
        return str(error)
    numbers = len(moves) * sum(block.numbers for block in blocks)
    records = sum(len(t.candidates) for t in of_one_move(adversary, targets)[0])
    if records > numbers:
        return (
            f"It has no power: {records} records, and {numbers} numbers that moved with "
            "a gradient."
        )
    return ""


def begins_alone(task: Task) -> bool:
    """Return whether gradients are taken where moves begin alone (docs/weights.md)."""
    return task.kind == "generation" and not isinstance(task.backbone, OwnersModel)


def gram_blocks(
    adversary: Adversary, move: Move, records: Records, public: Records | None = None
) -> list[GramBlock]:
    """Return the gradients of records along a move, tensor by tensor.

    Args:
        adversary: Its trainer is asked for layers, or for a step.
        move: How weights moved.
        records: The candidates.
        public: Others, that stand for members who are no candidates; only a model whose
            layers are watched has them.

    Raises:
        AttackError: Neither a model's layers nor a step say what gradients are.
    """
    points = ((0.0, 1.0),) if begins_alone(adversary.task) else None
    if isinstance(adversary.task.backbone, OwnersModel) or move.numbers > MANY_NUMBERS:
        asked = [records] if public is None else [records, public]
        both, others = Records.joined(asked), sum(map(len, asked[1:]))

        def layers(model: Tensors) -> dict[str, LayerFactors]:
            return layers_of(adversary, model, both, move.deltas)

        if found := along_layers(move, layers, others, points or SIMPSON):
            return found
    rows: dict[str, Tensor] = {}
    for share, weight in points or RADAU:
        step = single_moves(adversary, move.point(share), records, move.at, hashed=True)
        for name, row in step.items():
            rows[name] = rows.get(name, 0.0) - weight * row.double()
    return [
        GramBlock.of_rows(rows[name], _hashed(adversary, name, delta.unsqueeze(0)))
        for name, delta in move.deltas.items()
        if name in rows
    ]


def along_layers(
    move: Move,
    layers: Callable[[Tensors], Mapping[str, LayerFactors]],
    public: int = 0,
    points: Sequence[tuple[float, float]] = SIMPSON,
) -> list[GramBlock]:
    """Return the block of each layer, gradients averaged along the path.

    Args:
        move: How weights moved.
        layers: Says how candidates enter the layers of a model.
        public: How many of the last are public records and no candidates.
        points: Where on the path gradients are taken, and with which weight.
    """
    found: dict[str, list[LayerFactors]] = {}
    for share, weight in points:
        for name, factors in layers(move.point(share)).items():
            if factors.deltas is not None and name in move.deltas:
                weighted = replace(factors, deltas=weight * factors.deltas)
                found.setdefault(name, []).append(weighted)
    return [_block(name, _along(parts), move, public) for name, parts in found.items()]


def _along(parts: Sequence[LayerFactors]) -> LayerFactors:
    """Return one layer's factors at several points of a path as one."""
    first = parts[0].inputs
    if all(torch.equal(first, part.inputs) for part in parts):
        deltas = [part.deltas for part in parts if part.deltas is not None]
        return replace(parts[0], deltas=torch.stack(deltas).sum(dim=0))
    return LayerFactors.join(parts, 1)  # points of the path are further places


def _block(name: str, factors: LayerFactors, move: Move, public: int) -> GramBlock:
    """Return the block of one layer, by plain steps or by those of Adam.

    What all records enter alike, as a prompt's class names, is no layer of theirs.
    """
    moved, start = (factors.move(name, w) for w in (move.deltas, move.received))
    kinds = factors, divided_by_size(factors)
    floor = move.floors.get(name, 0.0) ** 2
    blocks = (GramBlock.of_factors(one, moved, floor, start) for one in kinds)
    is_layer = bool((factors.inputs != factors.inputs[:1]).any())
    return likeliest(replace(one, public=public, is_layer=is_layer) for one in blocks)


def layers_of(
    adversary: Adversary,
    model: Tensors,
    records: Records,
    sent: Container[str],
    *,
    has_gradients: bool = True,
) -> dict[str, LayerFactors]:
    """Return how records enter layers that a ``query`` multiplies by and that were sent.

    Records are asked about one by one where rows of several are not told apart. Inputs
    alone are cheaper than with the gradients that come back.
    """
    from privaudit.models.watched_layers import watch_layers

    weights = {name: tensor for name, tensor in model.items() if name in sent}
    until = None if has_gradients else ""
    order, at_once = _alike_together(records)
    rows = None if records.words is None else order.argsort()

    def watched(at_once: int) -> dict[str, LayerFactors]:
        parts = []
        for chunk in order.split(at_once):
            some = records.pick(chunk)
            loss = partial(summed_loss, adversary.trainer, adversary.task, model, some)
            parts.append(watch_layers(weights, len(some), loss, until))
            if not parts[0]:  # no layer is there that all records enter
                return {}
        named = [name for name in parts[0] if all(name in part for part in parts)]
        return {n: LayerFactors.join([p[n] for p in parts], 0, rows) for n in named}

    return watched(at_once) or watched(1)


def _alike_together(records: Records) -> tuple[Int[Tensor, " n"], int]:
    """Return an order in which texts of similar lengths stand together, and how many."""
    return records.by_length, AT_ONCE if records.words is None else TEXTS_AT_ONCE


def summed_loss(
    trainer: Trainer, task: Task, model: Tensors, records: Records
) -> Tensor:
    """Return the sum of records' losses: of labels, or of answers' tokens."""
    stacked = {name: tensor.unsqueeze(0) for name, tensor in model.items()}
    if task.kind == "classification":
        logs = ask(trainer, task, stacked, records)[0]
        return -logs.gather(1, records.labels[:, None]).sum()
    total = torch.zeros(())
    want = frozenset({TOKENS}) if torch.is_grad_enabled() else NO_STATISTICS
    for said in trainer.query(task, stacked, records, want=want):
        if want == NO_STATISTICS:  # what entered the model's layers was noted
            continue
        table = TokenTable.from_signals([said], model=0)
        scored = table.scored("description", all_positions=True, needs_target=True)
        total = total - table.statistics.log_likelihood.masked_fill(~scored, 0).sum()
    return total


def single_moves(
    adversary: Adversary,
    received: Tensors,
    records: Records,
    at: Round,
    *,
    hashed: bool = False,
) -> Stacked:
    """Return where one step on each record alone would have moved what was received.

    Private state that the adversary does not know is drawn as a client would.

    Args:
        adversary: Its trainer takes the step.
        received: What every client starts from.
        records: One for each client.
        at: The round.
        hashed: Take a plain step along the gradient, and hash large tensors' moves.
    """
    trainer = adversary.trainer
    task = adversary.once(("contexts encoded once",), lambda: _encoding_once(adversary))
    records = replace(records, views=None)  # which one was taken is not known
    if isinstance(trainer, TakesSingleStep):
        trainer = trainer.single_step()
    if hashed and hasattr(trainer, "with_settings"):
        with suppress(ValueError):  # some have one optimiser alone, as published
            trainer = trainer.with_settings(**PLAIN)
    client_state = start_client(trainer, task, "alone", adversary.seeds)
    parts, order, at_once = [], torch.arange(len(records)), AT_ONCE
    if hashed:
        order, at_once = _alike_together(records)
    for chunk in order.split(at_once):
        # One name, so that all draw the same private coins.
        names = ["alone"] * len(chunk)
        cohort = Cohort.of(names, [records.pick(n.view(1)) for n in chunk])
        down = {n: t.expand(len(chunk), *t.shape) for n, t in received.items()}
        private_state = stack([client_state] * len(chunk))
        result = trainer.local_update(task, cohort, down, private_state, at)
        deltas = update_deltas(result.sent, received)
        if hashed:
            deltas = {n: _hashed(adversary, n, delta) for n, delta in deltas.items()}
        parts.append(deltas)
    back = order.argsort()
    return {n: torch.cat([part[n] for part in parts])[back] for n in parts[0]}


def _encoding_once(adversary: Adversary) -> Task:
    """Return the task, where a classifier encodes clients' equal contexts once."""
    task = adversary.task
    if not isinstance(task.backbone, Classifier):
        return task
    from privaudit.models.clip.equal_contexts import EqualContexts

    model = task.backbone
    prompts, tower = EqualContexts(model.prompts), lambda: model.tower
    return replace(task, backbone=replace(model, prompts=prompts, load_tower=tower))


def _hashed(
    adversary: Adversary, name: str, rows: Float[Tensor, "n ..."]
) -> Float[Tensor, "n numbers"]:
    """Return rows as they are, or sums of so many numbers with drawn signs.

    Sums of gradients stay sums of them, exactly: only their rank is bounded.
    """
    rows = rows.flatten(1)
    if rows.shape[1] <= MOST_NUMBERS:
        return rows
    stream = adversary.seeds.stream("hashed gradients", client=name)
    words = torch.from_numpy(stream.words(rows.shape[1]).astype("int64"))
    signs = (words & 1).mul(2).sub(1).to(rows.dtype)
    sums = torch.zeros(len(rows), MOST_NUMBERS, dtype=rows.dtype)
    return sums.index_add_(1, (words >> 1) % MOST_NUMBERS, rows * signs)
