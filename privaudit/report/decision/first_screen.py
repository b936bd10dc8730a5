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
    NO_PROMISE,
    Badge,
    audit_rank,
    leak_badge,
    promise_badge,
    promise_rank,
)
from privaudit.report.tables.other_attacks import others_sentence
from privaudit.statistics.estimate import Estimate

_MOST_NAMED = 2  # runs by name; of more, their number


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
    which = f"Worst of {len(audits)}: {label}. " if len(audits) > 1 else ""
    named = f"{label}: " if len(audits) > 1 else ""
    return FirstScreen(
        title=_title(audits, label),
        lead=f"{which}{wording.odds(worst) or worst.verdict.sentence}",
        answers=(
            _leak_answer(audits, worst),
            ScreenAnswer(
                "How sure?", named + worst.verdict.sentence, drawn=worst.auroc
            ),
            _adversary_answer(worst),
            _promise_answer(audits),
            ScreenAnswer("What now?", _now(advice, label), link="#advice"),
        ),
        facts=tuple(_facts(audits)),
    )


def _title(audits: Sequence[Audit], label: str) -> str:
    """Return the decision: on a run by its name, on several by their number."""
    worst = min(audits, key=audit_rank)
    badge = leak_badge(worst)
    if len(audits) == 1:
        titles = {
            "Leaks": f"{label} leaks",
            "Another attack shows a leak": f"{label} leaks by another attack",
            "Separates, sign turned": f"{label} separates members, sign turned",
            "Undecided (underpowered)": f"Undecided whether {label} leaks",
            "No verdict": f"No verdict on {label}",
        }
        return titles.get(badge.text, f"No leak found in {label}")
    count = sum(leak_badge(audit).kind == badge.kind for audit in audits)
    of = f"{count} of {len(audits)} runs"
    if badge.kind == "alarm":
        return f"{of} leak{'s' * (count == 1)}"
    if badge.kind == "open":
        return f"No leak shown; {of} undecided"
    return f"No leak found in {len(audits)} runs"


def _leak_answer(audits: Sequence[Audit], worst: Audit) -> ScreenAnswer:
    said = summary(audits) or wording.found(worst)
    others = others_sentence(worst)
    if len(audits) == 1 and others and worst.verdict.kind != "leaks":
        said = f"{said} But the {others}".replace("the the", "the")
    return ScreenAnswer("Does it leak?", said, leak_badge(worst))


def _adversary_answer(worst: Audit) -> ScreenAnswer:
    who = wording.heading(wording.adversary(worst.scenario.threat))
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
