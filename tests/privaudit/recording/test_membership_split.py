"""The coin before training: fair, independent, and of whole groups; columns from files."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from privaudit import Ledger, split_membership
from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    LimitError,
    MissingFileError,
    TooFewRecordsError,
)
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.recording.membership_split import number_values, read_column
from privaudit.recording.recorder import Recorder
from tests.privaudit.recording.small_federation import (
    COUNT,
    Linear,
    audited,
    run_federation,
)

HOSPITALS = np.array(["Zurich", "St.-Anna", "Ward_3"])


def tossed(seeds: int, **asked: Any) -> list[Ledger]:
    return [split_membership(seed=seed, **asked) for seed in range(seeds)]


def test_each_candidate_has_a_fair_coin_of_its_own() -> None:
    """Neighbours, and records of one client, agree as often as they differ."""
    heads = tosses = alike = pairs = 0
    for ledger in tossed(40, records=600, clients=3):
        assert not ledger.is_member[ledger.owner < 0].any()
        for client in ledger.clients:
            coins = ledger.is_member[ledger.candidates_of(client)]
            heads, tosses = heads + int(coins.sum()), tosses + len(coins)
            alike += int((coins[1:] == coins[:-1]).sum())
            pairs += len(coins) - 1
    assert tosses == 40 * 420
    assert binomtest(heads, tosses).pvalue > 1e-3
    assert binomtest(alike, pairs).pvalue > 1e-3


@given(
    records=st.integers(120, 400),
    clients=st.integers(1, 9),
    tests=st.floats(0.02, 0.3),
    public=st.floats(0.1, 0.4),
    seed=st.integers(0, 2**64 - 1),
)
def test_shares_are_kept_and_clients_get_equal_numbers(
    records: int, clients: int, tests: float, public: float, seed: int
) -> None:
    ledger = split_membership(
        records, clients, test_share=tests, public_share=public, seed=seed
    )
    sizes = [len(ledger.candidates_of(client)) for client in range(clients)]
    assert len(ledger.clients) == clients
    assert max(sizes) - min(sizes) <= 1
    assert abs(len(ledger.tests) - tests * records) < 1
    assert abs(len(ledger.public) - public * records) < 2
    assert len(ledger.tests) + len(ledger.public) + sum(sizes) == records


def test_a_seed_repeats_and_the_system_does_not() -> None:
    first, other = (split_membership(200, 2, seed=s) for s in (5, 6))
    again = inspect.unwrap(split_membership)(*np.array([200, 2]), seed=np.int64(5))
    assert first.hash == again.hash != other.hash
    assert first.coin is not None
    assert (first.coin.randomness, first.coin.seed) == ("seed", 5)
    drawn = [split_membership(200, 2) for _ in range(2)]
    assert drawn[0].hash != drawn[1].hash
    assert not np.array_equal(drawn[0].is_member, drawn[1].is_member)
    assert drawn[0].coin is not None
    assert (drawn[0].coin.randomness, drawn[0].coin.seed) == ("system", None)


def test_every_owner_keeps_its_records_and_gives_tests_and_public_ones() -> None:
    owners = np.repeat(HOSPITALS, [300, 100, 40])
    ledger = split_membership(owners=owners, test_share=0.25, seed=1)
    assert ledger.clients == ("St.-Anna", "Ward_3", "Zurich")
    for name, size in zip(HOSPITALS, (300, 100, 40), strict=True):
        mine = owners == name
        assert {ledger.clients[o] for o in ledger.owner[mine] if o >= 0} == {name}
        assert abs((ledger.owner[mine] == TEST).sum() - 0.25 * size) <= 1
        assert abs((ledger.owner[mine] == PUBLIC).sum() - 0.2 * size) <= 1
        members = ledger.members_of(str(name))
        assert (owners[members] == name).all()
        np.testing.assert_array_equal(
            members, ledger.members_of(ledger.clients.index(str(name)))
        )


def test_what_owners_are_called_and_in_which_order_changes_no_coin() -> None:
    owners = np.arange(400) % 4
    first = split_membership(owners=owners, public_share=0.1, test_share=0.05, seed=3)
    renamed = split_membership(
        owners=np.array(["z", "y", "x", "w"])[owners],
        public_share=0.1,
        test_share=0.05,
        seed=3,
    )
    both = (first.owner >= 0) & (renamed.owner >= 0)
    assert both.sum() > 300
    np.testing.assert_array_equal(first.is_member[both], renamed.is_member[both])
    assert first.clients == ("client-0", "client-1", "client-2", "client-3")
    assert renamed.clients == ("w", "x", "y", "z")


def test_whole_numbers_are_put_in_order_as_numbers() -> None:
    ledger = split_membership(owners=[f"{n % 11}" for n in range(440)], seed=0)
    assert ledger.clients == tuple(f"client-{n}" for n in range(11))
    assert ledger.owner[ledger.owner >= 0].tolist() == [
        n % 11 for n in np.flatnonzero(ledger.owner >= 0)
    ]


@pytest.mark.parametrize("clients", [None, 3])
def test_a_group_is_in_one_place_with_one_coin(clients: int | None) -> None:
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(120), rng.integers(1, 9, 120)))
    owners = None if clients else groups % 3
    heads = tosses = 0
    for ledger in tossed(15, clients=clients, owners=owners, groups=groups):
        assert ledger.group is not None
        firsts = np.unique(ledger.group)
        for first in firsts:
            rows = groups == groups[first]
            assert first == np.flatnonzero(rows)[0]
            assert len(np.unique(ledger.owner[rows])) == 1
            assert len(np.unique(ledger.is_member[rows])) == 1
        mine = firsts[ledger.owner[firsts] >= 0]
        heads += int(ledger.is_member[mine].sum())
        tosses += len(mine)
        sizes = [len(ledger.candidates_of(n)) for n in range(3)]
        assert clients is None or max(sizes) - min(sizes) <= 8
    assert binomtest(heads, tosses).pvalue > 1e-3


def test_classes_are_spread_evenly_and_the_coin_does_not_look_at_them() -> None:
    labels = torch.arange(600) % 2
    by_class = np.zeros((2, 2))
    for ledger in tossed(10, clients=3, labels=labels):
        for rows in (ledger.tests, ledger.public, ledger.candidates_of(1)):
            counts = np.bincount(labels.numpy()[rows], minlength=2)
            assert abs(int(counts[0]) - int(counts[1])) <= 1
        mine = ledger.owner >= 0
        np.add.at(by_class, (labels.numpy()[mine], ledger.is_member[mine] + 0), 1)
    assert np.abs(by_class[:, 1] / by_class.sum(axis=1) - 0.5).max() < 0.06


def test_known_members_keep_their_places_and_no_coin_is_claimed() -> None:
    trained = np.arange(300) % 3 == 0
    owners = np.arange(300) // 150
    masked, listed = (
        split_membership(300, owners=owners, members=members, seed=2)
        for members in (trained, np.flatnonzero(trained).tolist())
    )
    assert masked.hash == listed.hash
    assert not masked.tossed
    np.testing.assert_array_equal(masked.is_member, trained)
    assert not masked.is_member[masked.owner < 0].any()
    assert len(masked.public) == 40  # of the 200 others
    assert split_membership(300, members=["True", "False"] * 150).clients == (
        "client-0",
    )


ODD: list[tuple[dict[str, Any], str]] = [
    ({}, "was not said"),
    ({"records": 0, "clients": 1}, "0 records were given"),
    ({"records": 100}, "No clients were given"),
    ({"records": 100, "clients": 0}, "0 clients were given"),
    ({"records": 100, "clients": True}, "True clients were given"),
    ({"records": 100, "clients": 10**15}, "fewer than 2 for each"),
    ({"records": 100, "clients": 40}, "got 1 candidates"),
    ({"records": 20, "clients": 1, "public_share": 0.2}, "for tests and 4 public"),
    ({"records": 100, "clients": 2, "sampling": "split"}, "and no members"),
    ({"records": 100, "members": range(9), "sampling": "coin"}, "chosen before"),
    ({"records": 100, "members": range(9), "sampling": "torch:1"}, "not these members"),
    ({"records": 100, "members": range(9), "sampling": "torch"}, "Known: coin, datasets:SEED"),
    ({"records": 100, "clients": 2, "seed": -1}, "seed -1"),
    ({"records": 100, "clients": 2, "seed": 2**64}, "seed 18446744073709551616"),
    ({"records": 100, "clients": 2, "test_share": float("nan")}, "test share of nan"),
    ({"records": 100, "clients": 2, "test_share": 0.0}, "test share of 0"),
    ({"records": 100, "clients": 2, "public_share": -0.1}, "public share of -0.1"),
    ({"records": 100, "clients": 2, "public_share": 0.95}, "whose sum is below 1"),
    ({"records": 99, "owners": [0, 1] * 50}, "records 99, owners 100"),
    ({"clients": 2, "owners": [0, 1] * 50}, "each owner is a client"),
    ({"owners": [0, -1] * 50}, "The owners hold -1"),
    ({"owners": [0, 1.5] * 50}, "The owners hold 1.5"),
    ({"owners": [0, float("nan")] * 50}, "a value is missing"),
    ({"owners": np.array([0, np.nan] * 50)}, "a value is missing"),
    ({"owners": ["a", ""] * 50}, "a value is missing"),
    ({"owners": ["a", None] * 50}, "a value is missing"),
    ({"owners": ["a", "2.5"] * 50}, "The owners hold '2.5'"),
    ({"owners": ["a", "b/../c"] * 50}, "'b/../c' is no name"),
    ({"owners": ["a", "<b>"] * 50}, "'<b>' is no name"),
    ({"owners": ["a", "b\n"] * 30 + ["a\nb"] * 40}, "is no name of a client"),
    ({"owners": ["a", "server"] * 50}, "server, public, clients are"),
    ({"owners": ["a", "b" * 65] * 50}, "up to 64 letters"),
    ({"owners": ["a", "b" * 300] * 50}, "at most 200 letters"),
    ({"owners": np.zeros((50, 2), int)}, r"shape \(50, 2\)"),
    ({"owners": [[0], [1]] * 50}, "Give a list of one whole number or text"),
    ({"owners": ["a"] * 98 + ["b"] * 2}, "b of 2 clients got"),
    ({"clients": 2, "groups": [0] * 90 + [*range(1, 60)]}, "A group has 90 records"),
    ({"clients": 2, "groups": np.arange(60) // 20}, "got 1 groups|got 0 groups"),
    ({"owners": [0, 1] * 50, "groups": [7] * 100}, "of the group 7, and differ in"),
    ({"members": [0, 1] * 50, "groups": [7] * 100}, "differ in their members"),
    ({"records": 100, "clients": 2, "members": [0, 1] * 50}, "Members of 2 clients"),
    ({"records": 100, "members": [5, 5]}, "a position twice"),
    ({"records": 100, "members": [100]}, "The members hold 100"),
    ({"records": 100, "members": ["yes", "no"] * 50}, "The members hold 'no'"),
    ({"records": 100, "members": np.zeros(100, bool)}, "0 of 70 candidates"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "why"), ODD)
def test_what_no_audit_could_use_is_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        split_membership(**{"seed": 0, **asked})


def test_more_records_than_the_bound_are_refused_before_anything_is_drawn() -> None:
    with pytest.raises(LimitError, match="PRIVAUDIT_MAX_RECORDS"):
        split_membership(10**12, 2)


def test_a_group_as_large_as_a_clients_share_is_assigned() -> None:
    groups = [0] * 30 + list(range(1, 100))
    with pytest.raises(TooFewRecordsError, match="A group has 30 records"):
        split_membership(clients=5, groups=groups, seed=0)
    ledger = split_membership(clients=2, groups=groups, seed=0)
    assert len(ledger.clients) == 2


def test_a_recorded_federation_of_hospitals_is_audited_by_patient(
    tmp_path: Path,
) -> None:
    patients = np.arange(COUNT) // 2
    hospitals = np.array(["North", "South", "West"])[patients % 3]
    file = tmp_path / "ledger.npz"
    split_membership(owners=hospitals, groups=patients, seed=0).save(file)
    ledger = Ledger.load(file)
    with Recorder(tmp_path / "run", ledger=file, weight="num-examples") as recorder:
        run_federation(recorder, ledger, Linear(), names=ledger.clients)
    audit = audited(tmp_path / "run", "black-box", shadows=0)
    candidates = np.flatnonzero(ledger.owner >= 0)
    assert sum(audit.auroc.n) == len(candidates) // 2
    assert audit.auroc.value > 0.95
    assert audit.headline.verdict.kind == "leaks"
    assert [one.client for one in audit.headline.clients] == ["North", "South", "West"]


NAMES = ["b", "a", "b", "Ward 3"]


def write_npy(path: Path) -> str:
    np.save(path / "column.npy", np.array(NAMES))
    return str(path / "column.npy")


def write_csv(path: Path) -> str:
    rows = "".join(f'{n},"{name}"\n' for n, name in enumerate(NAMES))
    (path / "table.csv").write_text(f"record,owner\n{rows}")
    return f"{path / 'table.csv'}:owner"


def write_single(path: Path) -> str:
    (path / "one.tsv").write_text("\n".join(["owner", *NAMES]))
    return str(path / "one.tsv")


def write_lines(path: Path) -> str:
    rows = "".join(f'{{"owner": "{name}", "n": 1}}\n' for name in NAMES)
    (path / "a:b.jsonl").write_text(rows)
    return f"{path / 'a:b.jsonl'}:owner"


def write_parquet(path: Path) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra hf (pyarrow)")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": [0.5] * 4, "owner": NAMES})
    parquet.write_table(table, path / "t.parquet", row_group_size=2)
    return f"{path / 't.parquet'}:owner"


@pytest.mark.parametrize(
    "write", [write_npy, write_csv, write_single, write_lines, write_parquet]
)
def test_each_kind_of_file_gives_the_same_values(
    write: Callable[[Path], str], tmp_path: Path
) -> None:
    column = number_values("owners", read_column("--owners", write(tmp_path)))
    assert column.distinct == ("Ward 3", "a", "b")
    assert column.number.tolist() == [2, 1, 2, 0]
    assert column.first.tolist() == [0, 1, 0, 3]


def test_numbers_are_the_same_as_texts_and_as_whole_floats() -> None:
    for values in ([10, 9, 10], ["10", "9", "10"], np.array([10.0, 9.0, 10.0])):
        column = number_values("owners", values)
        assert (column.distinct, column.number.tolist()) == ((9, 10), [1, 0, 1])
    assert number_values("owners", ["10", "x", 9]).distinct == ("10", "9", "x")
    assert number_values("owners", ["007", "7"]).distinct == ("007", "7")


def test_what_is_no_column_is_refused(tmp_path: Path) -> None:
    csv, npy = write_csv(tmp_path), write_npy(tmp_path)
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "object.npy", np.array([{}, 1], object), allow_pickle=True)
    (tmp_path / "long.csv").write_text(f"owner\n{'x' * 201}\n")
    odd = {
        csv.removesuffix(":owner"): "columns record, owner, and no column is named",
        f"{csv}s": "none is 'owners'",
        f"{npy}:owner": "an array has no columns",
        f"{tmp_path / 'text.npy'}": "is damaged, or no array",
        f"{tmp_path / 'object.npy'}": "Python objects, which are never read",
        f"{tmp_path / 'long.csv'}": "at most 200 letters",
        "owners.xlsx": "is no file that is read",
    }
    for source, why in odd.items():
        with pytest.raises(DatasetError, match=why):
            read_column("--owners", source)
    for gone in ("gone.npy", "gone.csv:a", "gone.parquet:a", str(tmp_path)):
        with pytest.raises((MissingFileError, DatasetError)):
            read_column("--owners", gone)


def test_tables_of_other_types_are_refused(tmp_path: Path) -> None:
    source = write_parquet(tmp_path)
    with pytest.raises(DatasetError, match="x is neither of whole numbers nor"):
        read_column("--owners", source.replace(":owner", ":x"))


def test_files_are_bounded_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [write_npy(tmp_path), write_csv(tmp_path), write_parquet(tmp_path)]
    monkeypatch.setenv("PRIVAUDIT_MAX_RECORDS", "3")
    for source in sources:
        with pytest.raises(LimitError, match="PRIVAUDIT_MAX_RECORDS"):
            read_column("--owners", source)
    monkeypatch.setenv("PRIVAUDIT_MAX_RECORDS", "9")
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", "30")
    with pytest.raises(LimitError, match="PRIVAUDIT_MAX_ARRAYS"):
        read_column("--owners", sources[0])
