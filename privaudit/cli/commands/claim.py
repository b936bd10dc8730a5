"""Commands ``claim`` and ``lint``: does a claimed epsilon hold, and does a run keep to it?"""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from privaudit.cli import options
from privaudit.cli.printing import show
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import parse_pairs

if TYPE_CHECKING:
    from privaudit.checks.lint import Finding
    from privaudit.cli.progress import Display

CanaryName = Literal["opposed", "gradient", "mislabelled", "picture"]
WhereName = Literal["peer", "released"]
AdjacencyName = Literal["add/remove-one", "replace-one", "both"]
BoundName = Literal["split", "multi-split"]
_OF_CANARIES = "canary", "where", "adjacency", "bound", "repeats", "records", "seed"


def claim(
    trainer: Annotated[
        str, typer.Option(help="A DP trainer: NAME or NAME:key=value,key=value.")
    ] = "dp-fpl",
    epsilon: options.Epsilon = None,
    setting: options.Settings = None,
    canary: Annotated[
        str,
        typer.Option(
            help="Canary, in or out of each run by a coin: opposed or gradient "
            "(crafted), mislabelled or picture (real)."
        ),
    ] = "opposed",
    where: Annotated[
        str, typer.Option(help="Adversary: peer, or released (has the final model).")
    ] = "peer",
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="What the coin decides: add/remove-one (whether the canary is there), "
            "replace-one (it, or another record), or both, one after another. By "
            "default: both for published modes, whose claim leaves it open, else "
            "add/remove-one."
        ),
    ] = None,
    bound: Annotated[
        str,
        typer.Option(
            help="split: half of the runs chooses the threshold for the other half; "
            "multi-split: the median over 101 such halvings."
        ),
    ] = "split",
    repeats: Annotated[int, typer.Option(help="Independent runs.")] = 1000,
    records: Annotated[int, typer.Option(help="Other records per client.")] = 4,
    rounds: Annotated[int | None, typer.Option()] = None,
    seed: options.AuditSeed = 0,
    field: options.Fields = None,
    on: options.On = "local",
    out: Annotated[
        Path | None,
        options.file_option("Write the numbers to this JSON file."),
    ] = None,
) -> None:
    """Audit a claimed epsilon: a lower bound from many runs with and without a canary.

    Exit code 1 if the bound exceeds the claimed epsilon under every adjacency that is
    audited, or the certified one. Another package's trainer that takes no crafted canary
    is tried out for half a minute: rounds with a record and without it must not be told
    apart better than its mechanisms allow.
    """
    from privaudit.checks.dp_claim_audit import audit_readings
    from privaudit.cli.progress import Phase, choose_view
    from privaudit.execution.executors import find_executor

    name, spec_settings = options.trainer_spec(trainer)
    settings = {
        **options.settings(setting),
        **spec_settings,
        **options.given(epsilon=epsilon),
    }
    fields = {**parse_pairs("--field", field or []), **options.given(rounds=rounds)}
    view = choose_view()
    given = canary, where, adjacency, bound, repeats, records, seed
    usual = [signature(claim).parameters[one].default for one in _OF_CANARIES]
    named = zip(_OF_CANARIES, given, usual, strict=True)
    chosen = [one for one, value, default in named if value != default]
    if _try_out(name, settings, fields, chosen, out, view):
        return
    with view:
        found = audit_readings(
            name,
            settings,
            None
            if adjacency is None
            else _one_of("--adjacency", adjacency, AdjacencyName),
            canary=_one_of("--canary", canary, CanaryName),
            where=_one_of("--where", where, WhereName),
            bound=_one_of("--bound", bound, BoundName),
            runs=repeats,
            records=records,
            seed=seed,
            executor=find_executor(on),
            progress=lambda done, total: view(Phase(name, "claim", "", done, total)),
            **fields,
        )
    where_from = found.audits[0]
    lines = [
        *(audit.sentence for audit in found.audits),
        *filter(None, [found.sentence]),
        f"Canary: {where_from.canary}. Beside it: {where_from.records} records a client.",
        f"Seen from: {where_from.where}.",
    ]
    _present(view, lines, found.to_dict(), out)
    if found.refuted or found.alarm:
        raise typer.Exit(1)


def _try_out(
    name: str,
    settings: dict[str, Any],
    fields: dict[str, Any],
    chosen: Sequence[str],
    out: Path | None,
    view: "Display",
) -> bool:
    """Try another package's trainer out; False where crafted canaries can be used."""
    from dataclasses import asdict

    from privaudit.checks.plugin_trial import try_mechanisms
    from privaudit.federation.trainer import TRAINERS, AcceptsGradientCanaries
    from privaudit.runs.config import make_config
    from privaudit.runs.population import populate

    config = make_config(name, settings, **{"clients": 2, **fields})
    trainer = config.build_trainer()
    if TRAINERS.is_own(trainer) or isinstance(trainer, AcceptsGradientCanaries):
        return False
    if chosen:
        raise ConfigError(
            f"--{chosen[0]} was given, and {name} of another package takes no crafted "
            "canary: it is tried out, without that. Leave the option out."
        )
    found = try_mechanisms(trainer, populate(config).task)
    _present(view, [str(found)], asdict(found), out)
    if found.faults:
        raise typer.Exit(1)
    return True


def _one_of(option: str, text: str, names: Any) -> Any:
    if text not in get_args(names):
        raise ConfigError(
            f"{option} {text} is unknown. Use one of {', '.join(get_args(names))}."
        )
    return text


def _present(
    view: "Display", lines: Sequence[str], numbers: dict[str, Any], out: Path | None
) -> None:
    """Write the numbers where a file was named, and print what they say."""
    from privaudit.cli.progress import Result

    text = "\n".join(lines)
    if out is not None:
        from privaudit.core.storage import to_json
        from privaudit.runs.own_files import write_output

        write_output(out, to_json(numbers))
        text += f"\nNumbers: {out}"
    view.present([Result(text, numbers)], lambda: typer.echo(text))


def lint(
    run: options.Runs = None,
    sarif: Annotated[
        Path | None, options.file_option("Write findings as SARIF 2.1.0.")
    ] = None,
    trial: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds to try out the mechanisms of another package's trainer, with "
            "a record and without it; 0 leaves that out.",
        ),
    ] = 30.0,
    claim: options.OwnClaim = None,
    runs: options.RunsFolder = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Check runs against their DP claims; exit code 1 if one does not hold."""
    from privaudit.checks.lint import lint as lint_run
    from privaudit.models import remote_code
    from privaudit.runs.run import chosen_runs

    selected_runs, own = chosen_runs(run, runs), options.own_claim(claim)
    with remote_code.trust_remote_code(trust_remote_code):
        findings = {one: lint_run(one, trial=trial, claim=own) for one in selected_runs}
    names = [one.name for one in findings]
    same = len(set(names)) < len(names)  # in several folders
    called = {one: one.place if same else one.name for one in findings}
    if sarif is not None:
        from privaudit.core.storage import to_json
        from privaudit.report.ci_formats import lint_sarif
        from privaudit.runs.own_files import write_output

        write_output(sarif, to_json(lint_sarif(findings)))
    contents = {
        called[one]: [f.to_json() for f in found] for one, found in findings.items()
    }
    lines = [
        line
        for one, found in findings.items()
        for line in (f"{called[one]}: {_summary(found)}", *(f"  {f}" for f in found))
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
