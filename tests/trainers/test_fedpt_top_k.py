import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Cohort, Records, Round, Task
from privaudit.federation.uploads import COORDINATES, update_deltas
from privaudit.privacy.accountant import gaussian_delta
from privaudit.privacy.certificate import Certificate, CertifiedView, certify
from privaudit.runs.config import build_trainer
from privaudit.statistics.estimate import clopper_pearson
from privaudit.trainers.fedpt_top_k import FedPTTopK
from privaudit.tuning.transformers.private_updates import MOVED
from tests.toy_federation import Play, Shards


def made(**fields: Any) -> FedPTTopK:
    trainer = build_trainer("fedpt-top-k", fields)
    assert isinstance(trainer, FedPTTopK)
    return trainer


def chosen(trainer: FedPTTopK, task: Task, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Return what clients with these clipped moves send, and where it belongs."""
    names = [f"run-{i}" for i in range(len(moved))]
    nobody = Records(torch.zeros(0, 12), torch.zeros(0, dtype=torch.long))
    cohort = Cohort.of(names, [nobody] * len(moved))
    return trainer.chosen(task, cohort, moved, Round(0, Seeds(0), task.clients))


def proved(
    trainer: FedPTTopK, task: Task, view: CertifiedView = "server"
) -> Certificate:
    at = Round(0, Seeds(0), task.clients)
    return certify([trainer._events(task, at, 4, 2)] * task.rounds, view, trainer.delta)


@pytest.mark.parametrize("choice", ["noised", "private", "largest"])
def test_without_noise_the_largest_numbers_are_sent(choice: str, task: Task) -> None:
    moved = torch.tensor([[0.1, -3.0, 2.0, 0.5], [4.0, 0.0, 0.0, -0.1]])
    values, places = chosen(made(choice=choice, top=2), task, moved)
    assert places.tolist() == [[1, 2], [0, 3]]
    assert torch.equal(values, torch.tensor([[-3.0, 2.0], [4.0, -0.1]]))


def test_the_server_adds_up_what_was_sent_where_it_belongs(play: Play) -> None:
    played = play(made(top=5), rounds=0)
    ((name, before),) = played.server.items()
    played.step()
    row = torch.zeros(before.numel())
    for sent in played.uploads().values():
        for place, value in zip(sent[COORDINATES], sent[MOVED], strict=True):
            row[place] += value / 3
    moved = (played.server[name] - before).flatten()
    torch.testing.assert_close(moved, row, atol=1e-6, rtol=1e-4)
    assert 5 <= int((moved != 0).sum()) <= 15


def test_what_is_sent_has_the_claimed_noise(task: Task) -> None:
    """Where all numbers are sent nothing is selected, and nothing biased."""
    trainer = made(epsilon=4.0, choice="private", top=1000)
    values, _ = chosen(trainer, task, torch.zeros(4, 1000))
    std = trainer._noise_multiplier(task) * trainer.clip_norm
    assert float(values.std()) == pytest.approx(std, rel=0.05)
    assert std == pytest.approx(math.sqrt(2) * trainer.noise_multiplier(task) * 0.5)


@pytest.mark.parametrize("adjacency", ["replace-one", "add/remove-one"])
@pytest.mark.parametrize("choice", ["noised", "private"])
def test_choice_and_values_together_cost_what_was_asked(
    choice: str, adjacency: str, task: Task
) -> None:
    trainer = made(epsilon=8.0, choice=choice, adjacency=adjacency, choice_share=0.3)
    found = proved(trainer, task)
    assert 7.9 < float(found.epsilon or 0) <= 8
    assert (found.unit, found.adjacency) == ("client", adjacency)
    for view in ("peer", "released"):  # sets differ: nobody else's noise counts
        assert proved(trainer, task, view).epsilon == found.epsilon


@pytest.mark.parametrize("mode", ["sound", "published-paper"])
def test_a_choice_that_follows_from_the_data_is_certified_nothing(
    mode: str, task: Task
) -> None:
    found = proved(made(epsilon=8.0, mode=mode, choice="largest"), task)
    assert found.epsilon is None
    why = "choice release of round 0 has no noise" if mode == "sound" else "not clipped"
    assert why in found.why


Row = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3)


@settings(max_examples=200, deadline=None)
@given(Row, Row)
def test_lengths_of_entries_move_by_no_more_than_the_square_root_of_two(
    first: list[float], second: list[float]
) -> None:
    rows = torch.tensor([first, second], dtype=torch.float64)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    assert float((rows[0].abs() - rows[1].abs()).norm()) <= math.sqrt(2) + 1e-9
    assert (
        float((rows[0].abs() - rows[1].abs()).norm())
        <= float((rows[0] - rows[1]).norm()) + 1e-9
    )


def test_a_choice_of_one_in_two_leaks_as_computed_and_within_its_budget(
    task: Task,
) -> None:
    """The worst neighbours, C in one place or in the other: 4,000 choices of each.

    The first place wins with chance Phi(C / (sqrt(2) s C)); the set may differ between
    the two by no more than the Gaussian curve of the choice's own multiplier allows.
    """
    task = replace(task, rounds=1)
    trainer = made(epsilon=3.0, choice="private", top=1)
    noise, runs = trainer._choice_multiplier(task), 4000
    shares = []
    for place in (0, 1):
        moved = torch.zeros(runs, 2)
        moved[:, place] = trainer.clip_norm
        _, places = chosen(trainer, task, moved)
        shares.append(int((places == 0).sum()))
    expected = float(norm.cdf(1 / (math.sqrt(2) * noise)))
    low, high = clopper_pearson(np.array(shares, float), runs, 1 - 1e-6)
    assert low[0] <= expected <= high[0]
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        shown = low[0] - math.exp(epsilon) * high[1]
        assert shown <= gaussian_delta(math.sqrt(2) / noise, epsilon)


def test_a_choice_without_noise_is_recognised_at_a_look(task: Task) -> None:
    trainer = made(epsilon=3.0, choice="largest", top=1)
    moved = torch.tensor([[0.5, 0.0], [0.0, 0.5]]).repeat(50, 1)
    _, places = chosen(trainer, task, moved)
    assert places.flatten().tolist() == [0, 1] * 50


def test_who_watches_uploads_sees_numbers_where_they_belong(
    task: Task, shards: Shards
) -> None:
    """A single record's step is sent in full, and meets what was sent of others'."""
    start = made().start(task, Seeds(0))
    (name,) = start
    at = Round(0, Seeds(0), task.clients)
    received = {n: t.unsqueeze(0) for n, t in start.items()}
    cohort = Cohort.of(["client-0"], [shards["client-0"]])
    few, whole = (
        update_deltas(trainer.local_update(task, cohort, received, {}, at).sent, start)[
            MOVED
        ]
        for trainer in (
            replace(made(top=4), epochs=1, batch_size=0),
            made().single_step(),
        )
    )
    assert few.shape == whole.shape == (1, start[name].numel())
    seen = few != 0
    assert int(seen.sum()) == 4
    torch.testing.assert_close(few[seen], whole[seen])
    assert float(whole[~seen].abs().max()) <= float(whole[seen].abs().min())


def test_what_was_not_sent_is_sent_later(play: Play) -> None:
    """Two numbers of equal size in turn: nothing that training moved is lost."""
    played = play(made(top=5, error_feedback=True), rounds=1)
    before = {name: dict(kept) for name, kept in played.kept.items()}
    assert all((kept["unsent"] != 0).sum() > 0 for kept in before.values())
    first = played.uploads()
    for name, sent in first.items():
        assert not before[name]["unsent"][sent[COORDINATES]].any()
    plain = play(made(top=5), rounds=1)
    assert plain.kept == {} or not any(plain.kept.values())


def test_feedback_adds_to_the_next_move_before_it_is_clipped(task: Task) -> None:
    """A client that moves nowhere sends the rest of what it owed, C at the most."""
    trainer = made(top=1, error_feedback=True, clip_norm=1.0, epsilon=1e6)
    object.__setattr__(trainer, "moves", lambda *_: (torch.zeros(1, 4), torch.zeros(1)))
    nobody = Records(torch.zeros(0, 12), torch.zeros(0, dtype=torch.long))
    cohort = Cohort.of(["run-0"], [nobody])
    owed = {"unsent": torch.tensor([[3.0, 4.0, 0.0, 0.0]])}
    at = Round(0, Seeds(0), task.clients)
    result = trainer.local_update(task, cohort, {}, owed, at)
    assert result.sent[COORDINATES].tolist() == [[1]]
    assert float(result.sent[MOVED]) == pytest.approx(0.8, abs=1e-3)
    kept = result.kept["unsent"]
    torch.testing.assert_close(kept, torch.tensor([[0.6, 0, 0, 0]]))


@pytest.mark.parametrize(
    "fields", [{"error_feedback": True}, {"optimizer_state": "kept"}]
)
def test_what_clients_keep_tells_who_was_drawn(
    fields: dict[str, Any], task: Task
) -> None:
    """So the draw of participants makes no certificate smaller."""
    some = Round(0, Seeds(0), tuple(task.clients)[:1])

    def released(trainer: FedPTTopK) -> float:
        events = [trainer._events(task, some, 4, 2)] * task.rounds
        return float(certify(events, "released", trainer.delta).epsilon or 0)

    assert released(made(epsilon=8.0)) < released(made(epsilon=8.0, **fields)) <= 8
