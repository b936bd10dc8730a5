"""A copy of a run that is fit for others to see: a card, and a text about it."""

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privaudit.core.errors import ConfigError, PrivauditError, TranscriptError
from privaudit.core.storage import UNFINISHED, read_bytes, storage_errors, write_bytes
from privaudit.federated.runs.folder.outputs import check_folder
from privaudit.federated.runs.folder.remote_store import local_path
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.report.export.allow_list import AllowList
from privaudit.report.export.audits import AUDITS
from privaudit.report.export.card import (
    CARD,
    FORMAT,
    audited_scenarios,
    card_parts,
    render,
    with_hash,
)
from privaudit.report.export.hmac import make_key
from privaudit.report.export.readme import README, readme

GUESSABLE = 2**32  # seeds below can be tried one by one


@dataclass(frozen=True)
class Export:
    """What was exported, and what was not.

    Attributes:
        folder: Where it lies.
        card: What stands in card.json.
        left: Places of JSON that stayed behind; see :class:`AllowList`.
        files: Files that stayed behind, by kind.
        seed_is_guessable: Whether somebody could try all seeds up to the run's.
    """

    folder: Path
    card: Mapping[str, Any]
    left: AllowList
    files: Mapping[str, int]
    seed_is_guessable: bool


def export_public(
    run: Run | str | Path | None = None,
    folder: str | Path = "public",
    *,
    runs: str | Path | None = None,
) -> Export:
    """Write what may leave of a run: verdicts, intervals, settings and hashes.

    Neither the truth about membership, nor records, scores, tensors, seeds and places
    on this machine. Whatever is not known to be fit stays behind, and is counted. The
    folder is there as a whole or not at all; an earlier export of the run is replaced.

    Args:
        run: A finished run, or its name; the latest by default.
        folder: To be made: nothing else may be there.
        runs: Where runs are kept.

    Raises:
        ConfigError: The run is unfinished, or something else lies in the folder, or it
            is a URL of a store.
        MissingFileError: There is no such run.
        TranscriptError: The run or an audit is damaged.
        StorageError: A folder cannot be written.
    """
    loaded = run if isinstance(run, Run) else load_run(run, folder=runs)
    loaded.require_complete()
    place, sieve = local_path(folder), AllowList()
    _check_free(place, loaded)
    scenarios = audited_scenarios(loaded)
    parts = card_parts(loaded, scenarios, lambda: make_key(loaded), sieve)
    card: dict[str, Any] = {
        "card": {"format": FORMAT, "privaudit": version("privaudit")},
        AUDITS: {},
    }
    for name, part in parts.items():
        above, _, below = name.partition("/")
        (card[above] if below else card)[below or above] = part()
    card = with_hash(card)
    files = _files_behind(loaded)
    texts = {CARD: render(card), README: readme(card, sieve, files)}
    _refuse_secrets("".join(texts.values()), loaded)
    _write(place, texts)
    return Export(place, card, sieve, files, _is_guessable(loaded))


def _is_guessable(run: Run) -> bool:
    """Say whether the run's seed is one that others may try."""
    seed = run.config.seed
    return not run.origin and seed is not None and seed < GUESSABLE


def _check_free(place: Path, run: Run) -> None:
    """Raise ConfigError unless a folder is free, or an earlier export of the run."""
    check_folder(place)
    if not place.exists():
        return
    names = {path.name for path in place.iterdir()} if place.is_dir() else {"a file"}
    if not names or (names <= {CARD, README} and _head_in(place / CARD) == _head(run)):
        return
    raise ConfigError(
        f"{place} holds {', '.join(sorted(names)[:3])}, and is no earlier export of "
        f"{run.path}. Name another folder, or empty it."
    )


def _head(run: Run) -> str:
    head: str = run.header["progress"]["head"]
    return head


def _head_in(card: Path) -> str | None:
    try:
        head: str = json.loads(read_bytes(card))["run"]["progress"]["head"]
    except (PrivauditError, ValueError, KeyError, TypeError):
        return None
    return head


_KINDS = {
    r"run\.json": "header, of which a part is in the card",
    r"plan\.json": "plan of the audits, whose hash is in the card",
    r"bundle\.json": "what the recording declares",
    r"privacy\.json": "privacy record, of which most is in the card",
    r"transcript/.*": "transcript: what was sent",
    r"kept/run\.key": "secret key of the run",
    r"kept/.*": "kept states: personal models",
    r"ledger\.npz": "ledger: the truth about membership",
    r"canaries\.json": "canaries: their texts or classes",
    r"metrics\.jsonl": "utility by round",
    r"trace\.jsonl": "trace: batches, norms and noise",
    r"card\.key": "key of the sealed hashes",
    r"audits/[^/]+/audit\.json": "audit, of which a part is in the card",
    r"audits/[^/]+/scores\.npz": "scores beside the truth",
    r"audits/.*\.html": "report: shows scores, and may show records",
    r"audits/log\.jsonl": "log of the audits, whose number is in the card",
    r"audits/signals/.*": "signals of shadow models",
    r"audits/shift-[^/]+": "shift control",
    r"audits/table/.*": "number for a paper's table",
    r"\.lock|\.lease-\d{4,9}|.*\.unfinished": "of no content",
}


def _files_behind(run: Run) -> dict[str, int]:
    """Return how many files of each kind stay behind."""
    names = [
        p.relative_to(run.path).as_posix()
        for p in run.path.rglob("*")
        if not p.is_dir()
    ]
    kinds = Counter(
        next(
            (kind for known, kind in _KINDS.items() if re.fullmatch(known, name)),
            "unknown",
        )
        for name in names
    )
    return dict(sorted(kinds.items()))


def _refuse_secrets(text: str, run: Run) -> None:
    """Raise TranscriptError if a path, the run's name or a telling seed got through.

    The rules do not let them; this is for a rule that turns out to be too wide.
    """
    config = run.config
    paths = [run.path.resolve().parent, config.data, config.checkpoint]
    folder = config.model.partition(":")[2]
    secrets = [str(path) for path in paths if path] + [folder] * folder.startswith("/")
    if config.seed is not None and str(config.seed) in run.name:
        secrets.append(run.name)
    seeds = [str(config.seed)] if config.seed and config.seed >= 10**6 else []
    leaked = [secret for secret in secrets if len(secret) > 1 and secret in text]
    leaked += [s for s in seeds if re.search(rf"(?<![\d.]){s}(?!\d)", text)]
    if leaked:
        raise TranscriptError(
            f"The export of {run.name} would hold {leaked[0]!r}, a path, name or seed "
            "that is to stay here: a text in its files was altered. Nothing was "
            "written. Restore the run from a copy, or make its audits again."
        )


def _write(place: Path, texts: Mapping[str, str]) -> None:
    """Put a folder in place of an earlier one, or of nothing, in one rename."""
    with storage_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        drafts = Path(
            tempfile.mkdtemp(UNFINISHED, f".{place.name}.", place.resolve().parent)
        )
    try:
        new, old = drafts / "new", drafts / "old"
        with storage_errors(place):
            new.mkdir()  # open to all, as others are to read it
        for name, text in texts.items():
            write_bytes(new / name, text.encode())
            (new / name).chmod(0o644)
        with storage_errors(place):
            if place.exists():
                place.replace(old)
            try:
                new.replace(place)
            except OSError:
                if old.exists():
                    old.replace(place)
                raise
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
