"""Names, groups and the coin in a ledger's file; older files mean what they meant."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.runs.ledger import Coin, CoinUnits, Ledger, check_client_name

OWNER = np.array([0, 0, 1, 1, -1, -2, 0])
MEMBER = np.array([True, True, False, True, False, False, False])
GROUP = np.array([0, 0, 2, 3, 4, 5, 6])
NAMED = Ledger(OWNER, MEMBER, ("St.-Anna", "Ward-3"), GROUP, Coin("seed", 2**64 - 1))


def test_a_ledger_of_owners_and_members_alone_has_the_hash_it_had(
    tmp_path: Path,
) -> None:
    bare = Ledger(OWNER, MEMBER)
    content = OWNER.astype("<i8").tobytes() + MEMBER.tobytes()
    assert bare.hash == hashlib.sha256(content).hexdigest()
    bare.save(tmp_path / "ledger.npz")
    with np.load(tmp_path / "ledger.npz") as stored:
        assert set(stored) == {"owner", "is_member"}
    assert Ledger.load(tmp_path / "ledger.npz").clients == ("client-0", "client-1")


def test_all_that_is_noted_survives_the_disk_and_is_part_of_the_hash(
    tmp_path: Path,
) -> None:
    NAMED.save(tmp_path / "ledger.npz")
    again = Ledger.load(str(tmp_path / "ledger.npz"))
    assert again.hash == NAMED.hash
    assert (again.names, again.coin) == (NAMED.names, NAMED.coin)
    assert (tmp_path / "ledger.npz").stat().st_mode & 0o77 == 0
    assert (
        again.members_of("St.-Anna").tolist() == again.members_of(0).tolist() == [0, 1]
    )
    others = [
        replace(NAMED, names=("St.-Anna", "Ward-4")),
        replace(NAMED, group=None),
        replace(NAMED, coin=Coin("system")),
        replace(NAMED, coin=None),
        Ledger(OWNER, MEMBER),
    ]
    assert len({one.hash for one in (NAMED, *others)}) == 6


def test_an_unknown_client_is_refused() -> None:
    for wrong in ("ward-3", 2, -1):
        with pytest.raises(ConfigError, match=r"No client is called .*St\.-Anna"):
            NAMED.members_of(wrong)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("clients", np.array(["a"])),
        ("clients", np.array(["a", "a"])),
        ("clients", np.array(["a", "../b"])),
        ("clients", np.array([1, 2])),
        ("group", np.array([0, 0, 2, 3, 4, 5, 5])),
        ("group", np.array([0, 0, 0, 3, 4, 5, 6])),
        ("group", np.array([1, 1, 2, 3, 4, 5, 6])),
        ("group", np.array([0, -6, 2, 3, 4, 5, 6])),
        ("group", np.zeros(3, int)),
        ("group", np.zeros(7)),
        ("randomness", np.array("dice")),
        ("randomness", np.array(["seed", "seed"])),
        ("seed", np.array([1, 2])),
    ],
)
def test_what_does_not_fit_together_is_refused(
    name: str, array: np.ndarray, tmp_path: Path
) -> None:
    NAMED.save(tmp_path / "ledger.npz")
    with np.load(tmp_path / "ledger.npz") as stored:
        np.savez(tmp_path / "other.npz", **{**stored, name: array})
    with pytest.raises(TranscriptError, match="cut or altered"):
        Ledger.load(tmp_path / "other.npz")


@pytest.mark.parametrize("name", ["a", "client-0", "St.-Anna_2", "x" * 64])
def test_names_are_letters_digits_and_few_signs(name: str) -> None:
    assert check_client_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " a", "a b", "é", "-a", ".a", "a/b", "a:b", "a,b", "a\n", "a\0", "<a>",
     "x" * 65, "server", "public", "clients"],
)  # fmt: skip
def test_names_that_files_and_pages_could_not_bear_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a client"):
        check_client_name(name)


def test_means_are_those_of_each_group_in_the_order_of_first_records() -> None:
    records = np.array([6, 1, 0, 3])
    units = NAMED.units(records)
    assert units.first.tolist() == [0, 1, 3]
    assert units.unit.tolist() == [0, 1, 1, 2]
    assert units.mean(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [1.0, 3.0, 8.0]
    both = units.mean(np.array([[1, 2, 4, 8], [0, 0, 2, 0]]))
    assert both.tolist() == [[1, 3, 8], [0, 1, 0]]


def test_without_groups_values_stay_as_they_are() -> None:
    units = Ledger(OWNER, MEMBER).units(np.array([3, 0]))
    values = np.array([0.1, 0.7], np.float32)
    assert isinstance(units, CoinUnits)
    assert units.mean(values) is values
