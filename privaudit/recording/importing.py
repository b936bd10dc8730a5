"""Import of a recording as a run: transcript and truth are joined, checked and signed."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from privaudit.core.errors import (
    ConfigError,
    TooFewRecordsError,
    TranscriptError,
    shown,
)
from privaudit.core.storage import file_hash, write_bytes, write_json
from privaudit.datasets.partition import FEWEST_CANDIDATES
from privaudit.datasets.split import FEWEST_PUBLIC, PUBLIC, TEST
from privaudit.federation.transcript import (
    UPDATE_KINDS,
    UPLOAD_KINDS,
    Message,
    Transcript,
    TranscriptFolder,
    bytes_sent,
)
from privaudit.privacy.certificate import events_by_round, privacy_record
from privaudit.privacy.events import Claim, MechanismEvent
from privaudit.recording.bundle import (
    BUNDLE,
    INCOMPLETE,
    ORIGIN,
    PARTIES,
    Aggregation,
    Bundle,
    DeclaredClaim,
    RecordedConfig,
    read_bundle,
)
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import Run, load_run
from privaudit.runs.run_files import environment
from privaudit.runs.run_folder import lock_run
from privaudit.runs.run_header import FORMAT, save_header
from privaudit.runs.store import local_path
from privaudit.runs.utility import logged


def finish_recording(
    folder: str | Path,
    ledger: Ledger | str | Path,
    *,
    stopped: bool = False,
    claim: Claim | None = None,
) -> Run:
    """Make a recorded folder a run that can be audited, and sign it.

    Args:
        folder: With transcript/ and bundle.json.
        ledger: Who owned and who trained on which record, or its file.
        stopped: Whether a recording that was stopped may be a run of the rounds that it
            has: what is said of its models is not said of those that were to come.
        claim: What is claimed, in place of what the recording says.

    Raises:
        ConfigError: It is a run already, was stopped, nothing was recorded, or the
            ledger knows other clients than the transcript.
        TooFewRecordsError: The ledger has too few records of some kind.
        TranscriptError: A file was cut or altered.
        MissingFileError: One is gone.
    """
    path = local_path(folder)
    truth = ledger if isinstance(ledger, Ledger) else Ledger.load(Path(ledger))
    if (path / "run.json").exists():
        raise ConfigError(
            f"{path} is a run already. To join it with another ledger, record again."
        )
    if (path / INCOMPLETE).exists():
        raise ConfigError(
            f"{path} was not recorded whole: the recorder had to stop before the "
            "federation did. A part of it says nothing about the rest: record again."
        )
    bundle = read_bundle(path)
    if not (bundle.ended or stopped):
        raise ConfigError(
            f"The recording in {path} was stopped, or is not closed yet: {bundle.rounds} "
            "rounds are there, and what was to come is not. Record the federation to its "
            "end; or add --stopped (stopped=True) to audit it as it was by then."
        )
    _check(path, bundle, truth)
    with lock_run(path) as lease:
        transcript = TranscriptFolder(path / "transcript").truncate(
            head=bundle.head, length=bundle.length
        )
        _check_messages(path, bundle, transcript)
        if claim is not None:
            declared = {"claimed": DeclaredClaim(**asdict(claim))}
            bundle = bundle.model_copy(update=declared)
        lines = _metrics(path, bundle, transcript)
        config = _config(bundle, truth, transcript, lines)
        private = privacy_record(
            Claim(**bundle.claimed.model_dump()),
            [line["mechanisms"] for line in lines],
            sends_updates=any(m.kind in UPLOAD_KINDS | {"sum"} for m in transcript),
            randomness=bundle.randomness,
            declared=True,
        )
        if claim is not None:  # nothing is refused any more
            write_json(path / BUNDLE, bundle.model_dump(mode="json"))
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        write_bytes(path / "metrics.jsonl", content)
        write_bytes(path / "ledger.npz", truth.to_bytes())
        write_json(path / "privacy.json", private)
        files = {name: file_hash(path / name) for name in (BUNDLE, "privacy.json")}
        save_header(
            path,
            {
                "format": FORMAT,
                "origin": ORIGIN,
                "privaudit": version("privaudit"),
                **environment(("torch", "numpy")),
                "config": config.model_dump(),
                "model_hash": bundle.model_hash or _shape_hash(transcript),
                "data_hash": bundle.data_hash or truth.hash,
                "ledger_hash": truth.hash,
                "progress": {
                    "rounds": bundle.rounds,
                    "length": bundle.length,
                    "head": bundle.head,
                    "metrics_hash": hashlib.sha256(content).hexdigest(),
                    "checkpoint_hash": None,
                },
                "files": files,
            },
            lease,
        )
    return load_run(path)


def _check(path: Path, bundle: Bundle, truth: Ledger) -> None:
    """Refuse a recording and a ledger that do not go together."""
    if not bundle.rounds:
        raise ConfigError(
            f"{path} holds no round: no client sent anything. Record at least one."
        )
    unknown = [name for name in bundle.clients if name not in truth.clients]
    if unknown:
        raise ConfigError(
            f"{len(unknown)} of the {len(bundle.clients)} clients that were recorded are "
            f"not in the ledger, such as {unknown[0]}: it knows "
            f"{', '.join(truth.clients[:4])}{', ...' * (len(truth.clients) > 4)}. Use "
            "the ledger that the federation was split by, and its names."
        )
    for owner, fewest, what, option in (
        (TEST, 1, "test", "--test-share"),
        (PUBLIC, FEWEST_PUBLIC, "reference", "--public-share"),
    ):
        count = int((truth.owner == owner).sum())
        if count < fewest and (owner == TEST or count):
            raise TooFewRecordsError(
                f"The ledger has {count} {what} records, and an audit needs {fewest}: "
                "they belong to no client. Make it with `privaudit split` and a larger "
                f"{option}."
            )
    counts = np.bincount(truth.owner[truth.owner >= 0], minlength=len(truth.clients))
    if counts.min() < FEWEST_CANDIDATES:
        raise TooFewRecordsError(
            f"{truth.clients[int(counts.argmin())]} has {int(counts.min())} candidates "
            f"in the ledger, and {FEWEST_CANDIDATES} are needed to tell members from "
            "others. Leave that client out of the audit, or give it more records."
        )


def _check_messages(path: Path, bundle: Bundle, transcript: Transcript) -> None:
    """Refuse messages that nobody could have sent, or that are not as was declared."""
    parties = {*PARTIES, *bundle.clients}
    declared, received, last = bundle.aggregation, set[str](), -1
    for message in transcript:
        place = f"{path}: {message.kind} of round {message.round}"
        if not {message.sender, message.receiver} <= parties:
            raise TranscriptError(
                f"{place} is from {shown(message.sender)} to {shown(message.receiver)}, "
                "and bundle.json knows no such parties."
            )
        if message.kind == "broadcast":
            received.add(message.receiver)
        if message.is_update:
            _check_upload(place, message, declared, received)
        if message.kind in UPLOAD_KINDS | {"sum"}:
            last = max(last, message.round)
    if bundle.rounds != last + 1:
        raise TranscriptError(
            f"{path / BUNDLE} declares {bundle.rounds} rounds, and uploads were sent in "
            f"{last + 1}: what a certificate says would be about others. Write the "
            "number of rounds that were recorded."
        )


def _check_upload(
    place: str, message: Message, declared: Aggregation, received: Set[str]
) -> None:
    if declared.uploads == "differences" and message.sender not in received:
        raise TranscriptError(
            f"{place}: {message.sender} sent differences, and nothing that it had "
            "received is recorded. Record the server's broadcasts, too."
        )
    if declared.weight is None:
        return
    weight = message.tensors.get(declared.weight)
    if weight is None or weight.numel() != 1 or not 0 <= float(weight) < math.inf:
        raise TranscriptError(
            f"{place}: the upload of {message.sender} has no weight called "
            f"{declared.weight!r} that is one finite number, 0 or more."
        )


def _metrics(
    path: Path, bundle: Bundle, transcript: Transcript
) -> list[dict[str, Any]]:
    """Return a line for each round, as a trained run has them."""
    rounds: list[list[Message]] = [[] for _ in range(bundle.rounds)]
    for message in transcript:
        if message.round < bundle.rounds:
            rounds[message.round].append(message)
    lines, mechanisms = [], _mechanisms(path, bundle)
    for index, messages in enumerate(rounds):
        sent = bytes_sent(messages)
        line = {
            "round": index,
            "participants": _participants(bundle, messages),
            **logged(None),
            "training_loss": None,
            "bytes_up": sent["up"],
            "bytes_down": sent["down"],
            "seconds": bundle.seconds[index] if index < len(bundle.seconds) else 0.0,
            "mechanisms": [event.to_json() for event in mechanisms[index]],
        }
        lines.append(line)
    return lines


def _participants(bundle: Bundle, messages: Sequence[Message]) -> list[str]:
    """Return who sent something; where sums say who, by number, all clients."""
    if any(message.kind == "sum" for message in messages):
        return list(bundle.clients)
    senders = {m.sender for m in messages if m.kind in UPLOAD_KINDS}
    return [client for client in bundle.clients if client in senders]


def _mechanisms(path: Path, bundle: Bundle) -> list[list[MechanismEvent]]:
    """Return the mechanisms of each recorded round, checked."""
    groups = []
    for group in bundle.mechanisms:
        rounds: Any = group.get("rounds")
        if not isinstance(rounds, list) or not all(type(r) is int for r in rounds):
            raise TranscriptError(
                f"{path / BUNDLE} has a mechanism without the list of its rounds. Give "
                "each one, as docs/format.md says."
            )
        # Not of a round that a kill cut; twice in one round is two mechanisms.
        counted = [index for index in rounds if 0 <= index < bundle.rounds]
        groups.append({**group, "rounds": counted})
    return events_by_round(groups, bundle.rounds)


def _config(
    bundle: Bundle,
    truth: Ledger,
    transcript: Transcript,
    lines: Sequence[Mapping[str, Any]],
) -> RecordedConfig:
    kinds = {message.kind for message in transcript}
    masked = kinds & {"masked", "sum"} and not kinds & UPDATE_KINDS  # none in the clear
    counts = [len(line["participants"]) for line in lines if line["participants"]]
    counts = [
        m.tensors["clients"].numel() for m in transcript if m.kind == "survivors"
    ] or counts
    taking_part = float(np.mean(counts))
    said = f"stopped after round {bundle.rounds}, before the federation's end"
    ended: dict[str, Any] = {} if bundle.ended else {"recording": said}
    return RecordedConfig(
        trainer=bundle.trainer,
        model=bundle.model,
        dataset=bundle.dataset,
        settings=dict(bundle.settings) | ended,
        clients=len(truth.clients),
        rounds=bundle.rounds,
        participation=min(1.0, max(taking_part, 1.0) / len(truth.clients)),
        secure_aggregation="masked" if masked else "ideal",
        randomness=bundle.randomness,
        publish=any(message.kind == "release" for message in transcript),
    )


def _shape_hash(transcript: Transcript) -> str:
    """Return a hash of what is sent, where the owner gave none of the frozen model."""
    first = next(iter(transcript))
    shapes = {name: [str(t.dtype), *t.shape] for name, t in first.tensors.items()}
    return hashlib.sha256(json.dumps(shapes, sort_keys=True).encode()).hexdigest()
