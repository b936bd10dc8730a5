"""Answer tables: values of each token of each record's own answer, by one pass of a model.

The probability of an answer is a product over its tokens, so one pass that reads the text
gives it, and nothing need be drawn.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Float, Int, Shaped

from privaudit.auditing.attack import Adversary
from privaudit.core.devices import in_chunks
from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.core.tensors import Tensors, stack
from privaudit.datasets.records import ANSWER, PictureTokens, TokenSequences
from privaudit.federation.query import as_writer
from privaudit.federation.trainer import Records

ROWS_AT_ONCE = 64

OfTokens = Callable[[Tensor, Tensor], Sequence[Tensor]]
"""Values [rows, tokens], some of each, from logits and from the tokens that came."""


def _softmax(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(dim=-1)


def log_probabilities(
    logits: Float[Tensor, "rows tokens vocabulary"],
    own: Int[Tensor, "rows tokens"],
    of_row: Callable[[Tensor], Tensor] = _softmax,
) -> list[Float[Tensor, "rows tokens"]]:
    """Return the log-probability of each token that came, in float64.

    ``of_row`` makes a row's logits [tokens, vocabulary] log-probabilities: row by row,
    as in float64 they are as large as all logits.
    """
    pairs = zip(logits, own, strict=True)
    logs = [of_row(row).gather(1, tokens[:, None]) for row, tokens in pairs]
    return [torch.stack(logs)[..., 0]]


@torch.no_grad()
def answer_values(
    adversary: Adversary,
    model: Tensors,
    records: Records,
    values: OfTokens = log_probabilities,
    beyond: Sequence[float | bool] = (0.0,),
) -> list[Shaped[Tensor, "records tokens"]]:
    """Return values of each token of records' answers; ``beyond`` behind an answer's end.

    Raises:
        ConfigError: The model does not write, or a record has no answer.
    """
    language = adversary.task.language
    tuning = as_writer(adversary.trainer).tuning(adversary.task, stack([model]))
    words, pictures = answered(records)

    def of_rows(rows: Tensor) -> list[Tensor]:
        asked = words[rows].trimmed()
        is_answer = asked.kinds[:, 1:] == ANSWER
        ahead = is_answer.any(dim=0).nonzero().flatten()
        picture = pictures[rows].read(language.device)[None]
        logits = language.logits(
            picture,
            asked.repeated(1).to(language.device),
            tuning,
            ahead.to(language.device),
        )[0].cpu()
        counted = is_answer[:, ahead]
        own = torch.where(counted, asked.ids[:, ahead + 1], 0)
        order = (~counted).int().argsort(dim=1, stable=True)  # the answer to the left
        found = zip(values(logits, own), beyond, strict=True)
        return [one.masked_fill(~counted, end).gather(1, order) for one, end in found]

    parts = list(in_chunks(len(records), ROWS_AT_ONCE, of_rows))
    longest = max(part[0].shape[1] for part in parts)
    return [
        torch.cat(
            [functional.pad(f, (0, longest - f.shape[1]), value=end) for f in one]
        )
        for one, end in zip(zip(*parts, strict=True), beyond, strict=True)
    ]


def answered(records: Records) -> tuple[TokenSequences, PictureTokens]:
    """Return the words and pictures of records, each of which has an answer."""
    words, pictures = records.words, records.tokens
    if words is None or pictures is None or not (words.kinds == ANSWER).any(1).all():
        raise ConfigError(
            "Extraction was requested, and not all records have an answer to extract. "
            "Use a data set with captions or answers, and a model that writes."
        )
    return words.trimmed(), pictures
