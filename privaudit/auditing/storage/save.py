"""An audit on disk: the numbers as JSON, the scores beside the truth as npz."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.storage.load import (
    AUDIT,
    CLASS_NAMES,
    LEFT_OUT,
    SCORES,
    Column,
)
from privaudit.core.errors import ConfigError
from privaudit.core.storage import make_private_folder, to_json, write_bytes
from privaudit.federated.runs.folder.outputs import check_folder
from privaudit.federated.runs.runs import AUDITS
from privaudit.recording.origins.scores import ScoredRun


def save_audit(audit: Audit, folder: str | Path | None = None) -> Path:
    """Write audit.json and scores.npz, and return the folder they are in.

    In the run they are listed in its header, and signed; a copy elsewhere is not. Of
    scores that were computed elsewhere the folder becomes the run, and replaces an
    earlier one of scores.

    That is ``audits/<scenario>`` below ``folder``; an earlier audit of the scenario is
    replaced. scores.npz holds for each attack the arrays ``<attack>/client``,
    ``/records``, ``/labels``, ``/scores``, ``/guesses`` and ``/is_member``, one entry
    for each candidate, and with shadow models ``/left_out``, a row for each, of its
    scores without some of them; ``server model/<attack>/...`` are the same of attacks on the
    server's own model, a part. ``class names`` says what the labels mean. It is the
    truth about membership, so the folder is private.

    Args:
        audit: What a scenario found out.
        folder: The run's by default; scores in memory have none.

    Raises:
        ConfigError: There is no folder, or something else is in it.
        StorageError: The folder lies in a run, or cannot be written.
    """
    if isinstance(audit.run, ScoredRun) and folder is not None:
        audit, folder = replace(audit, run=audit.run.write(folder)), None
    if folder is None and not audit.run.is_stored:
        raise ConfigError(
            f"The audit of {audit.run.name} was to be saved, and it lies in no folder. "
            'Name one: save_audit(audit, "runs/my-scores").'
        )
    if folder is not None:
        check_folder(Path(folder))
    columns = {**score_columns(audit), CLASS_NAMES: np.array(audit.run.class_names)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **columns)
    below = f"{AUDITS}{audit.scenario.name}"
    contents = {
        f"{below}/{SCORES}": buffer.getvalue(),
        f"{below}/{AUDIT}": to_json(audit.to_dict()),
    }
    if folder is None:
        audit.run.add(contents)
        return audit.run.path / below
    place = Path(folder)
    make_private_folder(place / "audits")
    make_private_folder(place / below)
    for name, content in contents.items():
        write_bytes(place / name, content)
    return place / below


def score_columns(audit: Audit) -> dict[str, Column]:
    """Return what scores.npz holds of each attack, as ATTACK/COLUMN."""
    return {
        f"{name}/{column}": values
        for name, leak in audit.scored.items()
        for column, values in _columns(leak).items()
    }


def _columns(leak: AttackResult) -> dict[str, Column]:
    names = ("records", "labels", "scores", "guesses", "is_member")
    columns = {
        name: np.concatenate([getattr(client, name) for client in leak.clients])
        for name in names
    }
    clients = [np.repeat(client.client, len(client.records)) for client in leak.clients]
    tables = [c.left_out.T for c in leak.clients if c.left_out is not None]
    if tables:
        columns[LEFT_OUT] = np.concatenate(tables)
    return {"client": np.concatenate(clients), **columns}
