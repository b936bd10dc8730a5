"""When did it leak? Single rounds in words, corrected for their number."""

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.leakage_by_round import RoundLeak
from privaudit.core.formatting import p_value
from privaudit.report.tables.other_attacks import ALPHA
from privaudit.report.wording import interval, point, rate
from privaudit.statistics.comparisons import holm, p_above_chance


def round_sentences(audit: Audit) -> list[str]:
    """Say of each attack when it leaked; nothing where single rounds were not asked."""
    return [_when(told) for told in audit.rounds if told.by_round]


def first_round_above(told: RoundLeak) -> int | None:
    """Return the first round whose AUROC lies above 0.5.

    Rounds are tested together by Holm's method: where none leaks, at most one audit in
    twenty names any. None if none does.
    """
    above = [index for index, p in corrected(told).items() if p <= ALPHA]
    return min(above, default=None)


def corrected(told: RoundLeak) -> dict[int, float]:
    """Return each round's p-value of an AUROC of 0.5, corrected for their number."""
    rounds = sorted(told.by_round)
    adjusted = holm([p_above_chance(told.by_round[index]) for index in rounds])
    return {index: float(p) for index, p in zip(rounds, adjusted, strict=True)}


def _when(told: RoundLeak) -> str:
    """Say when one attack leaked, and what the largest round is: no estimate."""
    count, worst, first = len(told.by_round), told.worst, first_round_above(told)
    p_values = corrected(told)
    over = f"Holm-corrected over {count} rounds"
    if first is None:
        least = p_value(min(p_values.values()))
        when = f"no round can be named, {over} (smallest p {least})"
    else:
        when = (
            f"first above 0.5 in round {first}, {over} (p {p_value(p_values[first])})"
        )
    return (
        f"{told.attack}, {told.meaning}: {when}. The largest of {count} rounds, "
        f"{told.by_round[worst].value:.3f} in round {worst}, is a maximum, not an "
        "unbiased estimate."
    )


def source_sentence(audit: Audit) -> str:
    """Say how often the right client is named; nothing where that was not asked."""
    found = audit.source
    if found is None:
        return ""
    return (
        f"The right client is guessed for {rate(found.members)} of "
        f"{found.members.n[0]} members, and for {rate(found.others)} of "
        f"{found.others.n[0]} candidates that no client trained on (by chance "
        f"{100 * found.chance:.1f} %). Training adds "
        f"{point(found.beyond, signed=True)} {interval(found.beyond)}: "
        f"{found.sentence}."
    )
