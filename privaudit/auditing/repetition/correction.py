"""Verdicts that hold for all audits of a run together, not for the best of them."""

from dataclasses import replace

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.repetition.audit_log import Tried, count_tried
from privaudit.statistics.verdict import Sampling, judge_leak


def recount(audit: Audit) -> Audit:
    """Return an audit with its verdict as the log of its run has it now."""
    headline, run = audit.headline, audit.run
    if not run.is_stored:
        return audit
    tried = count_tried(run, headline.attack, headline.auroc)
    first = next(iter(audit.results))
    results = {**audit.results, first: corrected(headline, tried, run.sampling)}
    return replace(audit, results=results, tried=tried)


def corrected(result: AttackResult, tried: Tried, sampling: Sampling) -> AttackResult:
    """Return a headline with the verdict that so many audits leave.

    Each of m different audits is held to an m-th of the error that one may make, so
    that the chance of any false "leaks" stays what it is for one, whichever is shown.

    Source: Bonferroni's inequality; the audits may depend on one another as they like.
    """
    verdict = judge_leak(result.auroc, sampling=sampling, tried=tried.different)
    return replace(result, verdict=verdict)
