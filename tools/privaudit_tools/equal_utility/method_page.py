"""A method's own page: each seed, each setting that was tried, each attack."""

from collections.abc import Iterator, Sequence

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import mean_with_t
from privaudit_tools.equal_utility.benchmark import BenchmarkResult
from privaudit_tools.equal_utility.document import (
    Block,
    Command,
    Heading,
    Paragraph,
    Table,
)
from privaudit_tools.equal_utility.judging import Row
from privaudit_tools.equal_utility.outcomes import RunRecord
from privaudit_tools.equal_utility.page import certified, distance, number


def blocks_of_method(result: BenchmarkResult, label: str, command: str) -> list[Block]:
    """Return the page of one row.

    Raises:
        ConfigError: No row has that label.
    """
    judged = result.judged
    rows = {row.method.label: row for row in judged.rows}
    if label not in rows:
        raise ConfigError(
            f"There is no row {label!r}, and there are {', '.join(rows)}. Name one of them."
        )
    row = rows[label]
    return [
        Paragraph(_introduction(result, row)),
        Command(command),
        Heading("By seed"),
        Table(
            ("seed", result.plan.classes, "others'", "AUROC", "below early stopping"),
            [*_by_seed(row, result.plan.utility)],
        ),
        Heading("Settings that tuning seeds chose from"),
        Paragraph(
            f"Means over tuning seeds ({', '.join(map(str, result.plan.tuning_seeds))}), "
            "and the attack that saw most in them. They chose, and are no result."
        ),
        Table(
            ("setting", result.plan.classes, "strongest attack", "AUROC", "chosen"),
            [*_settings(result, row)],
        ),
        Heading("Each attack"),
        Paragraph(f"Means over evaluation seeds. Tuning seeds chose {_attack(row)}."),
        Table(("attack", "after round", "AUROC"), [*_attacks(row)]),
    ]


def _introduction(result: BenchmarkResult, row: Row) -> str:
    plan, method = result.plan, row.method
    settings = ", ".join(
        f"{n} {v}" for n, v in (method.settings | method.fields).items()
    )
    with_them = f", {settings}" if settings else ""
    words = distance(row)
    stands = (
        f"Below {plan.reference.label} at equal {plan.measure}: {words}."
        if words
        else ""
    )
    proofs = certified(row)
    proved = "Nothing is certified." if proofs == "-" else f"Certified ε: {proofs}."
    return (
        f"`{method.trainer}`{with_them}; chosen: {row.choice.setting}. {stands} {proved} "
        f"From the benchmark *{plan.title}*, sealed on {result.seal.on[:10]} "
        f"(`{result.seal.digest[:12]}`)."
    )


def _attack(row: Row) -> str:
    after = f" after round {row.choice.after}" if row.choice.after else ""
    return f"{row.choice.attack}{after}"


def _by_seed(row: Row, utility: str) -> Iterator[Sequence[str]]:
    for run in row.runs:
        last = run.at(0).utility
        leak = run.at(row.choice.after).leaks.get(row.choice.attack)
        by_seed = row.standing.by_seed if row.standing else {}
        yield (
            str(run.seed),
            f"{last[utility]:.3f}",
            f"{last['neighbour']:.3f}" if "neighbour" in last else "",
            "" if leak is None else f"{leak:.3f}",
            f"{by_seed[run.seed]:.3f}" if run.seed in by_seed else "",
        )


def _settings(result: BenchmarkResult, row: Row) -> Iterator[Sequence[str]]:
    seeds, utility = result.plan.tuning_seeds, result.plan.utility
    mine = [run for run in result.runs if run.row == row.method.label]
    for setting in dict.fromkeys(run.setting for run in mine):
        runs = [r for r in mine if (r.setting, r.error) == (setting, "")]
        runs = [run for run in runs if run.seed in seeds]
        if not runs:
            yield setting, "failed", "", "", ""
            continue
        means = _means(runs)
        attack, after = max(means, key=lambda one: means[one])
        value = sum(run.at(0).utility[utility] for run in runs) / len(runs)
        chosen = "yes" if setting == row.choice.setting else ""
        seen = f"{attack} after round {after}"
        yield setting, f"{value:.3f}", seen, f"{means[attack, after]:.3f}", chosen


def _means(runs: Sequence[RunRecord]) -> dict[tuple[str, int], float]:
    """Return each attack's mean after each look that all runs have."""
    return {
        (attack, look.rounds): sum(values) / len(values)
        for look in runs[0].looks
        for attack in look.leaks
        if len(values := _values(runs, attack, look.rounds)) == len(runs)
    }


def _values(runs: Sequence[RunRecord], attack: str, rounds: int) -> list[float]:
    looks = [look for run in runs for look in run.looks if look.rounds == rounds]
    return [look.leaks[attack] for look in looks if attack in look.leaks]


def _attacks(row: Row) -> Iterator[Sequence[str]]:
    means = _means(row.runs)
    for attack, after in sorted(means, key=lambda one: -means[one]):
        values = _values(row.runs, attack, after)
        yield attack, str(after), number(mean_with_t(values))
