"""Commands ``train``, ``split`` and ``import``: runs made here, or recorded elsewhere."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import show
from privaudit.core.errors import ConfigError, StorageError
from privaudit.runs.fields import PANELS, RunFields

if TYPE_CHECKING:
    from privaudit.cli.progress import Display, Event, Result, RoundDone
    from privaudit.federation.transcript import Kind
    from privaudit.runs.config import RunConfig
    from privaudit.runs.ledger import Ledger
    from privaudit.runs.run import Run
    from privaudit.statistics.estimate import Estimate

PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan", help="A file of `privaudit plan`: put into the run before training."
    ),
]
SessionFile = Annotated[
    Path | None,
    typer.Option(
        help="Toss the coins with an auditor: a file that is not there is written, for them "
        "to answer (`privaudit key answer`); then the same command trains. It takes --plan."
    ),
]
Trainings = Annotated[
    int,
    typer.Option(
        min=1,
        max=100,
        help="Train so often, with coins of its own each: with --seed S also S + 1, and so "
        "on. `attack --pool` makes one audit of them.",
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
    session: SessionFile = None,
    trainings: Trainings = 1,
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
    from privaudit.auditing.audit_log import read_plan
    from privaudit.cli.progress import Result, choose_view
    from privaudit.runs.session import offer_session

    view = choose_view(quiet)
    if plan is not None:
        read_plan(plan)  # before anything is trained
    where = {"folder": runs, "name": name, "fresh": fresh, "plan": plan}
    where["resume"] = "near" if resume_near else resume
    if session is not None:
        where["session"] = session
        if len(specs) * trainings > 1:
            raise ConfigError(
                f"One --session was given for {len(specs) * trainings} trainings. Each "
                "has coins of its own: train them one by one."
            )
        if not session.exists():
            _, method, settings = specs[0]
            with view:
                offer_session(session, method, settings, plan, **fields)
            text = (
                f"{session}: your half of the coins is committed to. Send it to your "
                "auditor for `privaudit key answer`; then train with the same command."
            )
            shown = Result(text, {"session": str(session)})
            view.present([shown], partial(typer.echo, text))
            return
    _train_all(specs, fields, view, trainings, **where)


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
    from privaudit.federation.trainer import TRAINERS
    from privaudit.runs.config import make_config, parameters_of

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
        config = make_config(name, specs[-1][2], **fields)
    typer.echo(_sampled(config), nl=False, err=True)
    return specs


def _sampled(config: "RunConfig") -> str:
    """Return a line on the clients whose utility is measured; empty where it is all."""
    all_clients, measured = config.clients, config.measured_clients
    if measured >= all_clients:
        return ""
    widest = 1.96 * 0.5 * ((1 - measured / all_clients) / measured) ** 0.5
    return (
        f"Utility is measured of {measured:,} of {all_clients:,} clients, drawn by the seed. "
        f"Its interval counts that: at most {widest:.3f} to either side, where clients' "
        f"accuracies differ most. --tested-clients {all_clients} measures all.\n"
    )


def _train_all(
    specs: Sequence[Spec],
    fields: Mapping[str, Any],
    view: "Display",
    trainings: int,
    **where: Any,
) -> None:
    from privaudit.cli.progress import RoundDone
    from privaudit.runs import training
    from privaudit.runs.ledger import known_by
    from privaudit.runs.run import mark_latest

    done: list[Run] = []
    for number, (text, method, settings) in product(range(trainings), specs):
        rounds: list[RoundDone] = []

        def watch(event: "Event", seen: list[RoundDone] = rounds) -> None:
            seen += [event] if isinstance(event, RoundDone) else []
            view(event)

        with view:
            if number:
                first, fresh = done[len(done) % len(specs)], where["fresh"]
                run = training.train_another(first, number, fresh=fresh, watcher=watch)
            else:
                run = training.train(
                    method, settings=settings, watcher=watch, **where, **fields
                )
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
    from privaudit.runs.run_folder import foreign_files, some_files

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
    from privaudit.runs.utility import measure_clients

    trainer, models = run.trainer, run.personal_models
    return measure_clients(trainer, run.population, models, run.own_model).local


Recorded = Annotated[
    str,
    typer.Argument(
        help="The folder with transcript/ and bundle.json, or its name among the runs."
    ),
]
LedgerFile = Annotated[
    Path,
    typer.Option(
        help="Who owned and who trained on which record: from `privaudit split`."
    ),
]


Stopped = Annotated[
    bool,
    typer.Option(
        "--stopped",
        help="Make a run of the rounds of a recording that was stopped before its end.",
    ),
]


def import_recording(
    folder: Recorded,
    ledger: LedgerFile,
    stopped: Stopped = False,
    claim: options.OwnClaim = None,
) -> None:
    """Join a recorded federation with its ledger, check both, and sign the run."""
    from privaudit.core.formatting import epsilon
    from privaudit.recording.importing import finish_recording
    from privaudit.runs.run import runs_folder

    own = options.own_claim(claim)
    named = Path(folder).name == folder and not Path(folder).exists()
    place = runs_folder(None) / folder if named else folder
    run = finish_recording(place, ledger, stopped=stopped, claim=own)
    config, kinds = run.config, Counter(message.kind for message in run.transcript)
    stated = {
        v: proved.get("declared") for v, proved in run.privacy["certified"].items()
    }
    declared = ", ".join(f"{v} {epsilon(e)}" for v, e in stated.items())
    contents = {
        "run": run.name,
        "path": str(run.path),
        "messages": len(run.transcript),
        "rounds": config.rounds,
        "clients": config.clients,
        "certified": run.privacy["certified"],
    }
    text = (
        f"{run.name}: {config.rounds} rounds of {config.clients} clients, "
        f"{contents['messages']} messages ("
        f"{', '.join(f'{count} of kind {kind}' for kind, count in kinds.items())}).\n"
        f"{_what_can_be_audited(kinds)}\n"
        f"Declared epsilon: {declared if any(stated.values()) else 'none'}.\n"
        f"Attack it with: privaudit attack {run.path} --owner FILE.py"
    )
    show(contents, text)


def _what_can_be_audited(kinds: "Counter[Kind]") -> str:
    """Say which adversaries a recording shows enough of."""
    views = []
    if kinds["update"] or kinds["individual-update"]:
        views.append("the server (server-reconstruct)")
    if kinds["broadcast"]:
        views += ["a server that sees sums (server-aggregate)", "peers (curious-peer)"]
    if kinds["release"]:
        views.append("whoever gets the released model (prompt-release)")
    masked = "Uploads are masked. " if kinds["masked"] else ""
    return f"{masked}To be audited: {', '.join(views)}."


_SHOWN = 20  # clients, line by line
_COLUMN = "FILE is .npy, .csv, .tsv, .jsonl, .parquet or .arrow"
Records = Annotated[
    int | None,
    typer.Option(help="How many records there are, where no column says it."),
]
Clients = Annotated[
    int | None,
    typer.Option(help="Clients that get equal numbers of records at random."),
]
Owners = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:COLUMN]",
        help="Whose each record is, such as a hospital or a writer, in place of "
        f"--clients. {_COLUMN}.",
    ),
]
Groups = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:COLUMN]",
        help="What records share that stay together, such as a patient: all of a group "
        "are members or none, in one client. The audit then counts groups.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:COLUMN]",
        help="Classes, to be spread evenly over clients, tests and public records.",
    ),
]
Members = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:COLUMN]",
        help="Where training has been, and no coin was tossed: 0 or 1 for each record, "
        "or positions. An audit gives no verdict of membership without --sampling.",
    ),
]
TestShare = Annotated[
    float, typer.Option(help="Share kept for utility, which nobody trains on.")
]
PublicShare = Annotated[
    float | None,
    typer.Option(
        help="Share of the adversary's reference records. By default: 0.2, or none where "
        "these were fewer than 10."
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=options.MOST_SEED,
        help="Repeats the split; who can guess it knows the truth. By default: a key of "
        "the system's, which is not kept.",
    ),
]
Out = Annotated[Path, options.file_option("The file to write.")]
FreshCoin = Annotated[
    bool, typer.Option("--fresh", help="Replace the file, and toss anew.")
]


def split(
    records: Records = None,
    clients: Clients = None,
    owners: Owners = None,
    groups: Groups = None,
    labels: Labels = None,
    members: Members = None,
    sampling: options.HowSampled = "unknown",
    test_share: TestShare = 0.1,
    public_share: PublicShare = None,
    seed: Seed = None,
    out: Out = Path("ledger.npz"),
    fresh: FreshCoin = False,
) -> None:
    """Toss the coin before training elsewhere: who owns each record, and who trains on it."""
    from privaudit.recording.membership_split import read_column, split_membership

    if out.exists() and not fresh:
        raise StorageError(
            f"{out} is there, and a coin that is tossed again tells nothing of what was "
            "trained with the first. Name another --out, or replace it with --fresh."
        )
    sources = options.given(
        owners=owners, groups=groups, labels=labels, members=members
    )
    columns: dict[str, Any] = {
        name: read_column(f"--{name}", source) for name, source in sources.items()
    }
    ledger = split_membership(
        records,
        clients,
        test_share=test_share,
        public_share=public_share,
        seed=seed,
        sampling=sampling,
        **columns,
    )
    ledger.save(out)
    counts = {
        name: (len(ledger.candidates_of(number)), len(ledger.members_of(number)))
        for number, name in enumerate(ledger.clients)  # by name each is searched for
    }
    contents = {
        "ledger": str(out),
        "tossed": ledger.tossed,
        "clients": {
            name: {"candidates": candidates, "members": members}
            for name, (candidates, members) in counts.items()
        },
        "tests": len(ledger.tests),
        "public": len(ledger.public),
    }
    show(contents, "\n".join(_split_lines(ledger, out, counts)))


def _split_lines(
    ledger: "Ledger", out: Path, counts: Mapping[str, tuple[int, int]]
) -> list[str]:
    ways = {"coin": "its coin", "unknown": "no coin"}
    how = ways.get(ledger.sampling, "a random draw")
    rows = [(name, *count) for name, count in counts.items()][:_SHOWN]
    width = max(len(name) for name, _, _ in rows)
    more = len(ledger.clients) - len(rows)
    return [
        f"{'client':{width}}  candidates  members",
        *(f"{name:{width}}  {of:10,}  {trained:7,}" for name, of, trained in rows),
        *([f"and {more:,} more clients"] if more else []),
        f"{len(ledger.tests):,} records for tests, {len(ledger.public):,} public.",
        f"{out} says who is a member, by {how}. Keep it private: who reads it knows.",
        *_unit(ledger),
        _randomness(ledger),
    ]


def _unit(ledger: "Ledger") -> list[str]:
    if ledger.group is None:
        return []
    candidates = (ledger.owner >= 0).nonzero()[0]
    count = len(ledger.units(candidates).first)
    return [
        f"The {len(candidates):,} candidates are {count:,} groups of one coin each."
    ]


def _randomness(ledger: "Ledger") -> str:
    from privaudit.runs.ledger import known_by

    if ledger.sampling in ("split", "population"):
        return "No bound on epsilon: that takes a coin for each record."
    if not ledger.tossed:
        return "Members and others may differ by more than training: no audit can tell."
    if ledger.coin is not None and ledger.coin.seed is not None:
        return known_by(ledger.coin.seed)
    return "Tossed with a key of the system's, which nobody kept."
