"""Checkpoints: the states after a run's last round that counts, from which it goes on.

kept/after-NNNN.safetensors holds the server's state after so many rounds, and those of
the clients that took part in the last of them. States of others stay in the file of
their own last round, which the newest one names with its hash: a round writes what its
participants changed. Who keeps nothing any more has an empty tensor there, so that no
earlier state comes back. Where files hold more states that are gone than such that count,
and after the last round, one file holds all.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from privaudit.core.errors import TranscriptError
from privaudit.core.storage import file_hash, read_tensors, write_tensors
from privaudit.core.tensors import Tensors
from privaudit.federated.federation import Federation
from privaudit.federated.runs.folder.run_files import join_names, split_names
from privaudit.federated.runs.folder.working_copy import fetch, forget, known_names
from privaudit.federated.trainer import ClientId

ROUNDS, HASHES = "rounds", "hashes"  # of earlier files that still count
_EMPTY: Tensors = {"": torch.zeros(0)}  # in place of a state that there was before
_CHECKPOINT = re.compile(r"kept/after-(\d{4,18})\.safetensors")


def checkpoint_path(path: Path, rounds: int) -> Path:
    """Return the file of the states after ``rounds`` rounds."""
    return path / "kept" / f"after-{rounds:04d}.safetensors"


@dataclass
class Checkpoints:
    """The files of a run's states.

    Attributes:
        path: The run directory.
        hashes: Of each file that counts, by rounds.
        sizes: How many clients' states each of them holds.
        newest: The file that holds each client's state.
        ready: Raises if the run is another's by now.
    """

    path: Path
    hashes: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    newest: dict[ClientId, int] = field(default_factory=dict)
    ready: Callable[[], None] = lambda: None

    def save(self, federation: Federation, rounds: int, *, whole: bool = False) -> str:
        """Write the server's state and the participants', and return the hash.

        ``whole`` writes all clients' states into this file.
        """
        kept = federation.kept
        states = {
            client: kept[client] or _EMPTY
            for client in federation.losses
            if kept[client] or client in self.newest
        }
        self.newest.update(dict.fromkeys(states, rounds))
        earlier = sorted({*self.newest.values()} - {rounds})
        held = len(states) + sum(self.sizes[number] for number in earlier)
        if whole or held > 2 * len(self.newest):
            states = {client: state for client, state in kept.items() if state}
            self.newest, earlier = dict.fromkeys(states, rounds), []
        parts = join_names({"server": federation.server, **states})
        file = checkpoint_path(self.path, rounds)
        write_tensors(file, parts | self._named(earlier), self.ready)
        found = file_hash(file)
        self.hashes = {n: self.hashes[n] for n in earlier} | {rounds: found}
        self.sizes = {n: self.sizes[n] for n in earlier} | {rounds: len(states)}
        return found

    def _named(self, earlier: list[int]) -> dict[str, Any]:
        """Return what says which earlier files count; nothing where none does."""
        if not earlier:
            return {}
        hashes = bytearray.fromhex("".join(self.hashes[n] for n in earlier))
        return {
            ROUNDS: torch.tensor(earlier),
            HASHES: torch.frombuffer(hashes, dtype=torch.uint8).view(len(earlier), -1),
        }

    def load(
        self,
        federation: Federation,
        rounds: int,
        expected: str | None,
        trained: Iterable[ClientId],
    ) -> None:
        """Put a federation into the state after ``rounds`` rounds.

        ``expected`` is the hash of the newest file, and ``trained`` are the clients
        that took part by then.

        Raises:
            MissingFileError: A checkpoint is gone.
            TranscriptError: One has not the expected hash.
        """
        newest = self._read(rounds, expected)
        numbers, hashes = newest.pop(ROUNDS, None), newest.pop(HASHES, None)
        states: dict[str, Tensors] = {}
        if numbers is not None and hashes is not None:
            for number, one in zip(numbers.tolist(), hashes, strict=True):
                tensors = self._read(number, bytes(one.tolist()).hex())
                for name in (ROUNDS, HASHES):
                    tensors.pop(name, None)
                self._take(states, number, tensors)
        states.pop("server", None)  # of an earlier round
        self._take(states, rounds, newest)
        federation.server = states.get("server", {})
        federation.kept = {client: states.get(client, {}) for client in trained}

    def _read(self, rounds: int, expected: str | None) -> dict[str, Any]:
        file = checkpoint_path(self.path, rounds)
        fetch(self.path, file.relative_to(self.path).as_posix())
        if file_hash(file) != expected:
            raise TranscriptError(
                f"{file} is not the checkpoint that the run wrote: it was cut or "
                "altered. Restore it from a copy, or --fresh to start over."
            )
        self.hashes[rounds] = expected
        return read_tensors(file)

    def _take(
        self, states: dict[str, Tensors], rounds: int, flat: Mapping[str, Any]
    ) -> None:
        found = split_names(flat)
        states.update(
            {who: {n: t for n, t in s.items() if n} for who, s in found.items()}
        )
        clients = [name for name in found if name != "server"]
        self.sizes[rounds] = len(clients)
        self.newest.update(dict.fromkeys(clients, rounds))

    def drop_others(self) -> None:
        """Remove the checkpoints that do not count."""
        drop_checkpoints(self.path, but=self.hashes, ready=self.ready)


def drop_checkpoints(
    path: Path, *, but: Collection[int], ready: Callable[[], None]
) -> None:
    """Remove the checkpoints before the newest except some, here and in the store.

    Later ones are left: they are of an owner that went on from there, or are written
    again.

    ``but`` are the rounds after which those were written that stay; ``ready`` raises if
    the run is another's by now.
    """

    def goes(name: str) -> bool:
        match = _CHECKPOINT.fullmatch(name)
        return (
            match is not None and int(match[1]) < max(but) and int(match[1]) not in but
        )

    forget(path, goes, ready)
    for file in (path / "kept").glob("after-*"):
        if goes(f"kept/{file.name}"):
            ready()
            file.unlink()


def has_more_checkpoints(path: Path) -> bool:
    """Say whether there are others than that of a finished run, here or in the store."""
    here = (file.relative_to(path).as_posix() for file in path.glob("kept/after-*"))
    return sum(map(bool, map(_CHECKPOINT.fullmatch, {*here, *known_names(path)}))) > 1
