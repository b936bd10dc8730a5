"""Noise of clients together, under masks: the sum is exact, and so is its noise."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from privaudit.core.tensors import Tensors
from privaudit.federation.rounds import RoundRecord
from privaudit.federation.trainer import Task
from privaudit.privacy.certificate import certify
from privaudit.privacy.discrete_gaussian import SUMMED
from privaudit.runs.config import build_trainer
from privaudit_labs.secure_aggregation.masking import Masking, masked_sum
from tests.toy_federation import Play

OneRound = Callable[[Masking], tuple[RoundRecord, list[Tensors]]]
TOGETHER: list[tuple[str, dict[str, Any]]] = [
    ("dp-fedpt", {"epsilon": 8.0}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "distributed"}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "client"}),
]


@pytest.fixture
def one_round(
    name: str, settings: dict[str, Any], play: Play, monkeypatch: pytest.MonkeyPatch
) -> OneRound:
    """Run a masked round, and say what each client sent under its mask."""

    def run(masking: Masking) -> tuple[RoundRecord, list[Tensors]]:
        seen: list[Tensors] = []

        def watched(uploads: Any, *rest: Any, **more: Any) -> Any:
            seen.extend(uploads.values())
            return masked_sum(uploads, *rest, **more)

        monkeypatch.setattr(
            "privaudit_labs.secure_aggregation.masking.masked_sum", watched
        )
        played = play(build_trainer(name, settings), rounds=0)
        return played.step(masking=masking), seen

    return run


@pytest.mark.parametrize(("name", "settings"), TOGETHER, ids=str)
@pytest.mark.parametrize("masking", [Masking(), Masking(bits=32, largest=1024.0)])
def test_the_masked_sum_is_the_sum_of_the_clients_integers(
    masking: Masking, one_round: OneRound
) -> None:
    record, sent = one_round(masking)
    (total,) = [m.tensors for m in record.messages if m.kind == "sum"]
    code = masking.code(len(sent))
    (tensor,) = total
    codes = torch.stack([one[tensor].double() / code.step for one in sent])
    assert torch.equal(codes, codes.round())  # nothing is lost in encoding
    exact = codes.sum(dim=0) * code.step
    assert torch.equal(total[tensor], exact.to(total[tensor].dtype))
    (event,) = [e for e in record.events if e.release == "global"]
    assert event.kind == "discrete-gaussian"
    assert event.values == exact.numel()


@pytest.mark.parametrize(("name", "settings"), TOGETHER[:2], ids=str)
def test_a_coarse_code_coarsens_the_grid_and_is_accounted_for(
    settings: dict[str, Any], task: Task, one_round: OneRound
) -> None:
    proved, scales = [], []
    for masking in (Masking(), Masking(bits=32, largest=1024.0)):
        record, _ = one_round(masking)
        (event,) = [e for e in record.events if e.release == "global"]
        scales.append(event.scale)
        found = certify([record.events] * task.rounds, "server-aggregate", 1e-5)
        proved.append(found.epsilon)
        assert f"{event.scale} steps" in found.mechanism
        assert found.epsilon is not None
        assert found.epsilon <= settings["epsilon"]
    assert scales[1] < SUMMED <= scales[0]
    assert proved[0] is not None
    assert proved[1] is not None
    assert abs(proved[1] - proved[0]) < 0.02 * proved[0]
