"""Stacked language models: several differently tuned ones in one forward pass."""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import at_least_float32
from privaudit.datasets.dialogues import ANSWER, PADDING, PICTURE, TokenSequences
from privaudit.models.interfaces import Tuning
from privaudit.models.language.greedy import PromptGroup, greedy, prompt_groups
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.transformers.tuned_modules import TunedModules, in_front

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
        ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any:
        """Return the text of some tokens."""
        ...


class StackedLanguageModel(TunedModules):
    """Any causal language model of transformers, frozen.

    Implements :class:`~privaudit.models.interfaces.LanguageModel`: k models with different
    tunings share one forward pass, for which they lie behind one another on the batch
    axis. Everything but what is tuned treats rows apart anyway, so gradients of the
    models' tunings are apart too.

    Args:
        model: Takes ``inputs_embeds``.
        tokenizer: Says which token ends an answer, and writes answers out.
        targets: As :class:`TunedModules` takes them.
        part: Name of the language model inside ``model``, if it has other parts.

    Attributes:
        width: Numbers in a token's embedding, and in a picture token.
        vocabulary: Number of logits.
        is_causal: Whether no token sees a later one, in the input either.
    """

    task: ClassVar[Literal["generation"]] = "generation"
    is_causal: ClassVar[bool] = True

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
        self.context = _context(self.model.config)
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
        places = _places(tuning, embedded.shape[2])
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
            said = self._answer(group, tokens, words, tuning, longest)
            for place, model, row in group.owners(rows):
                answers[model][row] = said[place]
        return answers

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of an answer's tokens, without special ones."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def _answer(
        self,
        group: PromptGroup,
        tokens: Tensor,
        words: TokenSequences,
        tuning: Tuning,
        longest: int,
    ) -> list[list[int]]:
        self.check_length(group.length, tuning)
        if self.context is not None:
            used = group.length + tuning.virtual_tokens + tuning.skipped_positions
            longest = min(longest, self.context - used + 1)
        ids, kinds = (
            t.flatten(0, 1)[group.source][..., : group.length]
            for t in (words.ids, words.kinds)
        )
        pictures = tokens.flatten(0, 1)[group.source]
        return self._continue(pictures, TokenSequences(ids, kinds), tuning, longest)

    def _continue(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[int]]:
        """Return what follows prompts of one length."""

        def run(fresh: Tensor, cache: Any) -> Any:
            before = 0 if cache is None else cache.get_seq_length()
            places = _places(tuning, fresh.shape[1], before)
            options = {"use_cache": True, "past_key_values": cache, **places}
            with self.tuned(tuning, len(tokens), len(fresh) * fresh.shape[1]):
                return self._run(1, inputs_embeds=fresh, **options)

        flat = self._inputs(tokens, words, tuning)["inputs_embeds"]
        return greedy(run, self._embedding, flat, self.ends, longest)

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
        empty = torch.zeros(1, 3, self.width, device=self.device)
        empty = empty.to(self._embedding.weight.dtype)
        return self._run(0, inputs_embeds=empty, use_cache=False)

    def _check_places(self, words: TokenSequences, parts: int) -> None:
        """Check that each row has a place for each part of its picture."""
        places = (words.kinds == PICTURE).sum(dim=-1)
        wrong = (places != parts) & (words.kinds != PADDING).any(dim=-1)
        if wrong.any():
            model, row = wrong.nonzero()[0].tolist()
            raise ConfigError(
                f"Row {row} of model {model} has {int(places[model, row])} places for "
                f"a picture of {parts} tokens. Give each record one picture, and its "
                "words as many places as the picture has tokens."
            )


def _places(tuning: Tuning, length: int, before: int = 0) -> dict[str, Tensor]:
    """Return the positions of tokens behind a prefix; else the model knows them."""
    first = tuning.skipped_positions
    if not first:
        return {}
    return {"position_ids": torch.arange(first + before, first + before + length)[None]}


def _context(config: Any) -> int | None:
    text = config.get_text_config()
    lengths = (getattr(text, name, None) for name in _CONTEXT_NAMES)
    return next((int(length) for length in lengths if length), None)


def _end_tokens(model: Any, tokenizer: TextTokenizer) -> frozenset[int]:
    """Return the tokenizer's end token, and those the model itself stops at."""
    stop_ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = stop_ids if isinstance(stop_ids, list) else [stop_ids]
    ends = [token for token in (*listed, tokenizer.eos_token_id) if token is not None]
    return frozenset(map(int, ends))
