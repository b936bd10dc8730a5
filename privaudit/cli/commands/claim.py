"""``privaudit claim``: does a claimed epsilon hold against many runs with a canary?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import typer

from privaudit.cli import options
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import parse_pairs

if TYPE_CHECKING:
    from privaudit.checks.dp_claim_audit import ClaimAudit

CanaryName = Literal["opposed", "gradient", "mislabelled", "picture"]
WhereName = Literal["peer", "released"]
AdjacencyName = Literal["add/remove-one", "replace-one"]


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
        str,
        typer.Option(
            help="What the coin decides: add/remove-one (whether the canary is there) "
            "or replace-one (it, or another record)."
        ),
    ] = "add/remove-one",
    repeats: Annotated[int, typer.Option(help="Independent runs.")] = 1000,
    records: Annotated[int, typer.Option(help="Other records per client.")] = 4,
    rounds: options.Count = None,
    seed: options.AuditSeed = 0,
    field: options.Fields = None,
    on: options.On = "local",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the numbers to this JSON file."),
    ] = None,
) -> None:
    """Audit a claimed epsilon: a lower bound from many runs with and without a canary.

    Exit code 1 if the bound exceeds the claimed or the certified epsilon.
    """
    from privaudit.checks.dp_claim_audit import audit_claim
    from privaudit.cli.progress import Phase, choose_view
    from privaudit.execution.places import find_executor

    name, spec_settings = options.trainer_spec(trainer)
    settings = {
        **options.settings(setting),
        **spec_settings,
        **options.given(epsilon=epsilon),
    }
    fields = {**parse_pairs("--field", field or []), **options.given(rounds=rounds)}
    with choose_view() as view:
        audit = audit_claim(
            name,
            settings,
            canary=cast(CanaryName, _one_of("--canary", canary, CanaryName)),
            where=cast(WhereName, _one_of("--where", where, WhereName)),
            adjacency=cast(
                AdjacencyName, _one_of("--adjacency", adjacency, AdjacencyName)
            ),
            runs=repeats,
            records=records,
            seed=seed,
            executor=find_executor(on),
            progress=lambda done, total: view(Phase(name, "claim", "", done, total)),
            **fields,
        )
    _present(audit, out)
    if audit.verdict.kind == "REFUTED" or audit.verdict.alarm:
        raise typer.Exit(1)


def _one_of(option: str, text: str, names: Any) -> str:
    if text not in get_args(names):
        raise ConfigError(
            f"{option} {text} is unknown. Use one of {', '.join(get_args(names))}."
        )
    return text


def _present(found: "ClaimAudit", out: Path | None) -> None:
    typer.echo(str(found.verdict))
    typer.echo(f"Canary: {found.canary}. Beside it: {found.records} records a client.")
    typer.echo(f"Seen from: {found.where}.")
    if out is not None:
        from privaudit.core.storage import write_bytes

        text = json.dumps(found.to_dict(), indent=2)
        write_bytes(out, f"{text}\n".encode())
        typer.echo(f"Numbers: {out}")
