"""The findings run by run, and the first screen: five questions about the worst of the runs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_log import read_log
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.core.formatting import epsilon
from privaudit.privacy.certificate import guarantee_of
from privaudit.report import wording
from privaudit.report.advice import Advice
from privaudit.report.report_data import (
    ANOTHER,
    GREEN_EPSILON,
    IN_TAIL,
    NO_LEAK,
    NO_PROMISE,
    WEAK,
    Badge,
    Findings,
    ReportData,
)
from privaudit.report.tables.parts import card_paragraphs, one_run_sentences
from privaudit.statistics.estimate import Estimate


def summary(runs: Sequence[Findings]) -> str:
    """Say in one sentence how many runs leak."""
    if len(runs) == 1:
        return ""
    kinds = Counter[str](one.audit.verdict.kind for one in runs)
    asked = (one.audit.part(ONE_RUN) for one in runs)
    claims = Counter[str](part.verdict.kind for part in asked if part)
    tally = ", ".join(f"{count} {kind}" for kind, count in claims.items())
    said = f" Claims on ε: {tally}." if claims else ""
    return f"Of {len(runs)} runs, {counted(kinds)}.{_hidden(runs)}{said}"


def counted(kinds: Mapping[str, int]) -> str:
    """Say how many verdicts of each kind there are."""
    parts = {
        "leaks": "{} leak",
        "reversed": "{} separated with the sign turned",
        "no evidence": "no leak found in {}",
        "underpowered": "{} undecided",
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
        "evidence": audit.verdict.sentence,
        "attacked": wording.attacked(audit),
        "absent": wording.absent(audit),
        "strength": one.strength.sentence,
        "budget": audit.budget.sentence if audit.budget else "",
        "audits_made": wording.audits_made(audit) if audit.run.is_stored else "",
        "beyond": "" if wider.unresolved else beyond,
        "remote_code": wording.remote_code(audit),
        "parts": card_paragraphs(audit),
        "utility": wording.utility_sentence(audit),
        "proof": wording.proof(audit),
    }


_KINDS = ("good", "neutral", "open", "alarm")  # of badges, the best first
_MOST_NAMED = 2  # runs by name; of more, their number
_REFUTED = "claim refuted"


@dataclass(frozen=True)
class ScreenAnswer:
    """What one question has for an answer.

    Attributes:
        badge: None where the answer is no status.
        link: Where the page says more; empty if nowhere.
    """

    question: str
    text: str
    badge: Badge | None = None
    drawn: Estimate | None = None
    link: str = ""


@dataclass(frozen=True)
class FirstScreen:
    """What a reader sees before anything else.

    Attributes:
        title: The decision in a few words.
        lead: The worst finding in one sentence.
        answers: To the five questions, in their order.
        facts: Name and value of what was audited, and when.
    """

    title: str
    lead: str
    answers: tuple[ScreenAnswer, ...]
    facts: tuple[tuple[str, str], ...]


def first_screen(data: ReportData, advice: Sequence[Advice]) -> FirstScreen:
    """Return the first screen of a report; some advice is about all runs."""
    runs, worst = data.runs, data.worst_first[0]
    several = len(runs) > 1
    shown = wording.heading(worst.others) if worst.leak == ANOTHER else ""
    which = f"Worst of {len(runs)}: {worst.label}. " if several else ""
    named = f"{worst.label}: " if several else ""
    to_do = next(one for one in advice if not one.runs or worst.label in one.runs)
    return FirstScreen(
        title=_title(runs),
        lead=_lead(worst, shown, which),
        answers=(
            _leak_answer(runs, worst),
            ScreenAnswer(
                "How sure?",
                f"{named}{shown or worst.audit.verdict.sentence} "
                f"{worst.strength.sentence}",
                drawn=worst.named_auroc,
            ),
            _adversary_answer(runs),
            _promise_answer(runs),
            ScreenAnswer("What now?", f"{to_do.basis}: {to_do.text}", link="#advice"),
        ),
        facts=tuple(_facts(data.audits)),
    )


def _lead(worst: Findings, shown: str, which: str) -> str:
    """Return the worst finding: the promise first, where it qualifies the rest."""
    short, audit = _unkept(worst), worst.audit
    promise = f"{wording.heading(short)}. " if short else ""
    return f"{which}{promise}{shown or wording.odds(audit) or audit.verdict.sentence}"


def _unkept(one: Findings) -> str:
    """Return what stands against a promise; unproved only where no leak was found."""
    assurance, nothing = one.audit.assurance, one.leak.text.startswith(NO_LEAK)
    return assurance.short if assurance.kind == "refuted" or nothing else ""


def _title(runs: Sequence[Findings]) -> str:
    """Return the decision: on a run by its name, on several by their number."""
    if len(runs) > 1:
        return "; ".join((_counted(runs), *_claims(runs)))
    (one,) = runs
    titles = {
        "Leaks": f"{one.label} leaks",
        "Another attack shows a leak": f"{one.label} leaks by another attack",
        "Separates, sign turned": f"{one.label} separates members, sign turned",
        "Undecided": f"Undecided whether {one.label} leaks",
        "No verdict": f"No verdict on {one.label}",
        NO_LEAK: f"No leak found in {one.label}",
        WEAK.text: f"No leak found in {one.label} by a weak attack",
        IN_TAIL.text: f"{one.label} leaks in the tail",
    }
    return ", ".join(filter(None, (titles[one.leak.text], _unkept(one))))


def _counted(runs: Sequence[Findings]) -> str:
    """Say how many of several runs leak; if none, how many are open, and why."""
    counts = Counter(one.leak.text for one in runs)
    among = f"of {len(runs)}"
    if leaking := sum(one.leak.kind == "alarm" for one in runs):
        return f"{leaking} {among} runs leak{'s' * (leaking == 1)}"
    parts = []
    if turned := counts["Separates, sign turned"]:
        separate = f"separate{'s' * (turned == 1)}"
        parts.append(f"{turned} {among} runs {separate} members, with the sign turned")
    if unknown := counts["No verdict"]:
        parts.append(f"no verdict on {unknown} {among} runs")
    if undecided := counts["Undecided"]:
        none = "" if parts else "no leak shown; "
        parts.append(f"{none}{undecided} {among} runs undecided")
    if weak := counts[WEAK.text]:
        parts.append(f"no leak found in {weak} {among} runs by weak attacks")
    return wording.heading("; ".join(parts)) or f"{NO_LEAK} in {len(runs)} runs"


def _claims(runs: Sequence[Findings]) -> Iterator[str]:
    """Yield what stands against the promises of several runs; refuted ones by name."""
    found: dict[str, list[str]] = {}
    for one in runs:
        found.setdefault(_unkept(one), []).append(one.label)
    refuted = found.get(_REFUTED, [])
    if 0 < len(refuted) <= _MOST_NAMED:
        yield f"{_REFUTED} in {' and '.join(refuted)}"
    elif refuted:
        yield f"{_REFUTED} in {len(refuted)} of {len(runs)}"
    if not all(one.leak.text.startswith(NO_LEAK) for one in runs):
        return
    for short in filter(None, found):
        if short != _REFUTED:
            yield f"{short} in {len(found[short])}"


def _leak_answer(runs: Sequence[Findings], worst: Findings) -> ScreenAnswer:
    said, others = summary(runs) or wording.found(worst.audit), worst.others
    if len(runs) == 1 and others and worst.audit.verdict.kind != "leaks":
        but = (
            "another attack shows a leak." if worst.leak == ANOTHER else f"the {others}"
        )
        said = f"{said} But {but}".replace("the the", "the")
    badge = max(runs, key=lambda one: (one.leak_rank, _KINDS.index(one.leak.kind))).leak
    return ScreenAnswer("Does it leak?", said, badge)


def _adversary_answer(runs: Sequence[Findings]) -> ScreenAnswer:
    """Name every adversary that looked on in any of the runs."""
    threats = (wording.adversary(one.audit.scenario.threat) for one in runs)
    who = wording.heading("; ".join(dict.fromkeys(threats)))
    return ScreenAnswer("To whom?", f"{who}. Nothing is said of others.")


def _promise_answer(runs: Sequence[Findings]) -> ScreenAnswer:
    worst = max(runs, key=lambda one: one.promise_rank)
    said = " ".join((_kept_or_not(worst), *_beneath(worst)))
    if len(runs) > 1:
        counts = Counter(one.promise.text for one in runs)
        listed = ", ".join(f"{text.lower()}: {n}" for text, n in counts.items())
        said = f"{wording.heading(listed)}."
    return ScreenAnswer("Is the promise kept?", said, worst.promise)


def _beneath(one: Findings) -> Iterator[str]:
    """Yield what a proof rests on and how little it may say; why, where there is none."""
    certificate = one.audit.certificate
    if certificate["epsilon"] is None:
        yield certificate["why"]
    if one.is_large:
        yield (
            f"An ε above {GREEN_EPSILON:g} bounds little: it lets the odds that a "
            f"record was a member grow more than 20 000-fold."
        )


def _kept_or_not(one: Findings) -> str:
    audit = one.audit
    if one.promise == NO_PROMISE:
        proved, declared = audit.certificate["epsilon"], audit.declared_epsilon
        given = f"ε = {epsilon(proved)} is certified"
        if proved is None:
            stated = f"ε = {epsilon(declared)} is declared"
            given = "nothing is proved" if declared is None else stated
        return (
            "Nobody claims an ε (privacy budget of differential privacy), and "
            f"{given} against this adversary."
        )
    if audit.assurance.sentence:
        return audit.assurance.sentence
    return (
        f"Claimed is ε = {epsilon(audit.claimed_epsilon)} (privacy budget of "
        f"differential privacy); proved against this adversary is "
        f"ε = {wording.certified(audit)}, for {guarantee_of(audit.certificate)}."
    )


def _facts(audits: Sequence[Audit]) -> Iterator[tuple[str, str]]:
    """Yield what was audited, and when; nothing of what is not known."""
    configs = [audit.run.config for audit in audits]
    facts = {
        "Run": [audit.run.name for audit in audits],
        "Data": [config.dataset for config in configs],
        "Model": [config.model for config in configs],
        "Audited": [audited_on(audit) for audit in audits],
    }
    if len(audits) == 1 and (utility := audits[0].utility) is not None:
        facts["Utility"] = [f"{utility.metric} {wording.point(utility.local)}"]
    for name, values in facts.items():
        distinct = list(filter(None, dict.fromkeys(values)))
        if len(distinct) > _MOST_NAMED:
            ends = min(distinct), max(distinct)
            many = f"{len(distinct)} {'data set' if name == 'Data' else name.lower()}s"
            distinct = [" to ".join(ends) if name == "Audited" else many]
        if distinct:
            yield name, ", ".join(distinct)


def audited_on(audit: Audit) -> str:
    """Return the day, in UTC, of the last audit of this scenario; empty if unknown."""
    if not audit.run.is_stored or not audit.run.path.is_dir():
        return ""
    log = [line for line in read_log(audit.run) if line.scenario == audit.scenario.name]
    return log[-1].time[:10] if log else ""
