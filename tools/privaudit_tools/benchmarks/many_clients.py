"""What federations of thousands of clients cost: in seconds and memory.

``python -m privaudit_tools.benchmarks.many_clients train promptfl 10000 --rounds 5`` makes a
table of embeddings with two or more records for each client, three on average, trains
on it, prints JSON; ``attack`` trains, and then attacks some clients with shadow models. In
a process of its own, so that its peak is its own; seconds are the processor's, on one
thread, those a round of all but first and last, null where no other is. A run with
``--participants`` has so many in each round, by default one of a hundred clients, and
``--tested`` is the run's ``--tested-clients``.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

import numpy as np
import torch

from privaudit import Auditor, train
from privaudit.datasets.images.digits import NAMES
from privaudit.runs.config import make_config
from privaudit.runs.population import populate

TESTS = PUBLICS = 1_000
SPREAD = 0.05  # of the noise that makes many embeddings of few digits


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("train", "attack"))
    parser.add_argument("trainer")
    parser.add_argument("clients", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--participants", type=int)
    parser.add_argument("--tested", type=int)
    parser.add_argument("--attacked", type=int, default=10)
    parser.add_argument("--shadows", type=int, default=16)
    parser.add_argument("--runs", type=Path)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.runs or Path(scratch)
        data = folder / "embeddings.npz"
        if data.exists():
            parser.error(f"{data} is there already. Name another folder with --runs.")
        folder.mkdir(parents=True, exist_ok=True)
        return _measured(asked, folder, write_embeddings(data, asked.clients))


def _measured(asked: argparse.Namespace, folder: Path, data: Path) -> dict[str, Any]:
    participants = asked.participants or max(1, asked.clients // 100)
    sample = {} if asked.tested is None else {"tested_clients": asked.tested}
    moments = [process_time()]
    run = train(
        asked.trainer,
        folder=folder,
        dataset="feature-bank",
        data=str(data),
        clients=asked.clients,
        partition="natural",
        rounds=asked.rounds,
        participation=participants / asked.clients,
        seed=0,
        fresh=True,
        **sample,
        watcher=lambda _: moments.append(process_time()),
    )
    moments.append(process_time())
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 2**10
    rounds = np.diff(moments)[1:-2]  # but the first and the last
    found: dict[str, Any] = {
        "clients": asked.clients,
        "participants": participants,
        "seconds": moments[-1] - moments[0],
        "seconds a round": float(np.median(rounds)) if len(rounds) else None,
        "MiB": peak,
        "MiB on disk": sum(f.stat().st_size for f in run.path.rglob("*.*")) / 2**20,
    }
    if asked.what == "attack":
        began = process_time()
        Auditor(run).attack(clients=asked.attacked, shadows=asked.shadows)
        found["seconds of attack"] = process_time() - began
        found["MiB"] = getrusage(RUSAGE_SELF).ru_maxrss / 2**10
    return found


def write_embeddings(path: Path, clients: int) -> Path:
    """Write two or more records for each client, three on average, and reference and tests."""
    rng = np.random.default_rng(0)
    digits = populate(make_config("promptfl")).records
    owners = np.repeat(np.arange(clients), 2)
    owners = np.concatenate([owners, rng.integers(clients, size=clients)])
    owners = np.concatenate([owners, rng.integers(clients, size=TESTS + PUBLICS)])
    chosen = rng.integers(len(digits), size=len(owners))
    noise = SPREAD * rng.standard_normal((len(owners), digits.features.shape[1]))
    np.savez(
        path,
        embeddings=(digits.features.numpy()[chosen] + noise).astype("float32"),
        labels=digits.labels.numpy()[chosen],
        split=np.repeat(["train", "val", "test"], [3 * clients, PUBLICS, TESTS]),
        class_names=np.array(NAMES),
        domains=owners,
        domain_names=np.array([f"owner-{n}" for n in range(clients)]),
    )
    return path


if __name__ == "__main__":
    print(json.dumps(main()))
