"""The page of a benchmark: one table, one plane, and what may be concluded."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import get_args

from privaudit.core.formatting import write_time
from privaudit.privacy.certificate import REPEATABLE, CertifiedView
from privaudit.statistics.estimate import Estimate
from privaudit_tools.equal_utility.advice import advice
from privaudit_tools.equal_utility.benchmark import BenchmarkResult, read_result
from privaudit_tools.equal_utility.curve import FEWEST, at_least
from privaudit_tools.equal_utility.document import (
    Block,
    Bullets,
    Command,
    Heading,
    Paragraph,
    Picture,
    Table,
    as_html,
)
from privaudit_tools.equal_utility.figure import plane
from privaudit_tools.equal_utility.judging import ALPHA, Judged, Row
from privaudit_tools.equal_utility.submissions import (
    Submission,
    SubmittedCard,
    submissions,
)

_VIEWS: tuple[CertifiedView, ...] = get_args(CertifiedView)
_CERTIFIED = f"certified ε: {', '.join(_VIEWS)}"
_BEYOND = (
    "A last bit of features, or another version, moves a seed's numbers (beyond the "
    "stability limit): {}."
)


def blocks_of(result: BenchmarkResult, command: str, picture: str) -> list[Block]:
    """Return a benchmark's page.

    Args:
        result: As stored.
        command: That makes the page.
        picture: Path of the plane, from the page.
    """
    judged = result.judged
    return [
        Paragraph(_introduction(result)),
        Command(command),
        Heading("What may be concluded"),
        *_concluded(result, judged, command),
        Heading("What may not"),
        Bullets(limits(result, judged)),
        Heading("All rows"),
        Table(_heads(result), [_cells(result, judged, row) for row in judged.rows]),
        Picture(plane(judged, result.plan.measured), picture, "leak over utility"),
        *_submitted(result, judged),
    ]


def render_benchmark(stored: Path) -> str:
    """Return the page of a result as HTML, as `privaudit serve` shows it."""
    result = read_result(stored)
    command = f"privaudit benchmark {stored.name} --page {stored.stem}.html"
    return as_html(result.plan.title, blocks_of(result, command, ""))


def _introduction(result: BenchmarkResult) -> str:
    plan, seal = result.plan, result.seal
    task = ", ".join(f"{name} {value}" for name, value in plan.fields.items())
    task = task or "as by default"
    tuned = len(plan.tuning_seeds)
    seeds = "One tuning seed" if tuned == 1 else f"{tuned} tuning seeds"
    return (
        f"What each method leaks below {plan.reference.label} at equal {plan.measure}, in "
        f"AUROC, paired by seed ({task}). Leaks are of the strongest attack of "
        f"{plan.attacked} with {plan.shadows} shadow models a client. "
        f"{seeds} chose each setting and its attack; "
        f"{len(plan.evaluation_seeds)} others, sealed on {seal.on[:10]} "
        f"(`{seal.digest[:12]}`), judge them. Ranks are what Holm's tests leave open; "
        f"brackets hold 95 % intervals over seeds. {_spent(result)}"
    )


def _spent(result: BenchmarkResult) -> str:
    """Return how long the runs were trained, against the forecast where there is one."""
    trained = write_time(math.fsum(run.seconds for run in result.runs))
    said = f"The {len(result.runs)} runs trained for {trained} by the wall clock"
    if result.forecast is None:
        return f"{said}."
    return f"{said}; the forecast was {result.forecast}."


def _heads(result: BenchmarkResult) -> Sequence[str]:
    return (
        "method", "setting", result.plan.classes, "others'", "attack", "AUROC",
        "TPR at 1 %", "below early stopping", "Holm's p", "rank", _CERTIFIED,
        "MB a round", "seconds",
    )  # fmt: skip


def _cells(result: BenchmarkResult, judged: Judged, row: Row) -> list[str]:
    label = row.method.label
    attack = row.choice.attack
    if row.choice.after:
        attack += f" after round {row.choice.after}"
    tpr = result.tpr.get(label)
    return [
        f"*{label}*" if row.method.control else label,
        row.choice.setting,
        number(row.utility),
        "" if row.others is None else number(row.others),
        attack,
        number(row.leak),
        "" if tpr is None else number(tpr),
        distance(row),
        "" if row.p is None else "< 0.001" if row.p < 0.001 else f"{row.p:.3f}",
        _rank(judged, row),
        certified(row),
        f"{fmean([run.megabytes for run in row.runs]):.2g}",
        f"{fmean([run.seconds for run in row.runs]):.0f}",
    ]


def number(estimate: Estimate) -> str:
    """Return a value with its interval, or why there is none."""
    if estimate.unresolved:
        known = math.isfinite(estimate.value)
        return f"{estimate.value:.3f}, unresolved" if known else "unresolved"
    return f"{estimate:.3f}"


def distance(row: Row) -> str:
    """Return how far a row is below the curve, in words where that is no number."""
    found = row.standing
    if found is None:
        return ""
    if found.where == "below":
        return "no use"
    text = at_least(found.where) + number(found.distance)
    return text if row.is_tested else f"{text}, no use shown"


def _rank(judged: Judged, row: Row) -> str:
    """Return the ranks that a row may have, all rows at once: two not told apart may swap."""
    if row.p is None:
        return ""
    label = row.method.label
    tested = [one.method.label for one in judged.rows if one.p is not None]
    apart = [frozenset((label, name)) in judged.separated for name in tested]
    at = tested.index(label)
    best, worst = 1 + sum(apart[:at]), len(tested) - sum(apart[at:])
    return str(best) if best == worst else f"{best} to {worst}"


def certified(row: Row) -> str:
    """Return the largest proved epsilon of all seeds, by view, and of what; - if none."""
    return _largest([run.certified for run in row.runs], row.runs[0].guarantee)


def _largest(certified: Sequence[Mapping[str, float | None]], guarantee: str) -> str:
    found = [[one.get(view) for one in certified] for view in _VIEWS]
    if all(None in one for one in found):
        return "-"
    numbers = ", ".join(
        "-" if None in one else f"{max(e for e in one if e is not None):.3g}"
        for one in found
    )
    is_of_all = not any(epsilon for one in certified for epsilon in one.values())
    return numbers if is_of_all or not guarantee else f"{numbers} ({guarantee})"


def _concluded(
    result: BenchmarkResult, judged: Judged, command: str
) -> Iterator[Block]:
    """Yield sentences to act on, how many of three there are, and what else holds."""
    said = advice(result, judged)
    few = ("none", "one", "two", "three")[len(said)]
    yield Paragraph(
        "For tasks like this, and a server that attacks as "
        f"{result.plan.attacked} does, these numbers support {few} of three sentences "
        f"to act on, by `{command}`:"
    )
    yield Bullets([*said, *_names_told(result, judged)])


def conclusions(result: BenchmarkResult, judged: Judged) -> list[str]:
    """Return a sentence for each row that Holm tells from the curve."""
    curve = result.plan.reference.label
    said = []
    for row, distance in _told(judged):
        how = "less" if distance.value > 0 else "more"
        bound = at_least(row.standing.where) if row.standing else ""
        said.append(
            f"{row.method.label} ({row.choice.setting}) leaks {how} than {curve} at equal "
            f"utility, by {bound}{number(distance)}, n = {len(row.runs)}."
        )
    return said or [f"No row is told from {curve} by these seeds."]


def _told(judged: Judged) -> Iterator[tuple[Row, Estimate]]:
    """Yield rows that Holm tells from the curve, with their distances."""
    for row in judged.rows:
        if row.p is None or row.p >= ALPHA or row.standing is None:
            continue
        distance = row.standing.distance
        if row.standing.where == "inside" or distance.value > 0:
            yield row, distance  # above it, early stopping may leak as much


def _names_told(result: BenchmarkResult, judged: Judged) -> Iterator[str]:
    told = [*_told(judged)]
    less = _named(row for row, distance in told if distance.value > 0)
    more = _named(row for row, distance in told if distance.value < 0)
    for word, names in (("less", less), ("more", more)):
        if names:
            curve = result.plan.reference.label
            yield f"Leaks {word} than {curve} at equal utility: {names}."
    if not told:
        yield f"No row is told from {result.plan.reference.label} by these seeds."


def limits(result: BenchmarkResult, judged: Judged) -> list[str]:
    """Return what the numbers do not say, with the rows that it is about."""
    curve = result.plan.reference.label
    open_rows = _named(r for r in judged.rows if r.p is not None and r.p >= ALPHA)
    above = _named(r for r in judged.rows if r.standing and r.standing.where == "above")
    useless = _named(r for r in judged.rows if r.standing and not r.is_tested)
    failed = dict.fromkeys(run.row for run in result.runs if run.error)
    lines = [
        (open_rows, f"Not told from {curve}, which is no proof of equality: {{}}."),
        (above, "Nothing is extrapolated beyond the curve; its end is a bound for: {}."),
        (useless, "Not shown to be worth more than no training, so not ranked: {}."),
        ("; ".join(result.beyond or ()), _BEYOND),
        ("; ".join(failed), "Some runs failed: {}."),
    ]  # fmt: skip
    return [
        *(text.format(names) for names, text in lines if names),
        "Evaluation seeds meet only the attacks that tuning seeds chose.",
        "Other data, models and attacks may order methods otherwise; only a certified ε "
        f"bounds all attacks, under secret keys: seeds make these runs {REPEATABLE}.",
    ]


def _submitted(result: BenchmarkResult, judged: Judged) -> Iterator[Block]:
    """Yield the section of cards from outside, where there are any."""
    if not result.cards:
        return
    yield Heading("From outside")
    yield Paragraph(
        "Runs of others, by their audit cards: signature, schema, verdicts and certified ε "
        "were verified; that the numbers are those of their scores is taken on trust, and "
        "so is the split of the task. Unpaired, with the attack that each owner declared; "
        "not ranked with the rows above."
    )
    heads = (
        "key", "trainer", "cards", "own classes", "attack", "AUROC, noised",
        "below early stopping", _CERTIFIED,
    )  # fmt: skip
    rows = [
        [
            f"`{one.key[:16]}`",
            one.trainer,
            str(one.cards),
            number(one.utility),
            ", ".join(one.attacks),
            number(one.leak),
            _outside(one),
            _proved_of([card for card in result.cards if one.has(card)]),
        ]
        for one in submissions(result.cards, judged)
    ]
    yield Table(heads, rows)


def _proved_of(cards: Sequence[SubmittedCard]) -> str:
    """Return the largest proved epsilons of cards, apart for each guarantee."""
    found = [
        _largest([dict(card.certified) for card in cards if card.guarantee == of], of)
        for of in dict.fromkeys(card.guarantee for card in cards)
    ]
    return "; ".join(dict.fromkeys(found))


def _outside(one: Submission) -> str:
    if one.distance is None:
        return f"takes {FEWEST} cards"
    if one.where == "below":
        return "no use"
    return at_least(one.where) + number(one.distance)


def _named(rows: Iterator[Row]) -> str:
    return "; ".join(row.method.label for row in rows)
