"""An audit read back: the scores beside the truth, checked against the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.audit_part import stored_parts
from privaudit.core.arrays import DAMAGE, read_npz
from privaudit.core.errors import (
    LimitError,
    MissingFileError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.core.storage import parse_json
from privaudit.federated.runs.folder.own_files import HEADER
from privaudit.federated.runs.runs import AUDITS, Run
from privaudit.recording.origins.scores import SCORES as GIVEN

_COLUMNS = ("client", "records", "labels", "scores", "guesses", "is_member")
AUDIT, SCORES = "audit.json", "scores.npz"
CLASS_NAMES = "class names"  # beside the columns
LEFT_OUT = "left_out"  # a column that only attacks with shadow models have
Column = Shaped[np.ndarray, "candidates *sets"]


@dataclass(frozen=True)
class StoredAudit:
    """What :func:`privaudit.auditing.storage.save.save_audit` wrote about one run.

    Attributes:
        attacks: Names, the headline first; then those on the server's own model, as
            "server model/NAME".
        columns: By attack and column, one entry for each candidate.
        class_names: By class index; none in audits of earlier versions.
    """

    run: Run
    scenario: str
    attacks: tuple[str, ...]
    columns: Mapping[str, Mapping[str, Column]]
    contents: Mapping[str, Any]
    class_names: tuple[str, ...] = ()

    def leak(self, attack: str) -> Mapping[str, Any]:
        """Return what audit.json says of an attack.

        Raises:
            UnknownNameError: The audit holds no such attack.
        """
        self._check_attack(attack)
        return _entries(self.contents)[attack]

    def clients(self, attack: str) -> list[ClientScores]:
        """Return each attacked client's scores beside the truth."""
        self._check_attack(attack)
        columns = self.columns[attack]
        names = list(dict.fromkeys(columns["client"].tolist()))
        rows = [columns["client"] == name for name in names]
        clients = [
            ClientScores(name, *(columns[column][some] for column in _COLUMNS[1:]))
            for name, some in zip(names, rows, strict=True)
        ]
        if (left_out := columns.get(LEFT_OUT)) is not None:
            clients = [
                replace(client, left_out=left_out[some].T)
                for client, some in zip(clients, rows, strict=True)
            ]
        cluster = self.run.truth.cluster
        if cluster is None:
            return clients
        return [replace(one, cluster=cluster[one.records]) for one in clients]

    def _check_attack(self, attack: str) -> None:
        if attack not in self.attacks:
            what = f"attack of {self.run.name}'s audit"
            raise UnknownNameError(what, attack, self.attacks)


def read_audit(run: Run, scenario: str) -> StoredAudit:
    """Return an audit of a run.

    Raises:
        MissingFileError: The run was not audited under that scenario.
        TranscriptError: The audit is damaged, or not of this run as it is now.
    """
    place = run.path / "audits" / scenario
    try:
        said = run.read(f"{AUDITS}{scenario}/{AUDIT}")
        stored = run.read(f"{AUDITS}{scenario}/{SCORES}")
    except MissingFileError:
        raise _no_audit(run, scenario) from None
    contents = parse_json(said, place / AUDIT)
    try:
        arrays = dict(read_npz(stored, str(place / "scores.npz")))
        names = tuple(map(str, arrays.pop(CLASS_NAMES, ())))
        columns, attacks = _by_attack(arrays), tuple(_entries(contents))
        audit = StoredAudit(run, scenario, attacks, columns, contents, names)
        _check(audit)
    except LimitError:
        raise
    except (*DAMAGE, IndexError) as error:
        raise TranscriptError(
            f"{place} does not hold an audit of {run.name} ({error}): it was altered, "
            "or is of an earlier run. Make it again with `privaudit attack`."
        ) from None
    return audit


def _no_audit(run: Run, scenario: str) -> MissingFileError:
    there = stored_scenarios(run)
    again = f"Make it with `privaudit attack {run.name} --scenario {scenario}`."
    if there:
        again = (
            f"There is one of {', '.join(there)}: add --scenario {there[0]}. {again}"
        )
    if there == [GIVEN]:  # nothing else can be made of scores
        again = f"It holds scores: add --scenario {GIVEN}."
    return MissingFileError(f"There is no audit of {scenario} for {run.name}. {again}")


def stored_scenarios(run: Run) -> list[str]:
    """Return the scenarios under which a run was attacked, as its header lists them."""
    names = [name.removeprefix(AUDITS).split("/") for name in run.files]
    return sorted(parts[0] for parts in names if parts[1:] == [AUDIT])


def check_audit_file(path: Path) -> None:
    """Hold an audit.json against the run that it lies in, if it lies in one.

    Raises:
        TranscriptError: The run does not list it so.
    """
    folder = path.resolve().parent
    if path.name == AUDIT and (folder.parents[1] / HEADER).exists():
        Run(folder.parents[1]).read(f"{AUDITS}{folder.name}/{AUDIT}")


def _by_attack(arrays: Mapping[str, Column]) -> dict[str, dict[str, Column]]:
    by_attack: dict[str, dict[str, Column]] = {}
    for key, values in arrays.items():
        attack, _, column = key.rpartition("/")
        by_attack.setdefault(attack, {})[column] = values
    return by_attack


def _entries(contents: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what audit.json says of each attack, by its name in scores.npz."""
    entries = dict(contents["leaks"])
    for part in stored_parts(contents):
        entries |= part.scored(contents[part.entry])
    return entries


def _check(audit: StoredAudit) -> None:
    """Raise ValueError unless the scores fit the run, its configuration and truth."""
    # Parsed, so that a field added since then stands at its default.
    config = audit.run.config
    if type(config)(**audit.contents["config"]) != config:
        raise ValueError("its configuration is another")
    ledger = audit.run.truth
    for attack in audit.attacks:
        columns = audit.columns[attack]
        lengths = {len(columns[column]) for column in {*_COLUMNS, *columns}}
        truth = ledger.is_member[columns["records"]]
        if len(lengths) != 1 or not np.array_equal(truth, columns["is_member"]):
            raise ValueError(f"{attack} is not of the run's members")


def shared_attacks(audits: Sequence[StoredAudit]) -> list[str]:
    """Return the attacks on clients' models that all audits hold, the headline first.

    Raises:
        MissingFileError: There is none.
    """
    first, *rest = audits
    names = [n for n in first.contents["leaks"] if all(n in a.attacks for a in rest)]
    if not names:
        held = "; ".join(f"{a.run.name}: {', '.join(a.attacks)}" for a in audits)
        raise MissingFileError(
            f"The audits have no attack in common ({held}). Make them again with the "
            "same version and number of shadows."
        )
    return names
