"""Stacked vision-language models: several differently tuned ones at once."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import ANSWER, PADDING, PICTURE, TokenSequences
from privaudit.models.interfaces import Site, Tuning
from privaudit.models.language.greedy import greedy
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.stacked_language import (
    StackedLanguageModel,
    TextTokenizer,
)
from privaudit.models.transformers.tuned_modules import name_of
from privaudit.models.vision_language.picture_reader import (
    PictureReader,
    unpack_grids,
)

_FILLER = 0  # a word's number where a prompt stands: its embedding is replaced


class StackedVLM(StackedLanguageModel):
    """Any vision-language model of transformers that takes stored picture features.

    Its own forward pass merges pictures and words, and makes positions and masks:
    positions may have three dimensions, and pictures or whole prompts may be seen in
    both directions. So a row is padded at its right and masked, a picture may have any
    number of tokens, and what is asked of some positions needs all of a row.

    Args:
        model: Of transformers, its forward with ``mm_encoder_outputs``.
        tokenizer: As :class:`StackedLanguageModel` takes it.
        targets: Layers of its language model that may be changed.
        reader: What made the pictures' tokens.
    """

    is_causal = False  # attention may go in both directions

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
        targets: TargetNames,
        reader: PictureReader,
    ) -> None:
        part = str(name_of(model, model.get_decoder()))
        super().__init__(model, tokenizer, targets, part)
        self._format = reader.format
        self._image = int(model.config.image_token_id)
        self._takes = set(inspect.signature(model.forward).parameters)
        # Under one name some models mark pictures, and others what is answered.
        types = reader.example.get("token_type_ids")
        places = reader.example["input_ids"] == self._image
        self._marks_pictures = types is not None and bool(types[places].all())
        if types is None:
            self._takes.discard("token_type_ids")

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """Return none: the model's own masks and positions know of no prefix."""
        return {}

    def _check_places(self, words: TokenSequences, parts: int) -> None:
        places = (words.kinds == PICTURE).sum(dim=-1)
        wrong = (places > parts) | (places == 0) & (words.kinds != PADDING).any(dim=-1)
        if wrong.any():
            model, row = wrong.nonzero()[0].tolist()
            raise ConfigError(
                f"Row {row} of model {model} has {int(places[model, row])} places for a "
                f"picture of at most {parts} tokens. Give each record one picture, and "
                "its words as many places as the picture has tokens."
            )

    def _inputs(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning
    ) -> dict[str, Any]:
        rows = TokenSequences(words.ids.flatten(0, 1), words.kinds.flatten(0, 1))
        front = (len(rows.ids), tuning.virtual_tokens)
        kinds = torch.cat([rows.kinds.new_full(front, -1), rows.kinds], dim=1)
        ids = torch.cat([rows.ids.new_full(front, _FILLER), rows.ids], dim=1)
        pictures = kinds == PICTURE
        mask = kinds != PADDING
        mask[:, 0] = True  # a row of padding: attention to nothing is undefined
        inputs = {
            "input_ids": ids.masked_fill(pictures, self._image) * (kinds != PADDING),
            "attention_mask": mask.long(),
        }
        if pictures.any():
            inputs |= self._pictures(tokens.flatten(0, 1), rows)
            marked = pictures if self._marks_pictures else kinds == ANSWER
            types = {"mm_token_type_ids": pictures, "token_type_ids": marked}
            inputs |= {n: t.long() for n, t in types.items() if n in self._takes}
        return inputs

    def _pictures(
        self, tokens: Float[Tensor, "n parts token_width"], words: TokenSequences
    ) -> dict[str, Any]:
        """Return the pictures of rows, each without its padding."""
        places = words.kinds == PICTURE
        parts = torch.arange(tokens.shape[1], device=tokens.device)
        real = tokens[parts < places.sum(dim=1, keepdim=True)].to(self.model.dtype)
        features = self._format.restored(real)
        inputs: dict[str, Any] = {"mm_encoder_outputs": {"image": features}}
        if "image_grid_thw" in self._takes:
            first = places & (places.cumsum(dim=1) == 1)  # of each row that has one
            inputs["image_grid_thw"] = unpack_grids(words.ids[first])
        return inputs

    def _continue(
        self, tokens: Tensor, words: TokenSequences, tuning: Tuning, longest: int
    ) -> list[list[int]]:
        prompts = self._inputs(tokens, words, tuning)

        def run(fresh: Tensor, cache: Any) -> Any:
            # Behind the prompt the model goes on by its cache alone.
            inputs = prompts if cache is None else {"input_ids": fresh}
            with self.tuned(tuning, len(tokens), fresh.numel()):
                return self._run(1, use_cache=True, past_key_values=cache, **inputs)

        return greedy(run, lambda ids: ids, prompts["input_ids"], self.ends, longest)

    @contextmanager
    def tuned(self, tuning: Tuning, models: int, *positions: int) -> Iterator[None]:
        """Tune the model as long as the context is open, its prompts included."""
        with (
            super().tuned(tuning, models, *positions),
            _prompted(self._embedding, tuning.prompt),
        ):
            yield


@contextmanager
def _prompted(
    embedding: nn.Module, prompt: Float[Tensor, "k tokens width"] | None
) -> Iterator[None]:
    """Let each model's prompt stand in place of its rows' first embedded words."""
    if prompt is None:
        yield
        return
    count = prompt.shape[1]

    def hook(module: nn.Module, arguments: Any, output: Tensor) -> Tensor | None:
        if output.shape[1] <= count:  # a word behind the prompt
            return None
        rows = prompt.repeat_interleave(len(output) // len(prompt), dim=0)
        return torch.cat([rows.to(output.dtype), output[:, count:]], dim=1)

    handle = embedding.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
