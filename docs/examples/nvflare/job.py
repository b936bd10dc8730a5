"""Federated averaging in NVFlare's simulator, recorded: python job.py ledger.npz run."""

import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from owner import Network

from privaudit import Ledger
from privaudit.recording.nvflare import RecordingFilter

if __name__ == "__main__":
    ledger, folder = (str(Path(word).resolve()) for word in sys.argv[1:])
    clients = list(Ledger.load(ledger).clients)
    recipe = FedAvgRecipe(
        name="recorded",
        model=Network(),
        min_clients=len(clients),
        num_rounds=2,
        train_script=str(Path(__file__).with_name("client.py")),
        train_args=ledger,
    )
    recording = RecordingFilter(folder, ledger=ledger, trainer="FedAvg of NVFlare")
    recipe.add_server_input_filter(recording, tasks=["train"])
    recipe.execute(SimEnv(clients=clients, workspace_root=f"{folder}-workspace"))
