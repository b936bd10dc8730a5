"""What tests and doctests share: folders of their own, one thread, other machines.

``make test-elsewhere`` sets what only this file reads: TEST_THREADS (how many),
TEST_PRECISION ("medium": coarser products of float32), and TEST_LAST_BITS (features
are up to a unit in the last place off, as another processor's kernels leave them).
``python -m tests.margins`` sets TEST_PERTURBATION: see there.
"""

import gc
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

# Tests are small, and so are the processes that they start: threads would only wait for
# one another, and keep a core busy with it. Both are read when torch is imported.
os.environ["OMP_NUM_THREADS"] = os.environ.get("TEST_THREADS", "1")
os.environ["OMP_WAIT_POLICY"] = "passive"


from tests.places import common_folder
from tests.plugins import declare_packages_beside
from tests.type_checks import calls, jaxtyped_once

pytest_plugins = ["tests.skips"]  # fails what is skipped for an unknown reason

# make test-flower and make test-nvflare install these
collect_ignore = [
    *([] if find_spec("nvflare") else ["privaudit/recording/nvflare.py"]),
    *([] if find_spec("flwr") else ["privaudit/recording/flower"]),
    *([] if find_spec("flwr") else ["tests/privaudit/recording/flower"]),
]

set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"hypothesis-{os.getuid()}"))
# A busy machine is slow, and nothing is wrong with it.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

folders = count()
drawn = Counter[str]()  # keys of runs that are called and ask for the same
gc.disable()  # what is imported and collected stays
jaxtyping.jaxtyped = jaxtyped_once  # what --jaxtyping-packages decorates with


def pytest_configure(config: pytest.Config) -> None:
    """Let what tools and labs add be found, also where only pytest is told of it."""
    beside = tempfile.TemporaryDirectory(prefix="beside-")
    config.add_cleanup(beside.cleanup)
    whole = any("tests/labs" in str(one) for one in config.args)
    declare_packages_beside(Path(beside.name), whole=whole)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests: processes that share the rest end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from here on, seldom, and only in what tests leave: that is seconds."""
    gc.freeze()
    gc.set_threshold(10_000)  # a look at all that is kept takes 65 ms
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def another_machine() -> Iterator[None]:
    """Give records other last bits where that is asked for."""
    # Not above: jaxtyping must be first to import the package.
    from tests.elsewhere import compute_elsewhere

    with pytest.MonkeyPatch.context() as patch:
        compute_elsewhere(patch.setattr)
        yield


@pytest.fixture(autouse=True, scope="session")
def keys_of_tests() -> Iterator[None]:
    """Draw the keys of runs without a seed from what they are called: no test hangs on chance.

    Two runs of a test that are called alike and ask for the same get unlike keys.
    """
    from privaudit.runs import run_key

    def draw(path: Path, config: Any) -> bytes:
        run = (
            f"{os.environ.get('TEST_PERTURBATION', 0)} {path.name} {config.short_hash}"
        )
        drawn[run] += 1
        return hashlib.sha256(f"{run} {drawn[run]}".encode()).digest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_key, "system_key", draw)
        yield


@pytest.fixture(autouse=True, scope="session")
def opacus_computes_once() -> Iterator[None]:
    """Let opacus keep the Rényi divergences of a step, whatever the number of steps.

    They are nearly all of its time, and tests ask for the same ones again and again.
    """
    from opacus.accountants.analysis import rdp

    with pytest.MonkeyPatch.context() as patch:
        kept = lru_cache(maxsize=2**16)(rdp._compute_rdp)
        patch.setattr(rdp, "_compute_rdp", kept)
        yield


@pytest.fixture(autouse=True, scope="session")
def permutations_once() -> Iterator[None]:
    """Permute equal scores once: many tests evaluate the same, and that is their time."""
    from privaudit.auditing import attack_result
    from privaudit.statistics import membership_test

    test, kept = membership_test.membership_test, dict[Any, Any]()

    def once(strata: Any) -> Any:
        key = (membership_test.DRAWS, *(a.tobytes() for pair in strata for a in pair))
        if key not in kept:
            kept[key] = test(strata)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attack_result, "membership_test", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def ends_of_intervals_once() -> Iterator[None]:
    """Look for the ends of an AUROC's interval once: audits are read back and compared."""
    from privaudit.statistics import roc

    look, kept = roc._TiltedSamples.ends, dict[Any, tuple[float, float]]()

    def once(samples: Any, *asked: float) -> tuple[float, float]:
        held = (vars(samples)[name] for name in samples.__dataclass_fields__)
        parts = (np.asarray(one).tobytes() for one in held)
        key = hashlib.sha256(b"|".join(parts)).digest(), samples.masses.shape, asked
        if key not in kept:
            if len(kept) == 10**5:
                kept.clear()
            kept[key] = look(samples, *asked)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roc._TiltedSamples, "ends", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def embedded_models_once() -> Iterator[None]:
    """Load the embedded models once for each device: every run and audit asks for one.

    They are frozen, and tests of loading call the loaders themselves.
    """
    from privaudit.core.devices import chosen_device
    from privaudit.runs import population

    load = population.load_frozen

    @lru_cache
    def kept(device: Any, name: str, **options: Any) -> Any:
        return load(name, **options)

    def once(name: str, **options: Any) -> Any:
        is_embedded = name in ("tiny-clip", "tiny-llava")
        if is_embedded and isinstance(options.get("targets", ""), str):
            return kept(chosen_device(), name, **options)
        return load(name, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(population, "load_frozen", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def gradients_of_runs_once() -> Iterator[None]:
    """Let audits keep candidates' gradients along a move: tests audit the same few runs.

    They are most of an audit's time. What the attack's own tests and those of devices ask
    for, of toy models and trainers that are wrapped, is computed anew each time.
    """
    from privaudit.attacks import joint_regression
    from privaudit.auditing import record_gradients
    from privaudit.core.tensors import digest
    from privaudit.models.interfaces import Classifier

    compute, kept = record_gradients.gram_blocks, dict[Any, Any]()

    def once(adversary: Any, move: Any, records: Any, public: Any = None) -> Any:
        trainer, task = adversary.trainer, adversary.task
        places = type(trainer).__module__, type(getattr(task.backbone, "prompts", None))
        is_ours = places[0].startswith("privaudit.trainers.")
        is_ours &= isinstance(task.backbone, Classifier)
        if not is_ours or not places[1].__module__.startswith("privaudit."):
            return compute(adversary, move, records, public)
        read = {**vars(records), **vars(task.backbone), **move.received}
        read["public"] = task.public.features
        tensors = {**read, **{f"moved {n}": t for n, t in move.deltas.items()}}
        key = (
            f"{trainer!r} {task.candidates} {task.rounds} {task.logit_scale} {move.at}",
            *(f"{n} {digest(t)}" for n, t in tensors.items() if torch.is_tensor(t)),
        )
        if key not in kept:
            if len(kept) == 100:  # of a megabyte each
                kept.clear()
            kept[key] = compute(adversary, move, records, public)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_gradients, "gram_blocks", once)
        patch.setattr(joint_regression, "gram_blocks", once)
        yield


@pytest.fixture(autouse=True, scope="session")
def pictures_once() -> Iterator[None]:
    """Draw equal pictures of pages once: tests write pages of the same few audits.

    Tests of figures draw them themselves.
    """
    from privaudit.report import page
    from privaudit.report.figures import tradeoff_figure
    from tests.drawn_once import drawn_once

    with pytest.MonkeyPatch.context() as patch:
        for name, draw in page._SVG.items():
            patch.setitem(page._SVG, name, drawn_once(draw))
        for place, name in (
            (page, "both_widths"),
            (tradeoff_figure, "to_svg"),
            (tradeoff_figure, "narrow_svg"),
        ):
            patch.setattr(place, name, drawn_once(getattr(place, name)))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """Wait for no disk: what tests write goes with them. There are thousands of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def common_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sign all runs of a session with one key, and leave the user's own alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVAUDIT_KEYS", str(tmp_path_factory.getbasetemp() / "keys"))
        patch.setenv("PRIVAUDIT_SIGNING_KEY", "11" * 32)
        yield


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a test's folder, without pytest's link to the latest one of its name.

    Replacing that link takes longer than most tests.
    """
    return tmp_path_factory.mktemp(f"test-{next(folders)}", numbered=False)


@pytest.fixture(autouse=True)
def own_folders(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Keep all that a test reads and writes to itself, but for the session's cache.

    It is started in an empty folder, which is also the user's home: what lies about in a
    clone, such as the runs of a demo, is no test's business.
    """
    around = tmp_path.with_name(f"{tmp_path.name}-around")
    for name in ("here", "home"):
        (around / name).mkdir(parents=True)
    monkeypatch.chdir(around / "here")
    monkeypatch.setenv("HOME", str(around / "home"))
    drawn.clear()
    # Of models that other libraries draw. torch would format the stack for each device that
    # is not there: a third of a short test's time.
    on_gpu = torch.cuda.is_available()
    (torch if on_gpu else torch.default_generator).manual_seed(0)
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PRIVAUDIT_KEYS", str(tmp_path / "keys"))
    cache = common_folder(tmp_path_factory) / "cache"
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(cache))


@pytest.fixture(autouse=True)
def nothing_of_the_clone() -> Iterator[None]:
    """Let no test read or write what lies about in a clone."""
    from tests.own_folder import own_folder_only

    with own_folder_only() as strays:
        yield
    assert not strays, (
        f"A test reads and writes its own folder only; this one {strays[:9]}"
    )


@pytest.fixture(autouse=True)
def check_types_anew() -> None:
    """Check the first calls of every test, not those of the first test alone."""
    calls.clear()
