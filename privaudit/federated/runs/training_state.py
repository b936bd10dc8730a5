"""The state of a run while it is trained: what counts so far, and what comes after.

A round counts as done when run.json says so. Everything a round writes before that is
dropped and written again by a resumed run, to the same bytes.
"""

import copy
import json
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from privaudit.core.storage import file_hash, write_bytes
from privaudit.federated.federation import Federation
from privaudit.federated.runs.folder.checkpoints import Checkpoints
from privaudit.federated.runs.folder.lease import Lease
from privaudit.federated.runs.folder.round_files import MANIFEST, METRICS, RoundFiles
from privaudit.federated.runs.folder.run_files import (
    TRACE,
    check_environment,
    note_environment,
    truncate_trace,
)
from privaudit.federated.runs.folder.run_folder import remove_unfinished
from privaudit.federated.runs.folder.run_header import save_header
from privaudit.federated.runs.folder.working_copy import fetch
from privaudit.federated.runs.member_shards import MemberShards
from privaudit.federated.runs.population import Population
from privaudit.federated.runs.runs import Run
from privaudit.federated.trainer import Trainer
from privaudit.federated.transcripts.folder import TranscriptFolder
from privaudit.federated.transcripts.transcript import ChainEnd, Message
from privaudit.models.remote_code import remote_code_is_trusted


@dataclass
class TrainingState:
    """A run while it is trained."""

    run: Run
    population: Population
    trainer: Trainer
    federation: Federation
    end: ChainEnd
    header: dict[str, Any]
    lease: Lease
    checkpoints: Checkpoints
    files: RoundFiles

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.run.path

    @property
    def transcript(self) -> TranscriptFolder:
        """Where the next round's messages go."""
        append = partial(self.files.add, MANIFEST)
        return TranscriptFolder(self.path / "transcript", append, self.lease.check)

    @property
    def is_traced(self) -> bool:
        """Whether it was from its first round: earlier versions took no notes."""
        return self.header["progress"].get("trace_hash") is not None

    def record(self, index: int, messages: tuple[Message, ...]) -> None:
        """Write a round's messages; only where their chain ends is kept."""
        self.end = self.transcript.write(index, messages, self.end)

    def commit(self, rounds: int) -> None:
        """Make what was written count, in one rename."""
        is_last = rounds == self.run.config.rounds
        saved = self.checkpoints.save(self.federation, rounds, whole=is_last)
        self.header["progress"] |= {
            "rounds": rounds,
            "length": self.end.length,
            "head": self.end.head,
            "metrics_hash": file_hash(self.path / METRICS),
            "trace_hash": file_hash(self.path / TRACE) if self.is_traced else None,
            "checkpoint_hash": saved,
        }
        save_header(self.path, self.header, self.lease)
        self.checkpoints.drop_others()


def restore(run: Run, lease: Lease, files: RoundFiles, *, near: bool) -> TrainingState:
    """Return the state after the last round that counts, and drop what came after.

    Everything is checked before anything is dropped.
    """
    header = copy.deepcopy(run.header)
    if near:
        note_environment(header)
    if remote_code_is_trusted():
        header["remote_code"] = True
    check_environment(run.path, header)
    _ = run.masking, run.secrets  # raises if the key is gone
    progress = run.header["progress"]
    rounds = progress["rounds"]
    trainer, population, seeds = run.trainer, run.population, run.config.seeds
    task, shards = population.task, MemberShards(population, run.ledger)
    federation = Federation.begin(trainer, task, shards, seeds, secrets=run.secrets)
    checkpoints = Checkpoints(run.path, ready=lease.check)
    if rounds:
        trained = dict.fromkeys(chain.from_iterable(run.participants))
        checkpoints.load(federation, rounds, progress["checkpoint_hash"], trained)
    lines, traced = [json.dumps(entry) for entry in run.metrics], run.trace
    fetch(run.path, "transcript/")
    remove_unfinished(run.path)  # also what an owner before is about to put in place
    folder = TranscriptFolder(run.path / "transcript", ready=lease.check)
    end = folder.truncate(head=progress["head"], length=progress["length"]).end
    content = "".join(f"{line}\n" for line in lines).encode()
    write_bytes(run.path / METRICS, content, lease.check)
    if traced is not None:
        truncate_trace(run.path, traced, lease.check)
    files.open(MANIFEST, METRICS, *([TRACE] if traced is not None else []))
    return TrainingState(
        run, population, trainer, federation, end, header, lease, checkpoints, files
    )
