"""The first screen: five questions, each with its answer, about the worst of the runs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privaudit.auditing.audit import Audit
from privaudit.auditing.repetition.audit_log import read_log
from privaudit.core.formatting import epsilon
from privaudit.report import wording
from privaudit.report.cards import summary
from privaudit.report.decision.advice import Advice
from privaudit.report.decision.badges import (
    ANOTHER,
    GREEN_EPSILON,
    NO_LEAK,
    NO_PROMISE,
    Badge,
    audit_rank,
    is_large,
    leak_badge,
    leak_rank,
    promise_badge,
    promise_rank,
)
from privaudit.report.tables.other_attacks import others_sentence, strongest_other
from privaudit.statistics.estimate import Estimate

_MOST_NAMED = 2  # runs by name; of more, their number
_REFUTED = "claim refuted"


@dataclass(frozen=True)
class ScreenAnswer:
    """What one question has for an answer.

    Attributes:
        question: As an officer asks it.
        text: A sentence or two.
        badge: None where the answer is no status.
        drawn: A number to draw; None where there is none.
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


def first_screen(
    audits: Sequence[Audit], labels: Sequence[str], advice: Sequence[Advice]
) -> FirstScreen:
    """Return the first screen of a report.

    Args:
        audits: Of one scenario.
        labels: Of their runs.
        advice: At least one that is about all runs.
    """
    worst, label = min(
        zip(audits, labels, strict=True), key=lambda one: audit_rank(one[0])
    )
    named = f"{label}: " if len(audits) > 1 else ""
    shown = wording.heading(others_sentence(worst)) if _is_another(worst) else ""
    return FirstScreen(
        title=_title(audits, labels),
        lead=_lead(worst, shown, f"Worst of {len(audits)}: {label}. " if named else ""),
        answers=(
            _leak_answer(audits, worst),
            ScreenAnswer(
                "How sure?",
                named + (shown or worst.verdict.sentence),
                drawn=_auroc_of(worst),
            ),
            _adversary_answer(audits),
            _promise_answer(audits),
            ScreenAnswer("What now?", _now(advice, label), link="#advice"),
        ),
        facts=tuple(_facts(audits)),
    )


def _lead(worst: Audit, shown: str, which: str) -> str:
    """Return the worst finding: the promise first, where it qualifies the rest."""
    short = _unkept(worst)
    promise = f"{wording.heading(short)}. " if short else ""
    return f"{which}{promise}{shown or wording.odds(worst) or worst.verdict.sentence}"


def _is_another(audit: Audit) -> bool:
    return leak_badge(audit) == ANOTHER


def _auroc_of(audit: Audit) -> Estimate:
    """Return the AUROC of the attack that the badge is about."""
    other = strongest_other(audit) if _is_another(audit) else None
    return other.leak.auroc if other else audit.auroc


def _unkept(audit: Audit) -> str:
    """Return what stands against a promise; unproved only where no leak was found."""
    refuted = audit.assurance.kind == "refuted"
    nothing = leak_badge(audit).text == NO_LEAK
    return audit.assurance.short if refuted or nothing else ""


def _title(audits: Sequence[Audit], labels: Sequence[str]) -> str:
    """Return the decision: on a run by its name, on several by their number."""
    if len(audits) > 1:
        return "; ".join((_counted(audits), *_claims(audits, labels)))
    (audit,), (label,) = audits, labels
    titles = {
        "Leaks": f"{label} leaks",
        "Another attack shows a leak": f"{label} leaks by another attack",
        "Separates, sign turned": f"{label} separates members, sign turned",
        "Undecided (underpowered)": f"Undecided whether {label} leaks",
        "No verdict": f"No verdict on {label}",
        NO_LEAK: f"No leak found in {label}",
    }
    return ", ".join(filter(None, (titles[leak_badge(audit).text], _unkept(audit))))


def _counted(audits: Sequence[Audit]) -> str:
    """Say how many of several runs leak; if none, how many are open, and why."""
    badges = [leak_badge(audit) for audit in audits]
    counts = Counter(badge.text for badge in badges)
    among = f"of {len(audits)}"
    if leaking := sum(badge.kind == "alarm" for badge in badges):
        return f"{leaking} {among} runs leak{'s' * (leaking == 1)}"
    parts = []
    if turned := counts["Separates, sign turned"]:
        separate = f"separate{'s' * (turned == 1)}"
        parts.append(f"{turned} {among} runs {separate} members, with the sign turned")
    if unknown := counts["No verdict"]:
        parts.append(f"no verdict on {unknown} {among} runs")
    if undecided := counts["Undecided (underpowered)"]:
        none = "" if parts else "no leak shown; "
        parts.append(f"{none}{undecided} {among} runs undecided")
    return wording.heading("; ".join(parts)) or f"{NO_LEAK} in {len(audits)} runs"


def _claims(audits: Sequence[Audit], labels: Sequence[str]) -> Iterator[str]:
    """Yield what stands against the promises of several runs; refuted ones by name."""
    found: dict[str, list[str]] = {}
    for audit, label in zip(audits, labels, strict=True):
        found.setdefault(_unkept(audit), []).append(label)
    refuted = found.get(_REFUTED, [])
    if 0 < len(refuted) <= _MOST_NAMED:
        yield f"{_REFUTED} in {' and '.join(refuted)}"
    elif refuted:
        yield f"{_REFUTED} in {len(refuted)} of {len(audits)}"
    if any(leak_badge(audit).text != NO_LEAK for audit in audits):
        return
    for short in filter(None, found):
        if short != _REFUTED:
            yield f"{short} in {len(found[short])}"


def _leak_answer(audits: Sequence[Audit], worst: Audit) -> ScreenAnswer:
    said = summary(audits) or wording.found(worst)
    others = others_sentence(worst)
    if len(audits) == 1 and others and worst.verdict.kind != "leaks":
        said = f"{said} But the {others}".replace("the the", "the")
    return ScreenAnswer("Does it leak?", said, leak_badge(max(audits, key=leak_rank)))


def _adversary_answer(audits: Sequence[Audit]) -> ScreenAnswer:
    """Name every adversary that looked on in any of the runs."""
    threats = (wording.adversary(audit.scenario.threat) for audit in audits)
    who = wording.heading("; ".join(dict.fromkeys(threats)))
    return ScreenAnswer("To whom?", f"{who}. Nothing is said of others.")


def _promise_answer(audits: Sequence[Audit]) -> ScreenAnswer:
    worst = max(audits, key=promise_rank)
    badge = promise_badge(worst)
    if len(audits) > 1:
        counts = Counter(promise_badge(audit).text for audit in audits)
        said = ", ".join(f"{text.lower()}: {n}" for text, n in counts.items())
        return ScreenAnswer("Is the promise kept?", f"{wording.heading(said)}.", badge)
    return ScreenAnswer("Is the promise kept?", _promise(worst, badge), badge)


def _promise(audit: Audit, badge: Badge) -> str:
    return " ".join((_kept_or_not(audit, badge), *_beneath(audit)))


def _beneath(audit: Audit) -> Iterator[str]:
    """Yield what a proof rests on and how little it may say; why, where there is none."""
    certificate = audit.certificate
    if certificate["epsilon"] is None:
        yield certificate["why"]
    if is_large(audit):
        yield (
            f"An ε above {GREEN_EPSILON:g} bounds little: it lets the odds that a "
            f"record was a member grow more than 20 000-fold."
        )


def _kept_or_not(audit: Audit, badge: Badge) -> str:
    if badge == NO_PROMISE:
        proved = audit.certificate["epsilon"]
        rest = "nothing is proved" if proved is None else f"ε = {epsilon(proved)} is"
        return (
            "The method claims no ε (privacy budget of differential privacy), and "
            f"{rest}{'' if proved is None else ' certified'} against this adversary."
        )
    if audit.assurance.sentence:
        return audit.assurance.sentence
    return (
        f"Claimed is ε = {epsilon(audit.claimed_epsilon)} (privacy budget of "
        f"differential privacy); proved against this adversary is "
        f"ε = {wording.certified(audit)}, for {wording.guarantee(audit)}."
    )


def _now(advice: Sequence[Advice], label: str) -> str:
    """Return the first thing to do about the worst run."""
    about = [one for one in advice if not one.runs or label in one.runs]
    return f"{about[0].basis}: {about[0].text}"


def _facts(audits: Sequence[Audit]) -> Iterator[tuple[str, str]]:
    """Yield what was audited, and when; nothing of what is not known."""
    configs = [audit.run.config for audit in audits]
    facts = {
        "Run": [audit.run.name for audit in audits],
        "Data": [config.dataset for config in configs],
        "Model": [config.model for config in configs],
        "Audited": [audited_on(audit) for audit in audits],
    }
    for name, values in facts.items():
        distinct = list(filter(None, dict.fromkeys(values)))
        if len(distinct) > _MOST_NAMED:
            ends = min(distinct), max(distinct)
            many = f"{len(distinct)} {name.lower()}s"
            distinct = [" to ".join(ends) if name == "Audited" else many]
        if distinct:
            yield name, ", ".join(distinct)


def audited_on(audit: Audit) -> str:
    """Return the day, in UTC, of the last audit of this scenario; empty if unknown."""
    if not audit.run.is_stored or not audit.run.path.is_dir():
        return ""
    log = [line for line in read_log(audit.run) if line.scenario == audit.scenario.name]
    return log[-1].time[:10] if log else ""
