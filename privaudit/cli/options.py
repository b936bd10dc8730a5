"""Options of the command line: what their texts mean, and which places they may name.

What a command writes where its user says is refused before it computes. Nothing here
imports torch or numpy.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.parameters import parse_pairs, parse_spec
from privaudit.runs.fields import PATH, RunFields

if TYPE_CHECKING:
    from privaudit.privacy.events import Claim


def file(text: str | Path) -> Path:
    """Return a file that is to be written."""
    from privaudit.runs.own_files import check_file

    path = _here(text)
    check_file(path)
    return path


def folder(text: str | Path) -> Path:
    """Return a folder for what is to be written."""
    from privaudit.runs.own_files import check_folder

    return check_folder(_here(text))


def file_option(text: str) -> Any:
    """Return the option of a file that a command writes, with its help."""
    return typer.Option(parser=file, metavar="PATH", help=text)


def folder_option(text: str) -> Any:
    """Return the option of a folder that a command writes into, with its help."""
    return typer.Option(parser=folder, metavar="PATH", help=text)


file_argument: Any = typer.Argument(
    parser=file, metavar="PATH", help="The file to write."
)


def _here(text: str | Path) -> Path:
    """Return what a path or a ``file://`` names on this machine."""
    from privaudit.runs.store import local_path

    try:
        return local_path(text)
    except ConfigError as error:  # as one line; of a ValueError Typer makes a box
        raise PrivauditError(str(error)) from None


Read = TypeVar("Read")
MOST_SEED = 2**63 - 1
METHOD, COMPUTING = "Method", "Computing"  # panels of --help

Trainers = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME or NAME:key=value,key=value; repeatable. By default: promptfl.",
        rich_help_panel=METHOD,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        help="Privacy budget ε, for trainers with DP.", rich_help_panel=METHOD
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Trainer parameter, as NAME=VALUE; repeatable.",
        rich_help_panel=METHOD,
    ),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field", help="Run setting, as NAME=VALUE, such as clients=3; repeatable."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help=RunFields.model_fields["data"].description, metavar="PATH"),
]
HowSampled = Annotated[
    str,
    typer.Option(
        help="How members were chosen: coin (a fair one for each, before training); "
        "sklearn:SEED, torch:SEED, datasets:SEED (a library's random split, which is done "
        "again and checked; with :RECORDS, of so many); split (another of fixed size); "
        "population (members and others are random samples of one). Otherwise no verdict "
        "on membership is given."
    ),
]
RunName = Annotated[str | None, typer.Option(help="Name of the run's folder.")]


def _folder(text: str) -> Path:
    """Return the folder of runs that a path or a URL names."""
    if ":" not in text:
        return Path(text)
    from privaudit.runs.run import runs_folder

    try:
        return runs_folder(text)
    except ConfigError as error:  # as one line; of a ValueError Typer makes a box
        raise PrivauditError(str(error)) from None


def check_kept(runs: Path | None) -> None:
    """Refuse a folder for new runs that this process takes with it when it ends.

    Raises:
        ConfigError: It is at ``memory://``.
    """
    from privaudit.runs.run import runs_folder, shared_place

    folder = str(shared_place(runs_folder(runs)))
    if folder.startswith("memory:"):
        raise ConfigError(
            f"{folder} is the memory of this command, and runs there would be lost when it "
            "ends. Name a folder, or a store such as s3://bucket/runs."
        )


RunsFolder = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        parser=_folder,
        metavar="PATH",
        help="Folder of all runs, or its URL, such as s3://bucket/runs. By default: "
        "./runs.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
ResumeNear = Annotated[
    bool,
    typer.Option(
        "--resume-near",
        help="Continue an interrupted run also on another device, with another number "
        "of threads or other libraries: its bytes may differ then.",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace an existing run.")]
Runs = Annotated[list[str] | None, typer.Argument(help="Runs. By default: the latest.")]
ScenarioName = Annotated[str, typer.Option()]
NamedAttacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        help="An attack to make besides the scenario's own: NAME or "
        "NAME:key=value,key=value; repeatable. `privaudit list attacks` names them.",
    ),
]
Attacked = Annotated[
    str, typer.Option(help="How many clients get shadow models, or 'all' of them.")
]
Shadows = Annotated[
    int | None,
    typer.Option(
        help="Shadow models per client; 0 for none. By default as many as --budget "
        "pays for."
    ),
]
AuditSeed = Annotated[
    int, typer.Option(min=0, max=MOST_SEED, help="Seed of the attacks.")
]
Margin = Annotated[
    float,
    typer.Option(help="Verdict: an AUROC up to 0.5 and this is no leak that matters."),
]
TailMargin = Annotated[
    float,
    typer.Option(
        help="Verdict: nor is it if no more than this share of members is told at the "
        "rate of --fpr."
    ),
]
Fpr = Annotated[
    float, typer.Option(help="Verdict: the false-positive rate of --tail-margin.")
]
ShowRecords = Annotated[
    bool, typer.Option("--show-records", help="Show the most exposed records.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON, and nothing else on the output.")
]
Device = Annotated[
    str | None,
    typer.Option(
        envvar="PRIVAUDIT_DEVICE",
        rich_help_panel=COMPUTING,
        help="Where models compute: cpu, cuda, cuda:1, mps, or auto for CUDA where there "
        "is one. By default: cpu.",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        envvar="PRIVAUDIT_MEMORY",
        rich_help_panel=COMPUTING,
        help="For what a step computes, beside model and records, such as 20GiB: bounds "
        "clients, shadow models and records at once. By default: 0.7 of what is free on a "
        "GPU, no bound on the CPU.",
    ),
]
ChosenBits = Annotated[
    str | None,
    typer.Option(
        "--bits",
        envvar="PRIVAUDIT_BITS",
        rich_help_panel=COMPUTING,
        metavar="portable|native",
        help="portable: the same bytes on every x86-64 processor, by the oldest kernels "
        "of all libraries, on one thread. native: the fastest ones of this processor.",
    ),
]
Checkpointing = Annotated[
    bool,
    typer.Option(
        "--checkpointing",
        rich_help_panel=COMPUTING,
        help="Gradient checkpointing: layers keep only their inputs and run again for "
        "the gradient. The same numbers in less memory and more time.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        rich_help_panel=COMPUTING,
        help="Let a model of transformers run code that comes with it, with all your "
        "rights. The run says so, and attacks on it need the option again.",
    ),
]
OwnersModule = Annotated[
    str | None,
    typer.Option(
        envvar="PRIVAUDIT_OWNER",
        help="For a recorded federation: the Python file or module that says how its "
        "models are asked. It is imported, and nothing of the run's folder ever is.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the results.")]
On = Annotated[
    str,
    typer.Option(
        envvar="PRIVAUDIT_ON",
        rich_help_panel=COMPUTING,
        help="Where jobs run: local, in as many processes as pay off; local:N, in N; ray, "
        "or ray://HOST:10001. Results are the same.",
    ),
]


def take_fields(
    command: Callable[..., None],
    fields: Mapping[str, FieldInfo],
    panels: Mapping[str, str] | None = None,
) -> None:
    """Give a command an option for each field of a configuration, for its ``**fields``.

    None where an option is not given. Values are checked when the configuration is made.

    Args:
        command: Its last parameter is ``**fields``.
        fields: By name; of a pydantic model or dataclass.
        panels: Names of fields by panel of ``--help``, with blanks between them.
    """
    parameters = [*inspect.signature(command).parameters.values()][:-1]
    panel_of = {n: panel for panel, ns in (panels or {}).items() for n in ns.split()}
    made = [
        keyword_option(name, None, option_of(field, panel_of.get(name)))
        for name, field in fields.items()
    ]
    _sign(command, [*parameters, *made])


def with_bits(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with ``--bits``, which :mod:`privaudit.cli.start` has read."""

    def compute(bits: str | None = None, **named: Any) -> None:
        from privaudit.core.portable_bits import warn_unless_held

        warn_unless_held(bits)
        command(**named)

    return offering(command, compute, keyword_option("bits", None, ChosenBits))


def with_computing(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with options for where, in how much memory and what it computes.

    ``--trust-remote-code`` allows code of a model's own.
    """
    within = with_bits(command)

    def compute(
        device: str | None = None,
        memory: str | None = None,
        checkpointing: bool = False,
        trust_remote_code: bool = False,
        **named: Any,
    ) -> None:
        from privaudit.core.devices import use_checkpointing, use_device, use_memory
        from privaudit.execution.executors import fork_workers
        from privaudit.models import remote_code

        is_one_run = len(named.get("run") or ()) == 1
        if named.get("on") == "local" and device is None and not is_one_run:
            fork_workers(["privaudit.auditing.auditor", "privaudit.report.page"])
        with (
            use_device(device),
            use_memory(memory),
            use_checkpointing(checkpointing),
            remote_code.trust_remote_code(trust_remote_code),
        ):
            within(**named)

    return offering(
        within,
        compute,
        keyword_option("device", None, Device),
        keyword_option("memory", None, Memory),
        keyword_option("checkpointing", False, Checkpointing),
        keyword_option("trust_remote_code", False, TrustRemoteCode),
    )


def with_owner(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with ``--owner``, for one that asks models of runs."""

    def compute(owner: str | None = None, **named: Any) -> None:
        from privaudit.recording.owner import use_owner

        with use_owner(owner):
            command(**named)

    return offering(command, compute, keyword_option("owner", None, OwnersModule))


def keyword_option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Return an option that a command is to have besides its own."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def offering(
    command: Callable[..., None],
    compute: Callable[..., None],
    *options: inspect.Parameter,
) -> Callable[..., None]:
    """Let a function that calls a command offer the command's options and its own."""
    _sign(compute, [*inspect.signature(command).parameters.values(), *options])
    compute.__name__, compute.__doc__ = command.__name__, command.__doc__
    return compute


def _sign(function: Callable[..., None], parameters: list[inspect.Parameter]) -> None:
    """Let Typer see other parameters than a function has, all by keyword."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    offered = [one.replace(kind=keyword) for one in parameters]
    setattr(function, "__signature__", inspect.Signature(offered))  # noqa: B010
    function.__annotations__ = {one.name: one.annotation for one in offered}


def option_of(field: FieldInfo, panel: str | None = None) -> Any:
    """Return the option of a configuration's field, with its type and description."""
    metavar = "PATH" if field.json_schema_extra == PATH else None
    shown = typer.Option(help=field.description, metavar=metavar, rich_help_panel=panel)
    return Annotated[_plain(field.annotation) | None, shown]


def _plain(annotation: Any) -> Any:
    """Return the type of an option: str of a Literal's or a list's values, no range."""
    parts = get_args(annotation)
    if _ALL in parts or get_origin(annotation) is tuple:
        return str  # read by `from_texts`
    if isinstance(annotation, type | str):
        return type(annotation) if isinstance(annotation, str) else annotation
    return _plain(parts[0])  # of Annotated, or of a union with None


def from_texts(
    fields: Mapping[str, FieldInfo], texts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of options of :func:`take_fields` that were given.

    Raises:
        ConfigError: A list has an entry that its field does not take, or a number of
            clients is none.
    """
    return {
        name: _read(f"--{name.replace('_', '-')}", fields[name].annotation, text)
        for name, text in given(**texts).items()
    }


def _read(option: str, annotation: Any, text: Any) -> Any:
    if _ALL in get_args(annotation):
        return attacked(text)
    if get_origin(annotation) is not tuple:
        return text
    entry = _plain(get_args(annotation)[0])
    read, of = _ENTRIES.get(entry, (str, "names"))
    return listed(option, text, read, of)


def given(**fields: Any) -> dict[str, Any]:
    """Return what was given, without what was not."""
    return {name: value for name, value in fields.items() if value is not None}


def settings(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return what --set sets."""
    return parse_pairs("--set rank=4", texts or [])


def trainer_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of NAME or NAME:key=value,key=value."""
    return parse_spec("--trainer", text, "dp-fpl:epsilon=8")


def listed(option: str, text: str, read: Callable[[str], Read], of: str) -> list[Read]:
    """Return the entries of a comma-separated list.

    Raises:
        ConfigError: ``read`` raised a ValueError for an entry; ``of`` says what they are.
    """
    entries = []
    for part in text.split(","):
        try:
            entries.append(read(part.strip()))
        except ValueError:
            raise ConfigError(
                f"{option} {text} holds {part!r}, and takes {of}, separated by commas."
            ) from None
    return entries


def maybe_listed(
    option: str, text: str | None, read: Callable[[str], Any] = str, of: str = "names"
) -> list[Any] | None:
    """Return the same; None where the option is not given."""
    return None if text is None else listed(option, text, read, of)


OwnClaim = Annotated[
    str | None,
    typer.Option(
        metavar="'epsilon=E delta=D'",
        help="What is claimed, where the method claims nothing or something else. "
        "Delta is 1e-5 by default.",
    ),
]


def own_claim(text: str | None) -> "Claim | None":
    """Return the claim that a text says; None without one.

    Raises:
        ConfigError: It has no epsilon of at least 0, no delta in (0, 1), or more.
    """
    if text is None:
        return None
    from privaudit.privacy.events import Claim

    pairs = parse_pairs(
        "--claim 'epsilon=8 delta=1e-5'", text.replace(",", " ").split()
    )
    try:
        given: Any = {name: float(value) for name, value in pairs.items()}
        claim = Claim(**given) if given.keys() <= {"epsilon", "delta"} else Claim()
    except (TypeError, ValueError):
        claim = Claim()
    if claim.epsilon is None or not (0 <= claim.epsilon < inf and 0 < claim.delta < 1):
        raise ConfigError(
            f"--claim {text!r} claims nothing that can be checked. Write 'epsilon=8 "
            "delta=1e-5': an epsilon of at least 0, and a delta between 0 and 1."
        )
    return replace(claim, source="the command line's --claim")


def epsilon(text: str) -> float | None:
    """Return a budget; "none" is None."""
    return None if text == "none" else float(text)


_ALL: Any = Literal["all"]  # beside a number
_ENTRIES: Mapping[type, tuple[Callable[[str], Any], str]] = {
    int: (int, "whole numbers"),
    float: (epsilon, "numbers above 0 or 'none'"),
}


def attacked(text: str) -> int | Literal["all"]:
    """Return how many clients are attacked.

    Raises:
        ConfigError: That is neither a number of at least 1 nor "all".
    """
    if text == "all":
        return "all"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"--clients {text} is neither a number from 1 on nor 'all'. Use one of "
            "these."
        )
    return int(text)
