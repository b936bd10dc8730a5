"""The suite on other machines, and runs that came from them."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.shadow_models import paired_coins
from privaudit.core.portable_bits import portable_environment, settings
from privaudit.core.seeds import Seeds
from privaudit.core.storage import file_hash
from privaudit.federation.trainer import Records
from privaudit.models.frozen_model import FrozenModel
from privaudit.runs.config import make_config
from privaudit.runs.population import populate
from privaudit.runs.run import Run
from tests.elsewhere import with_other_last_bits
from tests.places import ROOT
from tests.privaudit.core.test_portable_bits import DIFFERING, started

# With SSE4.2, with AVX2, and of another maker, for which MKL takes other paths.
PROCESSORS = ("Nehalem", "Haswell", "EPYC")
CHOSEN = ROOT / "tests" / "emulated.txt"
PORTABLE = portable_environment({})
# QEMU 7.2 reads what a masked gather leaves out, and NumPy sorts by such gathers.
NATIVE = {"PRIVAUDIT_BITS": "native", "NPY_DISABLE_CPU_FEATURES": "X86_V3"}
emulated = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None or not os.environ.get("TEST_EMULATED"),
    reason="takes qemu-user, a package of Debian, and minutes: make test-elsewhere",
)
on_each = pytest.mark.parametrize("processor", PROCESSORS)


def test_the_chosen_tests_are_there() -> None:
    """A file that was renamed would be noticed by the emulator alone, once a week."""
    chosen = [line.partition("::") for line in CHOSEN.read_text().splitlines()]
    assert len({name for name, _, _ in chosen}) > 12
    for name, _, test in chosen:
        assert f"def {test.partition('[')[0]}" in (ROOT / name).read_text()


@emulated
@pytest.mark.slow
@on_each
def test_an_emulated_processor_computes_the_same_bits(processor: str) -> None:
    code = f"{DIFFERING}print(open('/proc/self/comm').read())"
    done = started(code, settings(), ["qemu-x86_64", "-cpu", processor])
    bits, name = done.stdout.split("\n")[:2]
    assert json.loads(bits) == ["portable", []]
    assert name == "qemu-x86_64"  # it was emulated


@emulated
@pytest.mark.slow
@on_each
def test_a_hundred_tests_pass(processor: str) -> None:
    """Without checks of types, which would be most of what is emulated."""
    words = [
        "-opython_files=test_*.py", "-oaddopts=-pno:privaudit --import-mode=importlib",
        "-pno:xdist", "-pno:cacheprovider", "-q", "--strict-markers", f"@{CHOSEN}",
    ]  # fmt: skip
    code = f"import os, sys, pytest; os.chdir({str(ROOT)!r}); sys.exit(pytest.main({words}))"
    asked = {**PORTABLE, "TEST_EMULATED": "", "TEST_TARGET": ""}
    done = started(code, asked, ["qemu-x86_64", "-cpu", processor])
    assert done.returncode == 0, done.stdout[-5000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) >= 100


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A run and its attack on this machine, in portable bits."""
    return hashes(attacked(tmp_path_factory.mktemp("here"), PORTABLE))


@emulated
@pytest.mark.slow
@on_each
def test_an_emulated_processor_gives_the_same_transcript_audit_and_report(
    processor: str, here: dict[str, str], tmp_path: Path
) -> None:
    assert {"audit.json", "scores.npz", "report.html", "manifest.jsonl"} <= {
        Path(name).name for name in here
    }
    run = attacked(tmp_path, PORTABLE, ["qemu-x86_64", "-cpu", processor])
    assert hashes(run) == here


@emulated
@pytest.mark.slow
@on_each
def test_in_its_own_bits_an_emulated_processor_comes_to_a_verdict(
    processor: str, tmp_path: Path
) -> None:
    run = attacked(tmp_path, NATIVE, ["qemu-x86_64", "-cpu", processor])
    assert json.loads((run / "run.json").read_text())["computed"]["bits"] == "native"
    (audit,) = run.rglob("audit.json")
    assert '"verdict"' in audit.read_text()


@pytest.mark.slow
def test_a_portable_run_reads_no_features_of_a_native_one(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    attacked(tmp_path, {**NATIVE, "PRIVAUDIT_RUNS": str(alone / "runs")}, (), [TRAIN])
    after, there = (attacked(at, PORTABLE, (), [TRAIN]) for at in (tmp_path, alone))
    assert hashes(after) == hashes(there)


TRAIN = "train --trainer promptfl:epochs=1 --name a --seed 0 --rounds 1 --clients 2"
ATTACK = "attack a --shadows 5 --clients 1 --quiet"


def attacked(
    folder: Path,
    bits: Mapping[str, str],
    emulator: Sequence[str] = (),
    commands: Sequence[str] = (TRAIN, ATTACK),
) -> Path:
    """Train and attack, with runs and features in a folder, and return the run's."""
    places = {"PRIVAUDIT_RUNS": f"{folder}", "PRIVAUDIT_CACHE": f"{folder}/cache"}
    for words in commands:
        code = f"import sys; sys.argv[1:] = {words.split()}\n"
        code += "from privaudit.cli.main import run; run()"
        done = started(code, {**places, **bits}, emulator)
        assert done.returncode == 0, done.stderr
    return folder / "a"


def hashes(run: Path) -> dict[str, str]:
    """Return the hash of each file but those that hold times; of metrics without these."""
    timed = re.compile(r"run\.json|.*\.lease.*|.*lock|log\.jsonl|metrics\.jsonl")
    found = {
        path.relative_to(run).as_posix(): file_hash(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and not timed.fullmatch(path.name)
    }
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rounds = [{**json.loads(line), "seconds": 0} for line in lines]
    return {**found, "metrics.jsonl": json.dumps(rounds)}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "settings"),
    [("promptfl", {"rounds": 2}), ("dp-fpl", {"learning_rate_global": 0.01})],
)
def test_runs_agree_across_threads_and_chunks(
    trainer: str, settings: dict[str, Any], threads: None
) -> None:
    """Other threads and chunks sum in another order, as another machine does.

    Prompts agree to 1e-5, gradients to a hundredth: over 60 rounds at the demo's rate.
    """

    def run(count: int, cohort_size: int) -> Run:
        torch.set_num_threads(count)
        return train(trainer, seed=4, cohort_size=cohort_size, **settings)

    for one, other in zip(run(1, 128).transcript, run(2, 3).transcript, strict=True):
        here, there = ((m.round, m.sender, m.kind) for m in (one, other))
        assert here == there
        for name, tensor in one.tensors.items():
            # Gradients of a sharp softmax magnify what prompts differ by.
            allowed = float(tensor.abs().max()) / 100 if one.sender != "server" else 0
            torch.testing.assert_close(
                tensor, other.tensors[name], rtol=0, atol=max(allowed, 1e-5)
            )


@pytest.fixture
def rounded_elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, features have the last bits of another kernel."""
    encode = FrozenModel.encode

    def rounded(*asked: Any, **how: Any) -> Records:
        return with_other_last_bits(encode(*asked, **how))

    return lambda: monkeypatch.setattr(FrozenModel, "encode", rounded)


@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("promptfl", {}),
        ("promptfl", {"canary": "mislabelled", "canaries": 5}),
        ("lora-fedavg", {"dataset": "scenes-far", "model": "tiny-llava"}),
    ],
)
def test_coins_do_not_follow_the_last_bits_of_features(
    trainer: str, more: dict[str, Any], rounded_elsewhere: Callable[[], None]
) -> None:
    config = make_config(trainer, **more)

    def coins() -> tuple[Records, torch.Tensor]:
        mine = populate(config).candidates("client-1")
        return mine, paired_coins(mine, 40, Seeds(0).stream("shadow-coin"))

    here, tossed = coins()
    rounded_elsewhere()
    there, again = coins()
    assert not torch.equal(here.features, there.features)
    assert torch.equal(tossed, again)


def test_an_audit_does_not_follow_the_last_bits_of_features(
    rounded_elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    """Trained and attacked with other last bits: every attack to a thousandth."""

    def aurocs(name: str) -> dict[str, float]:
        run = train(folder=tmp_path, name=name, rounds=2, epochs=1, seed=0)
        audit = Auditor(run).attack("server-reconstruct", clients=3, shadows=6)
        return {attack: leak.auroc.value for attack, leak in audit.results.items()}

    here = aurocs("here")
    rounded_elsewhere()
    assert aurocs("there") == pytest.approx(here, abs=1e-3)
