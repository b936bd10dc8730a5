"""``python -m tests.reference_runs [NAME ...]``: eleven small runs, held to what is stored.

Each is trained or taken, audited, judged by the gate and exported as a card, in portable
bits and with fixed seeds and keys, so that every number has the same bytes on all x86-64
processors. What a change of the code's form must leave alone is stored beside the tests:
transcripts' heads, digests of scores, estimates, verdicts, gate outcomes, cards' entries.
Names of files, fields and sentences are not: these may change.

``--store`` writes what is found in place of what is stored: only with a reason in
``docs/decisions/``, since everything that differs is another audit.
"""

from privaudit.core.portable_bits import use_portable_bits

if __name__ == "__main__":
    use_portable_bits()  # before torch is imported

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privaudit import Audit, Auditor, Estimate, Run, gate, load_run, train, use_owner
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.checks.gate.settings import GateSettings
from privaudit.cli.main import app
from privaudit.datasets.scenes import records as scenes
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report.export import export_public
from privaudit.statistics.claim import ClaimVerdict
from privaudit.statistics.epsilon.bound import EpsilonBound
from privaudit.statistics.verdict import Verdict
from tests.plugins import declare_packages_beside
from tests.privaudit.recording import linear_owner, small_federation

STORED = Path(__file__).parent / "data" / "reference_runs.json"
SCENES = 300  # of 3,000: each run encodes all of them
Found = dict[str, Any]
Make = Callable[[Path, str], Run]


@dataclass(frozen=True)
class Reference:
    """A run, and what is done with it.

    Attributes:
        make: Returns the run, given the folder of all runs and its name.
        scenarios: Each with its number of shadow models; the gate judges the first.
        against: The reference run that the gate compares with; empty for limits alone.
        owner: Says how a recorded federation's models are asked.
    """

    make: Make
    scenarios: Mapping[str, int] = field(default_factory=dict)
    against: str = ""
    owner: Any = None


def _trained(trainer: str, **fields: Any) -> Make:
    return lambda folder, name: train(trainer, folder=folder, name=name, **fields)


def _record(folder: Path, name: str) -> Run:
    small_federation.record(folder / name)
    return load_run(name, folder=folder)


def _scored(count: int, above: float) -> Make:
    """Return what makes a run of scores, of which members' lie so far above others'."""
    return lambda folder, name: _score(folder, name, count, above)


def _score(folder: Path, name: str, count: int, above: float) -> Run:
    """Return a run of scores that chance and membership decide, from hashes alone."""
    lines = ["client,record,score,member"]
    for number in range(count):
        drawn = hashlib.sha256(f"record {number}".encode()).digest()
        member, noise = drawn[0] % 2, int.from_bytes(drawn[1:5]) / 2**32
        lines.append(
            f"site-{number % 3},{number},{noise + above * member:.6f},{member}"
        )
    path = folder / f"{name}.csv"
    path.write_text("\n".join(lines))
    asked = [
        "scores",
        str(path),
        "--sampling",
        "coin",
        "--runs",
        str(folder),
        "--quiet",
    ]
    said = CliRunner().invoke(app, asked, catch_exceptions=False)
    if said.exit_code:
        raise RuntimeError(said.output)
    return load_run(name, folder=folder)


_PROMPT: dict[str, Any] = {"clients": 3, "rounds": 2, "shots": 12, "seed": 7}
_WRITER: dict[str, Any] = {
    "clients": 2,
    "rounds": 2,
    "participation": 1.0,
    "tested": 6,
    "shots": 4,
    "public_share": 0.1,
    "measured_rounds": 1,
    "seed": 7,
}
_BOTH = {"server-reconstruct": 5, "black-box": 5}
_QUICK = {"server-reconstruct": 0, "black-box": 0}

REFERENCES: Mapping[str, Reference] = {
    "promptfl": Reference(
        _trained("promptfl", epochs=4, **_PROMPT), {**_BOTH, "black-box-labels": 0}
    ),
    "dp-fpl": Reference(
        _trained("dp-fpl", epsilon=8.0, **_PROMPT), _BOTH, against="promptfl"
    ),
    "pfedmoap": Reference(_trained("pfedmoap", **_PROMPT), _BOTH, against="promptfl"),
    "fedpt": Reference(_trained("fedpt", **_PROMPT), _BOTH),
    "masked": Reference(
        _trained(
            "dp-promptfl",
            epsilon=8.0,
            secure_aggregation="masked",
            canary="gradient",
            **_PROMPT,
        ),
        {"server-aggregate": 5, "one-run": 0, "black-box": 5},
    ),
    "lora": Reference(
        _trained(
            "lora-fedavg",
            epochs=6,
            learning_rate=0.003,
            settings={"batch_size": 0, "optimizer": "adam"},
            canary="secret",
            **_WRITER,
        ),
        {"server-reconstruct": 0, "one-run": 0},
    ),
    "fedrand": Reference(_trained("fedrand", **_WRITER), _QUICK),
    "untuned": Reference(
        _trained("zero-shot", dataset="scenes", model="tiny-llava", **_WRITER), _QUICK
    ),
    "recorded": Reference(
        _record, {**_BOTH, "server-aggregate": 0, "update-watch": 0}, owner=linear_owner
    ),
    "scores": Reference(_scored(240, 0.25)),
    "chance": Reference(_scored(1600, 0.0)),
}


def find(folder: Path, names: Sequence[str]) -> Found:
    """Make reference runs, and return what is found of each, by path."""
    found: Found = {}
    for name in names:
        begun = time.monotonic()
        reference = REFERENCES[name]
        with _owner_of(reference):
            run = reference.make(folder, name)
            for path, entry in _of_run(run, reference, folder):
                found[f"{name}/{path}"] = entry
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return found


@contextmanager
def _owner_of(reference: Reference) -> Iterator[None]:
    if reference.owner is None:
        yield
    else:
        with use_owner(reference.owner):
            yield


def _of_run(run: Run, reference: Reference, folder: Path) -> Iterator[tuple[str, Any]]:
    is_trained = bool(reference.scenarios)
    if is_trained:  # that of scores is drawn by the system
        yield "head", run.header["progress"]["head"]
    scenarios = reference.scenarios or {"scores": 0}
    for scenario, shadows in scenarios.items():
        if is_trained:
            save_audit(Auditor(run).attack(scenario, shadows=shadows))
        audit = restore_audit(read_audit(run, scenario))
        for path, entry in _of_audit(audit):
            yield f"{scenario}/{path}", entry
    yield from _of_gate(run, next(iter(scenarios)), reference.against, folder)
    card = export_public(run, folder / f"card of {run.name}", budget=20.0).card
    entries = card.model_dump(mode="json")
    del entries["privaudit"], entries["made"]  # its version, the day
    del entries["computed"]  # by which builds of libraries: this machine's
    del entries["ledger"]  # of all cards with these coins: of the runs made before, too
    if not is_trained:
        del entries["commitments"]  # to the head
    for path, entry in _leaves(entries):
        yield f"card/{path}", entry


def _of_audit(audit: Audit) -> Iterator[tuple[str, Any]]:
    yield "headline", next(iter(audit.results))
    yield "claimed", audit.claimed_epsilon
    yield "certified", audit.certified_epsilon
    yield "utility", [_row(one) for one in _estimates(audit.utility)]
    for name, result in audit.results.items():
        for path, entry in _of_result(result):
            yield f"{name}/{path}", entry
    for name, part in sorted(audit.parts.items()):
        yield f"parts/{name}", sorted(map(json.dumps, _numbers(part)))


def _of_result(result: AttackResult) -> Iterator[tuple[str, Any]]:
    yield "settings", result.settings
    yield "verdict", result.verdict.kind
    yield "tied", result.tied
    yield "scores", _digest(result)
    for name in ("auroc", "auroc_new_clients", "success", "success_plain", "advantage"):
        yield name, _row(getattr(result, name))
    yield "tpr_at_fpr", {f"{f:g}": _row(e) for f, e in result.tpr_at_fpr.items()}
    yield "by_client", {c: _row(e) for c, e in result.by_client.items()}


def _of_gate(
    run: Run, scenario: str, against: str, folder: Path
) -> Iterator[tuple[str, Any]]:
    settings = GateSettings(
        scenario=scenario,
        metrics=("auroc",) if isinstance(run, ScoredRun) else ("auroc", "utility"),
        shadows=0,
    )
    limited = replace(settings, max_auroc=0.7)
    baseline = load_run(against, folder=folder) if against else None
    for name, before, asked in (
        ("gate", baseline, limited),
        ("gate on itself", run, settings),
    ):
        judged = gate(run, before, asked, folder=folder)
        yield f"{name}/exit code", judged.exit_code
        yield f"{name}/outcome", judged.outcome
        for check in judged.tested:
            yield f"{name}/{check.title}", [check.outcome, _row(check.estimate)]
        others = [one.outcome for one in judged.checks if one not in judged.tested]
        yield f"{name}/others", others


def _digest(result: AttackResult) -> str:
    """Return the SHA-256 of all scores of an attack, and of what stands beside them."""
    total = hashlib.sha256()
    for client in result.clients:
        total.update(client.client.encode())
        for name in ("records", "labels", "scores", "guesses", "is_member", "left_out"):
            values = getattr(client, name)
            if values is not None:
                total.update(f"{name} {np.shape(values)}".encode())
                total.update(np.ascontiguousarray(values, np.float64).tobytes())
    return total.hexdigest()


def _row(estimate: Estimate) -> list[Any]:
    """Return what an estimate says in numbers, without the words of its method."""
    numbers = (estimate.value, estimate.low, estimate.high)
    known = [None if math.isnan(number) else number for number in numbers]
    return [*known, list(estimate.n), estimate.confidence]


def _estimates(result: Any) -> Iterator[Estimate]:
    """Go through a result's fields, and yield the estimates in it."""
    if isinstance(result, Estimate):
        yield result
    elif isinstance(result, Verdict):
        return  # on an AUROC that stands beside it
    elif is_dataclass(result) and not isinstance(result, type):
        for each in fields(result):
            yield from _estimates(getattr(result, each.name))
    elif isinstance(result, Mapping | list | tuple):
        parts = result.values() if isinstance(result, Mapping) else result
        for one in parts:
            yield from _estimates(one)


def _numbers(result: Any) -> Iterator[Any]:
    """Yield what a part of an audit holds in numbers, whatever its fields are called."""
    if isinstance(result, Estimate):
        yield _row(result)
    elif isinstance(result, EpsilonBound):
        kind = "refutes" if result.can_refute else "informs"
        yield [kind, result.value, result.ceiling, *result.n]
    elif isinstance(result, AttackResult):
        yield [_digest(result), result.verdict.kind]
        yield from map(_row, _estimates(result))
    elif isinstance(result, ClaimVerdict):
        yield result.kind
        yield from _numbers(result.bound)
    elif isinstance(result, float | int):
        yield None if math.isnan(result) else result
    elif is_dataclass(result) and not isinstance(result, type):
        yield from _numbers([getattr(result, each.name) for each in fields(result)])
    elif isinstance(result, Mapping | list | tuple):
        for one in result.values() if isinstance(result, Mapping) else result:
            yield from _numbers(one)


def _leaves(entries: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in sorted(entries.items()):
        if isinstance(entry, Mapping) and entry:
            yield from _leaves(entry, f"{before}{name}/")
        else:
            yield f"{before}{name}", entry


def differences(stored: Found, found: Found, names: Sequence[str]) -> list[str]:
    """Return a line for each entry that is missing, new or other, of some runs."""
    stored, found = (
        {path: entry for path, entry in entries.items() if _run_of(path) in names}
        for entries in (stored, found)
    )
    nothing = object()
    return [
        f"{path}: stored {shown(stored, path)}, found {shown(found, path)}"
        for path in sorted(stored.keys() | found.keys())
        if stored.get(path, nothing) != found.get(path, nothing)
    ]


def shown(entries: Found, path: str) -> str:
    """Return an entry in few words; "nothing" where there is none."""
    return json.dumps(entries[path])[:200] if path in entries else "nothing"


def _run_of(path: str) -> str:
    return path.partition("/")[0]


def _as_stored(found: Found) -> Found:
    return dict(json.loads(json.dumps(found)))


@contextmanager
def _fixed(folder: Path) -> Iterator[None]:
    """Fix keys and the number of scenes, and keep to a folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [one for one in os.environ if one.startswith("PRIVAUDIT_")]:
            if name != "PRIVAUDIT_BITS":
                patch.delenv(name)
        patch.setenv("PRIVAUDIT_KEYS", str(folder / "keys"))
        patch.setenv("PRIVAUDIT_SIGNING_KEY", "11" * 32)
        patch.setenv("PRIVAUDIT_CACHE", str(folder / "cache"))
        patch.setattr(scenes, "RECORDS", SCENES)
        patch.setattr(os, "fsync", lambda handle: None)
        declare_packages_beside(
            folder / "beside"
        )  # labs have the protocol of masked sums
        yield


def main(argv: Sequence[str]) -> int:
    """Make the runs, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference_runs")
    parser.add_argument("names", nargs="*", help="all by default", metavar="NAME")
    parser.add_argument("--store", action="store_true", help="replace what is stored")
    parser.add_argument("--stored", type=Path, default=STORED)
    asked = parser.parse_args(argv)
    if unknown := sorted(set(asked.names) - REFERENCES.keys()):
        parser.error(f"there are no {', '.join(unknown)}, but {', '.join(REFERENCES)}")
    names = [n for n in REFERENCES if n in asked.names or not asked.names]
    needed = [n for n in REFERENCES if n in {REFERENCES[one].against for one in names}]
    with tempfile.TemporaryDirectory(prefix="reference-") as place, _fixed(Path(place)):
        found = _as_stored(find(Path(place), [*dict.fromkeys([*needed, *names])]))
    if asked.store:
        return _store(asked.stored, found)
    stored = json.loads(asked.stored.read_bytes())
    lines = differences(stored, found, names)
    count = sum(_run_of(path) in names for path in found)
    print("\n".join(lines))
    print(f"{count} entries of {len(names)} runs, {len(lines)} differ")
    return int(bool(lines))


def _store(path: Path, found: Found) -> int:
    kept = json.loads(path.read_bytes()) if path.exists() else {}
    made = {_run_of(one) for one in found}
    kept = {one: entry for one, entry in kept.items() if _run_of(one) not in made}
    rows = [
        f"{json.dumps(p)}: {json.dumps(e)}"
        for p, e in sorted({**kept, **found}.items())
    ]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{len(found)} entries of {len(made)} runs are stored")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
