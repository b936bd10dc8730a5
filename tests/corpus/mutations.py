"""``python -m tests.corpus.mutations [--count 200]``: what one changed byte does unseen.

A run that was trained, planned, audited twice, exported and made a baseline of is
changed in one place by somebody without its key. Each command that reads it must say
so, or print what it prints of the run as it was: another answer is a silent one.
"""

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from privaudit.cli import main as cli
from tests.corpus.all_cases import prepare
from tests.corpus.case import Case, Spoil, nothing
from tests.corpus.files import replace
from tests.corpus.running import Outcome, run_cases
from tests.corpus.world import command, make_world

RUN = "mutated"
READERS: Sequence[Sequence[str]] = (
    ("report", RUN),
    ("lint", RUN),
    ("costs", RUN),
    ("compare", RUN, "one"),
    ("gate", RUN, "--baseline", "mutated.json"),
    ("verify", "exported", RUN),
    ("export", RUN, "--public", "again"),
    ("attack", RUN, "--shadows", "0"),
)
DERIVED = re.compile(r".*\.(html|png|svg|unfinished)|\.lock.*|\.lease.*")  # not read
_SAYS = "privaudit: "  # how a refusal begins
_MEASURED = re.compile(
    r"\d+(\.\d+)? ?(s|seconds|min|MiB)\b|\d+ files|\d+ before it trains"
)
Change = Callable[[bytes, random.Random], bytes]


def main(argv: Sequence[str]) -> int:
    """Try so many mutations, print what comes of them, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.mutations")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(argv)
    prepare()
    with tempfile.TemporaryDirectory(prefix="mutations-") as place:
        world = make_mutable_world(Path(place) / "world")
        found = try_mutations(world, asked.count, asked.seed, asked.processes)
    for one in found:
        if one.kind not in ("refused", "same answer"):
            print(f"{one.name}: {one.kind}\n{one.shown}", flush=True)
    kinds = Counter(one.kind for one in found)
    silent = sum(kinds[kind] for kind in ("silent", "crash"))
    print(f"{len(found)} mutations: {dict(kinds)}; {silent} silent or crashed")
    return int(silent > 0)


@dataclass(frozen=True)
class Tried:
    """A mutation, and what came of it.

    Attributes:
        name: File and change.
        kind: "refused", "same answer", "silent" or "crash".
        shown: What a silent one prints, beside what it printed before.
    """

    name: str
    kind: str
    shown: str


def make_mutable_world(place: Path) -> Path:
    """Add a run with a proof, a plan, two audits, a card and a baseline to the world."""
    world = make_world(place)
    home = Path.cwd()
    os.chdir(world)
    try:
        train = ("--clients", "2", "--rounds", "2", "--seed", "3")
        chance = ("--randomness", "system")
        method = ("--trainer", "dp-fpl:epsilon=8,noise_at=client")
        command("train", *train, *chance, *method, "--name", RUN, "--quiet")
        for seed in ("0", "1"):
            command("attack", RUN, "--shadows", "0", "--seed", seed, "--quiet")
        command("gate", RUN, "--write-baseline", "mutated.json")
        command("export", RUN, "--public", "exported")
    finally:
        os.chdir(home)
    return world


def try_mutations(world: Path, count: int, seed: int, processes: int) -> list[Tried]:
    """Return what came of so many mutations of a world's run, card and baseline."""
    files = sorted(
        path.relative_to(world).as_posix()
        for top in (f"runs/{RUN}", "exported", "mutated.json")
        for path in [world / top, *(world / top).rglob("*")]
        if path.is_file() and not DERIVED.fullmatch(path.name)
    )
    rng = random.Random(seed)
    spoils = [_mutation(files, rng) for _ in range(count)]
    cases = [_case("as it was", nothing), *(_case(*one) for one in spoils)]
    done = {one.case.name: one for one in run_cases(cases, world, processes)}
    before = _answers(done.pop("as it was"))
    return [_judged(one, before) for one in done.values()]


def _case(name: str, spoil: Spoil) -> Case:
    return Case(name, spoil=spoil, call=_read_all, fine="judged by its answers")


def _read_all() -> None:
    """Run each reader in this process, and print what it answers as a line of JSON."""
    for argv in READERS:
        code, text = 0, io.StringIO()
        sys.argv = ["privaudit", *argv]
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                cli.run()
            except SystemExit as ending:
                code = int(ending.code or 0)
        said = _MEASURED.sub("…", text.getvalue())
        print(json.dumps([" ".join(argv), code, said]), file=sys.__stdout__)


def _answers(outcome: Outcome) -> dict[str, tuple[int, str]]:
    lines = [json.loads(li) for li in outcome.said.splitlines() if li.startswith("[")]
    return {
        argv: (code, re.sub(r"\S*corpus-\w+", "", said)) for argv, code, said in lines
    }


def _judged(outcome: Outcome, before: dict[str, tuple[int, str]]) -> Tried:
    name, after = outcome.case.name, _answers(outcome)
    if "Traceback" in outcome.said or len(after) < len(before):
        return Tried(name, "crash", outcome.said[-1500:])
    kind = "same answer"
    for argv, (code, said) in after.items():
        if (code, said) == before[argv]:
            continue
        noticed = code == 2 and _SAYS in said
        noticed |= argv.startswith("verify") and code == 1
        if not noticed:
            shown = f"{argv} ({code}):\n{said[-700:]}\nwas:\n{before[argv][1][-700:]}"
            return Tried(name, "silent", shown)
        kind = "refused"
    return Tried(name, kind, "")


def _mutation(files: Sequence[str], rng: random.Random) -> tuple[str, Spoil]:
    """Return one mutation at random: of each file as often, whatever its size."""
    file, change = rng.choice(files), rng.choice(CHANGES)
    seed = rng.getrandbits(32)
    return f"{file} {change.__name__} {seed}", partial(_apply, file, change, seed)


def _apply(file: str, change: Change, seed: int, world: Path) -> None:
    path = world / file
    content = change(path.read_bytes(), random.Random(seed))
    if content:
        replace(path, content)
    else:
        path.unlink()


def one_bit(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def one_digit(content: bytes, rng: random.Random) -> bytes:
    places = [n for n, byte in enumerate(content[:200_000]) if 48 <= byte <= 57]
    if not places:
        return one_bit(content, rng)
    changed, place = bytearray(content), rng.choice(places)
    changed[place] = 48 + (changed[place] - 48 + rng.randrange(1, 10)) % 10
    return bytes(changed)


def cut_tail(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def no_file(content: bytes, rng: random.Random) -> bytes:
    return b""


def one_line_less(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def last_line_less(content: bytes, rng: random.Random) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-1])


def lines_swapped(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return one_bit(content, rng)
    first, second = rng.sample(range(len(lines)), 2)
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def one_key_less(content: bytes, rng: random.Random) -> bytes:
    """Drop one entry of a JSON text, at any depth; of another file, one line."""
    return _in_json(content, rng, lambda above, key: above.pop(key))


def one_value_else(content: bytes, rng: random.Random) -> bytes:
    """Put another value of the same type in the place of one in a JSON text."""

    def other(above: dict[str, object], key: str) -> None:
        value = above[key]
        if isinstance(value, bool):
            above[key] = not value
        elif isinstance(value, int | float):
            above[key] = value * 2 + 1
        elif isinstance(value, str):
            above[key] = value[::-1] + "x"
        else:
            above[key] = None

    return _in_json(content, rng, other)


def _in_json(
    content: bytes,
    rng: random.Random,
    change: Callable[[dict[str, object], str], object],
) -> bytes:
    try:
        parsed = json.loads(content)
    except ValueError:
        return one_line_less(content, rng)
    entries = list(_entries(parsed))
    if not entries:
        return one_bit(content, rng)
    change(*rng.choice(entries))
    return json.dumps(parsed).encode()


def _entries(parsed: object) -> Iterator[tuple[dict[str, object], str]]:
    if isinstance(parsed, dict):
        for key, value in parsed.items():
            yield parsed, key
            yield from _entries(value)
    elif isinstance(parsed, list):
        for value in parsed:
            yield from _entries(value)


CHANGES: Sequence[Change] = (
    one_bit, one_digit, cut_tail, no_file, one_line_less, last_line_less,
    lines_swapped, one_key_less, one_value_else,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
