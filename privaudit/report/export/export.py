"""Export of what others may see of a run: a card, noted and attacked before it is written.

What a card says is named here, and nothing else is read. The secret behind a run's cards,
of their noise and of what they commit to, follows from the run's secret key, so that copies
of a run make the same card, and where it has none from the owner's private key; never from
a seed. It is kept with the run at its first export, so that whoever has the run makes the
same card again. A commitment is an HMAC: the plain hash of a small truth can be guessed, as
there are a million memberships of 20 candidates and each guess is one hash.
"""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

import privaudit
from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.audit_log import (
    AuditPlan,
    LoggedAudit,
    plan_of,
    read_log,
    tally,
)
from privaudit.auditing.named_attacks import is_written, restore_attack
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.stored_audit import StoredAudit, read_audit, stored_scenarios
from privaudit.core.errors import (
    ConfigError,
    PluginError,
    PrivauditError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.core.formatting import stretches
from privaudit.core.parameters import above_zero
from privaudit.core.registry import Registry
from privaudit.core.seeds import KEY, Stream, derive
from privaudit.core.signing import Envelope, own_key
from privaudit.core.storage import file_hash, storage_errors
from privaudit.datasets.dataset import DATASETS
from privaudit.evaluation.card import (
    ALPHA,
    BUILD,
    CARD,
    PREDICATE,
    TRANSCRIPT,
    AuditShown,
    Card,
    Certified,
    Claimed,
    Commitments,
    Computed,
    Design,
    LedgerTotal,
    Library,
    Mechanism,
    NoisedAuroc,
    Privacy,
    Release,
    Sha,
    Statement,
    Subject,
    Training,
    UtilityShown,
    read_card,
    verdict_kind,
)
from privaudit.federation.trainer import TRAINERS
from privaudit.models import registry
from privaudit.privacy.noised_auroc import DIGITS, RankQuery, interval
from privaudit.recording.origins.scores import SCORES, ScoredRun
from privaudit.report.export.account import BUDGET, Account, NotedNumber, opened
from privaudit.runs.own_files import SESSION, check_folder, write_output
from privaudit.runs.run import Run, load_run
from privaudit.runs.run_files import OWN_MODEL, PERSONAL
from privaudit.runs.run_key import RUN_KEY
from privaudit.runs.session import session_of
from privaudit.runs.store import local_path
from privaudit.runs.utility import METRICS
from privaudit.statistics.estimate import Estimate

FILE = "card.key"


class _StoredSecret(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Sha
    released: tuple[Sha, ...]


@dataclass(frozen=True)
class RunSecret:
    """What makes a run's cards.

    Attributes:
        key: 256 bits, of which noise and commitments are made.
        released: Digests of the numbers that its cards may have said.
    """

    key: bytes
    released: tuple[str, ...] = ()

    def noise(self, ledger: str, query: str) -> Stream:
        """Return what the noise of one query is drawn from: the same every time."""
        return Stream.of(self.key, f"noise of a card|{ledger}|{query}")

    def commit(self, purpose: str, digest: str) -> str:
        """Return what shows later that a digest is the same, and tells nobody which.

        Example:
            >>> one = RunSecret(bytes(32))
            >>> one.commit("ledger", "00") == one.commit("data", "00")
            False
        """
        text = f"{purpose}|{digest}".encode()
        return hmac.new(self.key, text, hashlib.sha256).hexdigest()


def secret_of(run: Run) -> RunSecret:
    """Return a run's secret: the one it keeps; at first what its key or its owner's gives.

    Raises:
        MissingFileError: It was kept, and is gone.
        TranscriptError: It was altered, or another version wrote it.
    """
    if FILE not in run.files:
        has_key = RUN_KEY in run.files
        private = run.read(RUN_KEY) if has_key else own_key().private_bytes_raw()
        return RunSecret(derive(private, f"cards of {run.truth.hash}", KEY))
    try:
        stored = _StoredSecret.model_validate_json(run.read(FILE))
    except ValidationError:
        raise TranscriptError(
            f"{run.place}/{FILE} is no secret of cards: another version wrote it. Use "
            "that version, or train again."
        ) from None
    return RunSecret(bytes.fromhex(stored.key), stored.released)


def keep(run: Run, secret: RunSecret, released: Iterable[str]) -> None:
    """Keep a run's secret with it, and what its cards may say.

    Raises:
        StorageError: The run's folder cannot be written.
    """
    known = dict.fromkeys([*secret.released, *released])
    if FILE in run.files and list(known) == list(secret.released):
        return
    content = {"key": secret.key.hex(), "released": list(known)}
    run.add({FILE: json.dumps(content).encode()})


_SD_DIGITS = 6
_UTILITY_DIGITS = 3


def audited_scenarios(run: Run) -> list[str]:
    """Return the scenarios of this version that a run was audited under."""
    known = {*SCENARIOS.names(), *SCENARIOS.in_labs()}
    played = stored_scenarios(run)
    return [name for name in (*sorted(known), SCORES) if name in played]


def number_of(run: Run, scenario: str, secret: RunSecret) -> NotedNumber | None:
    """Return what the headline of an audit found, noised; None without fair coins.

    Raises:
        ConfigError: The run is a pool of several: noise hides one coin of a record.
        MissingFileError: The run was not audited so.
        TranscriptError: The audit is damaged.
    """
    if isinstance(run, ScoredRun) and run.is_pool:
        raise ConfigError(
            f"{run.name} pools several trainings, in each of which a record had a coin, and "
            "a card's noise hides one coin. Audit and export each training by itself."
        )
    if run.sampling != "coin":
        return None
    stored = read_audit(run, scenario)
    query = _asked(stored)
    truth = run.truth.is_member[query.records]
    noised = query.noised(truth, secret.noise(run.truth.hash, query.digest))
    return NotedNumber.of(query, run, scenario, noised)


def make_card(
    run: Run,
    numbers: Mapping[str, NotedNumber | None],
    secret: RunSecret,
    spent: LedgerTotal,
    logged: int | None = None,
    **said: Any,
) -> Card:
    """Return what may leave of a finished run: numbers of its audits, by scenario.

    Of the log of audits count as many lines as were there when the card was made, or
    all. Its day and what is released are ``said``.

    Raises:
        MissingFileError: An audit is gone.
        TranscriptError: The run or an audit is damaged, or another version wrote it.
    """
    run.transcript.check()
    try:
        log, plan = read_log(run)[:logged], plan_of(run)
        stored = {scenario: read_audit(run, scenario) for scenario in numbers}
        audits = {
            scenario: _audit(stored[scenario], number, secret, log, plan)
            for scenario, number in numbers.items()
        }
        return Card(
            privaudit=version("privaudit"),
            audits=audits,
            commitments=_commitments(run, secret, plan),
            ledger=spent,
            computed=_computed(run, stored),
            **facts_of(run, [one.contents for one in stored.values()]),
            **said,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise TranscriptError(
            f"{run.place} holds what no card can say: {first['msg']} at "
            f"{'.'.join(map(str, first['loc']))}. It was altered, or another version "
            "wrote it. Make the audit again with `privaudit attack`."
        ) from None


def facts_of(run: Run, audits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a card says of a run besides its audits, which are given as JSON."""
    return {
        "design": _design(run),
        "training": _training(run),
        "privacy": _privacy(run),
        "utility": utility_shown(run, audits),
    }


def _asked(stored: StoredAudit) -> RankQuery:
    clients = stored.clients(stored.attacks[0])
    return RankQuery.of([c.records for c in clients], [c.scores for c in clients])


def _audit(
    stored: StoredAudit,
    number: NotedNumber | None,
    secret: RunSecret,
    log: Sequence[LoggedAudit],
    plan: AuditPlan | None,
) -> AuditShown:
    headline, *_ = stored.attacks
    entry = stored.attack_result(headline)
    different, planned = _different(log, plan, headline, entry)
    auroc = _auroc(number, 1 - ALPHA / different) if number else None
    named, unnamed = _names(stored.attacks)
    return AuditShown(
        threat=str(stored.contents["threat"]).partition(":")[0],
        headline=_base(headline),
        settings=_settings(headline, entry),
        attacks=named,
        unnamed=unnamed,
        audits=max(1, len(log)),
        corrected_for=different,
        planned=planned,
        auroc=auroc,
        verdict=verdict_kind(auroc),
        scores=secret.commit(f"scores of {stored.scenario}", scores_digest(stored)),
    )


def _auroc(number: NotedNumber, confidence: float) -> NoisedAuroc:
    query, digits = number.query, _SD_DIGITS
    noise_sd, null_sd = round(query.noise_sd, digits), round(query.null_sd, digits)
    value = query.auroc(number.noised)
    low, high = interval(value, noise_sd, null_sd, confidence)
    return NoisedAuroc(
        value=value,
        low=low,
        high=high,
        confidence=confidence,
        candidates=len(query.records),
        noise_sd=noise_sd,
        null_sd=null_sd,
    )


def _different(
    log: Sequence[LoggedAudit],
    plan: AuditPlan | None,
    headline: str,
    entry: Mapping[str, Any],
) -> tuple[int, bool]:
    """Return among how many audits a headline stands, and whether it was planned.

    Audits that were asked for in different ways count apart even where they found the
    same: that two exact numbers are equal would be told by the count.
    """
    found = tally(log, plan, headline, Estimate.from_dict(entry["auroc"]))
    if plan is not None and found.planned and not found.deviations:
        asked = {_question(audit) for audit in log if audit.as_planned}
        return max(len(plan.audits), len(asked)), True
    return max(found.different, len({_question(audit) for audit in log})), False


def _question(audit: LoggedAudit) -> tuple[object, ...]:
    attacks = [(one.attack, one.settings, sum(one.n)) for one in audit.attacks]
    return audit.scenario, audit.seed, tuple(attacks)


def _settings(label: str, entry: Mapping[str, Any]) -> str | None:
    """Return an attack's parameters as its own code says them, or nothing.

    Of the labs' attacks, whose code is known but may not be here, as they are written.
    """
    said = str(entry["settings"])
    try:
        return repr(restore_attack(_base(label), said))
    except UnknownNameError:
        is_known = _base(label) in ATTACKS.in_labs() and is_written(_base(label), said)
        return said if is_known else None
    except (ConfigError, PluginError):
        return None


def _names(attacks: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the registered names of attacks, each once, and how many have none."""
    known = {*ATTACKS.names(), *ATTACKS.in_labs(), SCORES}
    bases = [_base(attack) for attack in attacks]
    named = dict.fromkeys(base for base in bases if base in known)
    return tuple(named), sum(base not in known for base in bases)


def _base(label: str) -> str:
    """Return what an attack is registered as: a label says more.

    Example:
        >>> _base("server model/max-renyi description 10 % order 1")
        'max-renyi'
    """
    return label.rpartition("/")[2].partition(" ")[0].partition(":")[0]


def scores_digest(stored: StoredAudit) -> str:
    """Return the SHA-256 of an audit's scores and all that stands beside them."""
    total = hashlib.sha256()
    for attack, columns in sorted(stored.columns.items()):
        for name, values in sorted(columns.items()):
            total.update(f"{attack}|{name}|{values.dtype}|{values.shape}|".encode())
            total.update(values.tobytes())
    return total.hexdigest()


def _design(run: Run) -> Design:
    grouped = "record" if run.truth.group is None else "group"
    by_client = not run.origin and run.config.members == "clients"
    return Design(
        sampling=run.sampling,
        unit="client" if by_client else grouped,
        clients=len(run.truth.clients),
    )


def _training(run: Run) -> Training:
    config = run.config
    if run.origin:  # its names are its owner's words
        origin = "scores" if run.origin == SCORES else "recorded"
        return Training(origin=origin, rounds=config.rounds)
    return Training(
        origin="trained",
        trainer=_registered(config.trainer, TRAINERS),
        dataset=_registered(config.dataset, DATASETS),
        model=_model(config.model),
        model_hash=run.header["model_hash"],
        rounds=config.rounds,
        randomness=config.randomness,
    )


def _computed(run: Run, stored: Mapping[str, StoredAudit]) -> dict[str, Computed]:
    """Return what is stated of how training and audits were computed.

    A build whose version is not written as one is left out.
    """
    said = {name: one.contents.get("computed") for name, one in stored.items()}
    if not run.origin:
        said["training"] = run.header.get("computed")
    return {
        name: Computed(
            bits=one["bits"],
            differing=len(one.get("differing", ())),
            builds={
                n: one["builds"][n]
                for n in get_args(Library)
                if re.fullmatch(BUILD, one["builds"].get(n, ""), re.ASCII)
            },
        )
        for name, one in said.items()
        if one
    }


def _registered(name: str, names: Registry[Any]) -> str | None:
    return name if names.has(name) else None


def _model(name: str) -> str | None:
    """Return a model's name; of one in a folder only what kind it is."""
    kind = name.partition(":")[0]
    with suppress(UnknownNameError, PluginError):
        sources = registry.MODELS.find(kind).sources
        in_folder = sources in (registry.FOLDER, registry.FOLDER_OR_HUB)
        return kind if in_folder else name
    return None


def _privacy(run: Run) -> Privacy:
    """Return what is claimed and certified.

    Where whole clients are members, how many took part tells how many are, and an owner's
    mechanisms may follow from counts of members, such as weights: then the mechanisms
    stay here, and what follows from them.
    """
    record = run.privacy
    claimed = Claimed(
        **{name: record["claimed"][name] for name in Claimed.model_fields}
    )
    if run.origin or _design(run).unit == "client":
        return Privacy(claimed=claimed, certified={}, mechanisms=())
    try:
        certified = {
            view: Certified(
                **{n: entry[n] for n in Certified.model_fields if n in entry}
            )
            for view, entry in record["certified"].items()
        }
        mechanisms = [
            Mechanism(**{**entry, "rounds": tuple(stretches(entry["rounds"]))})
            for entry in record["mechanisms"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise TranscriptError(
            f"{run.place}/privacy.json is none of this version's ({error!r:.200}): it "
            "was altered, or another version wrote it. Train again."
        ) from None
    return Privacy(claimed=claimed, certified=certified, mechanisms=tuple(mechanisms))


def utility_shown(run: Run, audits: Sequence[Mapping[str, Any]]) -> UtilityShown | None:
    """Return what an audit says of test records, which are nobody's candidates.

    Nothing of others' federations: which records their owner measures on is not known.
    """
    found = next((one["utility"] for one in audits if one.get("utility")), None)
    if run.origin or not found or not len(run.truth.tests):
        return None
    local = Estimate.from_dict(found["local"])
    metric = found.get("metric", "accuracy")
    if local.unresolved or metric not in METRICS:
        return None
    value, low, high = (
        round(end, _UTILITY_DIGITS) for end in (local.value, local.low, local.high)
    )
    return UtilityShown(metric=metric, value=value, low=low, high=high, n=local.n)


def _commitments(run: Run, secret: RunSecret, plan: AuditPlan | None) -> Commitments:
    return Commitments(
        ledger=secret.commit("ledger", run.truth.hash),
        data=secret.commit("data", run.header["data_hash"]),
        transcript=commit_transcript(run, secret),
        plan=secret.commit("plan", plan.hash) if plan else None,
    )


def commit_transcript(run: Run, secret: RunSecret) -> str:
    """Return what shows later that the transcript ended so."""
    return secret.commit("transcript", run.header["progress"]["head"])


def statement_of(run: Run, card: Card, models: Sequence[Path] = ()) -> Statement:
    """Return a card's statement about models, transcript, and the code that made it.

    The models are the run's own, and files that its owner releases. The transcript
    goes by its commitment: its head itself would confirm a guessed seed.
    """
    digests = {
        **subjects_of(run),
        **{f"model-{n}": file_hash(path) for n, path in enumerate(models, start=1)},
        CODE: code_digest(),
        "environment": _environment_digest(),
    }
    transcript = {"hmac-sha256": card.commitments.transcript}
    return Statement(
        type="https://in-toto.io/Statement/v1",
        predicate_type=PREDICATE,
        subject=(
            Subject(name=TRANSCRIPT, digest=transcript),
            *(Subject(name=n, digest={"sha256": one}) for n, one in digests.items()),
        ),
        predicate=card,
    )


MODELS = {PERSONAL: "personal-models", OWN_MODEL: "server-model"}


def subjects_of(run: Run) -> dict[str, str]:
    """Return the SHA-256 of a run's models, and of its session with an auditor."""
    files = run.files
    names = {MODELS[name]: name for name in MODELS if name in files}
    if session := session_of(run):
        names[f"session-{session.answered.number}"] = SESSION
    return {name: files[file] for name, file in names.items()}


CODE = "privaudit"


@cache
def code_digest() -> str:
    """Return a SHA-256 of this package's files, the same in a wheel and in a clone."""
    root, total = Path(str(privaudit.__file__)).parent, hashlib.sha256()
    found = [
        Path(folder, name)
        for folder, _, names in os.walk(root, followlinks=True)
        for name in names
        if not folder.endswith("__pycache__")
    ]
    for path in sorted(found, key=lambda one: one.relative_to(root).as_posix()):
        line = f"{path.relative_to(root).as_posix()} {file_hash(path)}\n"
        total.update(line.encode())
    return total.hexdigest()


def _environment_digest() -> str:
    """Return a SHA-256 of the installed packages, as lines of a lock file."""
    found = {f"{one.name.lower()}=={one.version}" for one in distributions()}
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def today() -> str:
    """Return the day, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
        budget: The epsilon that all cards of the ledger may have together.
    """

    folder: Path
    card: Card
    budget: float


def export_public(
    run: Run | str | Path | None = None,
    folder: str | Path = "public",
    *,
    scenarios: Sequence[str] = (),
    budget: float = BUDGET,
    runs: str | Path | None = None,
    release: Release | None = None,
    models: Sequence[Path] = (),
) -> Export:
    """Write what may leave of a run: one noised number an audit, and its verdict.

    The numbers are noted in the account of the run's ledger, and all its cards are
    attacked together, before the card is written. A number that an earlier card said
    costs nothing again. An earlier card of the run is replaced.

    Args:
        run: A finished run, or its name; the latest by default.
        folder: To be made: nothing else may be there.
        scenarios: Whose audits the card holds; by default all that were made.
        budget: Epsilon at delta 1e-5 of all cards of the ledger together, above 0.
        runs: Where runs are kept.
        release: What others get of the model.
        models: Files that are released, whose digests the card names.

    Raises:
        ConfigError: The run is unfinished, something else lies in the folder, the
            budget is spent, or a reader would learn more than chance allows.
        MissingFileError: There is no such run, or no such audit.
        TranscriptError: The run, an audit or the account is damaged.
        StorageError: A folder cannot be written.
    """
    above_zero("budget", budget)
    loaded = run if isinstance(run, Run) else load_run(run, folder=runs)
    loaded.require_complete()
    target = check_folder(local_path(folder))
    chosen = list(dict.fromkeys(scenarios)) or audited_scenarios(loaded)
    with opened(loaded) as (account, note):
        secret = secret_of(loaded)
        _check_free(target, loaded, secret)
        _check_whole(account, secret, loaded)
        numbers = {name: number_of(loaded, name, secret) for name in chosen}
        asked = [number for number in numbers.values() if number is not None]
        after = account.with_numbers(asked)
        if len(after.noted) > len(account.noted):
            after.check_budget(budget, account)
        after.check_readers()
        spent = LedgerTotal(
            numbers=len(after.noted), epsilon=round(after.epsilon, DIGITS)
        )
        card = make_card(loaded, numbers, secret, spent, made=today(), release=release)
        statement = statement_of(loaded, card, models)
        for key in after.noted.keys() - account.noted.keys():
            note(after.noted[key])
        keep(loaded, secret, [number.query.digest for number in asked])
    write_card(target / CARD, Envelope.of(statement.render()))
    return Export(target, card, budget)


def _check_whole(account: Account, secret: RunSecret, run: Run) -> None:
    """Refuse to count from an account that lacks what the run's cards have said."""
    lost = set(secret.released) - {digest for digest, _ in account.noted}
    if lost:
        raise TranscriptError(
            f"Earlier cards of {run.place} said {len(lost)} numbers that the account of "
            "its ledger does not have: it lies beside the owner's key, and was removed, "
            "set back or left on another machine. Restore it from a copy."
        )


def write_card(file: Path, envelope: Envelope) -> None:
    """Write a signed card that others may read, and the folder that it lies in."""
    text = f"{envelope.model_dump_json(indent=1, by_alias=True)}\n"
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_output(file, text.encode())
    with storage_errors(file):
        file.chmod(0o644)


def _check_free(target: Path, run: Run, secret: RunSecret) -> None:
    """Raise ConfigError unless a folder is free, or holds an earlier card of the run."""
    if not target.exists():
        return
    names = {path.name for path in target.iterdir()} if target.is_dir() else {"a file"}
    if not names or (names == {CARD} and _is_of(target, run, secret)):
        return
    raise ConfigError(
        f"{target} holds {', '.join(sorted(names)[:3])}, and is no earlier export of "
        f"{run.path}. Name another folder, or empty it."
    )


def _is_of(target: Path, run: Run, secret: RunSecret) -> bool:
    try:
        card = read_card(target).card
    except PrivauditError:
        return False
    return card.commitments.transcript == commit_transcript(run, secret)
