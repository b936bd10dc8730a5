"""The findings, run by run: the top of the page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.report import wording
from privaudit.report.decision.badges import Findings
from privaudit.report.tables.one_run_table import claim_kind, one_run_sentences
from privaudit.report.tables.parts import card_paragraphs


def summary(runs: Sequence[Findings]) -> str:
    """Say in one sentence how many runs leak."""
    if len(runs) == 1:
        return ""
    kinds = Counter[str](one.audit.verdict.kind for one in runs)
    claims = Counter[str](filter(None, (claim_kind(one.audit) for one in runs)))
    tally = ", ".join(f"{count} {kind}" for kind, count in claims.items())
    asked = f" Claims on ε: {tally}." if claims else ""
    return f"Of {len(runs)} runs, {counted(kinds)}.{_hidden(runs)}{asked}"


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


def _hidden(runs: Sequence[Findings]) -> str:
    """Say of how many runs that are not said to leak another attack says so."""
    quiet = [one for one in runs if one.audit.verdict.kind != "leaks"]
    count = sum(one.other is not None for one in quiet)
    if not count:
        return ""
    rest = "them" if len(quiet) == len(runs) else "the others"
    return f" In {count} of {rest}, another attack shows a leak."


def card(one: Findings) -> dict[str, Any]:
    """Return a run's verdict in plain words."""
    audit, wider = one.audit, one.audit.headline.auroc_new_clients
    beyond = f"As a statement on other clients like these: {wording.interval(wider)}."
    return {
        "label": one.label,
        "leak": one.leak,
        "promise": one.promise,
        "unproved": audit.assurance.sentence,
        "others": wording.heading(one.others),
        "picked": len(audit.results) > 2,
        "one_run": one_run_sentences(audit),
        "finding": wording.finding(audit),
        "evidence": audit.headline.verdict.sentence,
        "attacked": wording.attacked(audit),
        "budget": audit.budget.sentence if audit.budget else "",
        "tried": wording.tried(audit) if audit.run.is_stored else "",
        "beyond": "" if wider.unresolved else beyond,
        "remote_code": wording.remote_code(audit),
        "parts": card_paragraphs(audit),
        "utility": wording.utility_sentence(audit),
        "proof": wording.proof(audit),
    }
