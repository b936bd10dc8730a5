"""Signed envelopes: DSSE with Ed25519 keys, as in-toto's tools write and read them.

The key's name in an envelope is its public half, 64 hexadecimal digits.

Source: "DSSE: Dead Simple Signing Envelope", protocol 1.0.2,
https://github.com/secure-systems-lab/dsse; RFC 8032 (Ed25519).
"""

import base64
import binascii
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privaudit.core.errors import ConfigError
from privaudit.core.signing import own_key, public_half

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
