"""The primitives of the protocol, all from the package ``cryptography`` (OpenSSL)."""

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from privaudit.core.streams import KEY as KEY  # of a public key, and of a symmetric one
from privaudit.core.streams import derive as derive

SEED = 16  # bytes of a secret that is shared out: X25519 is no stronger than 128 bits
TAG = 16  # bytes by which a sealed text is longer
DIGEST = 16  # bytes of a commitment to 128 random bits


def key_pair(seed: bytes) -> tuple[X25519PrivateKey, bytes]:
    """Return the private key that a seed stands for, and its public key."""
    private = X25519PrivateKey.from_private_bytes(derive(seed, "private key", KEY))
    return private, private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return what two parties share, from either's private and the other's public key.

    Raises:
        ValueError: The public key is of low order, so that the shared bytes would not
            depend on the private key.
    """
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def is_low_order(public: bytes) -> bool:
    """Say whether every agreement with a public key would fail."""
    try:
        agree(key_pair(bytes(SEED))[0], public)
    except ValueError:
        return True
    return False


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate by ChaCha20-Poly1305; a key seals one text only."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the text, or None where it was altered or sealed under another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None


def commitment(secret: bytes, purpose: str) -> bytes:
    """Return a digest that binds to 128 random bits, and hides them."""
    return hashlib.sha256(f"{purpose}|".encode() + secret).digest()[:DIGEST]
