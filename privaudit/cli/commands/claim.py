"""``privaudit claim``: does a claimed epsilon hold against many runs with a canary?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from privaudit.cli import options, outputs
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import parse_pairs

if TYPE_CHECKING:
    from privaudit.cli.progress import Display

Rounds = Annotated[int | None, typer.Option()]
CanaryName = Literal["opposed", "gradient", "mislabelled", "picture"]
WhereName = Literal["peer", "released"]
AdjacencyName = Literal["add/remove-one", "replace-one", "both"]
BoundName = Literal["split", "multi-split"]


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
    rounds: Rounds = None,
    seed: options.AuditSeed = 0,
    field: options.Fields = None,
    on: options.On = "local",
    out: Annotated[
        Path | None,
        outputs.file_option("Write the numbers to this JSON file."),
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
    from privaudit.execution.places import find_executor

    name, spec_settings = options.trainer_spec(trainer)
    settings = {
        **options.settings(setting),
        **spec_settings,
        **options.given(epsilon=epsilon),
    }
    fields = {**parse_pairs("--field", field or []), **options.given(rounds=rounds)}
    view = choose_view()
    if _try_out(name, settings, fields, out, view):
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
        *(str(audit.verdict) for audit in found.audits),
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
    out: Path | None,
    view: "Display",
) -> bool:
    """Try another package's trainer out; False where crafted canaries can be used."""
    from dataclasses import asdict

    from privaudit.checks.plugin_trial import try_mechanisms
    from privaudit.federated.runs.config import make_config
    from privaudit.federated.runs.population import populate
    from privaudit.federated.trainer import TRAINERS
    from privaudit.federated.trainer_abilities import AcceptsGradientCanaries

    config = make_config(name, settings, clients=2, **fields)
    trainer = config.build_trainer()
    if TRAINERS.is_own(trainer) or isinstance(trainer, AcceptsGradientCanaries):
        return False
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
        from privaudit.federated.runs.folder.outputs import write_output

        write_output(out, to_json(numbers))
        text += f"\nNumbers: {out}"
    view.present([Result(text, numbers)], lambda: typer.echo(text))
