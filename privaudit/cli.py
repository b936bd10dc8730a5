"""The command line: every command is one library call, and printing.

Imports of the library stand inside the commands, so that ``--help`` needs no torch.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from privaudit import cli_options as options
from privaudit.claim_command import claim
from privaudit.compare_command import compare
from privaudit.errors import ConfigError, PrivauditError
from privaudit.export_command import export
from privaudit.gate_command import gate
from privaudit.lint_command import lint
from privaudit.models.commands import app as pretrain_app
from privaudit.report.figure_command import figure
from privaudit.selftest_command import selftest
from privaudit.shift_command import shift
from privaudit.tables.command import table
from privaudit.tradeoff_command import tradeoff
from privaudit.verify_command import verify

if TYPE_CHECKING:
    from privaudit.audit import Audit

Spec = tuple[str, str, dict[str, Any]]  # as typed, the name, its parameters

_AGAIN: Mapping[str | None, str] = {
    "train": "Finished rounds are kept: the same command with --resume goes on.",
    "tradeoff": "Finished rounds and audits are kept: run the same command again.",
    "table": "Finished rounds are kept: run the same command again.",
}


class _InterruptedError(Exception):
    """Ctrl-C, with what to do; Typer would make a silent exit of it."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            again = _AGAIN.get(ctx.invoked_subcommand, "Run the same command again.")
            raise _InterruptedError(f"interrupted. {again}") from None


app = typer.Typer(
    cls=_Commands,
    help="Audit what federated fine-tuning of a vision-language model gives away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(pretrain_app, name="pretrain")


@app.command()
def train(
    trainer: options.Trainers = None,
    epsilon: options.Epsilon = None,
    setting: options.Settings = None,
    dataset: options.TrainedOn = None,
    data: options.Data = None,
    model: options.Model = None,
    checkpoint: options.Checkpoint = None,
    clients: options.Count = None,
    partition: options.Partition = None,
    alpha: options.Alpha = None,
    shots: options.Shots = None,
    members: options.Members = None,
    targets: options.Targets = None,
    test_share: options.TestShare = None,
    public_share: options.PublicShare = None,
    rounds: options.Count = None,
    participation: options.Participation = None,
    seed: options.Count = None,
    publish: options.Publish = None,
    canary: options.Canary = None,
    canaries: options.Canaries = None,
    name: options.RunName = None,
    runs: options.RunsFolder = None,
    resume: options.Resume = False,
    fresh: options.Fresh = False,
) -> None:
    """Train federatedly, and record all that is sent."""
    fields = options.given(
        dataset=dataset,
        data=data,
        model=model,
        checkpoint=checkpoint,
        clients=clients,
        partition=partition,
        alpha=alpha,
        shots=shots,
        members=members,
        targets=targets,
        test_share=test_share,
        public_share=public_share,
        rounds=rounds,
        participation=participation,
        seed=seed,
        publish=publish,
        canary=canary,
        canaries=canaries,
    )
    specs = _checked_specs(
        trainer or ["promptfl"], options.settings(setting), epsilon, fields
    )
    if name is not None and len(specs) > 1:
        raise ConfigError(
            f"One --name was given for {len(specs)} trainers. Leave it out, or train "
            "them one by one."
        )
    _train_all(specs, fields, folder=runs, name=name, resume=resume, fresh=fresh)


def _checked_specs(
    texts: Sequence[str],
    shared: Mapping[str, Any],
    epsilon: float | None,
    fields: Mapping[str, Any],
) -> list[Spec]:
    """Return the trainers with their parameters, all of them valid.

    An epsilon is for those trainers that have one.
    """
    from privaudit.config import make_config, parameters_of
    from privaudit.trainer import TRAINERS

    named = [(text, *options.trainer_spec(text)) for text in texts]
    private = {name for _, name, _ in named if "epsilon" in parameters_of(name)}
    if epsilon is not None and not private:
        private_ones = [t for t in TRAINERS.names() if "epsilon" in parameters_of(t)]
        raise ConfigError(
            f"--epsilon {epsilon:g} was given, and {', '.join(texts)} has no privacy "
            f"budget. Leave it out, or take one of {', '.join(private_ones)}."
        )
    specs = []
    for text, name, own in named:
        budget = options.given(epsilon=epsilon) if name in private else {}
        specs.append((text, name, {**shared, **budget, **own}))
        make_config(name, specs[-1][2], **fields)
    return specs


def _train_all(specs: Sequence[Spec], fields: Mapping[str, Any], **where: Any) -> None:
    from privaudit.progress_bar import ProgressBar
    from privaudit.runs import mark_latest
    from privaudit.training import train as train_run

    done = []
    for text, method, own in specs:
        with ProgressBar("rounds") as bar:
            run = train_run(
                method, settings=own, progress=partial(bar.say, text), **where, **fields
            )
        done.append(run)
        typer.echo(f"{text}: {run.path}")
    mark_latest(done)


@app.command()
def attack(
    run: options.Runs = None,
    scenario: options.ScenarioName = "server-reconstruct",
    clients: options.Attacked = "3",
    shadows: options.Shadows = None,
    seed: options.AuditSeed = 0,
    show_records: options.ShowRecords = False,
    runs: options.RunsFolder = None,
) -> None:
    """Play an adversary on runs, and report what it learns."""
    from privaudit.auditor import Auditor
    from privaudit.progress_bar import ProgressBar
    from privaudit.report.page import write_report
    from privaudit.report.store import save_audit
    from privaudit.runs import latest_runs, load_run

    whom, audits = options.attacked(clients), []
    found = [load_run(one, folder=runs) for one in run or []] or latest_runs(runs)
    with ProgressBar("attacks") as bar:
        for number, one in enumerate(found):
            trainer = one.config.trainer
            bar.say(trainer, number, len(found))
            audit = Auditor(one).attack(
                scenario,
                clients=whom,
                shadows=shadows,
                seed=seed,
                progress=partial(_describe, bar.describe, trainer),
            )
            save_audit(audit)
            write_report([audit], _page(one.path, scenario), show_records=show_records)
            audits.append(audit)
    _present(audits, show_records)


def _describe(show: Any, trainer: str, what: str) -> None:
    show(f"{trainer}: {what}")


def _present(audits: Sequence["Audit"], show_records: bool) -> None:
    """Print the table, and say where the report on all runs lies."""
    from rich.console import Console

    from privaudit.report.page import write_report
    from privaudit.report.table import print_table

    console = Console()
    print_table(audits, console)
    first, scenario = audits[0].run.path, audits[0].scenario.name
    page = _page(first, scenario)
    if len(audits) > 1:
        page = first.parent / f"report-{scenario}.html"
        write_report(audits, page, show_records=show_records)
    console.print(f"Report: {page}", soft_wrap=True, highlight=False)


def _page(run: Path, scenario: str) -> Path:
    return run / "audits" / scenario / "report.html"


app.command()(tradeoff)
app.command()(table)
app.command()(figure)
app.command()(shift)
app.command()(lint)
app.command()(compare)
app.command()(selftest)
app.command()(claim)
app.command()(gate)
app.command()(export)
app.command()(verify)


@app.command()
def report(
    run: Annotated[str | None, typer.Argument(help="By default: the latest.")] = None,
    scenario: Annotated[str, typer.Option()] = "server-reconstruct",
    runs: options.RunsFolder = None,
) -> None:
    """Say where a run's report lies."""
    from privaudit.errors import MissingFileError
    from privaudit.runs import load_run
    from privaudit.scenario import SCENARIOS

    SCENARIOS.find(scenario)
    found = load_run(run, folder=runs)
    page = _page(found.path, scenario)
    if not page.exists():
        raise MissingFileError(
            f"There is no report of {scenario} for {found.name}. Make it with "
            f"`privaudit attack {found.name} --scenario {scenario}`."
        )
    typer.echo(page)


@app.command(name="list")
def list_names(
    what: Annotated[
        str,
        typer.Argument(
            help="trainers, attacks, scenarios, datasets, models; or a trainer's name, "
            "for its parameters."
        ),
    ],
) -> None:
    """List what there is, a name a line."""
    from privaudit.catalogue import names_of

    for name, summary, *more in names_of(what):
        typer.echo(f"{name:20} {summary}")
        for line in more:
            typer.echo(f"{'':20} {line}")


def run() -> None:
    """Run the command line: expected errors are one line, and exit code 2."""
    try:
        app()
    except PrivauditError as error:
        typer.echo(f"privaudit: {error}", err=True)
        sys.exit(2)
    except _InterruptedError as interruption:
        typer.echo(f"privaudit: {interruption}", err=True)
        sys.exit(130)
