"""Words read off weights: which tokens stood where, and whole texts, without candidates.

Three readings of how a text model's weights moved, each with its own condition:

*Rows of the tokens' table* that moved are the tokens of a client's texts, at any batch
size, unless weight decay beyond a common factor, noise or tied outputs move all rows.

*The span of a first layer.* What enters it at a place depends on the token and the place
alone. So each token of the vocabulary is put to each place, and is taken for one that was
there where its input lies in the span of the update's rows. Certain while a batch has
fewer different inputs than the layer is wide. Inputs that depend linearly on others, as a
token at a place where another one stood at both places, pass, too.

*The span of a later layer* tells whole texts. Where no token sees later ones, texts are
grown from the left by what keeps the last token's input in the span. Else all texts that
the tokens at each place allow are tried, where they are few enough.

A model is asked as its owner asks it, about public texts; the tokens that its largest table
looks up are exchanged for others on the way.

Source: Petrov et al., "DAGER: exact gradient inversion for large language models", NeurIPS
2024; rows of tables: Melis et al., "Exploiting unintended feature leakage in collaborative
learning", IEEE S&P 2019, section 4.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding
from torch.overrides import TorchFunctionMode

from privaudit.auditing.attack import Adversary
from privaudit.auditing.record_gradients import Move, chosen_moves, summed_loss
from privaudit.auditing.signals import reference_records
from privaudit.core.tensors import Tensors
from privaudit.datasets.records import INSTRUCTION, PADDING, PICTURE, TokenSequences
from privaudit.federation.trainer import Records
from privaudit.models.layer_factors import LayerFactors
from privaudit.models.watched_layers import watch_layers
from privaudit_labs.words.row_span import RowSpan

AT_ONCE, HOSTS = 256, 64  # texts in a pass; public texts that lend their lengths
STACKS = 2  # of moves with inputs of their own that are read, each by itself
CHECKS = 4  # later layers of different inputs, of which one tells texts
BEAMS, TRIED = 256, 20_000  # beginnings grown together; texts tried of a client
ROUNDED = 16  # units of a weight's last digit, by which dividing moves it at most
Text = tuple[int, ...]
Check = tuple[str, RowSpan]


@dataclass(frozen=True)
class ReadTexts:
    """What was read of the texts behind one move of weights, or several.

    Attributes:
        rows: Tokens whose rows of a table moved; None where no table tells.
        places: Pairs of a token and its place; None where no span tells.
        texts: As tokens.
        remark: Why something could not be read; empty where all was.
    """

    rows: frozenset[int] | None = None
    places: frozenset[tuple[int, int]] | None = None
    texts: frozenset[Text] = frozenset()
    remark: str = ""


class Spoken(TorchFunctionMode):
    """Notes tokens as a model's largest table looks them up, or exchanges them.

    Args:
        instead: Tokens [records, length] that are looked up in place of the first ones.
        rows: Of the table in which they are.
        fixed: Places at which nothing is exchanged.
    """

    def __init__(
        self, instead: Tensor | None = None, rows: int = 0, fixed: Tensor | None = None
    ) -> None:
        super().__init__()
        self.instead, self.rows, self.fixed = instead, rows, fixed
        self.table, self.said = torch.empty(0, 0), list[Tensor]()

    def __torch_function__(
        self, function: Any, types: Any, given: Sequence[Any] = (), named: Any = None
    ) -> Any:
        """Call a function of torch, with other tokens where they are looked up."""
        named = named or {}
        if function is embedding:
            named = {**dict(zip(("input", "weight"), given, strict=False)), **named}
            if self._is_table(named["input"], named["weight"]):
                named["input"] = self._heard(named["input"], named["weight"])
            return (
                function(**named)
                if len(given) < 3
                else function(
                    named.pop("input"), named.pop("weight"), *given[2:], **named
                )
            )
        if function is Tensor.__getitem__ and isinstance(given[1], Tensor):
            table, ids = given
            if table.is_floating_point() and self._is_table(ids, table):
                return function(table, self._heard(ids, table))
        return function(*given, **named)

    def _is_table(self, ids: Tensor, table: Tensor) -> bool:
        integral = ids.dtype in (torch.int64, torch.int32)
        if table.ndim != 2 or ids.ndim < 2 or not integral:
            return False
        return len(table) == self.rows if self.rows else len(table) >= len(self.table)

    def _heard(self, ids: Tensor, table: Tensor) -> Tensor:
        if self.instead is None:
            if len(table) > len(self.table):
                self.said.clear()
            self.table = table
            self.said.append(ids.flatten(0, -2))
            return ids
        changed, length = ids.flatten(0, -2).clone(), self.instead.shape[1]
        new = self.instead[: len(changed)].to(changed)
        own = torch.zeros(length) if self.fixed is None else self.fixed[:length]
        changed[:, :length] = torch.where(own > 0, changed[:, :length], new)
        return changed.view_as(ids)


@dataclass(frozen=True)
class Speaker:
    """Asks one model about texts of one's own.

    Attributes:
        model: What the client received.
        public: Texts that lend their place in the owner's data, and their lengths.
    """

    adversary: Adversary
    model: Tensors
    public: Records

    def texts(self, records: Records) -> list[Text]:
        """Return the tokens of records, without padding behind them."""
        if records.words is not None:
            real = records.words.kinds != PADDING
            both = zip(records.words.ids, real, strict=True)
            return [tuple(row[mask].tolist()) for row, mask in both]
        return [_unpadded(row) for row in self._said(records)[0]]

    def _said(self, records: Records) -> tuple[list[Text], Tensor]:
        """Return what a model looks up of records, and in which table."""
        rows: list[Text] = []
        table = torch.empty(0, 0)
        for chunk in torch.arange(len(records)).split(AT_ONCE):
            spoken = Spoken()
            self._ask(spoken, records.pick(chunk))
            table = spoken.table
            told = [tuple(row.tolist()) for ids in spoken.said for row in ids]
            rows += told[-len(chunk) :]  # a model that is new is asked twice
        return rows, table

    def _ask(self, mode: TorchFunctionMode, records: Records) -> Tensor:
        with mode:
            return summed_loss(
                self.adversary.trainer, self.adversary.task, self.model, records
            )

    @cached_property
    def table(self) -> Tensor:
        """The largest table in which tokens are looked up."""
        return self._said(self.public)[1]

    @cached_property
    def longest(self) -> Int[Tensor, "1 length"]:
        """The longest public text."""
        return torch.tensor(self.texts(self.hosts[max(self.hosts)])[:1])

    @property
    def exchanged(self) -> Int[Tensor, " places"]:
        """The places of it at which no picture stands."""
        words, places = self.hosts[max(self.hosts)].words, self.longest[0] >= 0
        if words is not None:
            places &= words.kinds[0, : len(places)] != PICTURE
        return places.nonzero().flatten()

    @cached_property
    def usual(self) -> set[int]:
        """Tokens that all public texts hold."""
        return set.intersection(*(set(text) for text in self.texts(self.public)))

    @cached_property
    def hosts(self) -> dict[int, Records]:
        """A public record for each length."""
        lengths = [len(text) for text in self.texts(self.public)]
        return {n: self.public.pick(torch.tensor([lengths.index(n)])) for n in lengths}

    def can_be(self, length: int) -> bool:
        """Return whether a text of so many tokens can be asked about."""
        return length in self.hosts or (self.is_writable and length <= max(self.hosts))

    @property
    def is_writable(self) -> bool:
        """Whether records hold the texts themselves, and nothing beside them."""
        return (
            self.public.words is not None and self.adversary.task.kind != "generation"
        )

    def entering(
        self, ids: Int[Tensor, "n length"], until: str = ""
    ) -> dict[str, LayerFactors]:
        """Return what enters layers where texts were these; stop at one, if named."""
        length, rows = ids.shape[1], len(self.table)
        host = self.hosts[length if length in self.hosts else max(self.hosts)]
        parts = []
        for chunk in ids.split(AT_ONCE):
            records, fixed = host.pick(torch.zeros(len(chunk), dtype=torch.long)), None
            if self.is_writable:
                kinds = torch.full_like(chunk, INSTRUCTION)
                records = replace(records, words=TokenSequences(chunk, kinds))
            elif records.words is not None:
                words = records.words.trimmed()
                records, fixed = (
                    replace(records, words=words),
                    words.kinds[0] == PICTURE,
                )
            ask = partial(self._ask, Spoken(chunk, rows, fixed), records)
            parts.append(watch_layers(self.model, len(chunk), ask, until))
        return {
            name: LayerFactors.join([part[name] for part in parts], 0)
            for name in parts[0]
            if all(name in part for part in parts)
        }


def _unpadded(row: Text) -> Text:
    """Return a row up to the token that it ends with again and again."""
    length = len(row)
    while length > 1 and len(row) > 1 and row[length - 1] == row[-1] == row[-2]:
        length -= 1
    return row[:length]


@dataclass(frozen=True)
class TextLayers:
    """Layers by what enters them.

    Attributes:
        first: Those whose inputs at a place depend on its token alone, and are the same.
        later: Layers of other inputs, those of the same together, in the model's order.
        is_causal: Whether no token sees later ones.
        factors: Of all of them.
    """

    first: tuple[str, ...]
    later: tuple[tuple[str, ...], ...]
    is_causal: bool
    factors: Mapping[str, LayerFactors]

    @property
    def inputs(self) -> Tensor:
        """What enters the first layers, of a text that is always the same."""
        return self.factors[self.first[0]].inputs[0]

    @classmethod
    def of(cls, speaker: Speaker, sent: Tensors) -> "TextLayers | None":
        """Return what three texts that differ in one token show; None without any."""
        own, places = speaker.longest, speaker.exchanged
        if len(places) < 3:
            return None
        begin, middle, end = (int(places[n]) for n in (0, len(places) // 2, -1))
        texts = own.repeat(3, 1)
        texts[1, begin] = texts[2, end] = own[0, middle]
        factors = {n: f for n, f in speaker.entering(texts).items() if n in sent}
        found = {
            n: f.inputs for n, f in factors.items() if f.inputs.shape[1] >= own.shape[1]
        }
        first = [
            n for n, x in found.items()
            if _same(x[0, end], x[1, end]) and not _same(x[0, begin], x[1, begin])
        ]  # fmt: skip
        if not first:
            return None
        later = dict.fromkeys(_alike(found, found[n]) for n in found if n not in first)
        causal = all(_same(found[g[0]][0, :end], found[g[0]][2, :end]) for g in later)
        return cls(_alike(found, found[first[0]]), (*later,), causal, factors)


def _alike(found: dict[str, Tensor], inputs: Tensor) -> tuple[str, ...]:
    return tuple(n for n, x in found.items() if torch.equal(x, inputs))


def _same(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().max())
    return torch.allclose(one, other, rtol=0, atol=1e-6 * max(scale, 1e-30))


def moved_rows(move: Move, table: Tensor) -> frozenset[int] | None:
    """Return tokens whose rows moved beyond a common factor; None where no table tells."""
    for name, before in move.received.items():
        if before.shape != table.shape or not torch.equal(before, table):
            continue
        delta, weights = move.deltas.get(name), before.double()
        if delta is None:
            return None
        ratios = delta.double()[weights != 0] / weights[weights != 0]
        shrunk = float(ratios.median()) if len(ratios) else 0.0
        unit = torch.finfo(torch.float32).eps * ROUNDED
        beyond = (delta.double() - shrunk * weights).abs() > unit * weights.abs()
        moved = beyond.any(dim=1)
        if not 0 < int(moved.sum()) < 0.9 * len(moved):
            return None
        return frozenset(moved.nonzero().flatten().tolist())
    return None


@dataclass
class SpanReader:
    """Reads the texts behind moves of one client, or of a sum.

    Attributes:
        left: How many texts may still be tried.
    """

    speaker: Speaker
    moves: list[Move]
    layers: TextLayers
    left: int = TRIED

    def read(self, rows: frozenset[int] | None) -> ReadTexts:
        """Return places and texts, among tokens whose rows moved where these are known."""
        span = self._span(self.moves, self.layers.first)
        if span is None or not span.is_whole:
            found = "nothing moved" if span is None else f"rank {len(span.values)}"
            return ReadTexts(
                rows,
                remark=f"{found} in the first layer's {self.layers.inputs.shape[-1]} "
                "directions: as many different inputs, or noise",
            )
        at = self._places(span, sorted(rows or range(len(self.speaker.table))))
        pairs = frozenset((v, p) for p, some in enumerate(at) for v in some)
        later = self.layers.later[:CHECKS]
        spans = {group[0]: self._span(self.moves[:1], group) for group in later}
        whole = {  # later inputs are no fewer; a rank below is that of classes
            name: one
            for name, one in spans.items()
            if one and one.is_whole and len(one.values) >= len(span.values)
        }
        if not whole:
            return ReadTexts(rows, pairs, remark="no later layer's span is whole")
        name = min(whole, key=lambda n: len(whole[n].values) / whole[n].limit)
        grow = self._grown if self.layers.is_causal else self._enumerated
        return ReadTexts(rows, pairs, frozenset(grow(at, (name, whole[name]))))

    def _span(self, moves: Sequence[Move], names: Sequence[str]) -> RowSpan | None:
        """Return the span of some layers' moves, which are stacked."""
        pairs = [(move, name) for move in moves for name in names]
        return RowSpan.of(
            [self.layers.factors[name].move(name, move.deltas) for move, name in pairs],
            [move.floors.get(name, 0.0) for move, name in pairs],
        )

    def _outside(self, texts: Tensor, check: Check) -> Float[Tensor, "texts places"]:
        name, span = check
        self.left -= len(texts)
        inputs = self.speaker.entering(texts, name)[name].inputs
        return span.outside(inputs[:, : texts.shape[1]])

    def _places(self, span: RowSpan, tokens: Sequence[int]) -> list[list[int]]:
        """Return the tokens that may have stood at each place.

        Texts of one token at all places tell of all at once, but for tokens that all
        texts hold: those may say what others are, as separators do.
        """
        check, own = (self.layers.first[0], span), self.speaker.longest
        at: list[list[int]] = [[] for _ in range(own.shape[1])]
        for chunk in torch.tensor(tokens).split(AT_ONCE):
            outside = self._outside(chunk[:, None].expand(-1, len(at)), check)
            for row, place in (outside < 1).nonzero().tolist():
                if int(chunk[row]) not in self.speaker.usual:
                    at[place].append(int(chunk[row]))
        for token in sorted(self.speaker.usual & {*tokens}):
            texts = own.repeat(len(at), 1).fill_diagonal_(token)
            for place in (self._outside(texts, check).diagonal() < 1).nonzero():
                at[int(place)].append(token)
        self.left = TRIED
        return at

    def _grown(self, at: Sequence[Sequence[int]], check: Check) -> set[Text]:
        """Grow texts from the left, as long as the last token's input is in the span."""
        beams, texts = [Text()], set[Text]()
        for place, tokens in enumerate(at):
            grown = [(*beam, token) for beam in beams for token in tokens]
            if not grown or len(grown) > self.left:
                break
            whole = [text + text[-1:] * (len(at) - place - 1) for text in grown]
            outside = self._outside(torch.tensor(whole), check)[:, place]
            kept = [grown[n] for n in outside.argsort()[:BEAMS] if outside[n] < 1]
            texts |= {*beams} - {text[:-1] for text in kept}
            beams = kept
        return (texts | {*beams}) - {()}

    def _enumerated(self, at: Sequence[Sequence[int]], check: Check) -> set[Text]:
        """Try all texts of each length at which they are few."""
        ends = {text[-1] for text in self.speaker.texts(self.speaker.public)}
        texts = set[Text]()
        for n in filter(self.speaker.can_be, range(2, len(at) + 1)):
            some = [*at[: n - 1], sorted(ends & {*at[n - 1]})]
            if 0 < prod(map(len, some)) <= self.left:
                every = torch.cartesian_prod(*map(torch.tensor, some)).view(-1, n)
                inside = (self._outside(every, check) < 1).all(dim=1)
                texts |= {tuple(text) for text in every[inside].tolist()}
        return texts


def read_texts(adversary: Adversary, client: str, rounds: int) -> ReadTexts:
    """Return what a client's moves tell, or those of sums that it is in.

    Args:
        adversary: Who reads.
        client: Whose texts.
        rounds: From so many, spread evenly, moves are taken.

    Raises:
        ViewError: The view shows no moves of weights.
    """
    public = reference_records(adversary, "texts", HOSTS)
    readers, rows = list[SpanReader](), frozenset[int]()
    for move in chosen_moves(adversary, client, rounds):
        speaker = Speaker(adversary, move.received, public)
        if not len(speaker.table):
            return ReadTexts(remark="the model looks up no tokens in torch")
        rows |= moved_rows(move, speaker.table) or frozenset()
        layers = TextLayers.of(speaker, move.deltas)
        alike = [
            one for one in readers
            if layers and torch.equal(one.layers.inputs, layers.inputs)
        ]  # fmt: skip
        if alike:
            alike[0].moves.append(move)
        elif layers:
            readers.append(SpanReader(speaker, [move], layers))
    read = [one.read(rows or None) for one in readers[:STACKS]]
    places = [one.places for one in read if one.places is not None]
    remarks = dict.fromkeys(one.remark for one in read if one.remark)
    return ReadTexts(
        rows or None,
        frozenset().union(*places) if places else None,
        frozenset().union(*(one.texts for one in read)),
        "; ".join(remarks) if read else "nothing that is sent reads tokens one by one",
    )
