import math
import zlib

import pytest

from privaudit.attacks.perplexity_zlib import PerplexityZlib
from privaudit.federated.trainer import Task
from privaudit.models.token_table import WordSlice
from tests.attacks.word_world import by_hand

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("description", "aaaaaaaa"),
        ("instruction+description", "what? aaaaaaaa"),
    ],
)
def test_scores_by_hand(part: WordSlice, text: str, task: Task) -> None:
    (found,) = PerplexityZlib(slice=part)(*by_hand(task, LOGITS, IDS))
    loss = -(math.log(0.5) + math.log(0.75)) / 2
    assert found.scores == pytest.approx([-loss / len(zlib.compress(text.encode()))])
