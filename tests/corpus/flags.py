"""Every option of every command, with values that no command can take."""

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from tests.corpus.case import Case
from tests.corpus.world import TRAIN

DIGITS = "9" * 24
BASE: Mapping[str, tuple[str, ...]] = {
    "train": ("train", *TRAIN, "--name", "new"),
    "attack": ("attack", "one"),
    "tradeoff": ("tradeoff", "sweep.toml"),
    "table": ("table", "plan.toml"),
    "figure": ("figure", "roc", "one"),
    "shift": ("shift", "one"),
    "split": ("split", "--records", "100", "--clients", "2", "--out", "new.npz"),
    "lint": ("lint", "one"),
    "compare": ("compare", "one", "two"),
    "selftest": ("selftest", "--only", "auroc"),
    "claim": ("claim", "--repeats", "2"),
    "gate": ("gate", "one"),
    "export": ("export", "one", "--public", "out"),
    "verify": ("verify", "public", "one"),
    "report": ("report", "one"),
    "scores": ("scores", "scores.csv", "--name", "new"),
    "costs": ("costs", "one", "--no-probe"),
    "surrogate-clip": ("pretrain", "surrogate-clip", "--dataset", "digits", "--out", "s"),
    "tiny-clip": ("pretrain", "tiny-clip", "--out", "s"),
    "tiny-llava": ("pretrain", "tiny-llava", "--out", "s"),
    "projector": (
        "pretrain", "projector", "--language", "nowhere/at-all", "--dataset",
        "caption-bank", "--out", "s",
    ),
}  # fmt: skip
NUMBERS = ("-1", "-" + DIGITS, "x", "", "1e999", "nan", "--", "0x1", "1_0.", "٣x")
FLOATS = ("-1", "-" + DIGITS, "x", "", "nan", "-inf", "inf", "1,5")
TEXTS = (
    "", "no-such-name", "x" * 5000, "../../x", "é\u0301\U0001f600", "a\nb", "\x1b[31m",
)  # fmt: skip
PLACES = ("", "/dev/full", "/dev/null/x", "x" * 5000, "/proc/1/x/y")
FINE: Mapping[tuple[str, str], str] = {}


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with what Click knows of it."""
    import typer
    from typer.core import TyperCommand

    from privaudit.cli.main import app
    from privaudit.cli.plugins import load_command

    whole: Any = typer.main.get_command(app)
    beside = {name: load_command(name, TyperCommand) for name in ("costs", "shift")}
    for name, found in {**whole.commands, **beside}.items():
        yield from getattr(found, "commands", {name: found}).items()


def flag_cases() -> Iterator[Case]:
    """Yield each option of each command with each bad value of its kind."""
    for name, found in commands():
        if name not in BASE:
            continue
        for option in found.params:
            if option.param_type_name != "option" or option.name == "help":
                continue
            for value in _values(name, option, found.callback):
                flag = option.opts[0]
                yield Case(
                    f"{name} {flag} {value[:20]!r}", (*BASE[name], f"{flag}={value}")
                )


def _values(command: str, option: Any, callback: Any) -> tuple[str, ...]:
    """Return values that are none of the kind that the option's type says."""
    kinds = str(get_type_hints(callback)[option.name])
    if {option.opts[0], (command, option.opts[0])} & OPEN or "bool" in kinds:
        return ()
    if "int" in kinds:
        return (*NUMBERS, *(() if option.opts[0] in HUGE_IS_FINE else (DIGITS,)))
    if "float" in kinds:
        return FLOATS
    return PLACES if "Path" in kinds else TEXTS


OPEN: frozenset[Any] = frozenset(
    {"--runs", "--data", "--checkpoint", "--language", ("train", "--name")}
    | {("scores", words) for words in ("--attack", "--model", "--dataset", "--name")}
)
"""Which folders are read: cases of their own; and an owner's own words."""
HUGE_IS_FINE = frozenset({"--most"})


def argument_cases() -> Iterator[Case]:
    """Yield names of runs, plans, cards and things to list that are none."""
    bad = (
        "", ".", "..", "/", "nothing", "x" * 5000, "/dev/null", "/dev/zero", "a\nb",
        "runs", "latest", "one/run.json", "plan.toml", "\U0001f600", "one/audits",
    )  # fmt: skip
    read = ("attack", "lint", "shift", "gate", "report", "costs", "figure", "export")
    for name in read:
        for value in bad:
            base = [part for part in BASE[name] if part != "one"]
            fine = "a folder of runs" if (name, value) == ("report", "runs") else ""
            yield Case(f"{name} {value[:20]!r}", (*base, value), fine=fine)
    for value in (*bad, "/dev/full", "fifo", "one"):
        if value != "plan.toml":
            yield Case(f"table {value[:20]!r}", ("table", value))
        yield Case(f"tradeoff {value[:20]!r}", ("tradeoff", value))
        yield Case(f"verify {value[:20]!r}", ("verify", value))
        yield Case(
            f"gate --baseline {value[:20]!r}", ("gate", "one", f"--baseline={value}")
        )
        fine = "it does not differ from itself" if value == "one" else ""
        yield Case(f"compare one {value[:20]!r}", ("compare", "one", value), fine=fine)
        yield Case(f"list {value[:20]!r}", ("list", value))
        yield Case(f"{value[:20]!r}", (value,))


def output_cases() -> Iterator[Case]:
    """Yield commands whose output cannot be written, and terminals of ASCII."""
    quick = ["attack", "lint", "compare", "gate", "report", "costs", "verify", "export"]
    narrow = (("PYTHONIOENCODING", "ascii"), ("LC_ALL", "C"))
    for name in quick:
        yield Case(f"{name} > /dev/full", BASE[name], full_output=True)
        yield Case(
            f"{name} in ASCII", BASE[name], environment=narrow, fine="it is good"
        )
    for argv in (("--help",), ("list", "trainers"), ("train", "--help")):
        yield Case(f"{argv[-1]} > /dev/full", argv, full_output=True)
    for trainer in ("promptfl", "dp-fpl"):
        yield Case(
            f"list {trainer} in ASCII", ("list", trainer), environment=narrow,
            fine="it is good",
        )  # fmt: skip
    for value in ("x", "-1", "", "1e9", "9" * 40, "٣"):
        for name in ("text", "arrays"):
            yield Case(
                f"PRIVAUDIT_MAX_{name.upper()}={value}", BASE["report"],
                environment=((f"PRIVAUDIT_MAX_{name.upper()}", value),),
            )  # fmt: skip


def setting_cases() -> Iterator[Case]:
    """Yield parameters and fields that no trainer and no run could use."""
    for value in ("", "=", "x", "=1", "no=1", "epsilon", "a b=1", "x" * 5000 + "=1"):
        yield Case(f"train --set {value[:20]!r}", (*BASE["train"], f"--set={value}"))
        yield Case(
            f"tradeoff --field {value[:20]!r}", (*BASE["tradeoff"], f"--field={value}")
        )
    for value in ("", ":", "x:", ":a=1", "dp-fpl:", "dp-fpl:epsilon", "dp-fpl:x=1"):
        yield Case(f"train --trainer {value!r}", (*BASE["train"], f"--trainer={value}"))
    for key in ("epsilon", "rank", "batch_size", "learning_rate", "clip_norm", "delta"):
        for value in ("-1", "nan", "inf", "x", "", DIGITS, "1e400", "[1]", "9" * 5000):
            trainer = ("--trainer", "dp-fpl", f"--set={key}={value}")
            floats = ("epsilon", "clip_norm", "learning_rate")
            fine = "it may be that large" if key in floats and value == DIGITS else ""
            yield Case(
                f"dp-fpl {key}={value[:24]}", (*BASE["train"], *trainer), fine=fine
            )


def name_cases() -> Iterator[Case]:
    """Yield names that no run may have."""
    bad = ("", ".", "..", ".x", "a/b", "x" * 201, "x" * 5000, "é", "a b", "latest")
    for value in (*bad, "a\nb", "-x"):
        yield Case(f"train --name {value[:20]!r}", ("train", *TRAIN, f"--name={value}"))
