"""The run directory: what a run wrote, and how it is found and read again.

runs/<name>/
  run.json            configuration, versions, hashes, progress, transcript head
  transcript/         manifest.jsonl and one safetensors file for each round
  kept/               the latest checkpoint: server and private states
  ledger.npz          the truth about membership
  metrics.jsonl       utility, bytes and seconds for each round
  privacy.json        mechanisms as applied, claimed and certified epsilon
  audits/<scenario>/  audit.json, scores.npz, report.html
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from privaudit.config import RunConfig
from privaudit.errors import ConfigError, MissingFileError, TranscriptError
from privaudit.federation import Federation
from privaudit.ledger import Ledger
from privaudit.population import Population, populate
from privaudit.storage import (
    make_private_folder,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)
from privaudit.tensors import Tensors
from privaudit.trainer import ClientId, Trainer
from privaudit.transcript import Transcript, TranscriptFolder

FORMAT = 1  # of the run directory; raised when an older reader would misread it


def runs_folder(folder: Path | None = None) -> Path:
    """Return where runs are kept: an argument, PRIVAUDIT_RUNS, or ./runs."""
    return folder or Path(os.environ.get("PRIVAUDIT_RUNS", "runs"))


@dataclass(frozen=True)
class Run:
    """A finished or interrupted run on disk."""

    path: Path

    @cached_property
    def header(self) -> dict[str, Any]:
        """What run.json says.

        Raises:
            MissingFileError: The folder holds no run.
            TranscriptError: The run is damaged, or of another version.
        """
        if not (self.path / "run.json").exists():
            raise MissingFileError(
                f"{self.path} holds no run: there is no run.json. Train one with "
                "`privaudit train`, or name another folder."
            )
        header = read_json(self.path / "run.json")
        if header.get("format") != FORMAT:
            raise TranscriptError(
                f"{self.path} was written in run format {header.get('format')} by "
                f"privaudit {header.get('privaudit', '?')}, and this version reads "
                f"format {FORMAT}. Use that version, or train again."
            )
        return header

    @cached_property
    def config(self) -> RunConfig:
        """How the run was made."""
        try:
            return RunConfig(**self.header["config"])
        except (KeyError, TypeError, ValidationError) as error:
            raise TranscriptError(
                f"{self.path / 'run.json'} holds no valid configuration ({error!r}): "
                "it was altered, or written by another version."
            ) from None

    @cached_property
    def trainer(self) -> Trainer:
        """The trainer with its parameters."""
        return self.config.build_trainer()

    @cached_property
    def population(self) -> Population:
        """The encoded records and who owns them.

        Raises:
            TranscriptError: The model is not the one that was trained on.
        """
        population = populate(self.config)
        if population.model_hash != self.header["model_hash"]:
            raise TranscriptError(
                f"The model {self.config.model!r} has changed since {self.path.name} "
                "was trained: its weights have another hash. Restore them, or train "
                "again."
            )
        return population

    @cached_property
    def transcript(self) -> Transcript:
        """Everything that was sent, checked against the recorded head and length."""
        progress = self.header["progress"]
        folder = TranscriptFolder(self.path / "transcript")
        return folder.read(head=progress["head"], length=progress["length"])

    @cached_property
    def ledger(self) -> Ledger:
        """The truth about membership, for audits only."""
        return Ledger.load(self.path / "ledger.npz")

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry for each round."""
        return [json.loads(line) for line in read_lines(self.path / "metrics.jsonl")]

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """Claimed and certified epsilon, and the mechanisms behind them."""
        return read_json(self.path / "privacy.json")

    @cached_property
    def personal_models(self) -> dict[ClientId, Tensors]:
        """Each client's model after the last round, from its private state."""
        return split_names(read_tensors(self.path / "kept" / "personal.safetensors"))

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def is_complete(self) -> bool:
        """Whether every round was trained."""
        return self.header["progress"]["rounds"] == self.config.rounds

    def require_complete(self) -> "Run":
        """Return the run.

        Raises:
            ConfigError: It was interrupted.
        """
        if not self.is_complete:
            raise ConfigError(
                f"{self.path} stopped after {self.header['progress']['rounds']} of "
                f"{self.config.rounds} rounds. Finish it with the same command and "
                "--resume."
            )
        return self


def load_run(run: str | Path | None = None, *, folder: Path | None = None) -> Run:
    """Return a run by path or name; the latest by default.

    Raises:
        MissingFileError: There is none.
    """
    if run is None:
        return latest_runs(folder)[-1]
    path = Path(run)
    if not path.exists():
        path = runs_folder(folder) / run
    found = Run(path)
    _ = found.header
    return found


def latest_runs(folder: Path | None = None) -> list[Run]:
    """Return what the last ``train`` command made, in its order.

    Raises:
        MissingFileError: Nothing was trained yet.
    """
    marker = runs_folder(folder) / "latest"
    if not marker.exists():
        raise MissingFileError(
            f"There is no run in {runs_folder(folder)}. Train one with "
            "`privaudit train`, or name a run."
        )
    return [load_run(name, folder=folder) for name in marker.read_text().split()]


def mark_latest(runs: Sequence[Run]) -> None:
    """Remember which runs a command without a RUN is about."""
    names = "".join(f"{run.name}\n" for run in runs)
    write_bytes(runs[0].path.parent / "latest", names.encode())


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines; none if it is not there."""
    return path.read_text().splitlines() if path.exists() else []


def join_names(parts: Mapping[str, Tensors]) -> dict[str, Any]:
    """Flatten named tensors of named owners, as "owner/name"."""
    return {
        f"{owner}/{name}": tensor
        for owner, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def split_names(flat: Tensors) -> dict[str, Tensors]:
    """Undo :func:`join_names`."""
    parts: dict[str, dict[str, Any]] = {}
    for key, tensor in flat.items():
        owner, name = key.split("/", 1)
        parts.setdefault(owner, {})[name] = tensor
    return dict(parts)


def checkpoint_path(path: Path, rounds: int) -> Path:
    """Return the file of the states after ``rounds`` rounds."""
    return path / "kept" / f"after-{rounds:04d}.safetensors"


def save_checkpoint(path: Path, federation: Federation, rounds: int) -> None:
    """Write the server's and every client's state."""
    states = {"server": federation.server, **federation.kept}
    write_tensors(checkpoint_path(path, rounds), join_names(states))


def load_checkpoint(path: Path, federation: Federation, rounds: int) -> None:
    """Put a federation into the state after ``rounds`` rounds."""
    states = split_names(read_tensors(checkpoint_path(path, rounds)))
    federation.server = states.get("server", {})
    federation.kept = {client: states.get(client, {}) for client in federation.shards}


def drop_checkpoints(path: Path, *, but: int) -> None:
    """Remove all checkpoints except one."""
    for file in (path / "kept").glob("after-*.safetensors"):
        if file != checkpoint_path(path, but):
            file.unlink()


def create_folders(path: Path) -> None:
    """Create an empty run directory that only its owner can read."""
    make_private_folder(path)
    for name in ("transcript", "kept", "audits"):
        make_private_folder(path / name)


def save_header(path: Path, header: Mapping[str, Any]) -> None:
    """Write run.json: the point at which a round counts as done."""
    write_json(path / "run.json", header)
