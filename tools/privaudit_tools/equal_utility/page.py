"""The page of a benchmark: one table, one plane, and what may be concluded."""

import math
from collections.abc import Iterator, Sequence

from privaudit.statistics.estimate import Estimate
from privaudit_tools.equal_utility.benchmark import BenchmarkResult
from privaudit_tools.equal_utility.judging import ALPHA, Judged, Row

_MORE = 0.02  # of AUROC
_VIEWS = ("server", "server-aggregate", "peer", "released")
_HEADS = (
    "method", "setting", "own classes", "others'", "attack", "AUROC", "TPR at 1 %",
    "below early stopping", "Holm's p", "group", "certified ε: " + ", ".join(_VIEWS),
    "MB a round", "seconds",
)  # fmt: skip


def as_page(result: BenchmarkResult, command: str, figure: str) -> str:
    """Return a benchmark's page in Markdown.

    Args:
        result: As stored.
        command: That makes the page.
        figure: Path of the plane, from the page.
    """
    judged = result.judged
    parts = [
        "# Benchmark",
        _introduction(result),
        f"    {command}",
        "\n".join(_table(result, judged)),
        f"![leak over utility]({figure})",
        "## What may be concluded",
        f"By `{command}`:",
        "\n".join(f"- {one}" for one in conclusions(result, judged)),
        "## What may not",
        "\n".join(f"- {one}" for one in limits(result, judged)),
    ]
    return "\n\n".join(parts) + "\n"


def _introduction(result: BenchmarkResult) -> str:
    plan, seal = result.plan, result.seal
    task = ", ".join(f"{name} {value}" for name, value in plan.fields.items())
    task = task or "as by default"
    tuned = len(plan.tuning_seeds)
    seeds = "One tuning seed" if tuned == 1 else f"{tuned} tuning seeds"
    return (
        f"What each method leaks below {plan.reference.label} at equal utility, in AUROC, "
        f"paired by seed ({task}). Leaks are of the strongest attack of "
        f"`{plan.scenario}` with {plan.shadows} shadow models a client. "
        f"{seeds} chose each setting and its attack; "
        f"{len(plan.evaluation_seeds)} others, sealed on {seal.on[:10]} "
        f"(`{seal.digest[:12]}`), judge them. Rows of one group Holm does not tell apart; "
        "beside a distance stands its 95 % interval over seeds."
    )


def _table(result: BenchmarkResult, judged: Judged) -> Iterator[str]:
    yield _line(_HEADS)
    yield _line(["---"] * len(_HEADS))
    for row in judged.rows:
        yield _line(_cells(result, judged, row))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(result: BenchmarkResult, judged: Judged, row: Row) -> list[str]:
    label = row.method.label
    attack = row.choice.attack
    if row.choice.after:
        attack += f" after round {row.choice.after}"
    tpr = result.tpr.get(label)
    return [
        f"*{label}*" if row.method.control else label,
        row.choice.setting,
        _number(row.own),
        "" if row.others is None else _number(row.others),
        attack,
        _number(row.leak),
        "" if tpr is None else _number(tpr),
        _distance(row),
        "" if row.p is None else f"{row.p:.3f}",
        " ".join(_letters(judged, label)),
        _certified(row),
        f"{_mean([run.megabytes for run in row.runs]):.2g}",
        f"{_mean([run.seconds for run in row.runs]):.0f}",
    ]


def _number(estimate: Estimate) -> str:
    if estimate.unresolved:
        known = math.isfinite(estimate.value)
        return f"{estimate.value:.3f}, unresolved" if known else "unresolved"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _distance(row: Row) -> str:
    found = row.standing
    if found is None:
        return ""
    if found.where == "below":
        return "no use"
    text = _number(found.distance)
    text = f"at least {text}" if found.where == "above" else text
    return text if row.is_tested else f"{text}, no use shown"


def _letters(judged: Judged, label: str) -> list[str]:
    named = zip("abcdefghijklmnopqrstuvwxyz", judged.groups, strict=False)
    return [letter for letter, group in named if label in group]


def _certified(row: Row) -> str:
    """Return the largest proved epsilon of all seeds, by view; - where none is."""
    found = [[run.certified.get(view) for run in row.runs] for view in _VIEWS]
    if all(None in one for one in found):
        return "-"
    return ", ".join(
        "-" if None in one else f"{max(e for e in one if e is not None):.3g}"
        for one in found
    )


def conclusions(result: BenchmarkResult, judged: Judged) -> list[str]:
    """Return a sentence for each row that Holm tells from the curve."""
    curve = result.plan.reference.label
    said = []
    for row in judged.rows:
        if row.p is None or row.p >= ALPHA or row.standing is None:
            continue
        distance, is_above = row.standing.distance, row.standing.where == "above"
        if is_above and distance.value < 0:
            continue  # at its utility early stopping may leak as much
        how = "less" if distance.value > 0 else "more"
        bound = "at least " if is_above else ""
        said.append(
            f"{row.method.label} ({row.choice.setting}) leaks {how} than {curve} at equal "
            f"utility, by {bound}{_number(distance)}, n = {len(row.standing.by_seed)}."
        )
    return said or [f"No row is told from {curve} by these seeds."]


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
        (_missed(judged), "The best attack afterwards, which is no result, sees more: {}."),
        (", ".join(failed), "Some runs failed: {}."),
    ]  # fmt: skip
    return [
        *(text.format(names) for names, text in lines if names),
        "Other data, models and attacks may order methods otherwise; only a certified ε "
        "bounds all attacks.",
    ]


def _missed(judged: Judged) -> str:
    """Return rows of which another attack saw clearly more on evaluation seeds."""
    found = []
    for row in judged.rows:
        seen = {
            (look, attack): _mean([run.looks[look].leaks[attack] for run in row.runs])
            for look in range(len(row.runs[0].looks))
            for attack in row.runs[0].looks[look].leaks
            if all(attack in run.looks[look].leaks for run in row.runs)
        }
        best = max(seen, key=lambda one: seen[one])
        if row.standing is not None and seen[best] > row.leak.value + _MORE:
            found.append(f"{row.method.label} ({best[1]} {seen[best]:.3f})")
    return ", ".join(found)


def _named(rows: Iterator[Row]) -> str:
    return ", ".join(row.method.label for row in rows)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
