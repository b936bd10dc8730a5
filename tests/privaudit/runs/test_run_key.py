"""A run's secret key: what follows from it, and who can guess it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, load_run, train
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    MissingFileError,
    TranscriptError,
)
from privaudit.core.seeds import KEY, Seeds
from privaudit.core.tensors import Tensors
from privaudit.evaluation.compare.measured import check_pairable
from privaudit.privacy.certificate import is_repeatable
from privaudit.report.export.export import export_public
from privaudit.report.report_data import ReportData
from privaudit.report.settings import run_settings
from privaudit.runs.config import make_config
from privaudit.runs.ledger import Ledger
from privaudit.runs.population import populate
from privaudit.runs.run import Run
from privaudit.runs.run_key import RUN_KEY
from tests.conftest import Cli, common_cache, train_and_stop

QUICK: dict[str, Any] = {"rounds": 2, "clients": 3, "epochs": 1}
SYSTEM: dict[str, Any] = {"secure_aggregation": "masked", **QUICK}
MASKED: dict[str, Any] = {"seed": 0, **SYSTEM}
NOISED: dict[str, Any] = {
    "trainer": "dp-fpl",
    "epsilon": 8,
    "rounds": 3,
    "clients": 4,
    "participation": 0.5,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a masked run whose key the system drew."""
    folder = tmp_path_factory.mktemp("keys")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="system", **SYSTEM)
    return folder


def first(run: Run, kind: str) -> Tensors:
    return next(m.tensors for m in run.transcript if m.kind == kind)


def test_the_systems_key_changes_masks_and_nothing_else(runs: Path) -> None:
    run, seeded = (
        train(folder=runs, name=f"of-{one}", randomness=one, **MASKED)
        for one in ("system", "seed")
    )
    for kind, equal in (("masked", False), ("keys", False), ("sum", True)):
        ours, theirs = first(run, kind), first(seeded, kind)
        assert all(torch.equal(ours[n], theirs[n]) for n in ours) == equal
    key = run.path / RUN_KEY
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    assert RUN_KEY in run.header["files"]
    assert key.read_bytes().hex() not in repr(run.masking)
    assert not (seeded.path / RUN_KEY).exists()


@pytest.mark.parametrize("fields", [SYSTEM, NOISED], ids=["masked", "noised"])
def test_a_resumed_run_has_its_key_and_a_fresh_one_another(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    """Killed after a round, twice resumed: the same bytes; anew: others."""
    train_and_stop(1, folder=tmp_path, name="one", **fields)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    one, two = (
        train(folder=tmp_path, name=name, resume=True, **fields)
        for name in ("one", "two")
    )
    for path in (one.path / "transcript").iterdir():
        assert (two.path / "transcript" / path.name).read_bytes() == path.read_bytes()
    before, head = (one.path / RUN_KEY).read_bytes(), one.transcript.head
    assert train(folder=tmp_path, name="one", **fields).transcript.head == head
    assert (one.path / RUN_KEY).read_bytes() == before
    fresh = train(folder=tmp_path, name="one", fresh=True, **fields)
    assert (one.path / RUN_KEY).read_bytes() != before
    assert fresh.transcript.head != head
    assert {c["randomness"] for c in fresh.privacy["certified"].values()} == {"system"}
    assert (fresh.path / RUN_KEY).stat().st_mode & 0o777 == 0o600


def test_noise_of_a_named_seed_repeats_and_is_marked(tmp_path: Path) -> None:
    first, again = (
        train(folder=tmp_path, name=name, seed=7, **NOISED) for name in ("one", "two")
    )
    assert first.transcript.head == again.transcript.head
    assert not (first.path / RUN_KEY).exists()
    certified = first.privacy["certified"]
    assert {c["randomness"] for c in certified.values()} == {"seed"}
    assert is_repeatable(certified["released"])
    assert not is_repeatable(certified["server"])  # proves nothing in any case
    card = export_public(first, tmp_path / "out").card
    assert card.privacy.certified["released"].randomness == "seed"


def test_equal_keys_give_equal_transcripts_and_coins_and_the_partition_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(name: str, key: bytes) -> Run:
        monkeypatch.setattr("privaudit.runs.run_key.system_key", lambda *asked: key)
        return train(folder=tmp_path, name=name, **NOISED)

    one, two, other = (
        trained(name, key * KEY)
        for name, key in (("1", b"a"), ("2", b"a"), ("3", b"b"))
    )
    assert one.transcript.head == two.transcript.head != other.transcript.head
    assert one.ledger.hash == two.ledger.hash != other.ledger.hash
    assert np.array_equal(one.ledger.owner, other.ledger.owner)


def own_files(run: Path) -> dict[Path, bytes]:
    """Return a run's files but for its lock and leases."""
    return {p: p.read_bytes() for p in run.rglob("[!.]*") if p.is_file()}


@pytest.mark.parametrize("content", [None, b"0" * 32])
def test_a_run_whose_key_is_gone_or_altered_does_not_go_on(
    content: bytes | None, tmp_path: Path
) -> None:
    train_and_stop(1, folder=tmp_path, name="cut", **SYSTEM)
    key = tmp_path / "cut" / RUN_KEY
    if content is None:
        key.unlink()
    else:
        key.write_bytes(content)
    before = own_files(tmp_path / "cut")
    with pytest.raises((MissingFileError, TranscriptError), match=r"run\.key"):
        train(folder=tmp_path, name="cut", resume=True, **SYSTEM)
    after = own_files(tmp_path / "cut")
    assert after == before


def test_an_export_says_where_secrets_come_from_and_holds_no_key(
    runs: Path, tmp_path: Path
) -> None:
    run = Run(runs / "system")
    found = export_public(run, tmp_path / "out")
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    key = (run.path / RUN_KEY).read_bytes()
    assert json.loads((tmp_path / "out" / "card.json").read_text())
    assert key.hex() not in text
    assert run.header["files"][RUN_KEY] not in text
    assert found.card.training.randomness == "system"


@pytest.mark.parametrize(
    ("trainer", "fields", "wanted"),
    [
        ("promptfl", {}, "system"),
        ("promptfl", {"seed": 0}, "seed"),
        ("promptfl", {"secure_aggregation": "masked"}, "system"),
        ("promptfl", {"secure_aggregation": "masked", "seed": 0}, "seed"),
        ("promptfl", {"randomness": "system"}, "system"),
        ("dp-fpl", {"settings": {"epsilon": 8.0}}, "system"),
        ("dp-fpl", {"settings": {"epsilon": 8.0}, "seed": 0}, "seed"),
        (
            "dp-fpl",
            {"settings": {"epsilon": 8.0}, "seed": 0, "randomness": "system"},
            "system",
        ),
    ],
)
def test_a_key_is_the_systems_where_no_seed_is_named(
    trainer: str, fields: dict[str, Any], wanted: str
) -> None:
    assert make_config(trainer, **fields).randomness == wanted


def test_a_run_of_a_seed_is_named_as_ever_and_one_without_is_another() -> None:
    """The first is what it was when a run that named no seed was of 0, too."""
    names = [
        make_config("promptfl", **fields).short_hash
        for fields in ({"seed": 0}, {"seed": 0, "randomness": "system"}, {})
    ]
    assert names[0] == "4b7b0f17"
    assert len(set(names)) == 3


def test_noise_of_a_seed_that_nobody_named_is_refused() -> None:
    with pytest.raises(ConfigError, match="Add --seed"):
        make_config("dp-fpl", randomness="seed")


def recovered(run: Run, guesses: int) -> float:
    """Return how many memberships somebody gets right who has data and settings.

    They toss the coins of one seed after the other; the best guess counts.
    """
    split = populate(run.config).split
    is_candidate, truth = split.owner >= 0, run.truth.is_member
    tossed = [Ledger.toss(split, Seeds(seed)).is_member for seed in range(guesses)]
    return max(float((one == truth)[is_candidate].mean()) for one in tossed)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"randomness": "system", "canary": "mislabelled", "canaries": 5},
        {"trainer": "dp-fpl", "epsilon": 8},
        {"members": "clients", "clients": 60, "epochs": 1},
    ],
    ids=["default", "canaries", "noised", "clients"],
)
def test_nobody_guesses_the_members_of_a_run_without_a_seed(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    """Of a seed that was asked for, all are known; else the best of 20 is chance."""
    asked = {"rounds": 1, "clients": 3, "tested": 10, "folder": tmp_path, **fields}
    known = train(name="known", seed=13, **asked)
    assert recovered(known, 20) == 1.0
    assert known.coin_seed == 13
    secret = train(name="secret", **asked)
    assert secret.coin_seed is None
    units = 60 if "members" in fields else int((secret.truth.owner >= 0).sum())
    assert recovered(secret, 20) < 0.5 + 6 * 0.5 / units**0.5
    other = train(name="other", **asked)
    assert np.array_equal(other.truth.owner, secret.truth.owner)
    agree = other.truth.is_member == secret.truth.is_member
    assert agree[secret.truth.owner >= 0].mean() < 0.5 + 6 * 0.5 / units**0.5


KNOWN = "anyone with the data and this seed knows every member"


def test_a_run_says_who_can_know_its_members(cli: Cli) -> None:
    """On the terminal, in run.json, in the report's settings and in lint."""
    words = ("--rounds", 1, "--clients", 3, "--set", "epochs=1", "--name")
    for name, seed in (("known", ("--seed", 4812763)), ("secret", ())):
        code, said, _ = cli("train", *words, name, *seed)
        assert (code, KNOWN in said, "4812763" in said) == (0, bool(seed), False)
        _, said, _ = cli("lint", name)
        assert (KNOWN in said, "4812763" in said) == (bool(seed), False)
        run = load_run(name)
        assert run.header["config"]["seed"] == (4812763 if seed else None)
        data = ReportData.of([Auditor(run).attack(shadows=0)])
        settings, _ = run_settings(data)
        assert (KNOWN in settings["members"]) == bool(seed)
        assert ("Of a secret key." in settings["members"]) != bool(seed)


def test_a_resumed_run_keeps_its_coins(tmp_path: Path) -> None:
    train_and_stop(1, folder=tmp_path, name="one", **QUICK)
    before = Run(tmp_path / "one").truth
    resumed = train(folder=tmp_path, name="one", resume=True, **QUICK)
    assert resumed.truth.hash == before.hash
    again = train(folder=tmp_path, name="one", **QUICK)  # finished: nothing is tossed
    assert again.truth.hash == before.hash
    anew = train(folder=tmp_path, name="one", fresh=True, **QUICK)
    assert anew.truth.hash != before.hash


def test_a_run_may_follow_the_coins_of_another(tmp_path: Path) -> None:
    quick = {"folder": tmp_path, **QUICK}
    first = train(name="first", **quick)
    follower = train("zero-shot", name="second", coins=first, rounds=1, clients=3)
    assert np.array_equal(follower.truth.is_member, first.truth.is_member)
    keys = {(run.path / RUN_KEY).read_bytes() for run in (first, follower)}
    assert len(keys) == 2  # noise and masks are its own
    by_itself = train(name="third", **quick)
    with pytest.raises(ConfigError, match="begun by itself"):
        train(name="third", coins=first, **quick)
    with pytest.raises(IncompatibleRunsError, match=r"coins of its own.*--seed"):
        check_pairable(first, by_itself)
    check_pairable(first, follower)
