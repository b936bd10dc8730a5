"""What each threat model's adversary rebuilds of clients that average a prompt."""

from typing import Any

import pytest
import torch

from privaudit.federation.trainer import TRAINERS
from tests.toy_federation import Play

ALL_VIEWS = {"server": 1, "server-aggregate": 2, "peer:client-0": 2, "released": 0}
PLAIN = {"server": 0, "server-aggregate": 1, "released": 0}
GUESSED = {"server", "server-aggregate", "peer:client-0"}
ROWS: list[tuple[str, dict[str, Any], str, dict[str, int], set[str]]] = [
    ("promptfl", {}, "context", PLAIN, set()),
    ("promptfl-ft", {"epochs": 4}, "context", ALL_VIEWS, set()),
    ("pfedprompt", {"epochs": 4}, "context", ALL_VIEWS, set()),
    ("fedotp", {"epochs": 2}, "global", ALL_VIEWS, set()),
    ("fedpgp", {"epochs": 2}, "context", ALL_VIEWS, {"server"}),
    ("fedpgp", {"contrast": 0.0}, "context", {"server": 1}, set()),
    ("prompt-fedper", {"shared_tokens": 2}, "shared", ALL_VIEWS, GUESSED),
]


@pytest.mark.parametrize(("name", "settings", "shared", "missing", "estimates"), ROWS)
def test_each_view_rebuilds_what_it_can_and_says_what_it_lacks(
    name: str,
    settings: dict[str, Any],
    shared: str,
    missing: dict[str, int],
    estimates: set[str],
    play: Play,
) -> None:
    played = play(TRAINERS.find(name)(**settings), rounds=2)
    own, sent = played.models["client-2"], played.uploads(1)["client-2"]
    upload = sent[shared] / sent["weight"]
    for threat, lacking in missing.items():
        found = played.rebuild(threat, "client-2")
        assert len(found.missing) == lacking
        assert found.estimated == (threat in estimates)
        if threat == "released":
            torch.testing.assert_close(dict(found.model), dict(own), rtol=0, atol=0)
            continue
        parts = ("global", "local") if name == "fedotp" else ("context",)
        assert set(found.model) == set(parts)
        if name == "fedpgp" and found.estimated:
            continue  # fitted to the upload: test_fedpgp says how well
        want = upload if threat == "server" else played.server[shared]
        for part in parts:  # the tokens that are sent come first
            torch.testing.assert_close(found.model[part][: len(want)], want)
