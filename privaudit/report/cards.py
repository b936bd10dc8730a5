"""The findings, run by run: the top of the page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.auditing.audit import Audit
from privaudit.report import wording
from privaudit.report.decision.badges import leak_badge, promise_badge
from privaudit.report.tables.one_run_table import claim_kind, one_run_sentences
from privaudit.report.tables.other_attacks import others_sentence
from privaudit.report.tables.parts import card_paragraphs


def summary(audits: Sequence[Audit]) -> str:
    """Say in one sentence how many runs leak."""
    if len(audits) == 1:
        return ""
    kinds = Counter[str](audit.headline.verdict.kind for audit in audits)
    return f"Of {len(audits)} runs, {counted(kinds)}.{_hidden(audits)}{_claims(audits)}"


def counted(kinds: Mapping[str, int]) -> str:
    """Say how many verdicts of each kind there are."""
    parts = {
        "leaks": "{} leak",
        "reversed": "{} separated with the sign turned",
        "no evidence": "no leak found in {}",
        "underpowered": "{} underpowered",
        "sampling unknown": "{} without a verdict",
    }
    return ", ".join(
        text.format(kinds[kind]) for kind, text in parts.items() if kinds.get(kind)
    )


def _claims(audits: Sequence[Audit]) -> str:
    """Say what was found about claimed epsilons, where that was asked."""
    kinds = Counter[str](filter(None, map(claim_kind, audits)))
    if not kinds:
        return ""
    tally = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f" Claims on ε: {tally}."


def _hidden(audits: Sequence[Audit]) -> str:
    """Say of how many runs that are not said to leak another attack says so."""
    quiet = [audit for audit in audits if audit.headline.verdict.kind != "leaks"]
    count = sum(1 for audit in quiet if others_sentence(audit))
    if not count:
        return ""
    rest = "them" if len(quiet) == len(audits) else "the others"
    return f" In {count} of {rest}, another attack shows a leak."


def card(label: str, audit: Audit) -> dict[str, Any]:
    """Return a run's verdict in plain words."""
    return {
        "label": label,
        "leak": leak_badge(audit),
        "promise": promise_badge(audit),
        "unproved": audit.assurance.sentence,
        "others": wording.heading(others_sentence(audit)),
        "picked": len(audit.results) > 2,
        "one_run": one_run_sentences(audit),
        "finding": wording.finding(audit),
        "evidence": audit.headline.verdict.sentence,
        "attacked": wording.attacked(audit),
        "budget": audit.budget.sentence if audit.budget else "",
        "tried": wording.tried(audit) if audit.run.is_stored else "",
        "beyond": _beyond(audit),
        "remote_code": wording.remote_code(audit),
        "parts": card_paragraphs(audit),
        "use": wording.use(audit),
        "proof": wording.proof(audit),
    }


def _beyond(audit: Audit) -> str:
    """Return the interval for clients that were not attacked; empty if there is none."""
    wider = audit.headline.auroc_new_clients
    if wider.unresolved:
        return ""
    return f"As a statement on other clients like these: {wording.interval(wider)}."
