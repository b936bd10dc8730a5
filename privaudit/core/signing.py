"""Signatures of runs: the owner's Ed25519 key, and others' that are trusted.

The owner's key is made on first use, in a folder outside all runs:

  owner.key   the private half, 64 hexadecimal digits, mode 0600
  trusted     public halves of others, a line each: 64 digits and a name

Source: Bernstein, Duif, Lange, Schwabe and Yang, "High-speed high-security signatures",
J. Cryptographic Engineering 2012; RFC 8032.

Signed envelopes: DSSE with Ed25519 keys, as in-toto's tools write and read them.

The key's name in an envelope is its public half, 64 hexadecimal digits.

Source: "DSSE: Dead Simple Signing Envelope", protocol 1.0.2,
https://github.com/secure-systems-lab/dsse; RFC 8032 (Ed25519).

Contents that one person can open: HPKE to a key that follows from their signing key.

Source: Barnes, Bhargavan, Lipp and Wood, "Hybrid Public Key Encryption", RFC 9180, base
mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305.
"""

import base64
import binascii
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privaudit.core.context import set_within
from privaudit.core.errors import ConfigError, StorageError, TranscriptError, TrustError
from privaudit.core.seeds import KEY, derive
from privaudit.core.storage import (
    make_private_folder,
    read_bytes,
    storage_errors,
    write_bytes,
)

FOLDER = "PRIVAUDIT_KEYS"  # environment: where keys lie
SECRET = "PRIVAUDIT_SIGNING_KEY"  # the same: a private key; no file is read then
TRUST = "PRIVAUDIT_TRUST"  # public keys, with commas between
OWNER, TRUSTED = "owner.key", "trusted"
OWN = "your own key"
_DIGITS = re.compile(r"[0-9a-f]{64}")
_lent: ContextVar[Ed25519PrivateKey | None] = ContextVar("passing key", default=None)
_SHOWN = 16  # digits that tell keys apart on a page; trust compares all 64


@dataclass(frozen=True)
class Signer:
    """Whose signature was found to fit.

    Attributes:
        key: The public half, 64 hexadecimal digits.
        name: As it was trusted; :data:`OWN` for one's own.
    """

    key: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.key[:_SHOWN]})"


def keys_folder() -> Path:
    """Return where keys lie: PRIVAUDIT_KEYS, or privaudit in the user's configuration.

    Raises:
        ConfigError: The system names no home for this user.
    """
    if named := os.environ.get(FOLDER):
        return Path(named)
    above = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(above).expanduser() / "privaudit"
    except RuntimeError:
        raise ConfigError(
            f"This user has no home, so there is no place for a key. Set {FOLDER} to a "
            f"folder, or {SECRET} to a private key of 64 hexadecimal digits."
        ) from None


def key_place() -> str:
    """Return where the owner's private key lies: a file, or the environment."""
    return f"${SECRET}" if SECRET in os.environ else str(keys_folder() / OWNER)


def own_key() -> Ed25519PrivateKey:
    """Return the key that signs; the first call draws it from the operating system.

    Raises:
        ConfigError: What is there is no key, or others may read it.
        StorageError: It cannot be kept.
    """
    if lent := _lent.get():
        return lent
    if SECRET in os.environ:
        return _private(os.environ[SECRET], SECRET)
    place = keys_folder() / OWNER
    if _kept(OWNER) is None:
        _make_key(place)
    return _read_key(place)


@contextmanager
def passing_key() -> Iterator[None]:
    """Sign within with a key that is kept nowhere, beside those that are trusted.

    For runs that are gone at the end, of somebody who may have no key, nor a place for
    one. Keys of the owner are read, and none is made.
    """
    with set_within(_lent, Ed25519PrivateKey.generate()):
        yield


def _read_key(place: Path) -> Ed25519PrivateKey:
    if os.name == "posix" and place.stat().st_mode & 0o077:
        raise ConfigError(
            f"{place} signs in your name, and others may read it. Run `chmod 600 "
            f"{place}`; if someone may have read it, remove it, and train again."
        )
    return _private(read_bytes(place).decode(errors="replace"), str(place))


def _private(text: str, place: str) -> Ed25519PrivateKey:
    if not _DIGITS.fullmatch(text.strip()):
        raise ConfigError(
            f"{place} holds no private key of 64 hexadecimal digits. Restore it, or "
            "take it away: the next run makes one."
        )
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text.strip()))


def _make_key(place: Path) -> None:
    """Write a key that nobody can see half written, and that replaces none."""
    try:
        make_private_folder(place.parent)
        with storage_errors(place):
            handle, draft = tempfile.mkstemp(dir=place.parent)  # mode 0600
    except StorageError as error:
        raise StorageError(
            f"Runs are signed, and a key cannot be kept: {error} Set {FOLDER} to a "
            f"folder that can be written, or {SECRET} to a private key of 64 "
            "hexadecimal digits."
        ) from None
    try:
        with storage_errors(place), os.fdopen(handle, "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")
            file.flush()
            os.fsync(file.fileno())
        with storage_errors(place):
            try:
                os.link(draft, place)
            except FileExistsError:
                return  # another process was first
    finally:
        Path(draft).unlink(missing_ok=True)


def public_half(key: Ed25519PrivateKey) -> str:
    """Return the public half, 64 hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def trusted_keys() -> dict[str, str]:
    """Return the names of all public keys that are trusted; the owner's come first.

    No key is made.

    Raises:
        ConfigError: A file or variable holds something else than keys.
    """
    keys = {}
    if lent := _lent.get():
        keys[public_half(lent)] = "a key that is not kept"
    if SECRET in os.environ:
        keys[public_half(_private(os.environ[SECRET], SECRET))] = OWN
    if place := _kept(OWNER):
        keys.setdefault(public_half(_read_key(place)), OWN)
    for text in filter(None, os.environ.get(TRUST, "").split(",")):
        keys.setdefault(read_public(text, TRUST), TRUST)
    for line in _lines():
        key, _, name = line.partition(" ")
        keys.setdefault(read_public(key, TRUSTED), name.strip() or "unnamed")
    return keys


def _kept(name: str) -> Path | None:
    """Return a file in the folder of keys, if there is one that can be reached."""
    try:
        place = keys_folder() / name
        return place if place.exists() else None
    except (ConfigError, OSError):  # no home, or a folder that is closed to this user
        return None


def _lines() -> list[str]:
    place = _kept(TRUSTED)
    text = read_bytes(place).decode(errors="replace") if place else ""
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_public(text: str, place: str) -> str:
    """Return a public key as it is compared; a ConfigError where it is none."""
    key = text.strip().lower()
    if not _DIGITS.fullmatch(key):
        raise ConfigError(
            f"{place}: {text.strip()[:80]!r} is no public key of 64 hexadecimal "
            "digits. `privaudit key` shows one's own."
        )
    return key


def named_key(text: str) -> str:
    """Return the public key that 64 hexadecimal digits, or a file with them, are."""
    if not _DIGITS.fullmatch(text) and Path(text).is_file():
        return read_public(read_bytes(Path(text)).decode(errors="replace"), text)
    return read_public(text, "The key")


def trust_key(key: str, name: str) -> Path:
    """Trust runs that somebody else signed, and return the list of such keys.

    Args:
        key: The public half, 64 hexadecimal digits, or a file that holds them.
        name: What reports call it: one line.

    Raises:
        ConfigError: That is no key, or no name.
        StorageError: The folder of keys cannot be written.
    """
    key = named_key(key)
    if not name.isprintable() or not name.strip():
        raise ConfigError(f"A key cannot be called {name!r}. Use one line of letters.")
    place = keys_folder() / TRUSTED
    others = [line for line in _lines() if not line.lower().startswith(key)]
    make_private_folder(place.parent)
    write_bytes(place, "\n".join([*others, f"{key} {name.strip()}", ""]).encode())
    return place


def sign(purpose: str, content: Mapping[str, Any]) -> dict[str, str]:
    """Return a signature of JSON, and the public key that it fits.

    Args:
        purpose: What it vouches for: no signature fits another purpose.
        content: What is signed, of JSON's types only.
    """
    key = own_key()
    value = key.sign(_text(purpose, content)).hex()
    return {"key": public_half(key), "value": value}


def check_signature(
    purpose: str, content: Mapping[str, Any], signature: Any, place: Path
) -> Signer:
    """Return whose signature it is.

    Raises:
        TranscriptError: It does not fit, so the content is not what was signed.
        TrustError: It fits, and the key is not trusted.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["key"]))
        key.verify(bytes.fromhex(signature["value"]), _text(purpose, content))
    except (InvalidSignature, ValueError, KeyError, TypeError, RecursionError):
        raise TranscriptError(
            f"{place} is not as it was signed: it was altered, or put together by "
            "someone without the key. Restore it from a copy, or train again."
        ) from None
    public = key.public_bytes_raw().hex()
    name = trusted_keys().get(public)
    if name is None:
        raise TrustError(
            f"{place} is signed by a key that you do not trust, {public}. If you know "
            f"whose it is, run `privaudit key trust {public} --name WHOSE`; else do "
            "not use this run."
        )
    return Signer(public, name)


def _text(purpose: str, content: Mapping[str, Any]) -> bytes:
    """Return what is signed: the purpose, and JSON in one form only."""
    plain = json.loads(json.dumps(content, allow_nan=False))  # keys as they are read
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"privaudit {purpose}\n{text}".encode()


MOST_SIGNATURES = 20
STATEMENT: Literal["application/vnd.in-toto+json"] = "application/vnd.in-toto+json"


def _one_spelling(text: str) -> str:
    """Refuse base64 that is not as it is written: other last bits decode to the same."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if base64.b64encode(decoded).decode() != text:
        raise ValueError("it is not written as base64 is")
    return text


Base64 = Annotated[str, AfterValidator(_one_spelling)]


class EnvelopeSignature(BaseModel):
    """One key's signature of an envelope's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keyid: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    sig: Annotated[Base64, Field(min_length=88, max_length=88)]


class Envelope(BaseModel):
    """What was signed, as base64, and by whom: the first signed before all others."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    payload: Base64
    payload_type: Literal["application/vnd.in-toto+json"] = Field(
        STATEMENT, alias="payloadType"
    )
    signatures: Annotated[
        tuple[EnvelopeSignature, ...], Field(min_length=1, max_length=MOST_SIGNATURES)
    ]

    @classmethod
    def of(cls, content: bytes) -> "Envelope":
        """Return content signed with one's own key."""
        payload = base64.b64encode(content).decode()
        return cls(payload=payload, signatures=(_signed(content),))

    def countersigned(self) -> "Envelope":
        """Return it with one's own signature, too; as it is, if it has that.

        Raises:
            ConfigError: As many have signed as may.
        """
        own = _signed(self.content)
        if own in self.signatures:
            return self
        if len(self.signatures) >= MOST_SIGNATURES:
            raise ConfigError(
                f"{MOST_SIGNATURES} keys have signed this, and no more may. Sign a copy "
                "that not all of them signed."
            )
        return self.model_copy(update={"signatures": (*self.signatures, own)})

    @property
    def content(self) -> bytes:
        """What was signed."""
        return base64.b64decode(self.payload)

    def unfit(self) -> list[str]:
        """Return the keys whose signatures do not fit the content."""
        return [one.keyid for one in self.signatures if not _fits(one, self.content)]


def _signed(content: bytes) -> EnvelopeSignature:
    key = own_key()
    signature = base64.b64encode(key.sign(pre_authentication(content))).decode()
    return EnvelopeSignature(keyid=public_half(key), sig=signature)


def _fits(signature: EnvelopeSignature, content: bytes) -> bool:
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.keyid))
        key.verify(base64.b64decode(signature.sig), pre_authentication(content))
    except (InvalidSignature, ValueError):
        return False
    return True


def pre_authentication(content: bytes, kind: str = STATEMENT) -> bytes:
    """Return what is signed: PAE, with the type and all lengths.

    Example:
        >>> pre_authentication(b"hello world", "http://example.com/HelloWorld")
        b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(content), content)


def _suite() -> Any:
    try:
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    except ImportError:
        raise ConfigError(
            "Sealing a file for an auditor needs HPKE, which this version of "
            "cryptography lacks. Install a newer one: pip install -U cryptography."
        ) from None
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def _own() -> X25519PrivateKey:
    secret = derive(own_key().private_bytes_raw(), "key that opens files", KEY)
    return X25519PrivateKey.from_private_bytes(secret)


def opening_key() -> str:
    """Return the public half of the key that opens for oneself, 64 hexadecimal digits."""
    return _own().public_key().public_bytes_raw().hex()


def seal(content: bytes, key: str, purpose: str) -> bytes:
    """Return what only the owner of a key can open, and for no other purpose."""
    public = X25519PublicKey.from_public_bytes(bytes.fromhex(key))
    return bytes(_suite().encrypt(content, public, purpose.encode()))


def unseal(sealed: bytes, purpose: str) -> bytes:
    """Return what was sealed for oneself.

    Raises:
        TrustError: It was altered, or sealed for another key or purpose.
    """
    try:
        return bytes(_suite().decrypt(sealed, _own(), purpose.encode()))
    except (InvalidTag, ValueError):
        raise TrustError(
            "This was altered, or sealed for somebody else, or for another session: your "
            "key does not open it. Ask its owner for another."
        ) from None
