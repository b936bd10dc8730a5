from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from privaudit.core.errors import ConfigError
from privaudit.recording.flower import members_of
from privaudit.runs.ledger import Ledger

pytestmark = pytest.mark.flower


def context(**node: int) -> Context:
    config = {name.replace("_", "-"): value for name, value in node.items()}
    return Context(0, 1, config, RecordDict(), {})


def test_a_client_gets_its_partitions_members(ledger: Ledger, tmp_path: Path) -> None:
    ledger.save(tmp_path / "ledger.npz")
    members = members_of(context(partition_id=1), tmp_path / "ledger.npz")
    assert members.tolist() == [8, 10, 12, 14]


def test_a_partition_that_the_ledger_does_not_know_is_refused(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.save(tmp_path / "ledger.npz")
    with pytest.raises(ConfigError, match="has 3 clients, and none of number 7"):
        members_of(context(partition_id=7), tmp_path / "ledger.npz")


def test_a_node_without_a_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--node-config 'partition-id=0'"):
        members_of(context(number=7), tmp_path / "ledger.npz")
