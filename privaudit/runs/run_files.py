"""The files of a run besides transcript and ledger: write, read, check; and its checkpoints.

kept/after-NNNN.safetensors holds the server's state after so many rounds, and those of
the clients that took part in the last of them. States of others stay in the file of
their own last round, which the newest one names with its hash: a round writes what its
participants changed. Who keeps nothing any more has an empty tensor there, so that no
earlier state comes back. Where files hold more states that are gone than such that count,
and after the last round, one file holds all.
"""

import hashlib
import json
import platform
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version as read_version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from privaudit.core.devices import chosen_device, device_name
from privaudit.core.errors import ConfigError, TranscriptError, shown
from privaudit.core.lazy_torch import late, torch
from privaudit.core.limits import check_json, read_lines
from privaudit.core.portable_bits import computed_with, processor_name
from privaudit.core.storage import file_hash, read_tensors, write_tensors
from privaudit.core.tensors import Tensors, distinct
from privaudit.datasets.dataset import DATASETS
from privaudit.federation.masked_sum import SECURE_SUMS
from privaudit.federation.rounds import Federation
from privaudit.federation.trainer import TRAINERS, ClientId
from privaudit.federation.transcript import GENESIS
from privaudit.models.registry import MODELS
from privaudit.models.remote_code import remote_code_is_trusted
from privaudit.privacy.events import ClientTrace, RoundTrace
from privaudit.runs.config import RunConfig
from privaudit.runs.ledger import Ledger
from privaudit.runs.population import Population
from privaudit.runs.run_header import FORMAT
from privaudit.runs.store import fetch, forget, known_names
from privaudit.runs.tasks import RUN_TASKS

TRACKED = ("torch", "open-clip-torch", "numpy", "opacus", "dp-accounting")
PERSONAL, OWN_MODEL = "kept/personal.safetensors", "kept/server.safetensors"
TRACE = "trace.jsonl"
SAME = "same"  # in the file of models: which clients have equal ones
version = cache(read_version)  # whose files are long, and stay while a process runs

_TRACES: TypeAdapter[dict[str, ClientTrace]] = TypeAdapter(dict[str, ClientTrace])


def new_header(
    config: RunConfig, population: Population, ledger: Ledger
) -> dict[str, Any]:
    """Return the header of a run before its first round."""
    return {
        "format": FORMAT,
        "privaudit": version("privaudit"),
        **environment((*TRACKED, *RUN_TASKS[population.task.kind].libraries)),
        **({"remote_code": True} if remote_code_is_trusted() else {}),
        **_plugins(config),
        "config": config.model_dump(),
        "identity_hash": config.identity_hash,
        "model_hash": population.model_hash,
        "data_hash": population.dataset.hash,
        "ledger_hash": ledger.hash,
        "progress": _no_progress(),
    }


def _no_progress() -> dict[str, Any]:
    return {
        "rounds": 0,
        "length": 0,
        "head": GENESIS,
        "metrics_hash": hashlib.sha256(b"").hexdigest(),
        "trace_hash": hashlib.sha256(b"").hexdigest(),
        "checkpoint_hash": None,
    }


def as_begun(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finished run's header as it was before its first round, without files."""
    later = {"files", "stacked_clients", "records_at_once", "precision_seconds"}
    kept = {name: value for name, value in header.items() if name not in later}
    return kept | {"progress": _no_progress()}


def _plugins(config: RunConfig) -> dict[str, dict[str, str]]:
    """Return what of a run other packages provide, with the packages' versions."""
    of = {
        "trainer": TRAINERS.package_of(config.trainer),
        "dataset": DATASETS.package_of(config.dataset),
        "model": MODELS.package_of(config.model.partition(":")[0]),
    }
    if config.is_masked:
        of["masks"] = SECURE_SUMS.package_of(config.secure_aggregation)
    named = {kind: package for kind, package in of.items() if package}
    return {"plugins": named} if named else {}


def software(libraries: Iterable[str]) -> dict[str, Any]:
    """Return the part of it that needs no torch."""
    known = {*TRACKED, *(n for task in RUN_TASKS.values() for n in task.libraries)}
    return {
        "libraries": {name: version(name) for name in libraries if name in known},
        "python": platform.python_version(),
        "computed": computed_with(),
        "processor": processor_name(),
    }


def environment(libraries: Iterable[str]) -> dict[str, Any]:
    """Return what of this machine decides about a run's last bits."""
    device = chosen_device()
    return {
        **software(libraries),
        "threads": torch.get_num_threads(),
        "device": {
            "kind": device.type,
            "name": device_name(device),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "matmul": torch.get_float32_matmul_precision(),
        },
    }


def note_environment(header: dict[str, Any]) -> None:
    """Write into a header that the rest of its run is computed here, and what was before.

    No equal bytes are promised of such a run, and ``equal_bytes`` says so.
    """
    if header["progress"]["rounds"]:
        header["equal_bytes"] = False
    now = environment(header["libraries"])
    before = {name: header[name] for name in now if name in header}
    if now != before:
        after = header["progress"]["rounds"]
        header.setdefault("earlier", []).append({"rounds": after, **before})
        header.update(now)


def check_environment(path: Path, header: Mapping[str, Any]) -> None:
    """Refuse to go on where the rest would not come out to the same bytes.

    Raises:
        ConfigError: The device, the number of threads or a library's version is
            another.
    """
    here = environment(header["libraries"])
    kind, there = header.get("device", {}).get("kind", "cpu"), here["device"]["kind"]
    if kind != there:
        raise ConfigError(
            f"{path} was trained on {kind}, and {there} is chosen. Add --device {kind} "
            f"to get the same bytes, {_NEAR}, or --fresh to start over."
        )
    if header["threads"] != here["threads"]:
        raise ConfigError(
            f"{path} was trained with {header['threads']} threads, and there are "
            f"{here['threads']}. Set OMP_NUM_THREADS={header['threads']} to get the "
            f"same bytes, {_NEAR}, or --fresh to start over."
        )
    bits = header.get("computed", {}).get("bits", "native")
    if bits != here["computed"]["bits"]:
        raise ConfigError(
            f"{path} was trained in {bits} bits, and this process computes "
            f"{here['computed']['bits']} ones. Add --bits {bits} to get the same bytes, "
            f"{_NEAR}, or --fresh to start over."
        )
    for name, before in header["libraries"].items():
        if here["libraries"].get(name) != before:
            raise ConfigError(
                f"{path} was trained with {name} {before}, and "
                f"{here['libraries'].get(name)} is installed: the rest might differ. "
                f"Install that version, or {_NEAR}, or --fresh to start over."
            )


_NEAR = "--resume-near to go on without that"


def read_metrics(
    path: Path, rounds: int, expected: str | None = None
) -> list[dict[str, Any]]:
    """Return the first entries of a run's metrics, one for each round.

    ``expected`` is their recorded hash, if there is one.

    Raises:
        TranscriptError: Rounds are missing, or a line was altered.
    """
    lines, digest = _first_lines(path / "metrics.jsonl", rounds)
    try:
        entries = [json.loads(line.decode()) for line in lines]
        numbers = [entry["round"] for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError):
        numbers = None
    if numbers != list(range(rounds)) or (expected or digest) != digest:
        raise TranscriptError(
            f"{path / 'metrics.jsonl'} does not hold its {rounds} rounds as they were "
            "written: it was cut or altered. Restore it from a copy, or train again."
        )
    return entries


def _first_lines(file: Path, rounds: int) -> tuple[list[bytes], str]:
    """Return a line for each round, and their hash."""
    lines = read_lines(file)[:rounds]
    content = b"".join(line + b"\n" for line in lines)
    check_json(content, str(file))
    return lines, hashlib.sha256(content).hexdigest()


def trace_line(notes: RoundTrace) -> str:
    """Return one round's notes as a line."""
    return _TRACES.dump_json(dict(notes)).decode()


def read_trace(path: Path, rounds: int, expected: str) -> list[RoundTrace]:
    """Return the owner's notes on each of the first rounds.

    Raises:
        MissingFileError: They are gone.
        TranscriptError: They were cut or altered.
    """
    if not rounds:
        return []  # the first round makes the file
    lines, digest = _first_lines(path / TRACE, rounds)
    if digest != expected or len(lines) != rounds:
        raise TranscriptError(
            f"{path / TRACE} does not hold the notes on {rounds} rounds as they were "
            "written: it was cut or altered. Restore it from a copy, or train again."
        )
    return [_TRACES.validate_json(line) for line in lines]


def join_names(parts: Mapping[str, Tensors]) -> dict[str, Any]:
    """Flatten named tensors of named owners, as "owner/name"."""
    return {
        f"{owner}/{name}": tensor
        for owner, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def split_names(flat: Tensors) -> dict[str, dict[str, Any]]:
    """Undo :func:`join_names`.

    Raises:
        TranscriptError: A tensor belongs to nobody.
    """
    parts: dict[str, dict[str, Any]] = {}
    for key, tensor in flat.items():
        owner, slash, name = key.partition("/")
        if not slash:
            raise TranscriptError(
                f"The tensor {shown(key)} of a run's states has no client: the file was "
                "altered. Restore it from a copy, or train again."
            )
        parts.setdefault(owner, {})[name] = tensor
    return parts


def join_models(models: Mapping[ClientId, Tensors]) -> dict[str, Any]:
    """Flatten clients' models, equal tensors once: under the first client that has one.

    Where some are equal, ``SAME`` holds for each tensor's name, in their order, and each
    client's number the number of that first client; -1 where a client has no such one.
    """
    names = sorted({name for model in models.values() for name in model})
    numbers = [_number_of(client) for client in models]
    same = torch.full((len(names), 1 + max(numbers, default=-1)), -1)
    flat: dict[str, Any] = {}
    for row, name in zip(same, names, strict=True):
        holders = [client for client in models if name in models[client]]
        positions, places = distinct([{name: models[c][name]} for c in holders])
        flat |= {f"{holders[n]}/{name}": models[holders[n]][name] for n in positions}
        numbers = [_number_of(client) for client in holders]
        row[numbers] = torch.tensor(numbers)[positions][places]
    is_repeated = (same >= 0).sum() > len(flat)
    return {**flat, SAME: same} if is_repeated else flat


def split_models(flat: Tensors) -> dict[ClientId, Tensors]:
    """Undo :func:`join_models`; clients stand in the order of their names.

    Raises:
        TranscriptError: A tensor belongs to nobody, or is said to equal one that is not
            there.
    """
    own = {key: tensor for key, tensor in flat.items() if key != SAME}
    parts = split_names(own)
    if SAME in flat:
        names = sorted({key.partition("/")[2] for key in own})
        try:
            for name, row in zip(names, flat[SAME].tolist(), strict=True):
                firsts = {n: first for n, first in enumerate(row) if first >= 0}
                for number, first in firsts.items():
                    tensor = own[f"client-{first}/{name}"]
                    parts.setdefault(f"client-{number}", {})[name] = tensor
        except (KeyError, TypeError, ValueError):
            raise TranscriptError(
                f"What clients' models share ({SAME}) does not fit the tensors: the file "
                "was altered. Restore it from a copy, or train again."
            ) from None
    return {client: parts[client] for client in sorted(parts)}


def _number_of(client: ClientId) -> int:
    return int(client.removeprefix("client-"))


ROUNDS, HASHES = "rounds", "hashes"  # of earlier files that still count
# In place of a state that there was before.
_EMPTY: Tensors = late(lambda: {"": torch.zeros(0)})
_CHECKPOINT = re.compile(r"kept/after-(\d{4,18})\.safetensors")


def checkpoint_path(path: Path, rounds: int) -> Path:
    """Return the file of the states after ``rounds`` rounds."""
    return path / "kept" / f"after-{rounds:04d}.safetensors"


@dataclass
class Checkpoints:
    """The files of a run's states.

    Attributes:
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
