"""Contents that one person can open: HPKE to a key that follows from their signing key.

Source: Barnes, Bhargavan, Lipp and Wood, "Hybrid Public Key Encryption", RFC 9180, base
mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20Poly1305.
"""

from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)

from privaudit.core.errors import ConfigError, TrustError
from privaudit.core.seeds import KEY, derive
from privaudit.core.signing import own_key


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
