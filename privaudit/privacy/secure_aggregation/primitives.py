"""The primitives of the protocol, all from the package ``cryptography`` (OpenSSL)."""

import hashlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SEED = 16  # bytes of a secret that is shared out: X25519 is no stronger than 128 bits
KEY = 32  # bytes of a public key, and of a symmetric one
TAG = 16  # bytes by which a sealed text is longer
DIGEST = 16  # bytes of a commitment to 128 random bits


def derive(secret: bytes, purpose: str, count: int) -> bytes:
    """Return bytes that depend on a secret and a purpose, by HKDF-SHA256.

    Args:
        secret: Of high entropy.
        purpose: Tells the uses of one secret apart.
        count: How many, at most 8160.
    """
    return HKDF(SHA256(), count, b"privaudit", purpose.encode()).derive(secret)


def key_stream(key: bytes, count: int) -> bytes:
    """Return ChaCha20's key stream; a key is used for one stream only."""
    return Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(count))


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
