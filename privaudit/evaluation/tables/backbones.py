"""On what a table ran: backbones, data sets and seeds, in words."""

from privaudit.evaluation.tables.plan import TablePlan


def ran_on(plan: TablePlan) -> str:
    """Return a line on what the numbers are of: backbones, data sets and seeds.

    Example:
        >>> from privaudit.evaluation.tables.parts import TableRow
        >>> row = TableRow(label="a", trainer="promptfl")
        >>> ran_on(TablePlan(title="t", seeds=(1, 2), rows=(row,)))
        "**Ran on** the trainers' usual model with their usual data; 2 seeds (1, 2)."
    """
    count = len(plan.seeds)
    seeds = f"{count} seed{'s' * (count > 1)} ({', '.join(map(str, plan.seeds))})"
    return f"**Ran on** {backbones(plan)}; {seeds}."


def backbones(plan: TablePlan) -> str:
    """Return the models of a plan's cells, and their data sets."""
    kinds = [{**plan.fields, **r.fields, **c.fields} for r, c in plan.cells]
    models = dict.fromkeys(_named(k.get("model"), k.get("checkpoint")) for k in kinds)
    data = dict.fromkeys(_data(k.get("dataset"), k.get("data")) for k in kinds)
    backbone = ", ".join(filter(None, models)) or "the trainers' usual model"
    return f"{backbone} with {', '.join(filter(None, data)) or 'their usual data'}"


def _named(name: str | None, checkpoint: str | None) -> str:
    """Return a name without the folders of one machine."""
    if not name:
        return ""
    kind, colon, source = name.partition(":")
    short = f"{kind}:{source.rpartition('/')[2]}" if colon else name
    weights = f" from {checkpoint.rpartition('/')[2]}" if checkpoint else ""
    return f"`{short}`{weights}"


def _data(name: str | None, place: str | None) -> str:
    """Return a data set's name, with its file's where the name is that of a form."""
    file = (place or "").rpartition("/")[2]
    said = _named(name, None)
    return (
        f"{said} ({file})"
        if said and name in ("feature-bank", "caption-bank")
        else said
    )
