"""``privaudit costs``: bytes, time, memory and fairness of runs."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import show, with_json

if TYPE_CHECKING:
    from privaudit_tools.costs.costs import Costs


def _printed() -> Any:
    """Return the type of what is printed of each run."""
    from privaudit_tools.costs.costs import CostsOfRun

    return CostsOfRun


@partial(with_json, words="costs", load=_printed)
@options.with_owner
@options.with_computing
def costs(
    run: options.Runs = None,
    target: Annotated[
        float | None,
        typer.Option(help="Report the rounds until this accuracy was reached."),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(help="Repeat one client's round, to measure FLOPs and memory."),
    ] = True,
    runs: options.RunsFolder = None,
) -> None:
    """Report communication, compute and memory per client, and fairness."""
    from privaudit.runs.run import chosen_runs
    from privaudit_tools.costs.costs import measure_costs

    for one in chosen_runs(run, runs):
        run_costs = measure_costs(one, target=target, probe=probe)
        text = "\n".join([f"{one.name}:", *_lines_of_costs(run_costs)])
        show({"run": one.name, **run_costs.to_dict()}, text, in_a_line=True)


def _lines_of_costs(found: "Costs") -> list[str]:
    fair = found.fairness
    rows = [
        ("bytes a client sent", f"{found.up_per_client:,.0f}"),
        ("bytes a client received", f"{found.down_per_client:,.0f}"),
        ("bytes in all", f"{found.bytes_total:,}"),
        ("bytes of an upload", f"{found.per_upload:,.0f}"),
        ("seconds, all clients", f"{found.seconds:.1f} for {found.rounds} rounds"),
    ]
    if found.queries is not None:
        rows.append(("model queries", f"{found.queries:,}"))
    if found.target is not None:
        reached = found.rounds_to_target
        said = "not reached" if reached is None else f"after round {reached}"
        if not found.seen_every_round:
            said += " (not measured after every round)"
        rows.append((f"target {found.target:g}", said))
    if fair is not None:
        rows += [
            (f"{fair.metric}, sd of clients", f"{fair.spread} test records"),
            ("worst to best client", f"{fair.lowest:.3f} to {fair.highest:.3f}"),
        ]
    if fair is not None and fair.ratio is not None:
        said = f"{fair.ratio} test records, {fair.clients} clients"
        rows.append(("their ratio", said))
    return [f"  {what:26s} {said}" for what, said in rows + _local_rows(found)]


def _local_rows(found: "Costs") -> list[tuple[str, str]]:
    local = found.local
    if local is None:
        return []
    return [
        ("trained parameters", f"{local.learned:,}"),
        ("FLOPs of a client's round", f"{local.flops:.3g} ({local.records} records)"),
        (
            "peak memory of a client",
            f"{local.peak_bytes / 2**20:,.0f} MiB, "
            f"{local.idle_bytes / 2**20:,.0f} before it trains",
        ),
    ]
