"""What may leave of an audit: numbers about many records, made again from the scores.

A figure on fewer than ten members or ten others stays behind. If that befalls one
client, figures by client stay behind for all: the missing one would follow from the
total and the others. Likewise an attack on some candidates stays behind if the
remaining ones, which another attack may have had, are too few: they would be the
difference.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from privaudit.auditing.attack_result import AttackResult, evaluate_scores
from privaudit.auditing.parts.server_model import SERVER
from privaudit.auditing.repetition.audit_log import LoggedAudit, Tried, tally
from privaudit.auditing.repetition.correction import corrected
from privaudit.auditing.repetition.plan import AuditPlan
from privaudit.auditing.scenario import find_plan
from privaudit.auditing.storage.load import StoredAudit, read_audit
from privaudit.core.errors import TranscriptError, shown
from privaudit.federated.runs.runs import Run
from privaudit.report.export.allow_list import LEFT_OUT, AllowList
from privaudit.report.export.hmac import seal
from privaudit.report.export.rules import AUDIT, LEAK
from privaudit.report.export.texts import attack_words, is_label
from privaudit.statistics.estimate import Estimate

AUDITS = "audits"
Count = Callable[[str, Estimate], Tried]  # of a headline's name and AUROC
FEWEST = 10  # members, and as many others, in any figure


def public_audit(
    run: Run,
    scenario: str,
    key: Callable[[], bytes],
    sieve: AllowList,
    log: Sequence[LoggedAudit] = (),
    plan: AuditPlan | None = None,
) -> dict[str, Any]:
    """Return what may leave of a run's audit.

    Args:
        run: The run.
        scenario: Its name.
        key: Of the sealed hashes.
        sieve: Notes what stays behind.
        log: The audits that the verdict counts.
        plan: Of the audits, if there was one.

    Raises:
        UnknownNameError: No scenario has that name.
        MissingFileError: There is no such audit.
        TranscriptError: It is damaged, or does not say what its scores give.
    """
    question = find_plan(scenario).question
    stored = read_audit(run, scenario)
    place = f"{AUDITS}/{scenario}/audit.json"
    return {
        "question": question,
        **recorded(stored.contents, sieve, place),
        **_found(stored, sieve, place, partial(tally, log, plan)),
        "scores": {"sealed": seal(key(), f"scores of {scenario}", _hash(stored))},
    }


def recorded(
    contents: Mapping[str, Any], sieve: AllowList, place: str
) -> dict[str, Any]:
    """Return what may leave of audit.json besides what attacks found.

    No scores are kept for it, so only an attack that is played again can check it.
    """
    public: dict[str, Any] = AUDIT(sieve, contents, place)
    public["rounds"] = [
        one
        for index, one in enumerate(public.get("rounds", []))
        if _all_large(
            one.get("by_round", {}).values(), sieve, f"{place}/rounds/{index}"
        )
    ]
    for part, names in (("source", ("members", "others")), ("one_run", ("bound",))):
        entry = public.get(part)
        figures = [entry.get(name) or {} for name in names] if entry else []
        if not _all_large(figures, sieve, f"{place}/{part}"):
            public[part] = None
    return public


def _found(
    stored: StoredAudit, sieve: AllowList, place: str, count: Count
) -> dict[str, Any]:
    """Return what each attack found, by clients' models and by the server's own."""
    results: dict[str, Any] = {"leaks": {}, "server_model": {}}
    unknown = 0
    for attack in stored.attacks:
        name = attack.removeprefix(SERVER)
        if not is_label(name):
            sieve.odd.append(f"{place}/{name}")
            unknown += 1
            continue
        part = "leaks" if name == attack else "server_model"
        try:
            leak = _leak(stored, attack, sieve, f"{place}/{part}/{name}", count)
        except (KeyError, TypeError, ValueError) as error:
            raise TranscriptError(
                f"{place} does not hold what an audit holds of {name} ({error!r}): it "
                "was altered, or written by another version. Make the audit again with "
                "`privaudit attack`."
            ) from None
        if leak is not None:
            results[part][name] = leak
    return {**results, **({"unknown_attacks": unknown} if unknown else {})}


def _leak(
    stored: StoredAudit,
    attack: str,
    sieve: AllowList,
    place: str,
    count: Count,
) -> dict[str, Any] | None:
    """Return what an attack found; None if it was on too few records."""
    entry, name = stored.leak(attack), attack.removeprefix(SERVER)
    leak = evaluate_scores(
        name,
        entry["settings"],
        entry["threshold"],
        stored.clients(attack),
        entry.get("package", ""),
        stored.run.sampling,
    )
    if attack == stored.attacks[0]:
        leak = _counted(leak, entry, count(attack, leak.auroc), stored)
    again = leak.to_dict()
    public, stored_leak = LEAK(AllowList(), again, place), LEAK(sieve, entry, place)
    for key in public:
        if key == "verdict" and attack == stored.attacks[0]:
            continue  # of the audits that were made by then
        if stored_leak.get(key) != public[key]:
            raise TranscriptError(
                f"{place}/{key} is not what the scores beside it give: one of the two "
                "was altered, or written by another version. Make the audit again with "
                "`privaudit attack`."
            )
    public |= _words(name, entry, sieve, place)
    public["verdict"] = again["verdict"]
    pooled = again["tpr_at_fpr"].values()
    rest = [{"n": n} for n in _counts_of_rest(stored, attack)]
    if not _all_large([*pooled, *rest], sieve, place):
        return None
    if not _by_client_may_leave(again):
        sieve.few.append(f"{place}/by_client")
        del public["by_client"]
    return public


def _counted(
    leak: AttackResult, entry: Mapping[str, Any], tried: Tried, stored: StoredAudit
) -> AttackResult:
    """Return a headline corrected for all audits; its own file was for those before.

    Raises:
        ValueError: The file has a verdict that no number of audits gives.
    """
    counts = (Tried(count, count) for count in range(1, tried.different + 1))
    found = [corrected(leak, one, stored.run.sampling) for one in counts]
    said = entry["verdict"]["kind"]
    if said not in {one.verdict.kind for one in found}:
        raise ValueError(f"the verdict {shown(said)}")
    return found[-1]


def _words(
    attack: str, entry: Mapping[str, Any], sieve: AllowList, place: str
) -> dict[str, str]:
    """Return what an attack says of itself, and where its file says otherwise."""
    said = attack_words(attack, entry["settings"])
    for key in ("settings", "threshold", "description"):
        if key not in said or entry.get(key, said[key]) != said[key]:
            sieve.odd.append(f"{place}/{key}")
            said[key] = LEFT_OUT
    return said


def _counts_of_rest(stored: StoredAudit, attack: str) -> list[list[int]]:
    """Return members and others among trained clients' candidates not attacked.

    Groups that share a coin count once, as in the audit. Nothing if all were.
    """
    ledger = stored.run.truth
    rest = np.isin(ledger.owner, _trained(stored.run))
    if ledger.group is not None:
        rest &= ledger.group == np.arange(len(rest))
    rest[stored.columns[attack]["records"]] = False
    members = int(ledger.is_member[rest].sum())
    return [[members, int(rest.sum()) - members]] if rest.any() else []


def _trained(run: Run) -> list[int]:
    """Return the clients that took part in a round, by number."""
    seen = {client for clients in run.participants for client in clients}
    return [n for n, client in enumerate(run.truth.clients) if client in seen]


def _by_client_may_leave(leak: Mapping[str, Any]) -> bool:
    counts = [entry["n"] for entry in leak["by_client"].values()]
    total = next(iter(leak["tpr_at_fpr"].values()))["n"]
    complete = [sum(column) for column in zip(*counts, strict=True)] == list(total)
    return complete and min(map(min, counts)) >= FEWEST


def _all_large(
    entries: Iterable[Mapping[str, Any]], sieve: AllowList, place: str
) -> bool:
    """Say whether all estimates are on enough records; note it if one is not."""
    if all(min(entry.get("n") or [0]) >= FEWEST for entry in entries):
        return True
    sieve.few.append(place)
    return False


def _hash(stored: StoredAudit) -> str:
    """Return the SHA-256 of an audit's scores and all that stands beside them."""
    total = hashlib.sha256()
    for attack, columns in sorted(stored.columns.items()):
        for name, values in sorted(columns.items()):
            total.update(f"{attack}|{name}|{values.dtype}|{values.shape}|".encode())
            total.update(values.tobytes())
    return total.hexdigest()
