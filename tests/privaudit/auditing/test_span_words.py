"""Words off weights: all tokens where there are fewer than directions, none where not."""

from functools import cache
from typing import Any

import pytest
import torch

from privaudit.auditing.span_words import ReadTexts, read_texts
from privaudit.datasets.records import INSTRUCTION, PADDING, TokenSequences
from privaudit.federation.trainer import Records, Task
from privaudit.models.hugging_face import import_transformers
from privaudit.models.transformers.text_classifier import TextClassifier
from privaudit.trainers.full_fedavg import FullFedAvg
from tests.small_transformers import NAMES, random_model, text_tokenizer
from tests.toy_federation import play_toy

VOCABULARY, WIDTH, LONGEST = 500, 96, 8
CLS, SEP, FIRST_WORD = 1, 2, 6
ONE_STEP: dict[str, Any] = {
    "epochs": 1, "batch_size": 0, "optimizer": "sgd", "learning_rate": 0.5,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)


@cache
def encoder() -> TextClassifier:
    """Return a random encoder wide enough for some texts, in front of classes."""
    transformers = import_transformers()
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16,
        pad_token_id=0,
    )  # fmt: skip
    model = random_model(lambda: transformers.BertModel(config))
    return TextClassifier("wide", model, text_tokenizer("bert"), "all-linear")


def texts(count: int, seed: int, longest: int = LONGEST) -> Records:
    """Return texts of drawn tokens and lengths, none twice in a text."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.zeros(count, longest, dtype=torch.long)
    for row in ids:
        length = int(torch.randint(4, longest + 1, (1,), generator=generator))
        words = torch.randperm(VOCABULARY - FIRST_WORD, generator=generator)
        row[:length] = torch.tensor(
            [CLS, *(words[: length - 2] + FIRST_WORD).tolist(), SEP]
        )
    kinds = torch.where(ids > 0, INSTRUCTION, PADDING)
    labels = torch.arange(count) % len(NAMES)
    return Records(torch.zeros(count, 1), labels, words=TokenSequences(ids, kinds))


def play(trainer: Any, shard: Records) -> ReadTexts:
    public = texts(40, seed=77)
    task = Task(
        backbone=encoder().backbone(NAMES, "{}"),
        public=public,
        candidates={"one": len(shard)},
        rounds=1,
    )
    played = play_toy(trainer, 1, task=task, shards={"one": shard})
    adversary, _ = played.watched()
    return read_texts(adversary, "one", 2)


def pairs(shard: Records) -> set[tuple[int, int]]:
    assert shard.words is not None
    rows = zip(shard.words.ids.tolist(), shard.words.kinds.tolist(), strict=True)
    return {
        (token, place)
        for ids, kinds in rows
        for place, (token, kind) in enumerate(zip(ids, kinds, strict=True))
        if kind != PADDING
    }


def whole(shard: Records) -> set[tuple[int, ...]]:
    assert shard.words is not None
    return {tuple(t for t in row if t) for row in shard.words.ids.tolist()}


def test_fewer_tokens_than_directions_are_read_with_their_places() -> None:
    shard = texts(4, seed=1)
    read = play(FullFedAvg(**ONE_STEP), shard)
    assert read.rows == {token for token, _ in pairs(shard)}
    assert read.places == pairs(shard)
    assert read.texts == whole(shard)


def test_more_tokens_than_directions_leave_their_rows_alone() -> None:
    shard = texts(60, seed=1)
    read = play(FullFedAvg(**ONE_STEP), shard)
    assert read.places is None
    assert "as many different inputs" in read.remark
