"""The audit card: what a run's audits found, and hashes that tie it to the run.

It is made of parts, each from one file of the run, so that a verifier can make each
again and say which one does not match. AUROCs and all else that an attack found are
made again from the scores beside the truth, not copied.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from privaudit.auditing.repetition.audit_log import LoggedAudit, read_log
from privaudit.auditing.repetition.plan import AuditPlan, plan_of
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.storage.load import stored_scenarios
from privaudit.core.errors import ConfigError, LimitError, MissingFileError
from privaudit.core.limits import check_json
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.sources import OnDisk
from privaudit.federated.runs.folder.remote_store import local_path
from privaudit.federated.runs.runs import Run
from privaudit.federated.transcripts.transcript import bytes_sent
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.allow_list import AllowList
from privaudit.report.export.audits import AUDITS, public_audit
from privaudit.report.export.hmac import seal
from privaudit.report.export.rules import HEADER, PRIVACY

FORMAT = 1
CARD = "card.json"
TRIED = "tried"  # how often the run was audited
_OWN_HASH = "sha256"
_OWNERS_WORDS = ("trainer", "settings", "dataset", "model")

Part = Callable[[], Any]


def card_parts(
    run: Run,
    scenarios: Sequence[str],
    key: Callable[[], bytes],
    sieve: AllowList,
    logged: int | None = None,
) -> dict[str, Part]:
    """Return how to make each part of a run's card, by where it stands in it.

    A part raises PrivauditError where what it is made of is missing or damaged.

    Args:
        run: The run.
        scenarios: Under which it was audited.
        key: Of the sealed hashes.
        sieve: Notes what stays behind.
        logged: How many lines of the log of audits count: those that were there when
            the card was made. None for all.
    """

    def log() -> list[LoggedAudit]:
        return read_log(run)[:logged]

    def audit(name: str) -> dict[str, Any]:
        return public_audit(run, name, key, sieve, log(), plan_of(run))

    audits = {f"{AUDITS}/{name}": partial(audit, name) for name in scenarios}
    return {
        "run": lambda: HEADER(sieve, _without_words(run, sieve), "run.json"),
        "sent": lambda: _sent(run),
        "data": lambda: _data(run, key),
        "truth": lambda: {"sealed": seal(key(), "ledger", run.truth.hash)},
        "privacy": lambda: PRIVACY(sieve, run.privacy, "privacy.json"),
        TRIED: lambda: _tried(log(), plan_of(run)),
        **audits,
    }


def _tried(log: Sequence[LoggedAudit], plan: AuditPlan | None) -> dict[str, Any]:
    """Return how often a run was audited, and the hash of what was planned."""
    if plan is None:
        return {"audits": len(log)}
    as_planned = sum(audit.as_planned for audit in log)
    return {"audits": len(log), "plan": plan.hash, "as_planned": as_planned}


def _without_words(run: Run, sieve: AllowList) -> Mapping[str, Any]:
    """Return a run's header without what its owner wrote in words of their own."""
    if not run.origin:
        return run.header
    config = run.header["config"]
    words = [name for name in _OWNERS_WORDS if name in config]
    sieve.withheld += [f"run.json/config/{name}" for name in words]
    kept = {name: value for name, value in config.items() if name not in words}
    return {**run.header, "config": kept}


def audited_scenarios(run: Run) -> list[str]:
    """Return the scenarios of this version that a run was audited under."""
    played = stored_scenarios(run)
    return [name for name in (*SCENARIOS.names(), SCORES) if name in played]


def _sent(run: Run) -> dict[str, int]:
    """Return how much was sent; every tensor is checked on the way."""
    sizes = bytes_sent(run.transcript.check())
    return {"messages": len(run.transcript), "up": sizes["up"], "down": sizes["down"]}


def _data(run: Run, key: Callable[[], bytes]) -> dict[str, str]:
    """Return the data set's hash: plain for data that come along, else sealed.

    Somebody who knows all of a private data set but one record could test guesses about
    that one against a plain hash.
    """
    digest = run.header["data_hash"]
    # Where a run is from elsewhere, its data set is none of this tool's.
    if run.origin or isinstance(DATASETS.find(run.config.dataset), OnDisk):
        return {"sealed": seal(key(), "data", digest)}
    return {_OWN_HASH: digest}


def render(card: Mapping[str, Any]) -> str:
    """Return a card's text, the same for the same card everywhere."""
    text = json.dumps(
        card, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False
    )
    return f"{text}\n"


def with_hash(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a card with the SHA-256 of its text without that entry."""
    plain = {name: part for name, part in card.items() if name != _OWN_HASH}
    digest = hashlib.sha256(render(plain).encode()).hexdigest()
    return {**plain, _OWN_HASH: digest}


def read_card(path: str | Path) -> tuple[dict[str, Any], bool]:
    """Return a card, and whether its text is as it was written.

    Args:
        path: The file, or the folder of an export.

    Raises:
        MissingFileError: There is none on this machine.
        ConfigError: It is no card, or one of another version.
    """
    try:
        place = local_path(path)
        place = place / CARD if place.is_dir() else place
        text = read_bytes(place)
    except LimitError:
        raise
    except (ConfigError, MissingFileError) as error:
        raise MissingFileError(
            f"{error} `privaudit export RUN --public DIR` makes a card of a run."
        ) from None
    try:
        check_json(text, str(place))
        card = json.loads(text)
        parts = {name: card[name] for name in ("card", "run", AUDITS)}
        version, known = parts["card"]["format"], parts[AUDITS].keys()
        head = parts["run"]["progress"]["head"]
    except LimitError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{place} is no audit card ({error!r}). Make one with `privaudit export "
            "RUN --public DIR`."
        ) from None
    if version != FORMAT or not isinstance(head, str):
        raise ConfigError(
            f"{place}, with {len(known)} audits, is in card format {version}, and this "
            f"version reads format {FORMAT}. Export the run again."
        )
    try:
        same = render(with_hash(card)).encode() == text
    except ValueError:  # NaN
        same = False
    return card, same
