"""Run the app in this process: `flwr run .` does the same."""

import sys

from flwr.simulation import run_simulation
from pictures.client_app import app as clients
from pictures.server_app import app as server

if __name__ == "__main__":
    one_core = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, clients, int(sys.argv[1]), backend_config=one_core)
