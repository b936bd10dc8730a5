"""The command ``privaudit plan``: what will be audited, fixed before training."""

from pathlib import Path
from typing import Annotated, Any

import typer

from privaudit.checks.gate.settings import GATE_FIELDS, make_settings
from privaudit.cli import options, outputs
from privaudit.cli.commands.attack import Budget
from privaudit.cli.printing import show
from privaudit.core.errors import ConfigError

PlanFile = Annotated[Path, outputs.file_argument]
Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        help="A scenario to be audited; repeatable. By default: server-reconstruct.",
    ),
]
_THRESHOLDS = {name: GATE_FIELDS[name] for name in ("max_auroc", "margin", "alpha")}


def plan(
    file: PlanFile,
    scenario: Scenarios = None,
    attacks: options.NamedAttacks = None,
    clients: options.Attacked = "all",
    shadows: options.Shadows = None,
    budget: Budget = None,
    seed: options.AuditSeed = 0,
    **thresholds: Any,
) -> None:
    """Fix audits and thresholds in a file with a hash, for `train --plan`.

    The same options as those of attack and gate; `attack --planned` makes the audits.
    """
    from privaudit.auditing.named_attacks import check_arguments
    from privaudit.auditing.repetition.plan import make_plan, write_plan

    asked: dict[str, Any] = {
        "attacks": sorted(attacks or []),
        "clients": options.attacked(clients),
        "shadows": shadows,
        "budget": budget,
        "seed": seed,
    }
    names = scenario or ["server-reconstruct"]
    for name in names:
        check_arguments(name, **asked)
    if len(set(names)) < len(names):
        raise ConfigError(
            f"The scenarios {', '.join(names)} were to be planned. Name each once: a "
            "second audit of one would replace the first."
        )
    wanted = options.given(**thresholds)
    make_settings(wanted, "the plan")
    made = make_plan({name: asked for name in names}, wanted)  # noqa: C420
    write_plan(made, file)
    text = (
        f"Plan: {file}\nSHA-256: {made.hash}\n"
        "Train with --plan, and audit with `privaudit attack --planned`."
    )
    show({"plan": str(file), "sha256": made.hash, "scenarios": names}, text)


options.take_fields(plan, _THRESHOLDS)
