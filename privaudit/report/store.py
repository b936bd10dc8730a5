"""An audit on disk: the numbers as JSON, the scores beside the truth as npz."""

import io
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from privaudit.audit import Audit
from privaudit.leak import Leak
from privaudit.report.stored_audit import CLASS_NAMES, SERVER
from privaudit.storage import make_private_folder, write_bytes, write_json


def save_audit(audit: Audit, folder: Path | None = None) -> Path:
    """Write audit.json and scores.npz, and return the folder they are in.

    That is ``audits/<scenario>`` below ``folder``; an earlier audit of the scenario is
    replaced. scores.npz holds for each attack the arrays ``<attack>/client``,
    ``/records``, ``/labels``, ``/scores``, ``/guesses`` and ``/is_member``, one entry
    for each candidate; ``server model/<attack>/...`` are the same of attacks on the
    server's own model. ``class names`` says what the labels mean. It is the truth about
    membership, so the folder is private.

    Args:
        audit: What a scenario found out.
        folder: The run's by default.

    Raises:
        StorageError: The folder cannot be written.
    """
    audits = make_private_folder((folder or audit.run.path) / "audits")
    place = make_private_folder(audits / audit.scenario.name)
    columns = {
        f"{name}/{column}": values
        for name, leak in _named(audit).items()
        for column, values in _columns(leak).items()
    }
    columns[CLASS_NAMES] = np.array(audit.run.population.dataset.class_names)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **columns)
    write_bytes(place / "scores.npz", buffer.getvalue())
    write_json(place / "audit.json", audit.to_dict())
    return place


def _named(audit: Audit) -> dict[str, Leak]:
    server = {f"{SERVER}{name}": leak for name, leak in audit.aggregate.items()}
    return {**audit.leaks, **server}


def _columns(leak: Leak) -> dict[str, Shaped[np.ndarray, " candidates"]]:
    names = ("records", "labels", "scores", "guesses", "is_member")
    columns = {
        name: np.concatenate([getattr(client, name) for client in leak.clients])
        for name in names
    }
    clients = [np.repeat(client.client, len(client.records)) for client in leak.clients]
    return {"client": np.concatenate(clients), **columns}
