"""``privaudit split`` on files, and what it says."""

from pathlib import Path

import numpy as np
import pytest

from privaudit.federated.runs.ledger import Ledger
from tests.conftest import Cli

TABLE = "picture,patient,hospital\n" + "".join(
    f"{n}.png,p{n // 4},{('Anna', 'St-Mary')[n // 4 % 2]}\n" for n in range(400)
)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures.csv").write_text(TABLE)
    return tmp_path


def test_hospitals_and_patients_of_a_table(table: Path, cli: Cli) -> None:
    words = ("--owners", "pictures.csv:hospital", "--groups", "pictures.csv:patient")
    code, out, err = cli("split", *words)
    assert (code, err) == (0, "")
    ledger = Ledger.load(table / "ledger.npz")
    assert ledger.clients == ("Anna", "St-Mary")
    assert ledger.group is not None
    assert "groups of one coin each" in out
    assert "a key of the system's, which nobody kept" in out
    first = (table / "ledger.npz").read_bytes()
    code, _, err = cli("split", *words)
    assert code == 2
    assert "a coin that is tossed again tells nothing" in err
    assert (table / "ledger.npz").read_bytes() == first
    assert cli("split", *words, "--fresh")[0] == 0
    assert Ledger.load(table / "ledger.npz").hash != ledger.hash


def test_a_seed_repeats_and_the_command_says_what_it_costs(
    table: Path, cli: Cli
) -> None:
    words = ("split", "--records", 300, "--clients", 30, "--seed", 4, "--out")
    hashes = set()
    for name in ("one.npz", "two.npz"):
        code, out, _ = cli(*words, name)
        assert code == 0
        assert "anyone with the data and this seed knows every member" in out
        assert "and 10 more clients" in out
        hashes.add(Ledger.load(table / name).hash)
    assert len(hashes) == 1


def test_known_members_are_no_coin(table: Path, cli: Cli) -> None:
    np.save("members.npy", np.arange(0, 400, 3))
    code, out, _ = cli(
        "split", "--members", "members.npy", "--owners", "pictures.csv:hospital"
    )
    assert code == 0
    assert "no audit can tell" in out
    ledger = Ledger.load(table / "ledger.npz")
    assert not ledger.tossed
    assert int(ledger.is_member.sum()) == 134


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "How many records there are was not said"),
        (("--records", "50"), "None clients were given"),
        (("--owners", "pictures.csv"), "no column is named"),
        (("--owners", "pictures.csv:ward"), "none is 'ward'"),
        (("--owners", "pictures.csv:picture"), "400 clients got"),
        (("--owners", "gone.csv:ward"), "cannot be read"),
        (("--owners", "pictures.csv:hospital", "--clients", "2"), "is a client"),
        (("--records", "9", "--owners", "pictures.csv:hospital"), "owners 400"),
        (("--records", "100", "--clients", "2", "--test-share", "1"), "test share of 1"),
        (("--records", "100", "--clients", "2", "--out", "no/x.npz"), "no folder no"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_one_line_and_exit_code_2(
    words: tuple[str, ...], why: str, table: Path, cli: Cli
) -> None:
    code, out, err = cli("split", *words)
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1
    assert not (table / "ledger.npz").exists()
