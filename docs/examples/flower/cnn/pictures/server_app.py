"""The server: FedAvg, recorded."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pictures.task import Net
from privaudit.recording.flower import RecordingGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    rounds = context.run_config.get("rounds", 3)
    with RecordingGrid(grid, "runs/pictures", ledger="ledger.npz") as grid:
        FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
