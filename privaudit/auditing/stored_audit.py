"""Audits on disk: the numbers as JSON, the scores beside the truth as npz.

What is read back is checked against the run. An audit is made whole again from it without
asking a model or training: figures are computed anew from the stored scores and the truth,
and held against what audit.json says of them.
"""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Shaped
from pydantic import Field

from privaudit.auditing.attack import Attack
from privaudit.auditing.attack_result import (
    AttackResult,
    ClientScores,
    evaluate_scores,
    with_audits,
)
from privaudit.auditing.audit import FORMAT, Audit
from privaudit.auditing.named_attacks import restore_attack
from privaudit.auditing.played_scenario import stored_parts
from privaudit.auditing.scenario import Scenario, find_plan
from privaudit.auditing.shadow_budget import ShadowBudget
from privaudit.core.errors import (
    ConfigError,
    LimitError,
    MissingFileError,
    PluginError,
    TranscriptError,
    UnknownNameError,
    shown,
)
from privaudit.core.parameters import MOST, alike, from_plain
from privaudit.core.storage import (
    DAMAGE,
    make_private_folder,
    parse_json,
    read_npz,
    to_json,
    write_bytes,
)
from privaudit.recording.origins.scores import SCORES as GIVEN
from privaudit.recording.origins.scores import ScoredRun
from privaudit.runs.own_files import HEADER, check_folder
from privaudit.runs.run import AUDITS, Run
from privaudit.runs.utility import METRICS, Utility
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.evidence import Limits, MembershipEvidence
from privaudit.statistics.verdict import ONE_TRAINING, Pooled, judge_leak

_COLUMNS = ("client", "records", "labels", "scores", "guesses", "is_member")
AUDIT, SCORES = "audit.json", "scores.npz"
CLASS_NAMES = "class names"  # beside the columns
LEFT_OUT = "left_out"  # a column that only attacks with shadow models have
Column = Shaped[np.ndarray, "candidates *sets"]


@dataclass(frozen=True)
class StoredAudit:
    """What :func:`save_audit` wrote about one run.

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

    def attack_result(self, attack: str) -> Mapping[str, Any]:
        """Return what audit.json says of an attack."""
        self._check_attack(attack)
        return _entries(self.contents)[attack]

    def verdict(self, attack: str = "") -> "StoredVerdict":
        """Return the verdict on an attack, by default on the headline."""
        result = self.attack_result(attack or self.attacks[0])
        return from_plain(StoredVerdict, result["verdict"])

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
    folder = run.path / "audits" / scenario
    try:
        said = run.read(f"{AUDITS}{scenario}/{AUDIT}")
        stored = run.read(f"{AUDITS}{scenario}/{SCORES}")
    except MissingFileError:
        raise _no_audit(run, scenario) from None
    contents = parse_json(said, folder / AUDIT)
    if fault := other_format(contents, folder / AUDIT):
        command = f"privaudit attack {run.name} --scenario {scenario}"
        if scenario == GIVEN:
            command = "privaudit scores FILE"
        raise TranscriptError(f"{fault} Make it again with `{command}`.")
    try:
        arrays = dict(read_npz(stored, str(folder / "scores.npz")))
        names = tuple(map(str, arrays.pop(CLASS_NAMES, ())))
        columns, attacks = _by_attack(arrays), tuple(_entries(contents))
        audit = StoredAudit(run, scenario, attacks, columns, contents, names)
        _check(audit)
    except LimitError:
        raise
    except (*DAMAGE, IndexError) as error:
        raise TranscriptError(
            f"{folder} does not hold an audit of {run.name} ({error}): it was altered, "
            "or is of an earlier run. Make it again with `privaudit attack`."
        ) from None
    return audit


def other_format(contents: Mapping[str, Any], path: Path) -> str:
    """Say that an audit.json has a format that is not read here; empty for this one's."""
    number = contents.get("format", 1)  # which the first version did not write
    if type(number) is int and number == FORMAT:
        return ""
    return (
        f"{path} is an audit of format {shown(number)}, which another version wrote, and "
        f"this one reads format {FORMAT}."
    )


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
    """Hold an audit.json against the run that it lies in, if it lies in one."""
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
    entries = dict(contents["attack_results"])
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
    names = [
        n for n in first.contents["attack_results"] if all(n in a.attacks for a in rest)
    ]
    if not names:
        held = "; ".join(f"{a.run.name}: {', '.join(a.attacks)}" for a in audits)
        raise MissingFileError(
            f"The audits have no attack in common ({held}). Make them again with the "
            "same version and number of shadows."
        )
    return names


Json = Mapping[str, Any]
_CLOSE = 1e-6  # between an AUROC as stored and as the scores give it
_DRAWN = 0.02  # between p-values of other permutations: four standard errors at 1/2


def restore_audit(stored: StoredAudit, *, drawn: bool = False) -> Audit:
    """Return the audit that was saved.

    Permutations are drawn anew for the headline alone, if not ``drawn`` for all attacks.

    Raises:
        TranscriptError: audit.json is damaged or of another version, or its figures
            are not those of the scores.
    """
    try:
        return _restore(stored, drawn)
    except (*DAMAGE, ConfigError) as error:
        path = stored.run.path / "audits" / stored.scenario / "audit.json"
        raise TranscriptError(
            f"{path} cannot be restored ({error!r}): it was altered, or is of "
            f"another version. Make it again with `privaudit attack {stored.run.name} "
            f"--scenario {stored.scenario}`."
        ) from None


def _restore(stored: StoredAudit, drawn: bool) -> Audit:
    _refuse_unknown(stored.run, stored.contents)
    contents = stored.contents
    scored = {
        name: _attack_result(stored, name, drawn or name == stored.attacks[0])
        for name in stored.attacks
    }
    results = {name: scored[name] for name in contents["attack_results"]}
    parts, headline = {}, scored[stored.attacks[0]]
    for part in stored_parts(contents):
        entry = contents[part.entry]
        found = parts[part.name] = part.from_json(entry, scored)
        if part.again and found is not None:
            again = part.again(found, stored.run, headline, contents["threat"])
            if not alike(entry, part.to_json(again)):
                raise ValueError(f"its {part.entry} is not what its scores give")
    return Audit(
        run=stored.run,
        scenario=_scenario(stored, results),
        results=results,
        utility=from_plain(Utility | None, contents["utility"]),
        seed=int(contents["seed"]),
        budget=from_plain(ShadowBudget | None, contents.get("budget")),
        computed=dict(contents.get("computed", {})),
        parts=parts,
    )


def _refuse_unknown(run: Run, contents: Json) -> None:
    """Refuse a threat model or a metric that no page could tell of."""
    view = str(contents["threat"]).partition(":")[0]
    if view not in run.privacy["certified"]:
        raise ValueError(f"there is no threat model {shown(view)}")
    if contents["utility"] is None:
        return
    metric = contents["utility"]["metric"]
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"there is no metric {shown(metric)}")


def _attack_result(stored: StoredAudit, attack: str, drawn: bool) -> AttackResult:
    """Return what the scores say, if audit.json says the same."""
    said, sampling = stored.attack_result(attack), stored.run.sampling
    verdict = stored.verdict(attack)
    known = verdict.evidence
    result = evaluate_scores(
        said["attack"],
        said["settings"],
        said["threshold"],
        stored.clients(attack),
        str(said.get("package", "")),
        sampling,
        verdict.limits,
        None if drawn or not known else known.test,
    )
    there = Estimate.from_dict(said["auroc"])
    for name in ("value", "low", "high"):
        pair = getattr(there, name), getattr(result.auroc, name)
        if not math.isclose(*pair, abs_tol=_CLOSE) and not all(map(math.isnan, pair)):
            raise ValueError(
                f"{attack} has the AUROC {there}, and its scores give {result.auroc}"
            )
    given = judge_leak(
        there, verdict.limits, sampling, verdict.audits, known, verdict.pooled
    )
    if given.kind != verdict.kind:
        raise ValueError(
            f"an AUROC of {there} has the verdict {shown(verdict.kind)}, and its "
            f"numbers give {given.kind!r}"
        )
    judged = with_audits(result, sampling, verdict.audits, verdict.pooled)
    if not _alike(known, judged.verdict.evidence):
        raise ValueError(f"the evidence of {attack} is not what its scores give")
    return result if verdict.pooled == ONE_TRAINING else judged  # which no log counts


@dataclass(frozen=True)
class StoredVerdict:
    """A verdict as audit.json has it, beside its AUROC."""

    kind: str
    margin: float
    tail_margin: float
    fpr: float
    audits: Annotated[int, Field(ge=1, le=MOST, strict=True)]
    evidence: MembershipEvidence | None
    pooled: Pooled = ONE_TRAINING

    @property
    def limits(self) -> Limits:
        """What does not matter."""
        return Limits(self.margin, self.tail_margin, self.fpr)


def _alike(said: MembershipEvidence | None, found: MembershipEvidence | None) -> bool:
    """Say whether evidence is the same, but for permutations of another numpy."""
    if not (said and found and said.test and found.test):
        return said == found
    names = ("either", "average", "tail")
    pairs = [(getattr(said.test, p), getattr(found.test, p)) for p in names]
    drawn = replace(said.test, top=found.test.top)
    same = replace(found, test=drawn) == said
    return same and all(abs(a - b) <= _DRAWN for a, b in pairs)


def _scenario(stored: StoredAudit, results: Mapping[str, AttackResult]) -> Scenario:
    """Return the scenario as it was played; one that is no more has no attacks."""
    try:
        plan = find_plan(stored.scenario)
    except (UnknownNameError, PluginError):
        plan = Scenario(stored.scenario, "", "", {})
    made = {name: _attack(result, plan) for name, result in results.items()}
    known = {name: attack for name, attack in made.items() if attack is not None}
    question = str(stored.contents.get("question", plan.question))
    threat = stored.contents["threat"]
    if threat == "server-aggregate":
        plan = plan.where_masked()  # if that is not what the scenario asks for anyhow
    notes = from_plain(dict[str, str], stored.contents.get("notes", plan.notes))
    return replace(plan, question=question, threat=threat, notes=notes, attacks=known)


def _attack(result: AttackResult, plan: Scenario) -> Attack | None:
    """Return an attack as it was made, or as its scenario makes it now; else None."""
    if " as " in result.attack:  # of a weaker adversary's scenario
        return None
    try:
        return restore_attack(result.attack, result.settings)
    except (ConfigError, PluginError):
        return plan.attacks.get(result.attack)


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
    copy = Path(folder)
    make_private_folder(copy / "audits")
    make_private_folder(copy / below)
    for name, content in contents.items():
        write_bytes(copy / name, content)
    return copy / below


def score_columns(audit: Audit) -> dict[str, Column]:
    """Return what scores.npz holds of each attack, as ATTACK/COLUMN."""
    return {
        f"{name}/{column}": values
        for name, result in audit.scored.items()
        for column, values in _columns(result).items()
    }


def _columns(result: AttackResult) -> dict[str, Column]:
    columns = {
        name: np.concatenate([getattr(client, name) for client in result.clients])
        for name in _COLUMNS[1:]
    }
    clients = [np.repeat(c.client, len(c.records)) for c in result.clients]
    tables = [c.left_out.T for c in result.clients if c.left_out is not None]
    if tables:
        columns[LEFT_OUT] = np.concatenate(tables)
    return {"client": np.concatenate(clients), **columns}
