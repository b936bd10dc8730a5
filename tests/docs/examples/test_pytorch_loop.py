"""The example of a loop of one's own: recorded, audited, and right where that is known."""

import runpy
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit import Audit, Auditor
from privaudit.auditing.scenario import Scenario
from privaudit.datasets.split import UNUSED
from privaudit.recording.importing import finish_recording
from privaudit.recording.owner import Owner, use_owner
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import Coin, Ledger
from privaudit.runs.run import load_run
from tests.docs.examples.owners import EXAMPLES, import_example, toss
from tests.privaudit.recording.small_federation import headline_alone


@dataclass(frozen=True)
class Noisy:
    """The example's federation on noise, which only memory can tell the classes of.

    Attributes:
        owner: The example's functions.
        ledger: Half of each client's candidates are members.
        recording: Without any ledger.
    """

    owner: Owner
    ledger: Ledger
    recording: Path

    def audit(self, scenario: str | Scenario, ledger: Ledger, run: Path) -> Audit:
        """Return the audit of a copy of the recording that was joined with a ledger."""
        shutil.copytree(self.recording, run)
        with use_owner(self.owner):
            joined = finish_recording(run, ledger)
            return Auditor(joined).attack(scenario, shadows=0)

    def of_others(self, seed: int) -> Ledger:
        """Return a ledger with candidates that no client had."""
        rng, theirs = np.random.default_rng(seed), self.ledger.owner
        others = rng.permutation(np.flatnonzero(theirs == UNUSED))[:80]
        owner = np.where(theirs >= 0, UNUSED, theirs)
        owner[others] = np.arange(80) % 2
        return Ledger(
            owner,
            (rng.random(len(owner)) < 0.5) & (owner >= 0),
            coin=Coin("seed", seed),
        )


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Noisy]:
    with pytest.MonkeyPatch.context() as patch:
        loop, owner = import_example("pytorch_loop", "loop", "owner", monkeypatch=patch)
        draw = torch.Generator().manual_seed(1)
        pictures = torch.randn(owner.pictures.shape, generator=draw)
        patch.setattr(owner, "pictures", pictures)
        patch.setattr(
            owner, "labels", torch.randint(10, (len(pictures),), generator=draw)
        )
        patch.setattr(loop, "ROUNDS", 2)
        ledger = toss(len(pictures), clients=2, each=40, public=20, tests=20)
        folder = tmp_path_factory.mktemp("loop") / "recording"
        with Recorder(folder, weight="records") as recorder:
            loop.train(ledger, recorder)
        yield Noisy(Owner.of(owner), ledger, folder)


def test_the_script_records_a_run_that_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (owner,) = import_example("pytorch_loop", "owner", monkeypatch=monkeypatch)
    ledger = toss(len(owner.labels), clients=2, each=40, public=20, tests=40)
    ledger.save(tmp_path / "ledger.npz")
    words = ["loop.py", str(tmp_path / "ledger.npz"), str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(EXAMPLES / "pytorch_loop" / "loop.py"), run_name="__main__")
    place = EXAMPLES / "pytorch_loop" / "owner.py"
    with use_owner(str(place)):
        run = load_run(tmp_path / "run")
        audit = Auditor(run).attack("server-reconstruct", clients=1, shadows=5)
    assert {"loss-threshold", "lira", "rmia", "shadow"} <= set(audit.results)
    assert audit.utility is not None
    assert audit.utility.local.value > 0.6


@pytest.mark.parametrize("scenario", ["server-reconstruct", "prompt-release"])
def test_what_was_memorised_is_found(
    noisy: Noisy, scenario: str, tmp_path: Path
) -> None:
    audit = noisy.audit(scenario, noisy.ledger, tmp_path / "run")
    assert audit.auroc.value > 0.95


@pytest.mark.usefixtures("fewer_permutations")
def test_intervals_cover_chance_where_no_client_had_the_candidates(
    noisy: Noisy, tmp_path: Path
) -> None:
    """Of 20 intervals of 95 %, three or fewer miss in 98 of 100 repetitions."""
    plan = headline_alone("server-reconstruct")
    found = [
        noisy.audit(plan, noisy.of_others(seed), tmp_path / f"{seed}").auroc
        for seed in range(20)
    ]
    assert sum(one.low <= 0.5 <= one.high for one in found) >= 17
