"""The command line: every command is one library call, and printing.

Imports of the library stand inside the commands, so that ``--help`` needs no torch.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from privaudit.errors import ConfigError, PrivauditError

app = typer.Typer(
    help="Audit what federated fine-tuning of a vision-language model gives away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
pretrain_app = typer.Typer(help="Train an embedded model anew.", no_args_is_help=True)
app.add_typer(pretrain_app, name="pretrain")

RunsOption = Annotated[
    Path | None, typer.Option("--runs", help="Where runs are kept. [default: ./runs]")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A trainer's parameter, as NAME=VALUE; repeatable."),
]


@app.command()
def train(
    trainer: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:key=value,key=value; repeatable. [default: promptfl]"
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget, for trainers that have one.")
    ] = None,
    setting: SetOption = None,
    dataset: Annotated[str, typer.Option()] = "digits",
    model: Annotated[
        str, typer.Option(help="tiny-clip, open_clip:ARCH or open_clip:ARCH@TAG.")
    ] = "tiny-clip",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights of an open_clip:ARCH model.")
    ] = None,
    clients: Annotated[int | None, typer.Option()] = None,
    partition: Annotated[
        str | None, typer.Option(help="dirichlet or pathological.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Of the Dirichlet partition.")
    ] = None,
    rounds: Annotated[int | None, typer.Option()] = None,
    participation: Annotated[
        float | None, typer.Option(help="Share of clients in each round.")
    ] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    publish: Annotated[
        bool | None, typer.Option(help="Give the personal models away at the end.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's folder.")] = None,
    runs: RunsOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replace a run that is there.")
    ] = False,
) -> None:
    """Train federatedly, and record all that is sent."""
    from privaudit.runs import mark_latest
    from privaudit.training import train as train_run

    fields = _given(
        dataset=dataset,
        model=model,
        checkpoint=checkpoint,
        clients=clients,
        partition=partition,
        alpha=alpha,
        rounds=rounds,
        participation=participation,
        seed=seed,
        publish=publish,
    )
    shared = _settings(setting or []) | _given(epsilon=epsilon)
    specs = trainer or ["promptfl"]
    if name and len(specs) > 1:
        raise ConfigError(
            f"One --name was given for {len(specs)} trainers. Leave it out, or train "
            "them one by one."
        )
    done = []
    for spec in specs:
        method, own = _trainer_spec(spec)
        with _Bar("rounds") as bar:
            run = train_run(
                method,
                folder=runs,
                name=name,
                resume=resume,
                fresh=fresh,
                settings=shared | own,
                progress=partial(bar.say, spec),
                **fields,
            )
        done.append(run)
        typer.echo(f"{spec}: {run.path}")
    mark_latest(done)


@app.command()
def attack(
    run: Annotated[
        list[str] | None, typer.Argument(help="Runs. [default: those last trained]")
    ] = None,
    scenario: Annotated[str, typer.Option()] = "server-reconstruct",
    clients: Annotated[
        str,
        typer.Option(help="How many clients get shadow models, or 'all' of them."),
    ] = "3",
    shadows: Annotated[
        int, typer.Option(help="Shadow models for each of them; 0 for none.")
    ] = 50,
    seed: Annotated[int, typer.Option(help="Of the adversary's randomness.")] = 0,
    show_records: Annotated[
        bool,
        typer.Option("--show-records", help="Show the most exposed records."),
    ] = False,
    runs: RunsOption = None,
) -> None:
    """Play an adversary on runs, and report what it learns."""
    from rich.console import Console

    from privaudit.auditor import Auditor
    from privaudit.report.page import write_report
    from privaudit.report.store import save_audit
    from privaudit.report.table import print_table
    from privaudit.runs import latest_runs, load_run

    found = [load_run(one, folder=runs) for one in run or []] or latest_runs(runs)
    console, audits = Console(), []
    with _Bar("attacks") as bar:
        for number, one in enumerate(found):
            bar.say(one.config.trainer, number, len(found))

            def say(what: str, label: str = one.config.trainer) -> None:
                bar.describe(f"{label}: {what}")

            audit = Auditor(one).attack(
                scenario,
                clients=_clients(clients),
                shadows=shadows,
                seed=seed,
                progress=say,
            )
            save_audit(audit)
            write_report([audit], _page(one.path, scenario), show_records=show_records)
            audits.append(audit)
    print_table(audits, console)
    page = _page(found[-1].path, scenario)
    if len(audits) > 1:
        page = found[0].path.parent / f"report-{scenario}.html"
        write_report(audits, page, show_records=show_records)
    console.print(f"Report: {page}", soft_wrap=True, highlight=False)


def _page(run: Path, scenario: str) -> Path:
    return run / "audits" / scenario / "report.html"


@app.command()
def tradeoff(
    trainers: Annotated[
        str, typer.Option(help="Comma-separated names of trainers.")
    ] = "dp-fpl",
    epsilons: Annotated[
        str, typer.Option(help="Comma-separated; 'none' is no privacy.")
    ] = "none,8,4,1,0.4,0.1",
    modes: Annotated[
        str, typer.Option(help="Comma-separated modes of private trainers.")
    ] = "published-paper,sound",
    scenario: Annotated[str, typer.Option()] = "prompt-release",
    seeds: Annotated[str, typer.Option(help="Comma-separated.")] = "10,11,12,13,14",
    clients: Annotated[
        str,
        typer.Option(help="How many clients get shadow models, or 'all' of them."),
    ] = "3",
    shadows: Annotated[
        int, typer.Option(help="Shadow models for each of them; 0 for none.")
    ] = 20,
    setting: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder. [default: RUNS/tradeoff]")
    ] = None,
    runs: RunsOption = None,
) -> None:
    """Sweep privacy budgets: attack success and utility against epsilon."""
    from privaudit.runs import runs_folder
    from privaudit.tradeoff import sweep

    folder = out or runs_folder(runs) / "tradeoff"
    points = sweep(
        trainers.split(","),
        [None if e == "none" else float(e) for e in epsilons.split(",")],
        modes.split(","),
        [int(s) for s in seeds.split(",")],
        scenario=scenario,
        clients=_clients(clients),
        shadows=shadows,
        settings=_settings(setting or []),
        folder=runs,
        out=folder,
        progress=typer.echo,
    )
    typer.echo(f"{len(points)} runs audited. Picture and table: {folder}")


@app.command()
def report(
    run: Annotated[str | None, typer.Argument(help="[default: the latest]")] = None,
    scenario: Annotated[str, typer.Option()] = "server-reconstruct",
    runs: RunsOption = None,
) -> None:
    """Say where a run's report lies."""
    from privaudit.errors import MissingFileError
    from privaudit.runs import load_run

    page = _page(load_run(run, folder=runs).path, scenario)
    if not page.exists():
        raise MissingFileError(
            f"There is no report of {scenario} for this run. Make it with "
            f"`privaudit attack --scenario {scenario}`."
        )
    typer.echo(page)


@app.command(name="list")
def list_names(
    what: Annotated[
        str,
        typer.Argument(help="trainers, attacks, scenarios, datasets or models."),
    ],
) -> None:
    """List what there is, a name a line."""
    from privaudit.catalogue import names_of

    for name, summary in names_of(what):
        typer.echo(f"{name:20} {summary}")


@pretrain_app.command("tiny-clip")
def pretrain_tiny_clip(
    out: Annotated[Path, typer.Option(help="Folder for weights and log.")],
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.")] = None,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train tiny-clip on pictures drawn here; the embedded weights stay as they are."""
    from privaudit.models.tiny_clip.pretrain import PretrainSettings, pretrain

    settings = PretrainSettings(**_given(steps=steps, seed=seed))
    pretrain(settings, out, typer.echo)
    typer.echo(f"Weights and log: {out}")


def run() -> None:
    """Run the command line: expected errors are one line, and exit code 2."""
    try:
        app()
    except PrivauditError as error:
        typer.echo(f"privaudit: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo(
            "privaudit: interrupted. Finished rounds are kept: the same command with "
            "--resume goes on.",
            err=True,
        )
        sys.exit(130)


class _Bar:
    """A progress bar; silent where nobody watches."""

    def __init__(self, unit: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "_Bar":
        self.progress.start()
        self.task = self.progress.add_task("", total=None)
        return self

    def say(self, what: str, done: int, total: int) -> None:
        """Show what is done, and how far."""
        self.progress.update(
            self.task, description=what, completed=done, total=total, refresh=True
        )

    def describe(self, what: str) -> None:
        """Show what is done next."""
        self.progress.update(self.task, description=what, refresh=True)

    def __exit__(self, *_: object) -> None:
        self.progress.stop()


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _clients(text: str) -> Any:
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--clients {text} is neither a number nor 'all'. Take one of these."
        ) from None


def _trainer_spec(spec: str) -> tuple[str, dict[str, Any]]:
    name, _, own = spec.partition(":")
    return name, _settings(own.split(",") if own else [])


def _settings(pairs: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(
                f"{pair!r} sets nothing. Write NAME=VALUE, as in --set rank=4."
            )
        settings[key.replace("-", "_")] = None if value == "none" else value
    return settings
