"""A run of many rounds with large uploads, in a process of its own.

``python -m privaudit_tools.benchmarks.long_run train FOLDER --rounds 200 --uploads 20`` trains it,
and with ``server-reconstruct`` or another scenario in place of ``train`` attacks it.
Prints JSON: the most memory that the process had, and how long it took.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

import torch
from pydantic.dataclasses import dataclass
from torch.nn.functional import one_hot

from privaudit import Auditor, load_run, train
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import (
    TRAINERS,
    BaseTrainer,
    Cohort,
    LocalResult,
    Records,
    Round,
    Signal,
    Signals,
    Task,
)
from privaudit.federation.uploads import weighted_upload

NAME, NUMBERS = "large-uploads", 2**20  # of float32: 4 MiB each


@dataclass(frozen=True)
class LargeUploads(BaseTrainer):
    """Sums of features by class, among a million numbers that mean nothing."""

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return zeros."""
        return {"large": torch.zeros(NUMBERS)}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Add what a client's records sum up to."""
        each = one_hot(cohort.labels.clamp(min=0), len(task.zero_shot)).float()
        sums = torch.einsum(
            "knc,knd->kcd", each * cohort.mask[..., None], cohort.features
        )
        trained = received["large"].clone()
        trained[:, : sums[0].numel()] += sums.flatten(1)
        upload = weighted_upload(cohort, {"large": trained})
        return LocalResult(upload, {}, torch.zeros(len(cohort)))

    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        """Yield what the sums say of records."""
        classes, width = task.zero_shot.shape
        heads = models["large"][:, : classes * width].reshape(-1, classes, width)
        logits = torch.einsum("nd,mcd->mnc", records.features, heads)
        yield {"log_probabilities": logits.log_softmax(dim=-1)}


def measure(what: str, folder: Path, rounds: int, uploads: int) -> dict[str, float]:
    """Train or attack; return MiB at most, and seconds."""
    torch.set_num_threads(1)
    began = perf_counter()
    if what == "train":
        train(NAME, folder=folder, name="run", rounds=rounds, clients=uploads, seed=0)
    else:
        Auditor(load_run("run", folder=folder)).attack(what, shadows=0)
    peak = getrusage(RUSAGE_SELF).ru_maxrss / 2**10
    return {"peak": peak, "seconds": perf_counter() - began}


if __name__ == "__main__":
    TRAINERS.register(NAME)(LargeUploads)  # not in tests, which import this, too
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--uploads", type=int, default=20)
    print(json.dumps(measure(**vars(parser.parse_args()))))
