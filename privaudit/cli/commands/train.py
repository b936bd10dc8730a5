"""The command ``privaudit train``: federated training, with every message recorded."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.core.errors import ConfigError
from privaudit.federated.runs.fields import PANELS, RunFields

if TYPE_CHECKING:
    from privaudit.cli.progress import Display, Event, Result, RoundDone
    from privaudit.federated.runs.runs import Run
    from privaudit.statistics.estimate import Estimate

PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", help="A file of `privaudit plan`: put into the run before training."
    ),
]
Spec = tuple[str, str, dict[str, Any]]  # as typed, the name, its parameters


def train(
    trainer: options.Trainers = None,
    epsilon: options.Epsilon = None,
    setting: options.Settings = None,
    name: options.RunName = None,
    runs: options.RunsFolder = None,
    resume: options.Resume = False,
    resume_near: options.ResumeNear = False,
    fresh: options.Fresh = False,
    plan: PlanFile = None,
    quiet: options.Quiet = False,
    **fields: Any,
) -> None:
    """Train with federated learning, and record every message."""
    options.check_kept(runs)
    fields = options.given(**fields)
    specs = _checked_specs(
        trainer or ["promptfl"], options.settings(setting), epsilon, fields
    )
    if name is not None and len(specs) > 1:
        raise ConfigError(
            f"One --name was given for {len(specs)} trainers. Leave it out, or train "
            "them one by one."
        )
    from privaudit.auditing.repetition.plan import read_plan
    from privaudit.cli.progress import choose_view

    view = choose_view(quiet)
    if plan is not None:
        read_plan(plan)  # before anything is trained
    where = {"folder": runs, "name": name, "fresh": fresh, "plan": plan}
    where["resume"] = "near" if resume_near else resume
    _train_all(specs, fields, view, **where)


options.take_fields(
    train,
    {
        name: field
        for name, field in RunFields.model_fields.items()
        if name not in ("trainer", "settings")  # which have options of their own
    },
    PANELS,
)


def _checked_specs(
    texts: Sequence[str],
    shared: Mapping[str, Any],
    epsilon: float | None,
    fields: Mapping[str, Any],
) -> list[Spec]:
    """Return the trainers with their parameters, all of them valid.

    An epsilon is for those trainers that have one.
    """
    from privaudit.federated.runs.config import make_config, parameters_of
    from privaudit.federated.trainer import TRAINERS

    named = [(text, *options.trainer_spec(text)) for text in texts]
    private = {name for _, name, _ in named if "epsilon" in parameters_of(name)}
    if epsilon is not None and not private:
        private_ones = [t for t in TRAINERS.usable() if "epsilon" in parameters_of(t)]
        raise ConfigError(
            f"--epsilon {epsilon:g} was given, but {', '.join(texts)} has no privacy "
            f"budget. Leave it out, or use one of {', '.join(private_ones)}."
        )
    specs = []
    if fields.get("precision") == "auto":  # chosen where the run would be
        fields = {**fields, "precision": "float32"}
    for text, name, spec_settings in named:
        budget = options.given(epsilon=epsilon) if name in private else {}
        specs.append((text, name, {**shared, **budget, **spec_settings}))
        make_config(name, specs[-1][2], **fields)
    return specs


def _train_all(
    specs: Sequence[Spec], fields: Mapping[str, Any], view: "Display", **where: Any
) -> None:
    from privaudit.cli.progress import RoundDone
    from privaudit.federated.runs.folder.run_names import mark_latest
    from privaudit.federated.runs.ledger import known_by
    from privaudit.federated.runs.training import train as train_run

    done = []
    for text, method, settings in specs:
        rounds: list[RoundDone] = []

        def watch(event: "Event", seen: list[RoundDone] = rounds) -> None:
            seen += [event] if isinstance(event, RoundDone) else []
            view(event)

        with view:
            run = train_run(method, settings=settings, watcher=watch, **where, **fields)
        done.append(run)
        last = rounds[-1] if rounds else None
        view.present([_result(run, last)], partial(_say, text, run))
    mark_latest(done)
    if known := known_by(done[0].coin_seed):
        view.present([], partial(typer.echo, known))


def _say(text: str, run: "Run") -> None:
    queries = _model_queries(run)
    suffix = "" if queries is None else f" ({queries:,} model queries)"
    typer.echo(f"{text}: {run.place}{suffix}")
    if measured := run.header.get("precision_seconds"):
        each = ", ".join(f"{1000 * s:.3g} ms in {one}" for one, s in measured.items())
        typer.echo(f"precision {run.config.precision}: a layer took {each} here")
    from privaudit.federated.runs.folder.run_folder import foreign_files, some_files

    foreign = foreign_files(run.path)
    if foreign:
        typer.echo(
            f"{run.path} also holds files that no run writes: {some_files(foreign)}"
        )
    count, why = _aborted_sums(run)
    if count:
        total = run.config.rounds
        typer.echo(f"{count} of {total} sums were aborted: {', '.join(why)}")


def _aborted_sums(run: "Run") -> tuple[int, list[str]]:
    """Return how many masked sums were aborted, and the reasons."""
    sums = [line["secure_sum"] for line in run.metrics if "secure_sum" in line]
    said = [one["outcome"] for one in sums]
    aborted = [text for text in said if text.startswith("aborted, ")]
    reasons = [t.removeprefix("aborted, ").partition(" (")[0] for t in aborted]
    return len(aborted), sorted(set(reasons))


def _model_queries(run: "Run") -> int | None:
    """Return how often clients asked the model, where they can do nothing else."""
    queries = [line["model_queries"] for line in run.metrics if "model_queries" in line]
    return sum(queries) if queries else None


def _result(run: "Run", last: "RoundDone | None") -> "Result":
    from privaudit.cli.progress import Result

    use = last.utility if last and last.utility else _utility(run)
    privacy = run.privacy
    contents = {
        "run": run.name,
        "path": run.place,
        "rounds": run.config.rounds,
        "utility": use.to_dict(),
        "bytes_up": sum(line["bytes_up"] for line in run.metrics),
        "bytes_down": sum(line["bytes_down"] for line in run.metrics),
        "claimed": privacy["claimed"],
        "certified": privacy["certified"],
    }
    queries = _model_queries(run)
    if queries is not None:
        contents["model_queries"] = queries
    if run.config.is_masked:
        contents["sums"] = run.config.rounds
        contents["aborted_sums"], _ = _aborted_sums(run)
    return Result(run.place, contents)


def _utility(run: "Run") -> "Estimate":
    """Return what a run that was finished before is good for."""
    from privaudit.federated.runs.utility import measure_clients

    trainer, models = run.trainer, run.personal_models
    return measure_clients(trainer, run.population, models, run.own_model).local
