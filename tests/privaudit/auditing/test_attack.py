from typing import Any

import pytest

from privaudit.auditing.attack import Adversary
from privaudit.trainers.promptfl import PromptFL
from tests.toy_federation import Play


@pytest.fixture
def adversary(play: Play) -> Adversary:
    return play(PromptFL(), rounds=1).watched("server")[0]


def test_what_is_shared_is_computed_once_for_the_same_objects(
    adversary: Adversary,
) -> None:
    asked: list[Any] = []

    def compute() -> int:
        asked.append(None)
        return len(asked)

    model, other = {"a": 1}, {"a": 1}
    assert adversary.once(("tokens", 2), compute, model) == 1
    assert adversary.once(("tokens", 2), compute, model) == 1
    assert adversary.once(("tokens", 2), compute, other) == 2
    assert adversary.once(("tokens", 3), compute, model) == 3


def test_objects_whose_ids_are_known_stay_alive(adversary: Adversary) -> None:
    """Each is gone for whoever made it: a freed one's id could be the next one's."""
    found = [adversary.once(("model",), object, {"a": n}) for n in range(100)]
    assert len(set(map(id, found))) == 100
