"""A run made again of its run.json and its key, and held against what it holds.

Retrained and attacked again in a folder that goes at the end: nothing is written into the
run, and no log, account or witness counts it. Where its bits are portable, and those of
this process are the same, all must be equal to the byte; elsewhere to :func:`tolerance`.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from privaudit.auditing.attack_result import with_audits
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_log import plan_of, read_log, tally
from privaudit.auditing.auditor import asked_again, attack_again
from privaudit.auditing.stored_audit import (
    AUDIT,
    SCORES,
    StoredAudit,
    read_audit,
    restore_audit,
    score_columns,
    stored_scenarios,
)
from privaudit.core.devices import chosen_device
from privaudit.core.ending import cleaned_up_when_ended
from privaudit.core.errors import ConfigError, PrivauditError, TranscriptError
from privaudit.core.lazy_torch import torch
from privaudit.core.parameters import alike
from privaudit.core.portable_bits import bits_here, computed_with, in_words
from privaudit.core.signing import passing_key
from privaudit.core.storage import Array, to_json
from privaudit.core.tensors import Tensors, digest, signature
from privaudit.execution.jobs import use_threads
from privaudit.federation.transcript import MASKED_KINDS, Message
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report.export.verify import leaves
from privaudit.runs.run import AUDITS, Run, load_run
from privaudit.runs.run_files import environment
from privaudit.runs.training import train_again
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.progress import Watcher

HELD = 3  # rounds whose numbers are held where bits are not; measured in docs/bits.md
MESSAGE_OFF = 1e-3  # norm of a tensor's difference, in units of the tensor's own
SCORES_OFF = 0.5  # mean difference, in standard deviations: of runs of no more rounds
AUROC_OFF = 0.05  # of such runs; of others the width of its interval
_EXACT = ("client", "records", "labels", "is_member")
Columns = Mapping[str, Array]


def tolerance(round: int) -> float:
    """Return by how much a message's tensors may differ where bits need not be equal.

    Roundings differ by 1e-7, and grow until a tie is broken the other way (a largest
    change, a neighbour's weight): from then on two trainings of one seed are as two.

    Args:
        round: In which it was sent, from 0; later ones are held by parties and shapes.
    """
    return MESSAGE_OFF if round < HELD else math.inf


@dataclass
class Recomputed:
    """What came of making a run again.

    Attributes:
        run: The stored run, which the new one is held against.
        near: Why bytes need not be equal; empty where they must be.
        messages: How many were equal, or near.
        audits: The scenarios whose audits were.
        largest: By how much a message differs at most, in units of the tolerance; of
            scores likewise. 0 where bytes are equal.
        difference: What differs first, by round and message or by file; empty if
            nothing does.
    """

    run: Run
    near: tuple[str, ...] = ()
    messages: int = 0
    audits: list[str] = field(default_factory=list)
    largest: float = 0.0
    difference: str = ""

    @property
    def matches(self) -> bool:
        """Whether nothing differs."""
        return not self.difference

    @property
    def other_version(self) -> str:
        """Say that another version made the run; empty if this one did."""
        made, here = self.run.header["privaudit"], version("privaudit")
        if made == here:
            return ""
        return f"privaudit {made} made the run, and {here} computed it again."


def recompute_run(
    run: Run | str | Path | None = None,
    *,
    runs: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Recomputed:
    """Train a run again with its key, attack it again, and say what differs first.

    Raises:
        ConfigError: It was trained elsewhere, is not finished, or computed on another
            device; or an audit was made with attacks of somebody's own.
        MissingFileError: The run, its key or its data are gone.
        TranscriptError: It is not as it was signed, or its data are others now.
        PluginError: It needs another package's code that cannot be imported.
    """
    loaded = run if isinstance(run, Run) else load_run(run, folder=runs)
    stored = _checked(loaded)
    found = Recomputed(loaded, tuple(_why_near(loaded)))
    with (
        cleaned_up_when_ended(),
        _removed_afterwards() as folder,
        passing_key(),
        use_threads(loaded.header["threads"]),
    ):
        again = train_again(loaded, Path(folder).resolve(), watcher)
        found.difference = next(_differences(found, again, stored, watcher), "")
    return found


@contextmanager
def _removed_afterwards() -> Iterator[str]:
    """Make a temporary folder, for a copy of the run's key, and remove it."""
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="privaudit-")
        for _ in range(2):  # a signal may end the first removal halfway
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _checked(run: Run) -> list[StoredAudit]:
    """Return a run's audits, if all of it can be made again and is as it was signed."""
    if run.origin:
        how = "Use `privaudit verify CARD --again`, which attacks it again."
        if isinstance(run, ScoredRun):
            how = "Audit its scores again (`privaudit scores FILE`)."
            if run.is_pool:
                named = ", ".join(read_audit(run, run.origin).contents["pool"]["runs"])
                how = f"Recompute the trainings ({named}), and attack them as then."
        raise ConfigError(
            f"{run.name} was to be recomputed, and its models were trained elsewhere: "
            f"what is here of them cannot be trained again. {how}"
        )
    run.require_complete()
    made_on = run.header.get("device", {}).get("kind", "cpu")
    if made_on != chosen_device().type:
        raise ConfigError(
            f"{run.name} was computed on {made_on}, and {chosen_device().type} is "
            f"chosen. Add --device {made_on}, on a machine that has one."
        )
    run.transcript.check()
    _ = run.population  # raises if data or model are others now
    stored = [read_audit(run, scenario) for scenario in stored_scenarios(run)]
    for one in stored:
        try:
            asked_again(one)
        except PrivauditError as error:
            raise ConfigError(
                f"The audit {one.scenario} of {run.name} cannot be made again: {error}"
            ) from None
    return stored


def _why_near(run: Run) -> Iterator[str]:
    """Yield why a run need not come out to the same bytes here."""
    yield from _of_computing("the run", run.header.get("computed", {}))
    if run.why_not_repeatable:
        yield f"the run was {run.why_not_repeatable}"
    there, here = run.header["libraries"], environment(run.header["libraries"])
    for name, before in there.items():
        if name not in ("torch", "numpy") and here["libraries"].get(name) != before:
            now = here["libraries"].get(name)
            yield f"{name} was {before}, and is {now} here"
    threads = str(run.header["threads"])
    if bits_here() == "portable" and os.environ.get("OMP_NUM_THREADS") != threads:
        yield f"the run took {threads} threads, and OMP_NUM_THREADS is another here"


def _of_computing(what: str, computed: Mapping[str, Any]) -> Iterator[str]:
    """Yield why what was computed so need not have the bytes of this process."""
    here = computed_with()
    if computed.get("bits") != "portable":
        yield f"{what} has {in_words(computed)}"
    elif here["bits"] != "portable":
        yield f"{what} has portable bits, and this process computes native ones"
    elif computed != here:
        yield f"{what} has {in_words(computed)}, and this machine {in_words(here)}"


def _differences(
    found: Recomputed,
    again: Run,
    stored: Sequence[StoredAudit],
    watcher: Watcher | None,
) -> Iterator[str]:
    """Yield what differs, in the order in which it was made."""
    run = found.run
    if again.truth.hash != run.truth.hash:
        yield "ledger.npz: the run's key gives other members"
    yield from _of_messages(found, again)
    yield from _of_files(found, again)
    for one in stored:
        audit = attack_again(one, again, watcher)
        yield from _of_audit(found, one, audit)
        found.audits.append(one.scenario)


def _of_messages(found: Recomputed, again: Run) -> Iterator[str]:
    count: dict[int, int] = {}
    for kept, made in zip_longest(found.run.transcript, again.transcript):
        one: Message = kept or made
        count[one.round] = count.get(one.round, 0) + 1
        where = (
            f"round {one.round}, message {count[one.round]} ({one.kind} from "
            f"{one.sender} to {one.receiver})"
        )
        if kept is None or made is None:
            yield f"{where}: only the {'new' if kept is None else 'kept'} run has it"
        elif _head(kept) != _head(made):
            yield f"{where}: {made.kind} from {made.sender} to {made.receiver} is new"
        elif not found.near:
            for name in kept.tensors:
                if digest(kept.tensors[name]) != digest(made.tensors[name]):
                    yield f"{where}, {name}: other bytes"
        elif kept.kind not in MASKED_KINDS:  # their sum is compared
            allowed = tolerance(kept.round)
            yield from _far(found, where, kept.tensors, made.tensors, allowed)
        found.messages += 1


def _head(message: Message) -> tuple[str, ...]:
    return message.sender, message.receiver, message.kind, *sorted(message.tensors)


def _far(
    found: Recomputed, where: str, kept: Tensors, made: Tensors, allowed: float
) -> Iterator[str]:
    for name in kept:
        if signature({name: kept[name]}) != signature({name: made[name]}):
            yield f"{where}, {name}: another shape or type"
            continue
        gap = _gap(kept[name], made[name])
        found.largest = max(found.largest, gap / allowed)
        if not gap <= allowed:  # nor where it is no number
            yield f"{where}, {name}: off by {gap:.2g}, and {allowed:.2g} is allowed"


def _gap(kept: torch.Tensor, made: torch.Tensor) -> float:
    """Return a difference's norm in units of what is kept."""
    one, other = kept.double(), made.double()
    off, whole = float((one - other).norm()), float(one.norm())
    return off / whole if off and whole else float("inf") if off else 0.0


def _of_files(found: Recomputed, again: Run) -> Iterator[str]:
    """Yield which of the files differ that training writes beside the transcript."""
    run, is_near = found.run, bool(found.near)
    for index, pair in enumerate(zip(run.metrics, again.metrics, strict=True)):
        kept, made = (_without_times(line, is_near) for line in pair)
        if kept != made:
            yield f"metrics.jsonl, round {index}: {_first_leaf(kept, made)}"
    if not is_near and run.trace is not None and run.trace != again.trace:
        yield "trace.jsonl: other bytes"
    same = (
        alike(run.privacy, again.privacy) if is_near else run.privacy == again.privacy
    )
    if not same:
        yield f"privacy.json: {_first_leaf(run.privacy, again.privacy)}"
    if is_near:
        return  # what clients keep was never sent, and drifts for as long as it is kept
    for name in ("kept/personal.safetensors", "kept/server.safetensors"):
        if run.files.get(name) != again.files.get(name):
            yield f"{name}: other bytes"


def _without_times(line: Mapping[str, Any], is_near: bool) -> dict[str, Any]:
    """Return what of a round's entry must be the same."""
    if is_near:
        return {"participants": line["participants"]}
    return {name: value for name, value in line.items() if name != "seconds"}


def _first_leaf(kept: Any, made: Any) -> str:
    one, other = leaves(kept), leaves(made)
    entry = next((p for p in {**one, **other} if one.get(p) != other.get(p)), "")
    return (
        f"{entry} is {one.get(entry)!r:.80}, and comes out as {other.get(entry)!r:.80}"
    )


def _of_audit(found: Recomputed, stored: StoredAudit, audit: Audit) -> Iterator[str]:
    below = f"{AUDITS}{stored.scenario}"
    computed = stored.contents.get("computed", {})
    near = [*found.near, *_of_computing(f"the audit {stored.scenario}", computed)]
    found.near = tuple(dict.fromkeys(near))
    kept = {
        f"{attack}/{column}": values
        for attack, columns in stored.columns.items()
        for column, values in columns.items()
    }
    made = score_columns(audit)
    if kept.keys() != made.keys():
        odd = ", ".join(sorted(kept.keys() ^ made.keys()))
        yield f"{below}/{SCORES}: only one of the two has {odd}"
    elif near:
        yield from _far_scores(found, f"{below}/{SCORES}", kept, made)
        yield from _far_aurocs(stored, audit, f"{below}/{AUDIT}")
    else:
        for name, values in kept.items():
            if _bytes_of(values) != _bytes_of(made[name]):
                yield f"{below}/{SCORES}, {name}: other bytes"
        said = _as_json(_recounted(found.run, stored, audit))
        if said != stored.contents:
            yield f"{below}/{AUDIT}: {_first_leaf(stored.contents, said)}"


def _bytes_of(values: Array) -> tuple[str, tuple[int, ...], bytes]:
    """Return what tells arrays apart to the byte."""
    return str(values.dtype), values.shape, values.tobytes()


def _far_scores(
    found: Recomputed, where: str, kept: Columns, made: Columns
) -> Iterator[str]:
    for name, values in kept.items():
        column = name.rpartition("/")[2]
        if column in _EXACT and not np.array_equal(values, made[name]):
            yield f"{where}, {name}: others"
        if column == "scores" and found.run.config.rounds <= HELD:
            gap = float(np.abs(values - made[name]).mean() / (values.std() or 1.0))
            found.largest = max(found.largest, gap / SCORES_OFF)
            if not gap <= SCORES_OFF:
                yield (
                    f"{where}, {name}: off by {gap:.2g} standard deviations on average, and "
                    f"{SCORES_OFF:g} are allowed"
                )


def _far_aurocs(stored: StoredAudit, audit: Audit, where: str) -> Iterator[str]:
    """Yield where audit.json is not what its scores give, or not near the new audit."""
    yield from (f"{where}: {why}" for why in unlike_scores(stored))
    for name, result in audit.scored.items():
        kept = Estimate.from_dict(stored.attack_result(name)["auroc"])
        made = result.auroc
        is_held = stored.run.config.rounds <= HELD
        allowed = AUROC_OFF if is_held else kept.high - kept.low  # 4 standard errors
        if not abs(kept.value - made.value) <= allowed:
            yield (
                f"{where}, {name}: AUROC {kept.value:.4f}, and it comes out as "
                f"{made.value:.4f}; {allowed:.2g} is allowed"
            )


def unlike_scores(stored: StoredAudit) -> Iterator[str]:
    """Yield where audit.json is not what its scores and the log give."""
    try:
        restored = restore_audit(stored, drawn=True)
        said = _as_json(_recounted(stored.run, stored, restored))
    except TranscriptError as error:
        yield str(error)
        return
    if not alike(stored.contents, said):
        yield _first_leaf(stored.contents, said)


def _recounted(run: Run, stored: StoredAudit, audit: Audit) -> Audit:
    """Return an audit with the verdict as it was when so many were in the log."""
    first, headline = next(iter(audit.results.items()))
    log, plan = read_log(run), plan_of(run)
    tallies = [
        tally(log[:count], plan, headline.attack, headline.auroc)
        for count in range(1, len(log) + 1)
    ]
    counted = [
        with_audits(headline, run.sampling, one.different) for one in tallies
    ] or [headline]
    said = stored.contents["attack_results"].get(first, {}).get("verdict")
    same = [one for one in counted if one.verdict.to_dict() == said]
    return replace(audit, results={**audit.results, first: [*same, counted[-1]][0]})


def _as_json(audit: Audit) -> dict[str, Any]:
    return json.loads(to_json(audit.to_dict()))
