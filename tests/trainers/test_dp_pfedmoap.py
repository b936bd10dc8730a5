from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, stack
from privaudit.federation.trainer import Cohort, Round, Task
from privaudit.privacy.certificate import certify
from privaudit.trainers.dp_pfedmoap import DPPFedMoAP
from tests.toy_federation import Play, Shards

quick = partial(DPPFedMoAP, epochs=2)
paper = partial(quick, mode="published-paper")
SecondRound = Callable[..., tuple[Tensors, Tensors, Tensors]]


@pytest.fixture
def second_round(task: Task, shards: Shards, cohort: Cohort) -> SecondRound:
    """Return what a cohort received, sent and kept in a round with experts."""
    generator = torch.Generator().manual_seed(7)
    received = {
        "context": 0.1 * torch.randn(3, 3, 5, generator=generator),
        "experts": 0.1 * torch.randn(3, 2, 3, 5, generator=generator),
    }
    at = Round(1, Seeds(0), tuple(shards))

    def run(
        trainer: DPPFedMoAP, gate_seed: int = 0
    ) -> tuple[Tensors, Tensors, Tensors]:
        gates = [trainer.start_client(task, c, Seeds(gate_seed)) for c in shards]
        result = trainer.local_update(task, cohort, received, stack(gates), at)
        return received, result.sent, result.kept

    return run


def test_sound_uploads_are_certified_at_the_epsilon_asked_for(play: Play) -> None:
    played = play(quick(epsilon=8.0))
    for proved in (played.proved("server"), played.proved("peer")):
        assert proved is not None
        assert 6 < proved <= 8.0


@pytest.mark.parametrize("make", [quick, paper])
def test_a_released_model_is_never_certified(
    make: "partial[DPPFedMoAP]", play: Play
) -> None:
    events = [record.events for record in play(make(epsilon=8.0)).rounds]
    certificate = certify(events, "released", 1e-5)
    assert certificate.epsilon is None
    assert "local release" in certificate.why


def test_no_gate_touches_a_sound_upload(second_round: SecondRound) -> None:
    """Else every record's gradient would depend on what others taught the gate."""
    _, one, kept = second_round(quick(epsilon=8.0))
    _, other, others = second_round(quick(epsilon=8.0), gate_seed=1)
    assert torch.equal(one["context"], other["context"])
    assert not torch.allclose(kept["context"], others["context"])


def test_a_sound_upload_tells_no_size(second_round: SecondRound) -> None:
    _, sent, _ = second_round(quick(epsilon=8.0))
    assert torch.equal(sent["weight"], torch.ones(3))


def test_clipped_steps_stay_within_the_reach_that_is_accounted_for(
    task: Task, second_round: SecondRound
) -> None:
    trainer = paper(clip_norm=0.05, epochs=6)
    received, _, kept = second_round(trainer)
    moved = (kept["context"] - received["context"]).flatten(1).norm(dim=1)
    assert (moved > 0).all()
    assert (moved <= trainer._reach(task)).all()
    free, _, far = second_round(paper(clip_norm=1e6, epochs=6))
    assert (far["context"] - free["context"]).norm() > moved.norm()


def test_paper_noise_is_on_the_upload_and_not_on_what_is_kept(
    task: Task, second_round: SecondRound
) -> None:
    calm = second_round(paper())
    noised = second_round(paper(epsilon=25.0, delta=0.05))
    assert torch.equal(calm[2]["context"], noised[2]["context"])
    trainer = paper(epsilon=25.0, delta=0.05)
    gap = noised[1]["context"] - calm[1]["context"]
    # sqrt(3 ln 20) / 25 * 10 / 32
    assert trainer.noise_std(task) == pytest.approx(0.03748, rel=1e-3)
    assert float(gap.std()) == pytest.approx(trainer.noise_std(task), rel=0.35)


def test_the_paper_s_noise_proves_far_less_than_it_claims(play: Play) -> None:
    """Fifty steps with momentum reach some 400 times as far as one."""
    rounds = play(paper(epsilon=25.0, delta=0.05, epochs=50)).rounds
    certificate = certify([record.events for record in rounds], "server", 0.05)
    assert certificate.epsilon is not None
    assert certificate.epsilon > 25


def test_a_claim_says_what_its_delta_is_worth(task: Task) -> None:
    """12 records expected: a delta of 0.05 may give 0.6 of them away, 1e-5 none."""
    said = quick(epsilon=25.0, delta=0.05).claim(task).source
    assert "far above 1/n" in said
    assert "0.6 of a client's records" in said
    assert "far above" not in quick(epsilon=25.0).claim(task).source
    assert "not of what it releases" in said
    assert "how noise follows" in paper(epsilon=25.0).claim(task).source
    assert quick().claim(task).epsilon is None


def test_a_server_learns_what_it_does_not_see(play: Play) -> None:
    missing = play(quick(epsilon=8.0)).rebuild("server", "client-1").missing
    assert "the personal prompt, which is not what is sent" in missing


def test_without_epsilon_nothing_is_noised(second_round: SecondRound) -> None:
    def first(trainer: DPPFedMoAP) -> Tensor:
        return second_round(trainer)[1]["context"]

    assert torch.equal(first(paper()), second_round(paper())[2]["context"])
    assert not torch.equal(first(quick()), first(quick(epsilon=8.0)))
