"""Sentences about numbers and findings, for the terminal and the page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_log import AuditTally
from privaudit.auditing.named_attacks import shadows_of
from privaudit.auditing.parts.pool import POOL
from privaudit.core.formatting import epsilon, first_of, percent, small
from privaudit.privacy.certificate import (
    REPEATABLE,
    is_repeatable,
    reconstruction_sentence,
)
from privaudit.recording.origins.scores import SCORES
from privaudit.runs.utility import OWNERS
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import top_of

MOST_NAMED = 3  # clients, in a sentence


@dataclass(frozen=True)
class UnitWords:
    """What has a coin of its own, as sentences name it.

    Attributes:
        kinds: What an attack separates, "members from non-members of a client".
        members: Those with a coin for training.
        records: In "too few records".
        the_member: The one that was trained on.
        n_members: Behind the number of those with a coin for training.
        n_others: Behind the number of the others.
        tied: Behind the number of those with tied scores.
    """

    kinds: str = "members from non-members of a client"
    members: str = "members"
    records: str = "records"
    one_of_each: str = "one member and one non-member of a client"
    the_member: str = "the member"
    n_members: str = "members"
    n_others: str = "non-members"
    tied: str = "candidates are tied with another of the same client"


OF_RECORDS = UnitWords()
OF_GROUPS = UnitWords(
    records="groups of records that share a coin",
    one_of_each="one group of members and one of non-members, each of records that share "
    "a coin, of a client",
    the_member="the group of members",
    n_members="groups of members",
    n_others="groups of non-members",
    tied="groups of candidates are tied with another of the same client",
)
OF_CLIENTS = UnitWords(
    kinds="clients that took part from clients that did not",
    members="clients that took part",
    records="clients",
    one_of_each="one client of each kind",
    the_member="the one that took part",
    n_members="that took part",
    n_others="that did not",
    tied="clients are tied",
)

GROUPS = "groups of records that share a coin"
ADVERSARIES: Mapping[str, str] = {
    "server": (
        "an honest-but-curious server, which follows the protocol and records all that "
        "it sends and receives"
    ),
    "server-aggregate": (
        "a server behind secure aggregation, which sees the sum of the clients' updates "
        "but no single update"
    ),
    "peer": "another client, which sees what the server sends to it",
    SCORES: "whoever can compute these scores of a record",
    "released": "an outsider with a client's released final model, and nothing else",
}

TAIL = "Leaks in the tail"
HEADINGS: Mapping[str, str] = {
    "leaks": "Leaks",
    "reversed": "Separates, sign turned",
    "no evidence": "No leak found",
    "underpowered": "Undecided",
    "sampling unknown": "No verdict",
}


def decision(audit: Audit) -> str:
    """Return a run's verdict in words, with what would decide it, or what is not proved.

    "No leak found" is a result of one attack, and a refuted claim is bad news whatever
    the attack found: neither stands alone.
    """
    verdict, assurance = audit.verdict, audit.assurance
    kind, said = verdict.kind, HEADINGS[verdict.kind]
    if verdict.parts == ("tail",):
        return TAIL
    if more := verdict.further:
        said += f", {more} more training{'s' * (more > 1)}"
    missing = assurance.kind == "refuted" or kind == "no evidence"
    if kind == "leaks" or not (missing and assurance.short):
        return said
    return f"{said}, {assurance.short}"


_FOUND: Mapping[str, str] = {
    "leaks": "can tell {kinds} better than by random guessing",
    "tail": "can tell some {members} by their scores, the highest of all, if not most",
    "reversed": (
        "can tell {kinds} better than by random guessing if the sign of the attack's "
        "scores is turned: {members} have the lower ones. This is no all-clear, but a "
        "finding to look into"
    ),
    "no evidence": "could not tell {kinds} with this attack",
    "underpowered": (
        "may or may not be able to tell {kinds}: there are too few {records} to decide"
    ),
    "sampling unknown": (
        "may or may not be able to tell who was trained on: nobody declares that a fair "
        "coin chose the members, so the two groups may differ without any training"
    ),
}


UTILITY_SENTENCES: Mapping[str, tuple[str, str]] = {
    "accuracy": (
        "Accuracy {} on a client's own classes",
        ", {} on other clients' classes",
    ),
    "exact match": (
        "Exact match {} on questions about a client's own classes",
        ", {} about other clients' classes",
    ),
    "F1": (
        "Token F1 of the answers, as in SQuAD, {} on questions about a client's own "
        "classes",
        ", {} about other clients' classes",
    ),
    "ROUGE-L": (
        "ROUGE-L of the captions against the references {} on a client's own classes",
        ", {} on other clients' classes",
    ),
    OWNERS: (
        "The owner's measure of utility is {} on a client's own classes",
        ", {} on other clients' classes",
    ),
}
"""Sentences on utility for own classes and other clients' classes, by metric."""
PLAIN = ("accuracy", OWNERS)  # metrics of models that need not write


def writes(audit: Audit) -> bool:
    """Say whether a run's models generate text."""
    return audit.utility is not None and audit.utility.metric not in PLAIN


def heading(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def adversary(threat: str) -> str:
    """Describe the adversary of a threat model."""
    view = threat.partition(":")[0]  # "peer" of "peer:client-3"
    return ADVERSARIES.get(view, f"an adversary with the view {view!r}")


def certified(audit: Audit) -> str:
    """Return the certified epsilon, in brackets if the noise follows from a seed.

    One that is declared alone is called that.
    """
    text = epsilon(audit.certified_epsilon, audit.declared_epsilon)
    return f"({text})" if is_repeatable(audit.certificate) else text


def repeatable(audit: Audit) -> str:
    """Explain the brackets around a certified epsilon; empty if there are none."""
    if not is_repeatable(audit.certificate):
        return ""
    return (
        f"{heading(REPEATABLE)}: the run's noise follows from its seed, and whoever "
        f"guesses that subtracts it. ε = {certified(audit)} is what the same run would "
        "have under a secret key: train without --seed, or with --randomness system."
    )


def timed_verdict(audit: Audit) -> str:
    """Return a verdict with what would decide it, and in what time, training and shadows.

    For whoever waits: times differ by machine, and a page is the same on all.
    """
    if pool := audit.part(POOL):
        return audit.verdict.said(pool.seconds)
    paid = audit.budget.each * audit.budget.shadows if audit.budget else 0.0
    trained = audit.run.training_seconds
    return audit.verdict.said(trained and trained + paid)


def finding(audit: Audit) -> str:
    """State the finding for a reader without statistics."""
    tied = ties(audit.headline, _unit(audit))
    return " ".join(filter(None, (found(audit), odds(audit), tied)))


def found(audit: Audit) -> str:
    """Say whether the adversary can tell who was trained on, without a number."""
    who = heading(adversary(audit.scenario.threat).partition(",")[0])
    verdict = audit.headline.verdict
    what = "tail" if verdict.parts == ("tail",) else verdict.kind
    said = _FOUND[what].format(**vars(_unit(audit)))
    return f"{who} {said}."


def _unit(audit: Audit) -> UnitWords:
    if audit.scenario.unit != "record":
        return OF_CLIENTS
    return OF_GROUPS if counts_groups(audit) else OF_RECORDS


def ties(result: AttackResult, unit: UnitWords = OF_RECORDS) -> str:
    """Count the candidates with tied scores; empty if there are none."""
    if not result.tied:
        return ""
    count = sum(len(client.scores) for client in result.clients)
    return f"{result.tied} of {count} {unit.tied}; no threshold separates them."


def odds(audit: Audit) -> str:
    """State the named attack's AUROC as a bet on two records; empty where unresolved."""
    result, unit, auroc = audit.headline, _unit(audit), audit.auroc
    if auroc.unresolved:
        return ""
    is_turned = result.verdict.kind == "reversed"
    turned = f"; with the sign turned: {100 * (1 - auroc.value):.1f}" * is_turned
    test, is_tail = result.verdict.test, result.verdict.parts == ("tail",)
    tail = f"{top_of(test)}. " if test and is_tail else ""
    return (
        f"{tail}Given {unit.one_of_each}, the attack "
        f"“{result.attack}”, named beforehand, identifies {unit.the_member} in "
        f"{100 * auroc.value:.1f} of 100 cases ({percent(auroc.confidence)} interval "
        f"{100 * auroc.low:.1f} to {100 * auroc.high:.1f}, n = {auroc.n[0]} "
        f"{unit.n_members} + {auroc.n[1]} {unit.n_others}; random guessing: "
        f"50{turned})."
    )


def attacked(audit: Audit) -> str:
    """Return the number of attacked clients and records."""
    these, everyone = len(audit.headline.clients), audit.run.config.clients
    whom = f"{these} of {everyone} clients" if these < everyone else "all clients"
    members, others = audit.auroc.n
    if audit.scenario.unit == "client":
        return f"all of {members} clients that took part and {others} that did not"
    unit = f" ({GROUPS})" if counts_groups(audit) else ""
    return f"{members} members and {others} non-members{unit} of {whom}"


def absent(audit: Audit) -> str:
    """Say which clients could not be attacked, since they trained nothing."""
    run = audit.run
    if audit.scenario.unit == "client" or not run.metrics:
        return ""
    names = sorted({*run.truth.clients}.difference(*run.participants))
    sent = "sent nothing that was recorded" if run.origin else "took part in no round"
    return (
        f"Not attacked: {first_of(names, MOST_NAMED)}, which {sent}." if names else ""
    )


def strength(result: AttackResult) -> str:
    """Return an attack with what it had to spend: "rmia (16 shadow models)"."""
    count = shadows_of(result.settings)
    spent = "" if count is None else f" ({count} shadow models)"
    return f"{result.attack}{spent}"


def unpaid(audit: Audit) -> list[str]:
    """Say that a budget paid for no shadow models; nothing if it did."""
    bought = audit.budget
    return [bought.sentence] if bought and not bought.shadows else []


def audits_made(audit: Audit) -> str:
    """Say how often the run was audited, and what the verdict makes of that."""
    made, different = audit.tally.made, audit.tally.different
    if audit.tally.planned:
        return _planned(audit.tally)
    if made == 1:
        return "The run's log holds no other audit."
    said = f"The run's log holds {made} audits"
    if different == 1:
        return f"{said}, of one result: there was nothing to choose from."
    return (
        f"{said}, with {different} different results: each verdict is corrected for "
        f"{different}, so that the best of them counts as one of {different}. A scenario's "
        "folder holds its last audit: copy it to keep one."
    )


def _planned(tally: AuditTally) -> str:
    """Say whether an audit is as it was planned before training."""
    if tally.deviations:
        return (
            f"Not as planned before training: {'; '.join(tally.deviations)}. The run's "
            f"log holds {tally.made} audits, and the verdict is corrected for "
            f"{tally.different}."
        )
    many = tally.different > 1
    corrected = f"; verdicts are corrected for its {tally.different} audits" * many
    return f"As planned before training{corrected}."


def counts_groups(audit: Audit) -> bool:
    """Say whether n counts groups of records in place of records."""
    return audit.run.truth.group is not None


def remote_code(audit: Audit) -> str:
    """Say that the model was allowed to run code of its own; empty if it was not."""
    if not audit.run.ran_remote_code:
        return ""
    return (
        "The model was allowed to run code of its own (--trust-remote-code): that the "
        "record is what happened rests on that code, too."
    )


def privacy_sort(audit: Audit) -> str:
    """Return the method's kind of privacy protection."""
    if any(m["noise_multiplier"] > 0 for m in audit.run.privacy["mechanisms"]):
        return "adds DP noise"
    if audit.run.privacy["claimed"]["epsilon"] == 0:
        return "trains nothing"
    if audit.run.origin:
        return "no mechanism declared"
    return "no privacy mechanism"


def point(estimate: Estimate, *, signed: bool = False) -> str:
    """Return an estimate's value alone; "unresolved" where there is none."""
    if math.isnan(estimate.value):
        return "unresolved"
    return f"{estimate.value:+.3f}" if signed else f"{estimate.value:.3f}"


def interval(estimate: Estimate) -> str:
    """Return an estimate's interval alone, or why there is none."""
    if estimate.unresolved:
        return estimate.unresolved
    return f"[{estimate.low:.3f}, {estimate.high:.3f}]"


@dataclass(frozen=True)
class TableCell:
    """A number as it is printed.

    Attributes:
        value: With three decimals, or "unresolved".
        interval: In brackets, or why there is none; empty where nothing was measured.
        counts: Its n, in parts; empty where nothing was counted.
        note: Small below it, in a page's table.
    """

    value: str
    interval: str = ""
    counts: str = ""
    note: str = ""

    @classmethod
    def of(cls, estimate: Estimate, *, signed: bool = False) -> "TableCell":
        """Return an estimate as it is printed."""
        counts = " + ".join(str(count) for count in estimate.n)
        return cls(point(estimate, signed=signed), interval(estimate), counts)

    def __str__(self) -> str:
        """Return value and interval; reasons are left to where there is room."""
        if not self.interval.startswith("["):
            return self.value
        return f"{self.value} {self.interval}"


NOTHING = "\N{EN DASH}"  # in a cell


TableRows = list[Sequence[str | TableCell]]
"""Of a page's table: the first cell is the row's head."""


def setting(value: Any) -> str:
    """Return a setting as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {setting(entry)}" for key, entry in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def utility_sentence(audit: Audit) -> str:
    """Return a sentence on the models' utility; empty where it was not measured."""
    utility = audit.utility
    if utility is None:
        return ""
    neighbour = utility.neighbour
    own, other = UTILITY_SENTENCES[utility.metric]
    others = other.format(rate(neighbour)) if neighbour else ""
    measured = f"{own.format(rate(utility.local))}{others}"
    sample = ""
    if utility.tested_clients is not None:
        sample = (
            f" Measured on a random sample of {utility.tested_clients:,} of "
            f"{audit.run.config.clients:,} clients, which the intervals count."
        )
    return f"{measured}{_beyond_untrained(utility.gain)}.{sample}"


def _beyond_untrained(gain: Estimate | None) -> str:
    """Return what training added, as the end of a sentence."""
    if gain is None:
        return ""
    if not gain.excludes(0):
        beyond = "no clear difference from"
    else:
        beyond = "more than" if gain.value > 0 else "less than"
        beyond = f"{abs(100 * gain.value):.1f} points {beyond}"
    return (
        f"; {beyond} the untrained model on the same records "
        f"({gain.value:+.3f} {interval(gain)})"
    )


def rate(estimate: Estimate) -> str:
    """Return a share in per cent, with its interval."""
    value = f"{100 * estimate.value:.1f} %"
    if estimate.unresolved:
        return value
    return f"{value} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def proof(audit: Audit) -> str:
    """Return the run's claimed and certified privacy guarantee."""
    proved = audit.certificate
    claimed = audit.claimed_epsilon
    if claimed is None:
        claim = "The method claims no differential privacy"
    else:
        claim = f"The method claims ε = {epsilon(claimed)} by its own formula"
    if audit.declared_epsilon is not None:
        claim += f", and its mechanisms are declared to give ε = {epsilon(audit.declared_epsilon)}"
    if proved["epsilon"] is None:
        return f"{claim}; against this adversary nothing is proved. {proved['why']}"
    bound = f"ε = {epsilon(proved['epsilon'])} at δ = {small(proved['delta'])}"
    if is_repeatable(proved):
        return (
            f"{claim}; {repeatable(audit)} Then {bound} would be proved against this "
            f"adversary. {proved['why']}"
        )
    allowed = reconstruction_sentence(proved)
    return (
        f"{claim}; against this adversary {bound} is proved: {allowed}. {proved['why']}"
    )
