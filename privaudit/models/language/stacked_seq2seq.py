"""Stacked encoder-decoders: several differently tuned ones at once."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import at_least_float32
from privaudit.datasets.dialogues import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    TokenSequences,
)
from privaudit.models.interfaces import Tuning
from privaudit.models.language.greedy import greedy
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.language.stacked_language import (
    StackedLanguageModel,
    TextTokenizer,
)
from privaudit.models.transformers.tuned_modules import in_front

_ROWS_AT_ONCE = 256  # of all models together, where answers are written


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
        at_once = max(1, _ROWS_AT_ONCE // models)
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

            def run(fresh: Tensor, cache: Any) -> Any:
                return self.model(
                    encoder_outputs=read,
                    attention_mask=mask,
                    decoder_inputs_embeds=fresh,
                    past_key_values=cache,
                    use_cache=True,
                )

            first = self._embedding(start)
            said = greedy(run, self._embedding, first, self.ends, longest)
        return [said[i * rows : (i + 1) * rows] for i in range(models)]

    def run_once(self) -> object:
        """Run the model on three empty tokens, and one that it writes."""
        start = torch.full((1, 1), self._start, device=self.device)
        empty = torch.zeros(1, 3, self.width, device=self.device)
        empty = empty.to(self._embedding.weight.dtype)
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
