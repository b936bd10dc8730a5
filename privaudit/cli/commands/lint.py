"""``privaudit lint``: is what was trained what the privacy claim takes for granted?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privaudit.cli import options, outputs
from privaudit.cli.printing import show

if TYPE_CHECKING:
    from privaudit.checks.lint import Finding


def lint(
    run: options.Runs = None,
    sarif: Annotated[
        Path | None, outputs.file_option("Write findings as SARIF 2.1.0.")
    ] = None,
    trial: Annotated[
        float,
        typer.Option(
            help="Seconds to try out the mechanisms of another package's trainer, with "
            "a record and without it; 0 leaves that out."
        ),
    ] = 30.0,
    runs: options.RunsFolder = None,
) -> None:
    """Check runs against their DP claims; exit code 1 if one does not hold."""
    from privaudit.checks.lint import lint as lint_run
    from privaudit.federated.runs.folder.run_names import chosen_runs

    selected_runs = chosen_runs(run, runs)
    findings = {one.name: lint_run(one, trial=trial) for one in selected_runs}
    if sarif is not None:
        from privaudit.core.storage import to_json
        from privaudit.federated.runs.folder.outputs import write_output
        from privaudit.report.sarif import lint_sarif

        by_run = {one: findings[one.name] for one in selected_runs}
        write_output(sarif, to_json(lint_sarif(by_run)))
    contents = {name: [f.to_json() for f in found] for name, found in findings.items()}
    lines = [
        line
        for name, found in findings.items()
        for line in (f"{name}: {_summary(found)}", *(f"  {one}" for one in found))
    ]
    show(contents, "\n".join(lines))
    if any(one.severity == "error" for found in findings.values() for one in found):
        raise typer.Exit(1)


def _summary(findings: "list[Finding]") -> str:
    """Count findings by severity."""
    counted = [
        (sum(f.severity == severity for f in findings), severity)
        for severity in ("error", "warning", "note")
    ]
    parts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counted if n]
    return ", ".join(parts) or "nothing found"
