"""Keys: made once, outside the runs, for their owner only; and signatures."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privaudit.core.errors import ConfigError, StorageError, TranscriptError, TrustError
from privaudit.core.signing import (
    FOLDER,
    OWN,
    SECRET,
    TRUST,
    check_signature,
    keys_folder,
    own_key,
    public_half,
    sign,
    trust_key,
    trusted_keys,
)
from tests.conftest import Cli

PLACE = Path("run.json")
OTHER = public_half(Ed25519PrivateKey.from_private_bytes(b"\x22" * 32))


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user who never signed anything."""
    monkeypatch.delenv(SECRET)
    monkeypatch.setenv(FOLDER, str(tmp_path / "keys"))
    return tmp_path / "keys"


def test_the_standards_own_signature_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 8032, section 7.1, test 1: the public half of a known secret."""
    known = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    monkeypatch.setenv(SECRET, known)
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert public_half(own_key()) == public
    assert trusted_keys() == {public: OWN}


def test_a_key_is_made_once_for_its_owner_only(no_key: Path) -> None:
    assert trusted_keys() == {}
    assert not no_key.exists()  # reading makes none
    with ThreadPoolExecutor(8) as pool:
        found = {public_half(key) for key in pool.map(lambda _: own_key(), range(16))}
    assert len(found) == 1
    assert [path.name for path in no_key.iterdir()] == ["owner.key"]
    assert (no_key / "owner.key").stat().st_mode & 0o777 == 0o600
    assert no_key.stat().st_mode & 0o777 == 0o700


def test_a_signature_fits_its_content_and_purpose_only() -> None:
    made = sign("run", {"a": 1, "b": [0.1, None]})
    assert check_signature("run", {"b": [0.1, None], "a": 1}, made, PLACE).name == OWN
    last = "1" if made["value"].endswith("0") else "0"
    changed = {**made, "value": made["value"][:-1] + last}
    for purpose, content, signature in (
        ("run", {"a": 1, "b": [0.1]}, made),
        ("signals", {"a": 1, "b": [0.1, None]}, made),
        ("run", {"a": 1, "b": [0.1, None]}, {**made, "key": OTHER}),
        ("run", {"a": 1, "b": [0.1, None]}, changed),
        ("run", {"a": 1, "b": [0.1, None]}, None),
        ("run", {"a": 1, "b": [0.1, None]}, {"key": 3, "value": "x"}),
        ("run", {"a": float("inf")}, made),
    ):
        with pytest.raises(TranscriptError, match="is not as it was signed"):
            check_signature(purpose, content, signature, PLACE)


def test_an_unknown_key_is_refused_until_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own_key()
    monkeypatch.setenv(SECRET, "22" * 32)
    made = sign("run", {})
    monkeypatch.delenv(SECRET)
    with pytest.raises(TrustError, match=f"privaudit key trust {OTHER}"):
        check_signature("run", {}, made, PLACE)
    monkeypatch.setenv(TRUST, f"{OTHER.upper()},")
    assert check_signature("run", {}, made, PLACE).name == TRUST
    monkeypatch.delenv(TRUST)
    (tmp_path / "ada.pub").write_text(f"{OTHER}\n")
    place = trust_key(str(tmp_path / "ada.pub"), "Ada Lovelace")
    assert (
        str(check_signature("run", {}, made, PLACE)) == f"Ada Lovelace ({OTHER[:16]})"
    )
    place.write_text(place.read_text().upper())  # as others may have written it
    trust_key(OTHER, "Ada")
    assert place.read_text() == f"{OTHER} Ada\n"
    for key, name in (("abc", "Ada"), (OTHER, ""), (OTHER, "a\nb")):
        with pytest.raises(ConfigError):
            trust_key(key, name)


def test_a_key_that_others_may_read_is_refused(no_key: Path) -> None:
    own_key()
    (no_key / "owner.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        own_key()


@pytest.mark.parametrize("text", ["", "x" * 64, "ab" * 31])
def test_a_damaged_key_is_one_clear_line(text: str, no_key: Path) -> None:
    own_key()
    (no_key / "owner.key").write_text(text)
    with pytest.raises(ConfigError, match="holds no private key"):
        own_key()


def test_a_home_that_cannot_be_written_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "keys"))
    with pytest.raises(StorageError, match=f"Set {FOLDER} .* or {SECRET}"):
        own_key()
    monkeypatch.setenv(SECRET, "33" * 32)
    made = sign("run", {})
    assert check_signature("run", {}, made, PLACE).name == OWN


def test_without_a_home_the_environment_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(FOLDER)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ConfigError, match="no home"):
        own_key()
    monkeypatch.setenv(SECRET, "33" * 32)
    assert check_signature("run", {}, sign("run", {}), PLACE).name == OWN


def test_keys_lie_in_the_users_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys_folder() == tmp_path / "privaudit"


def test_the_command_shows_exports_and_trusts(tmp_path: Path, cli: Cli) -> None:
    def said(*words: str) -> tuple[int, str, str]:
        return cli("key", *words)

    code, out, _ = said()
    assert code == 0
    assert public_half(own_key()) in out
    assert str(keys_folder() / "owner.key") in out
    assert said("export", str(tmp_path / "mine.pub"))[0] == 0
    assert (tmp_path / "mine.pub").read_text().strip() == public_half(own_key())
    assert said("trust", OTHER, "--name", "Ada")[0] == 0
    assert f"{OTHER} Ada" in said()[1]
    code, _, err = said("trust", "nonsense", "--name", "Ada")
    assert code == 2
    assert "is no public key" in err
    secret = (keys_folder() / "owner.key").read_text().strip()
    assert secret not in "".join(said()[1:])
