"""On what a table ran: backbones, data sets and seeds, in words."""

from typing import Any

from privaudit.runs.config import build_trainer
from privaudit.runs.fields import RunFields
from privaudit.runs.tasks import RUN_TASKS
from privaudit_tools.tables.plan import TablePlan


def ran_on(plan: TablePlan, fewest: int | None = None) -> str:
    """Return a line on what the numbers are of: backbones, data sets and seeds.

    Args:
        plan: Of what ran.
        fewest: Seeds of the cell with the fewest; by default each has all.

    Example:
        >>> from privaudit_tools.tables.parts import TableRow
        >>> row = TableRow(label="a", trainer="promptfl")
        >>> ran_on(TablePlan(title="t", seeds=(1, 2), rows=(row,)))
        '**Ran on** `tiny-clip` with `digits`; 2 seeds (1, 2).'
    """
    count = len(plan.seeds)
    counts = span(fewest or count, count)
    seeds = f"{counts} seed{'s' * (count > 1)} ({', '.join(map(str, plan.seeds))})"
    return f"**Ran on** {backbones(plan)}; {seeds}."


def backbones(plan: TablePlan) -> str:
    """Return the models of a plan's cells, and their data sets."""
    kinds = [
        {**_usual(row.trainer), **plan.fields_of(row, column)}
        for row, column in plan.cells
    ]
    models = dict.fromkeys(_named(k["model"], k.get("checkpoint")) for k in kinds)
    data = dict.fromkeys(_data(k["dataset"], k.get("data")) for k in kinds)
    return f"{', '.join(models)} with {', '.join(data)}"


def _usual(trainer: str) -> dict[str, Any]:
    """Return the model and the data set of a trainer that is given none."""
    names = ("model", "dataset")
    usual = {name: RunFields.model_fields[name].default for name in names}
    task = build_trainer(trainer, {}).task
    return usual if task == "either" else {**usual, **RUN_TASKS[task].defaults}


def _named(name: str, checkpoint: str | None) -> str:
    """Return a name without the folders of one machine."""
    kind, colon, source = name.partition(":")
    short = f"{kind}:{source.rpartition('/')[2]}" if colon else name
    weights = f" from {checkpoint.rpartition('/')[2]}" if checkpoint else ""
    return f"`{short}`{weights}"


def _data(name: str, place: str | None) -> str:
    """Return a data set's name, with its file's where the name is that of a form."""
    said = _named(name, None)
    if name not in ("feature-bank", "caption-bank"):
        return said
    file = (place or "").rpartition("/")[2]
    return f"{said} ({file})"


def span(few: int, many: int) -> str:
    """Return the fewest and the most of something.

    Example:
        >>> span(3, 10), span(3, 3)
        ('3 to 10', '3')
    """
    return str(many) if few == many else f"{few} to {many}"
