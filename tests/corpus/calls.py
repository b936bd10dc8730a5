"""Plans, weights and calls of the library that are wrong."""

import os
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.case import Case
from tests.corpus.files import SPOILERS, bomb, spoil
from tests.corpus.flags import BASE


def toml_cases() -> Iterator[Case]:
    """Yield plans that are none."""
    bodies = (
        b"", b"=", b"[", b"a = " + b"[" * 3000 + b"]" * 3000, b"a." * 20000 + b"b = 1",
        b"[" + b"a." * 5000 + b"b]", b"x = " + b"{a=" * 3000 + b"1" + b"}" * 3000,
        b"\xff", b"seeds = [" + b"9" * 5000 + b"]", b"x" * (3 * 2**20), b"a = 1\na = 2",
        b"seeds = [-1]", b"seeds = []", b"seeds = [1.5]", b"seeds = 1", b"rows = 1",
        b'title = ""', b"[fields]\nclients = 1e999", b"[fields]\nno = 1",
        b"trainers = []", b'trainers = ["no"]', b'trainers = [1]', b"epsilons = [-1.0]",
        b"epsilons = [nan]", b"epsilons = [true]", b"[vary]\nrank = []", b"[vary]\nno = [1]",
        b"clients = 0", b"shadows = -1", b"shadows = 3", b"margin = 2.0", b'scenario = "no"',
        b"[fields]\nclients = " + b"9" * 24, b"[fields]\ndata = 7", b"seeds = [1, 1]",
        b"d = 1979-05-27", b'a = """' + b"x" * 100,
    )  # fmt: skip
    for command in ("table", "tradeoff", "gate"):
        file = {"table": "plan.toml", "tradeoff": "sweep.toml"}.get(
            command, "pyproject.toml"
        )
        for number, body in enumerate(bodies):
            if command == "gate":
                body = b"[tool.privaudit.gate]\n" + body
            elif command == "tradeoff" and not body.startswith(b"trainers"):
                body = b'trainers = ["zero-shot"]\n' + body
            fine = "no more than the table's name" if not number else ""
            name = f"{command}: plan {number} {body[:24]!r}"
            yield Case(name, BASE[command], partial(spoil, file, body), fine=fine)


def weight_cases() -> Iterator[Case]:
    """Yield checkpoints that are none: pickles, bombs, other shapes."""
    import pickle

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch ran",)

    zeros = bomb("archive/data/0", 300, {"archive/data.pkl": pickle.dumps({})})
    bodies = {
        "pickle": pickle.dumps(Evil()), "zip bomb": zeros, "empty": b"",
        "zeros": bytes(1000), "text": b"weights", "safetensors": struct.pack("<Q", 2) + b"{}",
        "huge header": struct.pack("<Q", 2**60), "list": pickle.dumps([1, 2]),
        "deep": b"\x80\x02" + b"(" * 100000, "long": b"\x80\x04\x8e" + b"\xff" * 8,
    }  # fmt: skip
    for name, body in bodies.items():
        for ending in ("pt", "safetensors"):
            yield Case(
                f"checkpoint.{ending}: {name}",
                call=partial(_load, f"weights.{ending}"),
                spoil=partial(spoil, f"weights.{ending}", body),
            )
    for spoiler in SPOILERS[5:11]:
        yield Case(
            f"checkpoint {spoiler.__name__}", call=partial(_load, "weights.pt"),
            spoil=partial(spoil, "weights.pt", spoiler),
        )  # fmt: skip


def _load(name: str) -> None:
    import torch

    from privaudit.models.clip.checkpoints import load_checkpoint

    try:
        load_checkpoint(torch.nn.Linear(3, 2), Path(name))
    finally:
        if Path("ran").exists():
            raise RuntimeError("a pickle was run")


def call_cases() -> Iterator[Case]:
    """Yield calls of the library with arguments that are none."""
    asked: tuple[dict[str, Any], ...] = (
        {"seed": "x"}, {"seed": -1}, {"seed": 1.5}, {"seed": True}, {"seed": None},
        {"seed": 10**30}, {"clients": 0}, {"clients": "x"}, {"clients": 1.5},
        {"clients": True}, {"clients": 10**24}, {"shadows": 4}, {"shadows": -1},
        {"shadows": "x"}, {"shadows": True}, {"scenario": "no"}, {"scenario": ""},
    )  # fmt: skip
    for fields in asked:
        yield Case(f"Auditor.attack({fields})", call=partial(_attack, fields))
    made: tuple[dict[str, Any], ...] = (
        {"clients": True}, {"clients": 0}, {"clients": 10**24}, {"clients": "x"},
        {"clients": 1.5}, {"rounds": True}, {"rounds": None}, {"rounds": 10**10},
        {"seed": -1}, {"seed": True}, {"seed": 10**30}, {"seed": "x"}, {"alpha": True},
        {"alpha": float("nan")}, {"participation": 2}, {"participation": True},
        {"name": ""}, {"name": "."}, {"name": "x" * 5000}, {"name": "a/b"},
        {"name": "latest"}, {"data": "a\0b"}, {"model": "\0"}, {"dataset": ""},
        {"shots": 0}, {"tested": -1}, {"clients": 10**9}, {"clients": 10**5},
        {"trainer": ""}, {"trainer": "no"}, {"settings": {"no": 1}}, {"publish": "x"},
        {"dropout": 1}, {"dropout": True}, {"context_tokens": 10**9}, {"canaries": 0},
    )  # fmt: skip
    for fields in made:
        yield Case(f"train({str(fields)[:60]})", call=partial(_train, fields))


def _attack(fields: Mapping[str, Any]) -> None:
    from privaudit import Auditor

    Auditor("one").attack(**fields)


def _train(fields: Mapping[str, Any]) -> None:
    from privaudit import train

    train(**{"rounds": 1, "clients": 2, **fields})
