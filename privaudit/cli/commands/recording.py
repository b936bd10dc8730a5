"""``privaudit split`` and ``import``: the coin before others train, and their record after."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options, outputs
from privaudit.cli.printing import show
from privaudit.core.errors import StorageError

if TYPE_CHECKING:
    from privaudit.federated.runs.ledger import Ledger

Recorded = Annotated[
    str, typer.Argument(help="The folder: transcript/ and bundle.json.")
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
) -> None:
    """Join a recorded federation with its ledger, check both, and sign the run."""
    from privaudit.recording.importing import finish_recording

    run = finish_recording(folder, ledger, stopped=stopped)
    config = run.config
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
        f"{contents['messages']} messages.\n"
        f"Attack it with: privaudit attack {run.path} --owner FILE.py"
    )
    show(contents, text)


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
        "or positions. An audit then gives no verdict of membership.",
    ),
]
TestShare = Annotated[
    float, typer.Option(help="Share kept for utility, which nobody trains on.")
]
PublicShare = Annotated[
    float, typer.Option(help="Share of the adversary's reference records.")
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
Out = Annotated[Path, outputs.file_option("The file to write.")]
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
    test_share: TestShare = 0.1,
    public_share: PublicShare = 0.2,
    seed: Seed = None,
    out: Out = Path("ledger.npz"),
    fresh: FreshCoin = False,
) -> None:
    """Toss the coin before training elsewhere: who owns each record, and who trains on it."""
    from privaudit.recording.membership_split import split_membership
    from privaudit.recording.record_columns import read_column

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
        **columns,
    )
    ledger.save(out)
    counts = {
        name: (len(ledger.candidates_of(place)), len(ledger.members_of(place)))
        for place, name in enumerate(ledger.clients)  # by name each is searched for
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
    how = "its coin" if ledger.tossed else "no coin"
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
    from privaudit.federated.runs.ledger import known_by

    if not ledger.tossed:
        return "Members and others may differ by more than training: no audit can tell."
    if ledger.coin is not None and ledger.coin.seed is not None:
        return known_by(ledger.coin.seed)
    return "Tossed with a key of the system's, which nobody kept."
