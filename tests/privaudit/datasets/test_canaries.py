import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.datasets.canaries import Canaries
from privaudit.datasets.records import Dialogue
from privaudit.federation.batches import Batch
from privaudit.federation.trainer import Task
from privaudit.runs.config import build_trainer, make_config
from privaudit.runs.population import canary_texts, crafted_norm, populate
from privaudit.tuning.prompts.gradients import ContextGradients, RecordGradients
from privaudit.tuning.prompts.learning import context_losses, prompt_losses
from tests.conftest import toy_records

SHAPE = (4, 8)


def drawn(kind: str, per_client: int = 3) -> Canaries:
    parts = [np.arange(0, 20), np.arange(20, 50)]
    return Canaries.draw(kind, parts, per_client, Seeds(0), SHAPE, 7.0)  # type: ignore[arg-type]


def test_each_client_gets_as_many_of_its_own() -> None:
    found = drawn("gradient").indices
    assert (found < 20).sum() == (found >= 20).sum() == 3


def test_wrong_labels_are_wrong_and_all_others_stay() -> None:
    canaries, labels = drawn("mislabelled"), torch.arange(60) % 5
    wrong = canaries.mislabel(labels, 5)
    changed = (wrong != labels).nonzero().flatten().numpy()
    np.testing.assert_array_equal(changed, canaries.indices)
    assert int(wrong.max()) < 5
    assert canaries.gradients(canaries.indices) is None


def test_gradients_have_one_norm_and_follow_their_record() -> None:
    canaries = drawn("gradient")
    some = np.array([canaries.indices[2], 59, canaries.indices[0]])
    found = canaries.gradients(some)
    assert found is not None
    torch.testing.assert_close(found.flatten(1).norm(dim=1), torch.tensor([7.0, 0, 7]))
    again = canaries.gradients(some[::-1].copy())
    assert again is not None
    assert torch.equal(found, again.flip(0))
    labels = torch.arange(60) % 5
    assert torch.equal(canaries.mislabel(labels, 5), labels)


def test_secrets_are_written_for_canaries_alone() -> None:
    canaries = drawn("secret", 5)
    plain = [Dialogue("what?", (str(n),)) for n in range(60)]
    replaced = canaries.tell(plain)
    changed = [n for n in range(60) if replaced[n] != plain[n]]
    np.testing.assert_array_equal(changed, canaries.indices)
    texts = {replaced[n].answers[0] for n in changed}
    alternatives = [one.answers[0] for one in canaries.alternatives(63)]
    others = set(alternatives)
    assert len(texts) == 10
    assert len(others) > 9.9 * 63  # each canary has its own
    some = replace(canaries, indices=canaries.indices[[4]])
    assert [one.answers[0] for one in some.alternatives(2)] == alternatives[252:254]
    assert not texts & others
    assert all(re.fullmatch(r"the tag is(?: [0-9]){6}\.", t) for t in texts | others)
    assert drawn("mislabelled").tell(plain) == tuple(plain)


def test_drawn_canaries_are_pictures_that_can_be_looked_at() -> None:
    canaries = drawn("drawn", 5)
    for channels in (1, 3):
        pictures = canaries.pictures(channels, 8, 12)
        assert pictures.shape == (10, channels, 8, 12)
        assert (pictures[:, :, :2, :3] == pictures[:, :, :1, :1]).all()  # a patch
        assert torch.equal(pictures[:, 0, ::2, ::3], canaries.drawings[:, 0])
    assert len({p.numpy().tobytes() for p in canaries.drawings}) == 10


def test_a_drawn_canary_keeps_its_picture_where_others_are_left_out() -> None:
    canaries = drawn("drawn", 5)
    left = canaries.of([canaries.indices[[1, 3]]]).of([canaries.indices[[3]]])
    own = torch.zeros(3, 8, 8)
    for number in (3, 4):
        index = int(canaries.indices[number])
        pictures = [each.shown(index, own) for each in (canaries, left)]
        assert torch.equal(*pictures) == (number == 3)
    assert torch.equal(left.drawings, canaries.drawings[[3]])


def test_drawn_canaries_take_the_place_of_records() -> None:
    config = make_config("promptfl", {}, canary="drawn", canaries=3, clients=4)
    plain = populate(make_config("promptfl", {}, clients=4))
    planted = populate(config)
    assert planted.canaries is not None
    same = (planted.records.features == plain.records.features).all(dim=1)
    np.testing.assert_array_equal(np.flatnonzero(~same), planted.canaries.indices)
    assert torch.equal(planted.records.labels, plain.records.labels)
    for index in planted.canaries.indices[2:4].tolist():
        before = planted.dataset.images[index]  # type: ignore[index]
        shown = planted.canaries.shown(index, before)
        assert shown.shape == before.shape
        assert not torch.equal(shown, before)
        assert planted.canaries.shown(-1, before) is before
    entries = canary_texts(planted)
    assert len(entries) == 12
    assert len(entries[0]["patches"]) == 16
    assert all(re.fullmatch("#[0-9a-f]{6}", patch) for patch in entries[0]["patches"])


def crafted_batch(task: Task) -> tuple[torch.Tensor, Batch]:
    """Three records of two clients; the second of each is a canary."""
    shape = (task.prompts.context_tokens, task.prompts.width)
    generator = torch.Generator().manual_seed(0)
    contexts = torch.randn(2, *shape, generator=generator) * 0.02
    records = toy_records(6)
    crafted = torch.zeros(2, 3, *shape)
    crafted[:, 1] = torch.randn(shape, generator=generator)
    return contexts, Batch(
        records.features.view(2, 3, -1),
        records.labels.view(2, 3),
        torch.ones(2, 3, dtype=torch.bool),
        crafted=crafted,
    )


def test_a_canary_s_gradient_is_the_one_it_was_crafted_with(task: Task) -> None:
    contexts, batch = crafted_batch(task)
    assert batch.crafted is not None
    closed = ContextGradients.forward(task, contexts, batch)
    by_record = torch.cat([part for part, _ in closed.by_record()], dim=1)
    torch.testing.assert_close(by_record[:, 1], batch.crafted[:, 1])

    def losses(parameters: Stacked, some: Batch) -> torch.Tensor:
        return context_losses(task, parameters["context"], some)

    asked = RecordGradients.forward({"context": contexts}, losses, batch)
    other = torch.cat([part["context"] for part, _ in asked.by_record()], dim=1)
    torch.testing.assert_close(by_record, other, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        closed.of_batch(), by_record.sum(dim=1), atol=1e-4, rtol=1e-4
    )


def test_the_mean_loss_has_the_mean_gradient(task: Task) -> None:
    contexts, batch = crafted_batch(task)
    leaf = contexts.clone().requires_grad_()
    prompt_losses(task, leaf, batch).sum().backward()
    closed = ContextGradients.forward(task, contexts, batch).of_batch() / 3
    torch.testing.assert_close(leaf.grad, closed, atol=1e-4, rtol=1e-4)


def test_records_that_are_not_crafted_are_untouched(task: Task) -> None:
    contexts, batch = crafted_batch(task)
    plain = replace(batch, crafted=None)
    with_canary = ContextGradients.forward(task, contexts, batch)
    without = ContextGradients.forward(task, contexts, plain)
    one = torch.cat([part for part, _ in with_canary.by_record()], dim=1)
    other = torch.cat([part for part, _ in without.by_record()], dim=1)
    torch.testing.assert_close(one[:, [0, 2]], other[:, [0, 2]])


def test_a_population_plants_them_among_the_candidates() -> None:
    planted = populate(make_config("dp-fpl", canary="mislabelled", canaries=5))
    assert planted.canaries is not None
    changed = (planted.records.labels != planted.dataset.labels).nonzero().flatten()
    np.testing.assert_array_equal(changed.numpy(), planted.canaries.indices)
    owner = planted.split.owner[planted.canaries.indices]
    np.testing.assert_array_equal(np.bincount(owner), np.full(10, 5))
    crafted = populate(make_config("dp-fpl", canary="gradient", canaries=5))
    records = crafted.candidates("client-3")
    assert records.crafted is not None
    norms = records.crafted.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms[norms > 0], torch.ones(5))  # nothing is clipped
    asked = crafted.asked_about("client-3", canaries=False)
    assert len(asked) == len(records) - 5
    assert not np.isin(asked, crafted.canaries.indices).any()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "records", "norm"),
    [
        ({}, 9, 1.0),
        ({"epsilon": 8.0}, 9, 9_000.0),
        ({"epsilon": 8.0, "clip_global": 50.0}, 2, 10_000.0),
        ({"mode": "published-paper"}, 9, 9_000.0),
    ],
)
def test_a_crafted_gradient_is_clipped_whatever_it_is_beside(
    settings: dict[str, Any], records: int, norm: float
) -> None:
    assert crafted_norm(build_trainer("dp-fpl", settings), records) == norm


def test_canaries_do_not_enter_the_mean_loss(task: Task) -> None:
    contexts, batch = crafted_batch(task)
    each = ContextGradients.forward(task, contexts, batch).losses
    assert torch.equal(each, ContextGradients.forward(task, contexts * 1, batch).losses)
    assert (each > 0).all()
    assert (prompt_losses(task, contexts, batch) > 0).all()


@pytest.mark.parametrize(
    ("trainer", "fields", "message"),
    [
        ("pfedmoap", {"canary": "gradient"}, "does not take them"),
        ("promptfl", {"canary": "gradient", "canaries": 500}, r"500 .* \d+ candidates"),
        ("promptfl", {"canary": "drawn", "views": 2}, "random crops"),
    ],
)
def test_what_cannot_be_planted_is_refused(
    trainer: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        populate(make_config(trainer, **fields))
