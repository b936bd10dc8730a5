from pathlib import Path

import pytest

from privaudit import Auditor, train
from privaudit.auditing.audit import Audit
from privaudit.scenarios.curious_peer import curious_peer


def audited_peers(folder: Path) -> dict[str, Audit]:
    """Return what a peer finds in a method that shows it prompts, and in one of sums."""
    return {
        name: Auditor(
            train(name, folder=folder, rounds=2, clients=4, epochs=2, seed=0)
        ).attack("curious-peer", shadows=5)
        for name in ("pfedmoap", "promptfl")
    }


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Audit]:
    return audited_peers(tmp_path_factory.mktemp("runs"))


def test_the_peer_attacks_all_others(audits: dict[str, Audit]) -> None:
    clients = [c.client for c in audits["pfedmoap"].headline.clients]
    assert clients == ["client-1", "client-2", "client-3"]
    assert audits["pfedmoap"].scenario.threat == "peer:client-0"
    other = curious_peer(peer="client-2")
    _, targets = Auditor(audits["promptfl"].run).prepare(other)
    assert [t.client for t in targets] == ["client-0", "client-1", "client-3"]
