"""The server: FedAvg of adapters, recorded."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from privaudit.recording.flower import RecordingGrid
from texts.task import adapters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config.get("rounds", 3)
    with RecordingGrid(grid, "runs/texts", ledger="ledger.npz") as grid:
        arrays = ArrayRecord(adapters())
        FedAvg().start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
