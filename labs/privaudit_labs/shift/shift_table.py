"""The shift control as a table: an attack on foreign non-members, and its controls."""

from collections.abc import Mapping, Sequence

from privaudit.core.formatting import markdown_table
from privaudit_labs.shift.distribution_shift_verdict import Shift

HEADINGS = {
    "inside": "same distribution",
    "foreign": "foreign",
    "untuned": "untuned model",
    "beyond": "tuned minus untuned",
    "blind": "blind baseline",
    "beyond_blind": "attack minus blind",
}


def shift_table(found: Mapping[str, Sequence[Shift]]) -> str:
    """Return a Markdown table, a row for each run and attack, with intervals.

    What was found is of :func:`~privaudit_labs.shift.distribution_shift.measure_shift`.
    """
    heads = ["run", "attack", *HEADINGS.values(), "n", "says"]
    rows = []
    for run, shifts in found.items():
        for one in shifts:
            estimates = [one.estimates[name] for name in HEADINGS]
            numbers = [f"{e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in estimates]
            members, strangers = one.foreign.n
            count = f"{members} + {one.inside.n[1]}, {strangers}"
            rows.append([run, one.attack, *numbers, count, one.sentence])
    legend = "AUROC and its 95 % interval. n: members + others, foreign."
    return f"{markdown_table(heads, rows)}\n\n{legend}\n"
