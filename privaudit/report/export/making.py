"""How a card is made of a run: what it says is named here, and nothing else is read."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, get_args

from pydantic import ValidationError

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.named_attacks import restore_attack
from privaudit.auditing.repetition.audit_log import LoggedAudit, read_log, tally
from privaudit.auditing.repetition.plan import AuditPlan, plan_of
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.storage.load import StoredAudit, read_audit, stored_scenarios
from privaudit.core.errors import (
    ConfigError,
    PluginError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.core.registry import Registry
from privaudit.datasets.dataset import DATASETS
from privaudit.evaluation.card import (
    BUILD,
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
    Training,
    UtilityShown,
    verdict_of,
)
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import METRICS
from privaudit.federated.trainer import TRAINERS
from privaudit.models import registry
from privaudit.privacy.noised_auroc import RankQuery, interval
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.account import NotedNumber
from privaudit.report.export.run_secret import RunSecret
from privaudit.statistics.estimate import Estimate

ALPHA = 0.05
_SD_DIGITS = 6
_UTILITY_DIGITS = 3


def audited_scenarios(run: Run) -> list[str]:
    """Return the scenarios of this version that a run was audited under."""
    played = stored_scenarios(run)
    return [name for name in (*SCENARIOS.names(), SCORES) if name in played]


def number_of(run: Run, scenario: str, secret: RunSecret) -> NotedNumber | None:
    """Return what the headline of an audit found, noised; None without fair coins.

    Raises:
        MissingFileError: The run was not audited so.
        TranscriptError: The audit is damaged.
    """
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
) -> Card:
    """Return what may leave of a run.

    Args:
        run: A finished one.
        numbers: What its audits found, by scenario.
        secret: Of its commitments.
        spent: What all cards of its ledger say, with this one.
        logged: How many lines of the log of audits count: those that were there when
            the card was made. None for all.

    Raises:
        MissingFileError: An audit is gone.
        TranscriptError: The run or an audit is damaged, or another version wrote it.
    """
    run.transcript.check()
    try:
        return _make(run, numbers, secret, spent, logged)
    except ValidationError as error:
        first = error.errors()[0]
        raise TranscriptError(
            f"{run.place} holds what no card can say: {first['msg']} at "
            f"{'.'.join(map(str, first['loc']))}. It was altered, or another version "
            "wrote it. Make the audit again with `privaudit attack`."
        ) from None


def _make(
    run: Run,
    numbers: Mapping[str, NotedNumber | None],
    secret: RunSecret,
    spent: LedgerTotal,
    logged: int | None,
) -> Card:
    log, plan = read_log(run)[:logged], plan_of(run)
    stored = {scenario: read_audit(run, scenario) for scenario in numbers}
    audits = {
        scenario: _audit(stored[scenario], number, secret, log, plan)
        for scenario, number in numbers.items()
    }
    return Card(
        privaudit=version("privaudit"),
        design=_design(run),
        training=_training(run),
        privacy=_privacy(run),
        utility=utility_shown(run, [one.contents for one in stored.values()]),
        audits=audits,
        commitments=_commitments(run, secret, plan),
        ledger=spent,
        computed=_computed(run, stored),
    )


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
    entry = stored.leak(headline)
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
        verdict=verdict_of(auroc).kind,
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
    tried = tally(log, plan, headline, Estimate.from_dict(entry["auroc"]))
    if plan is not None and tried.planned and not tried.deviations:
        asked = {_question(audit) for audit in log if audit.as_planned}
        return max(len(plan.audits), len(asked)), True
    return max(tried.different, len({_question(audit) for audit in log})), False


def _question(audit: LoggedAudit) -> tuple[object, ...]:
    attacks = [(one.attack, one.settings, sum(one.n)) for one in audit.attacks]
    return audit.scenario, audit.seed, tuple(attacks)


def _settings(label: str, entry: Mapping[str, Any]) -> str | None:
    """Return an attack's parameters as its own code says them, or nothing."""
    try:
        return repr(restore_attack(_base(label), str(entry["settings"])))
    except (ConfigError, PluginError):
        return None


def _names(attacks: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the registered names of attacks, each once, and how many have none."""
    known = {*ATTACKS.names(), SCORES}
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
    return name if name in names.names() else None


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
            Mechanism(**{**entry, "rounds": len(entry["rounds"])})
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
