import pytest
import torch

from privaudit.core.errors import TranscriptError
from privaudit.federated.runs.folder.run_files import SAME, join_models, split_models

GATE, SHARED = torch.ones(2), torch.zeros(3)
MODELS = {
    "client-0": {"context": SHARED, "gate": GATE},
    "client-1": {"context": SHARED.clone()},
    "client-2": {"context": torch.ones(3)},
    "client-10": {"context": SHARED, "gate": GATE + 1},
}


def test_equal_tensors_of_models_are_stored_once() -> None:
    flat = join_models(MODELS)
    kept = {"client-0/context", "client-2/context", "client-0/gate", "client-10/gate"}
    assert set(flat) == {*kept, SAME}
    assert flat[SAME][0].tolist() == [0, 0, 2, *[-1] * 7, 0]
    found = split_models(flat)
    assert list(found) == ["client-0", "client-1", "client-10", "client-2"]
    for client, model in MODELS.items():
        assert set(found[client]) == set(model)
        for name, tensor in model.items():
            assert torch.equal(found[client][name], tensor)


def test_models_that_all_differ_are_stored_as_they_are() -> None:
    flat = join_models({c: MODELS[c] for c in ("client-0", "client-2")})
    assert set(flat) == {"client-0/context", "client-0/gate", "client-2/context"}


@pytest.mark.parametrize("same", [torch.tensor([[5]]), torch.tensor(0), torch.ones(9)])
def test_models_that_do_not_fit_what_they_share_are_refused(same: torch.Tensor) -> None:
    with pytest.raises(TranscriptError, match="does not fit the tensors"):
        split_models({"client-0/context": SHARED, SAME: same})
