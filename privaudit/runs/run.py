"""The run directory: what a run wrote, and how it is found by name and read again.

runs/<name>/
  run.json            configuration, versions, progress, the hash of every file below,
                      and signatures: see :mod:`privaudit.runs.run_header`
  transcript/         manifest.jsonl and one safetensors file for each round
  kept/               the latest checkpoint: server and private states; the secret key
  ledger.npz          the truth about membership
  metrics.jsonl       utility, bytes and seconds for each round
  trace.jsonl         batches, norms and noise, for the owner: no view holds them
  privacy.json        mechanisms as applied, claimed and certified epsilon
  audits/<scenario>/  audit.json, scores.npz, report.html
  audits/log.jsonl    a line for each audit that was made
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from privaudit.core.devices import chosen_device
from privaudit.core.errors import ConfigError, MissingFileError, TranscriptError, shown
from privaudit.core.limits import limit_of, reason_of
from privaudit.core.parameters import readable
from privaudit.core.registry import Registry
from privaudit.core.seeds import Seeds
from privaudit.core.signing import Signer
from privaudit.core.storage import parse_json, parse_tensors, read_bytes, write_bytes
from privaudit.core.tensors import Tensors
from privaudit.federation.masked_sum import Masks
from privaudit.federation.on_device import on_device
from privaudit.federation.trainer import ClientId, Trainer, start_client
from privaudit.federation.transcript import MASKED_KINDS, Transcript, TranscriptFolder
from privaudit.privacy.events import RoundTrace
from privaudit.runs.config import RunConfig
from privaudit.runs.ledger import Ledger
from privaudit.runs.names import LATEST, among_runs, is_name, latest_names
from privaudit.runs.own_files import HEADER
from privaudit.runs.population import Population, populate
from privaudit.runs.run_files import (
    OWN_MODEL,
    PERSONAL,
    read_metrics,
    read_trace,
    split_models,
)
from privaudit.runs.run_folder import refresh
from privaudit.runs.run_header import (
    SignedHeader,
    add_files,
    read_header,
)
from privaudit.runs.run_key import RUN_KEY, masking_of, secrets_of
from privaudit.runs.store import (
    FoundAgain,
    RemoteFolder,
    check_scheme,
    copy_of,
    fetch,
    is_url,
    plain_path,
    read_shared,
    refuse_secrets,
    share,
    url_of,
)
from privaudit.statistics.verdict import Sampling

C = TypeVar("C", bound=RunConfig)
Files = Mapping[str, bytes]  # by path in the run
AUDITS = "audits/"  # before the path of a file that was added to a run


@dataclass(frozen=True)
class Run(FoundAgain):
    """A finished or interrupted run on disk.

    All that is read is held against the signed header: what was altered raises a
    TranscriptError, what is gone a MissingFileError.
    """

    path: Path

    @cached_property
    def header(self) -> dict[str, Any]:
        """What run.json says, without signatures and what was added.

        Raises:
            MissingFileError: The folder holds no run.
            TranscriptError: The run is damaged, altered, or of another version.
            TrustError: It is signed by a key that is not trusted.
        """
        return self._signed.content

    @cached_property
    def _signed(self) -> SignedHeader:
        """The header as it was first read: what all else is held against."""
        return self._read_header()

    def _read_header(self) -> SignedHeader:
        try:
            return read_header(self.path)
        except MissingFileError as error:
            said = str(error).replace(str(self.path), self.place)
            raise MissingFileError(
                f"{self.place} holds no run: {said} Train one with "
                "`privaudit train`, or name another folder."
            ) from None

    @cached_property
    def config(self) -> RunConfig:
        """How the run was made."""
        return self._checked_config(RunConfig)

    def _checked_config(self, kind: type[C]) -> C:
        try:
            return kind(**self.header["config"])
        except (KeyError, TypeError, ValidationError) as error:
            reason = repr(error)
            if isinstance(error, ValidationError):
                reason = readable(error, "run")
            raise TranscriptError(
                f"{self.place}/run.json holds no valid configuration ({reason}): "
                "it was altered, or written by another version."
            ) from None

    @property
    def sampling(self) -> Sampling:
        """How members were chosen."""
        return self.truth.sampling

    @property
    def coin_seed(self) -> int | None:
        """The seed that tosses the membership coins again; None where none does."""
        coin = self.truth.coin
        return self.config.coin_seed if coin is None else coin.seed

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the records' classes, by class index."""
        return self.population.dataset.class_names

    @property
    def is_stored(self) -> bool:
        """Whether it lies in a folder."""
        return True

    @property
    def ran_remote_code(self) -> bool:
        """Whether its model was allowed to run code of its own."""
        return bool(self.header.get("remote_code", False))

    @property
    def why_not_repeatable(self) -> str:
        """Why training again does not give the same bytes; empty where it does."""
        if self.header.get("equal_bytes", True):
            return ""
        earlier = self.header.get("earlier", [])
        rounds = ", ".join(str(one.get("rounds", "?")) for one in earlier)
        after = f", elsewhere after round {rounds}" if rounds else ""
        return f"resumed with --resume-near{after}: not the bytes of a run in one piece"

    @cached_property
    def trainer(self) -> Trainer:
        """The trainer with its parameters, on the chosen device."""
        return on_device(self.config.build_trainer(), chosen_device())

    @cached_property
    def population(self) -> Population:
        """The encoded records and who owns them.

        Raises:
            TranscriptError: The model or the data set is not the one of the training.
        """
        population = populate(self.config)
        if population.dataset.hash != self.header["data_hash"]:
            raise TranscriptError(
                f"The data set {self.config.dataset!r} has changed since "
                f"{self.path.name} was trained: its pictures or labels have another "
                "hash. Restore it, or train again."
            )
        if population.model_hash != self.header["model_hash"]:
            raise TranscriptError(
                f"The model {self.config.model!r} has changed since {self.path.name} "
                "was trained: its weights have another hash. Restore them, or train "
                "again."
            )
        return population

    @cached_property
    def transcript(self) -> Transcript:
        """Everything that was sent, checked against the recorded head and length.

        Its tensors are read, and checked, when they are asked for.
        """
        progress = self.header["progress"]
        fetch(self.path, "transcript/")
        folder = TranscriptFolder(self.path / "transcript")
        return folder.read(head=progress["head"], length=progress["length"])

    @cached_property
    def truth(self) -> Ledger:
        """Who owned and who trained on which record; no data are read for it."""
        return self._checked_ledger(lambda _: True)

    @cached_property
    def ledger(self) -> Ledger:
        """The truth about membership, held against the data set, too."""
        return self._checked_ledger(lambda found: found.fits(self.population.split))

    def _checked_ledger(self, fits: Callable[[Ledger], bool]) -> Ledger:
        ledger = Ledger.load(self.path / "ledger.npz")
        if ledger.hash != self.header["ledger_hash"] or not fits(ledger):
            raise TranscriptError(
                f"{self.place}/ledger.npz is not the ledger that was trained on: "
                "it was altered or replaced. Restore it from a copy, or train again."
            )
        return ledger

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One entry for each round that counts."""
        progress = self.header["progress"]
        return read_metrics(self.path, progress["rounds"], progress["metrics_hash"])

    @property
    def training_seconds(self) -> float:
        """What training took; 0 where nobody knows."""
        return float(sum(line.get("seconds", 0.0) for line in self.metrics))

    @cached_property
    def participants(self) -> list[tuple[ClientId, ...]]:
        """Who took part in each round, as it was: nobody is drawn again.

        Raises:
            TranscriptError: An earlier version did not write it down.
        """
        try:
            return [tuple(line["participants"]) for line in self.metrics]
        except KeyError:
            raise TranscriptError(
                f"{self.place}/metrics.jsonl does not say who took part in each "
                "round: an earlier version wrote it. Train again."
            ) from None

    @cached_property
    def left_out(self) -> tuple[ClientId, ...]:
        """Clients that a server cannot rebuild, since their last uploads are damaged."""
        return ()

    @cached_property
    def trace(self) -> list[RoundTrace] | None:
        """What clients' mechanisms did in each round; None if nobody took notes."""
        progress = self.header["progress"]
        expected = progress.get("trace_hash")
        if expected is None:
            return None
        return read_trace(self.path, progress["rounds"], expected)

    @cached_property
    def masking(self) -> Masks | None:
        """How uploads are masked; None if in the clear. Needs the run's key."""
        return masking_of(self.config, self.header, lambda: self.read(RUN_KEY))

    @cached_property
    def secrets(self) -> Seeds:
        """Where noise and secret samples come from. Needs the run's key."""
        return secrets_of(self.config, lambda: self.read(RUN_KEY))

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """Claimed and certified epsilon, and the mechanisms behind them."""
        return parse_json(self.read("privacy.json"), self.path / "privacy.json")

    @cached_property
    def personal_models(self) -> dict[ClientId, Tensors]:
        """Each client's model after the last round, from its private state."""
        return split_models(parse_tensors(self.read(PERSONAL), self.path / PERSONAL))

    @cached_property
    def own_model(self) -> Tensors | None:
        """The server's own model after the last round; None for classifiers."""
        if OWN_MODEL not in self.header.get("files", {}):
            return None
        return parse_tensors(self.read(OWN_MODEL), self.path / OWN_MODEL)

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of whole files by their path, also of those that came later."""
        return self.latest().files

    @cached_property
    def signers(self) -> tuple[Signer, Signer | None]:
        """Who vouches for the training, and who for what was added to it."""
        latest = self.latest()
        return latest.signer, latest.auditor

    def latest(self) -> SignedHeader:
        """Return the header as it is now, with what was added meanwhile."""
        latest = self._read_header()
        if latest.seal != self._signed.seal:
            raise TranscriptError(
                f"{self.place} was trained again since it was read. Run the same command "
                "again."
            )
        return latest

    def read(self, name: str) -> bytes:
        """Return the content of a file that the run lists, checked.

        Raises:
            MissingFileError: It is gone.
            LimitError: It is larger than a bound.
            TranscriptError: It is another, or the run does not list it.
        """
        fetch(self.path, name)
        content = read_bytes(self.path / name, limit_of(name))
        expected = self.files.get(name)
        if hashlib.sha256(content).hexdigest() != expected:
            what = "is not the file that the run lists: it was altered or replaced"
            if expected is None:
                what = "is not listed by its run: it was put there, or not finished"
            again = "make it again" if name.startswith(AUDITS) else "train again"
            raise TranscriptError(
                f"{self.place}/{name} {what}. Restore it from a copy, or {again}."
            )
        return content

    def add(self, contents: Files, lines: Files | None = None) -> None:
        """Write files beside the others, and list them in the header: audits.

        ``contents`` go by path in the run; each of the ``lines`` is added, with its
        end, to a file that only grows.

        Raises:
            ConfigError: The run was trained anew since it was read.
            TranscriptError: A file that only grows was cut or altered.
            StorageError: The folder cannot be written.
        """
        add_files(self.path, self._signed.seal, contents, lines)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def place(self) -> str:
        """Where it lies: a path, or the URL of the store."""
        return url_of(self.path) or str(self.path)

    @property
    def origin(self) -> str:
        """Where it is from, if it was not trained here: a name in ``RUN_ORIGINS``."""
        return str(self.header.get("origin", ""))

    @property
    def has_utility(self) -> bool:
        """Whether anybody can say what its models are good for."""
        return True

    @property
    def trains_shadows(self) -> bool:
        """Whether an adversary can train models as its clients do."""
        return True

    @property
    def fingerprint(self) -> str:
        """What answers of its models depend on besides what run.json says."""
        return ""

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
                f"{self.place} stopped after {self.header['progress']['rounds']} of "
                f"{self.config.rounds} rounds. Finish it with the same command and "
                "--resume."
            )
        return self


def runs_folder(folder: str | Path | None = None) -> Path:
    """Return where runs are kept: an argument, PRIVAUDIT_RUNS, or ./runs.

    Of a URL it is the folder in the cache in which its runs are worked on.

    Raises:
        ConfigError: It is a URL of what runs cannot lie in, or has a password.
    """
    place = folder or os.environ.get("PRIVAUDIT_RUNS") or "runs"
    refuse_secrets(place)
    return copy_of(str(place)) if is_url(place) else plain_path(place)


def shared_place(folder: Path) -> str | Path:
    """Return a folder of runs as another machine finds it: its URL, or else the path."""
    return url_of(folder) or folder


def latest_places(folder: str | Path | None = None) -> list[Path]:
    """Return where the runs lie that the last ``train`` command made.

    Raises:
        MissingFileError: Nothing was trained yet.
        TranscriptError: What remembers it was altered.
    """
    marker = runs_folder(folder) / LATEST
    content = read_shared(marker)
    if content is None:
        content = read_bytes(marker) if marker.exists() else b""
    names = latest_names(content)
    if not names:
        raise MissingFileError(
            f"There is no run in {shared_place(marker.parent)}. Train one with "
            "`privaudit train`, or name a run."
        )
    for name in names:
        if not is_name(name):
            raise TranscriptError(
                f"{shared_place(marker)} names {name!r}, which is no run: it was "
                "altered. Remove it, and name the run."
            )
    found = [marker.parent.resolve() / name for name in names]
    for place in found:
        refresh(place)
    return found


def places_in(folder: str | Path | None = None) -> list[Path]:
    """Return where the runs lie that a folder of runs has, as its store has them."""
    place = runs_folder(folder)
    url = url_of(place)
    if url is None:
        return sorted(header.parent for header in place.glob(f"*/{HEADER}"))
    found = [place / name for name in RemoteFolder(url).names() if is_name(name)]
    for one in found:
        refresh(one)
    return sorted(one for one in found if (one / HEADER).exists())


def find_place(name: str | Path, folder: str | Path | None = None) -> Path:
    """Return where a run or a folder lies: among the runs by name, else as a path.

    Raises:
        ConfigError: It has no name, one that no system takes, or the URL of what is
            no place for runs, or with a password.
    """
    refuse_secrets(name)
    if not str(name) or "\0" in str(name):
        raise ConfigError(
            f"{str(name)!r} is not the name of a run. Give a name or a folder, or "
            "leave it out for the latest run."
        )
    if is_url(name):
        url = str(name).rstrip("/")
        folder, _, name = url.rpartition("/")
        if not is_url(folder):
            check_scheme(url)
            raise ConfigError(
                f"{shown(url)} is a whole store, and a run lies in a folder of one. "
                f"Name the run as in {url}/runs/NAME."
            )
    path = plain_path(name)
    inside = runs_folder(folder) / path
    if is_name(str(name)) and url_of(inside) is not None:
        refresh(inside)
        return inside
    try:
        return among_runs(str(name), path, runs_folder(folder))
    except OSError as error:
        raise MissingFileError(
            f"There is no run {shown(str(name))}: {reason_of(error)}. Name another."
        ) from None


RUN_ORIGINS: Registry[Callable[[Path], Run]] = Registry(
    "origin of a run", "privaudit.recording.origins"
)
"""By the origin that a header names: runs that `privaudit train` did not make."""


def load_run(run: str | Path | None = None, *, folder: str | Path | None = None) -> Run:
    """Load a run from disk, and verify its signature.

    Args:
        run: Name of a run in ``folder``, or a path; by default the latest run.
        folder: Folder of all runs; by default ``./runs``.

    Raises:
        MissingFileError: There is no such run.
        UnknownNameError: Another version, or another program, made it.
    """
    if run is None:
        return latest_runs(folder)[-1]
    loaded = Run(find_place(run, folder))
    origin = loaded.origin
    return RUN_ORIGINS.find(origin)(loaded.path) if origin else loaded


def chosen_runs(
    names: Sequence[str] | None, folder: str | Path | None = None
) -> list[Run]:
    """Return the runs of those names, or else the latest."""
    return [load_run(one, folder=folder) for one in names or []] or latest_runs(folder)


def latest_runs(folder: str | Path | None = None) -> list[Run]:
    """Return what lies in :func:`latest_places`, in its order."""
    return [load_run(place) for place in latest_places(folder)]


def mark_latest(runs: Sequence[Run]) -> None:
    """Remember which runs a command without a RUN is about."""
    names = "".join(f"{run.name}\n" for run in runs)
    marker = runs[0].path.parent / LATEST
    write_bytes(marker, names.encode())
    share(marker)


def trained_clients(run: Run, threat: str) -> tuple[str, ...]:
    """Return the clients that an adversary's view was trained on, in their order.

    Participation is public, and drawn without a look at any record; the run wrote down
    who took part. Where uploads may be lost only those count of whom one arrived;
    behind masks, in a sum that was not aborted. The server knows which: what the others
    trained reached nobody, unless they gave it away. Damaged uploads rebuild nobody.
    """
    config, clients = run.config, run.population.task.clients
    arrived: dict[int, list[int]] = {}
    if (config.is_masked or config.dropout) and not _has_own(run, threat):
        arrived = _arrived(run) if config.is_masked else _unlost(run)
    damaged = run.left_out if threat == "server" else ()
    seen: set[str] = set()
    for index, drawn in enumerate(run.participants):
        places = arrived.get(index, range(len(drawn)))
        seen |= {drawn[place] for place in places}
    return tuple(c for c in clients if c in seen and c not in damaged)


def _has_own(run: Run, threat: str) -> bool:
    """Say whether the view holds what clients trained for themselves."""
    seeds, task = run.config.seeds, run.population.task
    return threat == "released" and any(
        start_client(run.trainer, task, client, seeds) for client in task.clients
    )


def _unlost(run: Run) -> dict[int, list[int]]:
    """Return for each round whose upload arrived, by place; {} where none is sent."""
    senders: dict[int, set[str]] = {}
    for message in run.transcript:
        if message.is_update:
            senders.setdefault(message.round, set()).add(message.sender)
    if not senders:
        return {}
    return {
        index: [n for n, one in enumerate(clients) if one in senders.get(index, set())]
        for index, clients in enumerate(run.participants)
    }


def _arrived(run: Run) -> dict[int, list[int]]:
    """Return for each round with masks who is in its sum, by place among the asked."""
    arrived: dict[int, list[int]] = {}
    summed = {m.round for m in run.transcript if m.kind == "sum"}
    if not summed and not run.config.applies_mechanisms:
        return {}  # a recording of masked uploads alone: what came of them is broadcast
    for message in run.transcript:
        if message.kind in MASKED_KINDS:
            there = arrived.setdefault(message.round, [])
            if message.round in summed and not there and message.kind == "survivors":
                there.extend(message.tensors["clients"].tolist())
    return arrived
