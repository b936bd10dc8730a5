"""Whether the masks of two runs are alike, and who can guess those of one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import train
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.runs.config import make_config
from privaudit.runs.run import Run
from privaudit.runs.run_key import key_of_seed, masking_of
from privaudit_labs.secure_aggregation.masking import Masking, masked_sum
from privaudit_labs.secure_aggregation.packets import Roster
from privaudit_labs.secure_aggregation.primitives import FixedPoint, RunKey
from privaudit_labs.secure_aggregation.protocol import Client
from tests.conftest import common_cache

QUICK: dict[str, Any] = {"rounds": 2, "clients": 3, "epochs": 1}
SYSTEM: dict[str, Any] = {"secure_aggregation": "masked", **QUICK}
MASKED: dict[str, Any] = {"seed": 0, **SYSTEM}
STEP = FixedPoint(3).step


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two runs of one seed that differ, in the clear and masked, and a third."""
    folder = tmp_path_factory.mktemp("keys")
    with common_cache(tmp_path_factory):
        for rate in (0.01, 0.02):
            clear = {"learning_rate": rate, "seed": 0, **QUICK}
            train(folder=folder, name=f"clear-{rate}", **clear)
            train(folder=folder, name=f"masked-{rate}", learning_rate=rate, **MASKED)
        train(folder=folder, name="system", **SYSTEM)
    return folder


def first(run: Run, kind: str) -> Tensors:
    return next(m.tensors for m in run.transcript if m.kind == kind)


def same_difference(masked: Sequence[Tensors], clear: Sequence[Tensors]) -> bool:
    """Say whether two masked uploads differ as much as the two in the clear."""
    return all(
        torch.allclose(
            (masked[0][name] - masked[1][name]).double() * STEP,
            (clear[0][name] - clear[1][name]).double(),
            atol=2 * STEP + 1e-6,
        )
        for name in clear[0]
    )


def test_two_runs_of_one_seed_share_no_mask(runs: Path) -> None:
    pairs = [
        [first(Run(runs / f"{name}-{rate}"), kind) for rate in (0.01, 0.02)]
        for name, kind in (("masked", "masked"), ("clear", "update"))
    ]
    assert not same_difference(*pairs)


@pytest.mark.parametrize("runs_apart", [False, True])
def test_without_the_run_in_the_key_a_difference_of_uploads_shows(
    runs_apart: bool,
) -> None:
    """Must fail: keys of the seed alone, as masks are for two sums of one seed."""
    generator = torch.Generator().manual_seed(0)
    sent = [
        {c: {"x": torch.randn(5, generator=generator)} for c in "abc"} for _ in range(2)
    ]
    masked = []
    for number, uploads in enumerate(sent):
        key = RunKey(key_of_seed(Seeds(7), str(number) if runs_apart else ""))
        found = masked_sum(uploads, Masking(secrets=key), Seeds(7), 0)
        masked.append(next(m.tensors for m in found.messages if m.kind == "masked"))
    clear = [uploads["a"] for uploads in sent]
    assert same_difference(masked, clear) != runs_apart


def test_a_key_is_of_all_that_a_runs_uploads_depend_on(runs: Path) -> None:
    header = Run(runs / "masked-0.01").header
    options: dict[str, Any] = {
        "secure_aggregation": "masked",
        "seed": 0,
        "rounds": 2,
        "clients": 3,
    }

    def key(header: dict[str, Any], **fields: Any) -> Any:
        config = make_config("promptfl", **options | fields)
        found = masking_of(config, header, bytes)
        assert isinstance(found, Masking)
        assert isinstance(found.secrets, RunKey)
        return found.secrets

    same = {"python": "3.12.0", "progress": {}, "files": {"a": "b"}, "processor": "b"}
    assert key({**header, **same}) == key(header)
    others = [
        key(header, seed=1),
        key(header, dropout=0.1),
        key(header, settings={"learning_rate": 0.5}),
        *(key({**header, name: "0"}) for name in ("data_hash", "model_hash")),
        *(key({**header, name: "0"}) for name in ("libraries", "threads", "privaudit")),
    ]
    assert len({one.secret for one in [key(header), *others]}) == 1 + len(others)


def is_found(run: Run, seeds: int) -> bool:
    """Try seeds as a server would: does one give a client's public keys?

    It knows run.json but for the seed; the ledger's hash in it follows from the seed.
    """
    keys = first(run, "keys")["keys"].numpy().tobytes()
    for seed in range(seeds):
        config = run.config.model_copy(update={"seed": seed, "randomness": "seed"})
        header = {**run.header, "config": config.model_dump()}
        masking = masking_of(config, header, bytes)
        assert isinstance(masking, Masking)
        entropy = masking.entropy(Seeds(seed), 0, "client-0")
        identity = masking.identity(Seeds(seed), "client-0")
        client = Client(0, identity, Roster((identity.public,), ""), 2, entropy)
        if client.advertise()["keys"].tobytes() == keys:
            return True
    return False


def test_a_seed_that_can_be_guessed_gives_the_masks_away_and_a_systems_key_does_not(
    runs: Path,
) -> None:
    assert is_found(Run(runs / "masked-0.01"), seeds=3)
    assert not is_found(Run(runs / "system"), seeds=3)
