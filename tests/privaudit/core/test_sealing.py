import pytest

from privaudit.core.errors import TrustError
from privaudit.core.signing import (
    SECRET,
    opening_key,
    own_key,
    public_half,
    seal,
    unseal,
)


def test_only_whom_it_is_for_opens_it_and_for_its_purpose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET, 64 * "1")
    sealed = seal(b"scores", opening_key(), "session 1")
    assert opening_key() != public_half(own_key())
    assert unseal(sealed, "session 1") == b"scores"
    assert seal(b"scores", opening_key(), "session 1") != sealed
    for spoilt in (b"", sealed[:20], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(TrustError, match="your key does not open it"):
            unseal(spoilt, "session 1")
    with pytest.raises(TrustError):
        unseal(sealed, "session 2")
    monkeypatch.setenv(SECRET, 64 * "2")
    with pytest.raises(TrustError):
        unseal(sealed, "session 1")
