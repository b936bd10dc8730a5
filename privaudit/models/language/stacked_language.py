"""Stacked language models: several differently tuned ones in one forward pass.

Causal ones and encoder-decoders; they answer greedily, with a cache of keys and values,
many prompts at once.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import at_least_float32
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    TokenSequences,
)
from privaudit.models.interfaces import Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.transformers.tuned_modules import TunedModules, in_front

_PROMPTS_AT_ONCE = 256  # of all models together; bounds the cache
_STILL_GOING = 0.8  # of the rows, or fewer: it pays to go on without the others


@dataclass(frozen=True)
class PromptGroup:
    """Prompts of one length, as many for each model.

    Attributes:
        length: Tokens of each prompt, without padding.
        source: Which prompt, counted through all rows of all models.
        real: False where a model has fewer such prompts than another, and one that it
            need not answer stands in.
    """

    length: int
    source: Int[Tensor, "k m"]
    real: Bool[Tensor, "k m"]

    def owners(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """Yield (place in the group, model, row) of each prompt that is real."""
        for place in self.real.flatten().nonzero()[:, 0].tolist():
            yield place, *divmod(int(self.source.flatten()[place]), rows)


def prompt_groups(lengths: Int[Tensor, "k rows"]) -> Iterator[PromptGroup]:
    """Yield groups in which each prompt is once; prompts without tokens are in none."""
    models, rows = lengths.shape
    numbers = torch.arange(models * rows, device=lengths.device).view(models, rows)
    at_once = max(1, _PROMPTS_AT_ONCE // models)
    for length in sorted(set(lengths[lengths > 0].tolist())):
        by_model = [numbers[i][lengths[i] == length] for i in range(models)]
        stand_in = torch.cat(by_model)[0]
        width = max(map(len, by_model))
        source = stand_in.repeat(models, width)
        real = torch.zeros_like(source, dtype=torch.bool)
        for i, prompts in enumerate(by_model):
            source[i, : len(prompts)], real[i, : len(prompts)] = prompts, True
        for chunk, which in zip(
            source.split(at_once, 1), real.split(at_once, 1), strict=True
        ):
            yield PromptGroup(length, chunk, which)


OLD_CACHE = "past_key_values"


def cache_name(model: Any) -> str:
    """Return what a model's cache is called, which transformers renamed in 5.24."""
    return (
        "cache" if "cache" in inspect.signature(model.forward).parameters else OLD_CACHE
    )


def greedy(
    run: Callable[[Tensor, Any], Any],
    embed: Callable[[Tensor], Tensor],
    prompts: Float[Tensor, "n length width"] | Int[Tensor, "n length"],
    ends: Collection[int],
    longest: int,
    leaving: bool = False,
) -> list[list[int]]:
    """Return the likeliest token after each prompt, and after that, until the end.

    Args:
        run: From embedded tokens and the cache of those before them to the model's
            output. A model that returns no cache gets all tokens anew.
        embed: From token numbers to embedded tokens.
        prompts: Embedded, or as numbers where ``run`` embeds, of one length and so
            without padding.
        ends: Tokens that end an answer; the first one is part of it.
        longest: Tokens of an answer at most.
        leaving: Whether ``run`` takes fewer rows; stacked models need equally many.
    """
    cache: Any = None
    fresh, rows = prompts, list(range(len(prompts)))
    said = [list[int]() for _ in rows]
    for _ in range(longest):
        output = run(fresh, cache)
        cache = getattr(output, "cache", None)
        cache = getattr(output, OLD_CACHE, None) if cache is None else cache
        likeliest = output.logits[:, -1].argmax(dim=-1)
        for row, token in zip(rows, likeliest.tolist(), strict=True):
            if not said[row] or said[row][-1] not in ends:
                said[row].append(token)
        going = [place for place, row in enumerate(rows) if said[row][-1] not in ends]
        if not going:
            break
        following = embed(likeliest[:, None])
        fresh = following if cache is not None else torch.cat([fresh, following], 1)
        few = leaving and len(going) <= _STILL_GOING * len(rows)
        layers = getattr(cache, "layers", ()) if few else ()  # some keep all rows
        if layers and all(hasattr(one, "batch_select_indices") for one in layers):
            left = torch.tensor(going, device=fresh.device)
            cache.batch_select_indices(left)
            fresh, rows = fresh[left], [rows[place] for place in going]
    return said


# What configurations call the number of positions that a model was trained for.
_CONTEXT_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "max_context_length",
    "max_seq_len",
)


@runtime_checkable
class TextTokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it."""

    eos_token_id: Any
    pad_token_id: Any

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return a text's tokens, with or without those that begin a text."""

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any:
        """Return the text of some tokens."""


class StackedLanguageModel(TunedModules):
    """Any causal language model of transformers, frozen.

    Implements :class:`~privaudit.models.interfaces.LanguageModel`: k models with different
    tunings share one forward pass, for which they lie behind one another on the batch
    axis. Everything but what is tuned treats rows apart anyway, so gradients of the
    models' tunings are apart too.

    Args:
        model: A causal model of transformers that takes ``inputs_embeds``.
        tokenizer: Says which token ends an answer, and writes answers out.
        part: Name of the language model inside ``model``, if it has other parts.

    Attributes:
        width: Numbers in a token's embedding, and in a picture token.
        vocabulary: Number of tokens that logits are of.
        is_causal: Whether no token sees a later one, in the input either.
        is_padded: Whether a picture may have fewer tokens than there is room for.
    """

    task: ClassVar[Literal["generation"]] = "generation"
    is_causal: ClassVar[bool] = True
    is_padded: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        targets: TargetNames = "all-linear",
        part: str = "",
    ) -> None:
        super().__init__(model, targets, part)
        self.tokenizer = tokenizer
        rows, self.width = self._embedding.weight.shape
        head = self.model.get_output_embeddings()
        self.vocabulary = int(rows if head is None else head.weight.shape[0])
        text = self.model.config.get_text_config()
        lengths = (getattr(text, name, None) for name in _CONTEXT_NAMES)
        self.context = next((int(length) for length in lengths if length), None)
        takes = inspect.signature(self.model.forward).parameters
        self._keeps = "logits_to_keep" in takes
        self.ends = _end_tokens(self.model, tokenizer)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._embedding.weight.device

    def logits(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: TokenSequences,
        tuning: Tuning,
        positions: Int[Tensor, " p"] | None = None,
    ) -> Float[Tensor, "k rows p vocabulary"]:
        """Return the logits of the next token: see the protocol.

        Raises:
            ConfigError: A row's places for its picture are not as many as its parts,
                or rows are longer than the model's context.
        """
        self._check_places(words, tokens.shape[2])
        if positions is not None and self.is_causal:  # what comes later cannot matter
            words = words[:, :, : int(positions.max()) + 1 if len(positions) else 1]
        if tuning.weights:
            return self.each_alone(
                tuning,
                lambda n, rest: self._logits(
                    tokens[n : n + 1], words[n : n + 1], rest, positions
                ),
            )
        return self._logits(tokens, words, tuning, positions)

    def _logits(
        self,
        tokens: Tensor,
        words: TokenSequences,
        tuning: Tuning,
        positions: Tensor | None,
    ) -> Float[Tensor, "k rows p vocabulary"]:
        models, rows, length = words.ids.shape
        front = tuning.virtual_tokens
        self.check_length(length, tuning)
        inputs = self._inputs(tokens, words, tuning)
        if positions is None:
            positions = torch.arange(length, device=words.ids.device)
        keep: int | Tensor = positions + front
        if front == 0 and len(positions) == length:
            keep = 0  # all of them
        with self.tuned(tuning, models, models * rows * (front + length)):
            logits = self._run(keep, use_cache=False, **inputs).logits
        logits = logits.unflatten(0, (models, rows))
        return at_least_float32(logits)

    def _inputs(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning
    ) -> dict[str, Any]:
        """Return what the model takes of rows, those of all models on one axis."""
        embedded = in_front(tuning.prompt, self._embed(tokens, words))
        places = self._places(tuning, embedded.shape[2])
        return {"inputs_embeds": embedded.flatten(0, 1), **places}

    @torch.no_grad()
    def generate(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: TokenSequences,
        tuning: Tuning,
        longest: int,
    ) -> list[list[str]]:
        """Return what each model says to each prompt, as text: see the protocol."""
        answers = self.generate_ids(tokens, words, tuning, longest)
        return [[self.decode(ids) for ids in rows] for rows in answers]

    @torch.no_grad()
    def generate_ids(
        self,
        tokens: Float[Tensor, "k rows parts width"],
        words: TokenSequences,
        tuning: Tuning,
        longest: int,
    ) -> list[list[list[int]]]:
        """Return the same as token numbers, each with its end token if it has one.

        Raises:
            ConfigError: Words hold answers, ``longest`` is not above 0, or as
                :meth:`logits`.
        """
        if longest < 1:
            raise ConfigError(
                f"Answers of at most {longest} tokens were requested. Ask for at least 1."
            )
        if (words.kinds == ANSWER).any():
            raise ConfigError(
                "Words to be continued hold answers already. Give prompts only."
            )
        self._check_places(words, tokens.shape[2])
        if not tuning.weights:
            return self._all_say(tokens, words, tuning, longest)

        def said(number: int, rest: Tuning) -> list[list[int]]:
            inputs = tokens[[number]], words[number : number + 1]
            return self.generate_ids(*inputs, rest, longest)[0]

        numbers = range(len(tokens))  # one by one: all weights are their own
        return [self.one_alone(tuning, n, partial(said, n)) for n in numbers]

    def _all_say(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[list[int]]]:
        """Let all models answer together.

        Prompts of one length run together, so that none needs padding at its left.
        """
        models, rows, _ = words.ids.shape
        answers: list[list[list[int]]] = [[[]] * rows for _ in range(models)]
        for group in prompt_groups((words.kinds != PADDING).sum(dim=-1)):
            self.check_length(group.length, tuning)
            most = longest
            if self.context is not None:
                used = group.length + tuning.virtual_tokens + tuning.skipped_positions
                most = min(longest, self.context - used + 1)
            ids, kinds = (
                t.flatten(0, 1)[group.source][..., : group.length]
                for t in (words.ids, words.kinds)
            )
            pictures = tokens.flatten(0, 1)[group.source]
            said = self._continue(pictures, TokenSequences(ids, kinds), tuning, most)
            for place, model, row in group.owners(rows):
                answers[model][row] = said[place]
        return answers

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer's tokens, without special ones."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def _continue(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[int]]:
        """Return what follows prompts of one length."""
        cached = cache_name(self.model)

        def run(fresh: Tensor, cache: Any) -> Any:
            before = 0 if cache is None else cache.get_seq_length()
            places = self._places(tuning, fresh.shape[1], before)
            options = {"use_cache": True, cached: cache, **places}
            with self.tuned(tuning, len(tokens), len(fresh) * fresh.shape[1]):
                return self._run(1, inputs_embeds=fresh, **options)

        flat = self._inputs(tokens, words, tuning)["inputs_embeds"]
        return greedy(run, self._embedding, flat, self.ends, longest, len(tokens) == 1)

    def _run(self, keep: int | Tensor, **options: Any) -> Any:
        """Run the model; ``keep`` is as transformers' ``logits_to_keep``."""
        if self._keeps:
            options["logits_to_keep"] = keep
        output = self.model(return_dict=True, **options)
        if not self._keeps and isinstance(keep, Tensor):
            output.logits = output.logits[:, keep]
        return output

    def _embed(
        self, tokens: Float[Tensor, "k rows parts width"], words: TokenSequences
    ) -> Float[Tensor, "k rows length width"]:
        """Embed words, and put each picture's parts where its places are."""
        places = words.kinds == PICTURE
        # A placeholder's number may lie beyond the table.
        embedded = self._embedding(words.ids.masked_fill(places, 0))
        if not tokens.shape[2]:  # a model without pictures
            return embedded
        which = (places.cumsum(dim=-1) - 1).clamp(min=0, max=tokens.shape[2] - 1)
        shape = (*which.shape, tokens.shape[-1])
        parts = tokens.gather(2, which[..., None].expand(shape)).to(embedded.dtype)
        return torch.where(places[..., None], parts, embedded)

    def run_once(self) -> object:
        """Run the model on three empty tokens."""
        empty = self._embedding.weight.new_zeros(1, 3, self.width)
        return self._run(0, inputs_embeds=empty, use_cache=False)

    def _check_places(self, words: TokenSequences, parts: int) -> None:
        """Check that each row has a place for each part of its picture."""
        places = (words.kinds == PICTURE).sum(dim=-1)
        odd = (places > parts) | (places == 0) if self.is_padded else places != parts
        wrong = odd & (words.kinds != PADDING).any(dim=-1)
        if wrong.any():
            model, row = wrong.nonzero()[0].tolist()
            raise ConfigError(
                f"Row {row} of model {model} has {int(places[model, row])} places for "
                f"a picture of {'at most ' * self.is_padded}{parts} tokens. Give each "
                "record one picture, and its words as many places as the picture has "
                "tokens."
            )


def _end_tokens(model: Any, tokenizer: TextTokenizer) -> frozenset[int]:
    """Return the tokenizer's end token, and those the model itself stops at."""
    stop_ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = stop_ids if isinstance(stop_ids, list) else [stop_ids]
    ends = [token for token in (*listed, tokenizer.eos_token_id) if token is not None]
    return frozenset(map(int, ends))


class StackedSeq2Seq(StackedLanguageModel):
    """Any encoder-decoder of transformers that takes ``inputs_embeds``, frozen.

    The encoder reads pictures and instructions, behind the prompt if there is one, and
    the decoder writes the answer. A prefix stands in self-attention of both. As in
    other language models position j tells what is expected at j + 1, where that is
    part of an answer. Nothing expects the other tokens, which the encoder is given:
    there all logits are 0, so that all tokens are as likely, and an attack that looks
    there sees nothing.

    Raises:
        ConfigError: A target fits no linear layer, or the model does not say with which
            token an answer starts.
    """

    is_causal = False  # the encoder looks at whole texts

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        targets: TargetNames = "all-linear",
    ) -> None:
        super().__init__(model, tokenizer, targets)
        start = self.model.config.decoder_start_token_id
        if start is None:
            raise ConfigError(
                "The model does not say with which token an answer starts, and its "
                "decoder needs one. Set decoder_start_token_id in its config.json."
            )
        self._start = int(start)

    def _logits(
        self,
        tokens: Tensor,
        words: TokenSequences,
        tuning: Tuning,
        positions: Tensor | None,
    ) -> Float[Tensor, "k rows p vocabulary"]:
        models, rows, length = words.ids.shape
        if positions is None:
            positions = torch.arange(length, device=words.ids.device)
        answers, order = _answers(words, self._start)
        embedded, mask = self._encoder_input(tokens, words, tuning)
        read, written = models * rows * embedded.shape[1], answers[..., 0].numel()
        with self.tuned(tuning, models, read, written * answers.shape[-1]):
            logits = self.model(
                inputs_embeds=embedded,
                attention_mask=mask,
                decoder_input_ids=answers.flatten(0, 1),
                use_cache=False,
            ).logits
        logits = at_least_float32(logits)
        order = torch.cat([order[..., 1:], torch.full_like(order[..., :1], -1)], -1)
        which = order[..., positions].flatten(0, 1)  # -1: nothing is expected
        index = which.clamp(min=0)[..., None].expand(-1, -1, logits.shape[-1])
        gathered = logits.gather(1, index) * (which >= 0)[..., None]
        return gathered.unflatten(0, (models, rows))

    def _all_say(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[list[int]]]:
        models, rows, _ = words.ids.shape
        answers: list[list[list[int]]] = [[] for _ in range(models)]
        has_prompt = (words.kinds != PADDING).any(dim=-1).tolist()
        at_once = max(1, _PROMPTS_AT_ONCE // models)
        for first in range(0, rows, at_once):
            some = slice(first, first + at_once)
            said = self._said(tokens[:, some], words[:, some], tuning, longest)
            for found, ids, real in zip(answers, said, has_prompt, strict=True):
                pairs = zip(ids, real[some], strict=True)
                found.extend(each if asked else [] for each, asked in pairs)
        return answers

    def _said(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[list[int]]]:
        models, rows, _ = words.ids.shape
        embedded, mask = self._encoder_input(tokens, words, tuning)
        start = torch.full((len(embedded), 1), self._start, device=embedded.device)
        # One pass: what the encoder gives is turned into keys in the first step only.
        with self.tuned(tuning, models, embedded.shape[:2].numel(), len(embedded)):
            encoder = self.model.get_encoder()
            read = encoder(inputs_embeds=embedded, attention_mask=mask)
            cached = cache_name(self.model)

            def run(fresh: Tensor, cache: Any) -> Any:
                return self.model(
                    encoder_outputs=read,
                    attention_mask=mask,
                    decoder_inputs_embeds=fresh,
                    use_cache=True,
                    **{cached: cache},
                )

            first = self._embedding(start)
            said = greedy(run, self._embedding, first, self.ends, longest)
        return [said[i * rows : (i + 1) * rows] for i in range(models)]

    def run_once(self) -> object:
        """Run the model on three empty tokens, and one that it writes."""
        start = torch.full((1, 1), self._start, device=self.device)
        empty = self._embedding.weight.new_zeros(1, 3, self.width)
        return self.model(inputs_embeds=empty, decoder_input_ids=start, use_cache=False)

    def _encoder_input(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning
    ) -> tuple[Float[Tensor, "n length width"], Int[Tensor, "n length"]]:
        """Embed what the encoder reads, and say what of it counts."""
        read = (words.kinds == INSTRUCTION) | (words.kinds == PICTURE)
        used = read.flatten(0, 1).any(dim=0).nonzero()
        length = int(used.max()) + 1 if len(used) else 1
        self.check_length(length, tuning)
        read = read[..., :length]
        read[..., 0] = True  # a row of padding: attention to nothing is undefined
        embedded = self._embed(tokens, words[:, :, :length])
        embedded = in_front(tuning.prompt, embedded).flatten(0, 1)
        front = read[..., :1].expand(-1, -1, tuning.virtual_tokens)
        return embedded, torch.cat([front, read], dim=-1).flatten(0, 1).long()


def _answers(
    words: TokenSequences, start: int
) -> tuple[Int[Tensor, "k rows written"], Int[Tensor, "k rows length"]]:
    """Return what the decoder is given, and which of an answer's tokens each is.

    The first are the start token and all of the answer but its last token, padded at
    the right with the start token; the second counts from 0, and is -1 elsewhere.
    """
    in_answer = words.kinds == ANSWER
    order = torch.where(in_answer, in_answer.cumsum(dim=-1) - 1, -1)
    longest = max(1, int(order.max()) + 1)
    # One column more, for what is written nowhere.
    given = words.ids.new_full((*words.ids.shape[:-1], longest + 1), start)
    place = torch.where(in_answer & (order + 1 < longest), order + 1, longest)
    given.scatter_(-1, place, words.ids)
    return given[..., :longest], order
