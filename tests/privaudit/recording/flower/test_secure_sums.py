"""SecAgg+ by Flower's own workflow and mod, in this process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context, RecordDict, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from privaudit.recording.flower import name_partition
from privaudit.recording.flower.mechanisms import MASKED, SECAGG
from privaudit.runs.ledger import Ledger
from tests.privaudit.recording.flower.conftest import Recorded
from tests.privaudit.recording.flower.small_app import NODES, ended

pytestmark = pytest.mark.flower
ROUNDS = 2


class Client(NumPyClient):
    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters: list[np.ndarray], config: Any) -> Any:
        return [parameters[0] + 1 + self.partition], 10 * (self.partition + 1), {}

    def evaluate(self, parameters: list[np.ndarray], config: Any) -> Any:
        return 0.5, 1, {}


def client_fn(context: Context) -> object:
    return Client(int(context.node_config["partition-id"])).to_client()


def test_flower_names_masked_vectors_as_they_are_read() -> None:
    assert (SECAGG, MASKED) == (RECORD_KEY_CONFIGS, Key.MASKED_PARAMETERS)


def test_masked_updates_and_their_sums_are_recorded_and_nothing_in_the_clear(
    recording: Recorded, ledger: Ledger, tmp_path: Path
) -> None:
    app = ClientApp(client_fn, mods=[name_partition, secaggplus_mod])
    strategy = FedAvg(
        min_fit_clients=NODES,
        min_available_clients=NODES,
        initial_parameters=ndarrays_to_parameters([np.zeros(4, dtype=np.float32)]),
    )
    context = LegacyContext(
        context=Context(0, 1, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=ROUNDS),
        strategy=strategy,
    )
    grid = recording(app, ledger=ledger)
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))(grid, context)
    run = ended(grid)
    kinds = [message.kind for message in run.transcript]
    assert kinds.count("masked") == ROUNDS * NODES
    assert kinds.count("sum") == ROUNDS
    assert "update" not in kinds
    first = next(message for message in run.transcript if message.kind == "sum")
    weights = [10, 20, 30]
    expected = sum(w * (n + 1) for n, w in enumerate(weights))
    assert np.allclose(first.tensors["0"], expected, rtol=1e-4)
    assert run.config.secure_aggregation == "masked"
