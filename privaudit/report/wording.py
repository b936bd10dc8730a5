"""Numbers and findings in words, the same ones in the terminal and on the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.core.formatting import epsilon, percent, small
from privaudit.privacy.certificate import REPEATABLE, guarantee_of, is_repeatable
from privaudit.statistics.estimate import Estimate

ADVERSARIES: Mapping[str, str] = {
    "server": (
        "the server, which keeps to the protocol and remembers all that it sends "
        "and receives"
    ),
    "server-aggregate": (
        "a server behind a secure sum, which sees what all clients send together but "
        "nothing of a single one"
    ),
    "peer": "another client, which sees what the server sends to it",
    "released": "somebody who is given a client's final model, and nothing else",
}

HEADINGS: Mapping[str, str] = {
    "leaks": "Leaks",
    "reversed": "Reversed",
    "no evidence": "No leak found",
    "underpowered": "Undecided",
}


def decision(audit: Audit) -> tuple[str, str]:
    """Return a run's verdict in words, and the kind that its colour follows from.

    "No leak found" is a result of an attack: it is green only where a proof stands
    behind it, and else followed by what is not proved. A refuted claim is red.
    """
    kind, assurance = audit.headline.verdict.kind, audit.assurance
    if kind == "leaks":
        return HEADINGS[kind], kind
    if assurance.kind == "refuted":
        return f"{HEADINGS[kind]}, {assurance.short}", "refuted"
    if kind == "no evidence" and assurance.kind == "unproved":
        return f"{HEADINGS[kind]}, {assurance.short}", "unproved"
    return HEADINGS[kind], kind


_FOUND: Mapping[str, str] = {
    "leaks": (
        "can tell which of a client's records were trained on, better than by tossing "
        "a coin"
    ),
    "reversed": (
        "can tell which of a client's records were trained on, better than by tossing "
        "a coin, if it turns this attack's scores round: members have the lower ones"
    ),
    "no evidence": (
        "could not tell by this attack which of a client's records were trained on"
    ),
    "underpowered": (
        "may or may not be able to tell which of a client's records were trained on: "
        "there are too few records to say"
    ),
}


USES: Mapping[str, tuple[str, str]] = {
    "accuracy": (
        "{} right on a client's own classes",
        ", {} on other clients' classes",
    ),
    "exact match": (
        "{} of the answers are exactly right where the question is about a client's "
        "own classes",
        ", {} where it is about other clients' classes",
    ),
    "F1": (
        "Answers share words with the right ones to {} where the question is of a "
        "client's own classes (F1, as SQuAD counts it)",
        ", to {} where it is of other clients' classes",
    ),
    "ROUGE-L": (
        "Captions agree with people's to {} on a client's own classes (ROUGE-L: words "
        "in common and in order)",
        ", to {} on other clients' classes",
    ),
}
"""What a score of one's own classes means, and of others', by metric."""


def writes(audit: Audit) -> bool:
    """Say whether a run's models answer in words."""
    return audit.utility.metric != "accuracy"


def metric(audits: Sequence[Audit]) -> str:
    """Return what use is measured by: "accuracy", "exact match", "ROUGE-L"."""
    return " or ".join(dict.fromkeys(audit.utility.metric for audit in audits))


def heading(text: str) -> str:
    """Return a text as a heading begins."""
    return text[:1].upper() + text[1:]


def untrained(audits: Sequence[Audit]) -> str:
    """Return what models are called that nothing was trained of."""
    names = {True: "untrained", False: "zero-shot"}
    return " or ".join(dict.fromkeys(names[writes(audit)] for audit in audits))


def adversary(threat: str) -> str:
    """Say who looks on."""
    view = _view(threat)
    return ADVERSARIES.get(view, f"an adversary with the view {view!r}")


def certificate(audit: Audit) -> Mapping[str, Any]:
    """Return what is proved for the scenario's adversary."""
    return audit.certificate


def certified(audit: Audit) -> str:
    """Return the certified epsilon, in brackets if the noise follows from a seed."""
    text = epsilon(audit.certified_epsilon)
    return f"({text})" if is_repeatable(audit.certificate) else text


def repeatable(audit: Audit) -> str:
    """Say what brackets around an epsilon mean; nothing where there are none."""
    if not is_repeatable(audit.certificate):
        return ""
    return (
        f"{heading(REPEATABLE)}: the run's noise follows from its seed, and whoever "
        f"guesses that subtracts it. ε = {certified(audit)} is what the same run would "
        "have under a secret key: train without --seed, or with --randomness system."
    )


def guarantee(audit: Audit) -> str:
    """Say what a certified epsilon is about: unit, adjacency and delta."""
    return guarantee_of(audit.certificate)


def _view(threat: str) -> str:
    """Return the kind of an adversary: "peer" of "peer:client-3"."""
    return threat.partition(":")[0]


def finding(audit: Audit) -> str:
    """Say who looked on and what was found, for somebody who knows no statistics."""
    leak = audit.headline
    who = adversary(audit.scenario.threat).partition(",")[0]  # the rest stands above
    found = f"{who[0].upper()}{who[1:]} {_FOUND[leak.verdict.kind]}."
    return " ".join(filter(None, (found, _odds(leak), ties(leak))))


def ties(leak: AttackResult) -> str:
    """Say how many candidates no threshold tells apart; nothing if all differ."""
    if not leak.tied:
        return ""
    count = sum(len(client.scores) for client in leak.clients)
    return (
        f"{leak.tied} of {count} candidates share their score with another of the same "
        "client, which no threshold parts."
    )


def _odds(leak: AttackResult) -> str:
    auroc = leak.auroc
    if auroc.unresolved:
        return ""
    return (
        "Shown one record of a client that was trained on and one that was not, the "
        f"attack “{leak.attack}” points at the right one in {100 * auroc.value:.1f} of "
        f"100 cases ({percent(auroc.confidence)} interval {100 * auroc.low:.1f} to "
        f"{100 * auroc.high:.1f}; a coin: 50)."
    )


def linking(audit: Audit) -> str:
    """Say what prompts without names told beyond the average; nothing without any."""
    found = audit.linking
    if found is None:
        return ""
    gain = found.headline.estimate
    if not gain.excludes(0):
        learned = "no clear difference to"
    else:
        learned = "more than" if gain.value > 0 else "less than"
    peer = audit.scenario.threat.partition(":")[2]
    return (
        f"The adversary is {peer}. A PromptFL client gets the average only, from which "
        f"“{found.attack}” has an AUROC of {point(found.alone)} "
        f"{interval(found.alone)}. This one also got {found.suspects} prompts "
        "without names; taking the likeliest for each client changes that by "
        f" {point(gain, signed=True)} {interval(gain)}: {learned} what "
        "a PromptFL client learns. The prompt taken was the client's own in "
        f"{rate(found.right)} of {sum(found.right.n)} cases (by chance "
        f"{100 * found.chance:.1f} %)."
    )


def attacked(audit: Audit) -> str:
    """Say how many clients were attacked, and on how many records."""
    these, everyone = len(audit.headline.clients), audit.run.config.clients
    whom = f"{these} of {everyone} clients" if these < everyone else "all clients"
    members, others = audit.auroc.n
    return f"{members} records trained on, {others} not, of {whom}"


def privacy_sort(audit: Audit) -> str:
    """Say in three words what the method does for privacy."""
    if any(m["noise_multiplier"] > 0 for m in audit.run.privacy["mechanisms"]):
        return "adds noise for privacy"
    if audit.run.privacy["claimed"]["epsilon"] == 0:
        return "trains nothing"
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


def setting(value: Any) -> str:
    """Return a setting as a reader would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {setting(entry)}" for key, entry in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def use(audit: Audit) -> str:
    """Say what the models are good for."""
    utility = audit.utility
    neighbour = utility.neighbour
    own, other = USES[utility.metric]
    others = other.format(rate(neighbour)) if neighbour else ""
    gain = utility.gain
    if not gain.excludes(0):
        beyond = "no clear difference from"
    else:
        beyond = "more than" if gain.value > 0 else "less than"
        beyond = f"{abs(100 * gain.value):.1f} points {beyond}"
    return (
        f"{own.format(rate(utility.local))}{others}; {beyond} the "
        f"untrained model on the same records ({gain.value:+.3f} {interval(gain)})."
    )


def rate(estimate: Estimate) -> str:
    """Return a share in per cent, with its interval."""
    return f"{100 * estimate.value:.1f} % {_in_per_cent(estimate)}".strip()


def _in_per_cent(estimate: Estimate) -> str:
    if estimate.unresolved:
        return ""
    return f"[{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def proof(audit: Audit) -> str:
    """Say what is claimed and what is proved about the run's privacy."""
    proved = certificate(audit)
    claimed = audit.claimed_epsilon
    if claimed is None:
        claim = "The method claims no differential privacy"
    else:
        claim = f"The method claims ε = {epsilon(claimed)} by its own formula"
    if proved["epsilon"] is None:
        return f"{claim}; against this adversary nothing is proved. {proved['why']}"
    bound = f"ε = {epsilon(proved['epsilon'])} at δ = {small(proved['delta'])}"
    if is_repeatable(proved):
        return (
            f"{claim}; {repeatable(audit)} Then {bound} would be proved against this "
            f"adversary. {proved['why']}"
        )
    return f"{claim}; against this adversary {bound} is proved. {proved['why']}"
