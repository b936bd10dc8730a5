"""Training a run from its configuration, round by round, so that a kill loses nothing.

A round counts as done when run.json says so. Everything a round writes before that is
dropped and written again by a resumed run, to the same bytes.
"""

import copy
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from privaudit.core.devices import chosen_device, use_device
from privaudit.core.errors import ConfigError, without_exits
from privaudit.core.lazy_torch import torch
from privaudit.core.limits import check_json
from privaudit.core.signing import own_key
from privaudit.core.storage import (
    file_hash,
    make_private_folder,
    read_bytes,
    write_bytes,
    write_json,
    write_tensors,
)
from privaudit.core.tensors import Tensors
from privaudit.federation.masked_sum import SECURE_SUMS
from privaudit.federation.on_device import on_device
from privaudit.federation.rounds import (
    Federation,
    RoundRecord,
    Stacking,
    give_away,
    run_round,
)
from privaudit.federation.trainer import Trainer, claim_of, queries_of
from privaudit.federation.transcript import (
    ChainEnd,
    Message,
    TranscriptFolder,
    bytes_sent,
)
from privaudit.models.precisions import FASTER_OF, seconds_of
from privaudit.models.remote_code import remote_code_is_trusted
from privaudit.runs.config import RunConfig, make_config
from privaudit.runs.lease import MANIFEST, METRICS, Lease, RoundFiles
from privaudit.runs.ledger import Ledger
from privaudit.runs.names import check_name
from privaudit.runs.own_files import CANARIES, PLAN, SESSION
from privaudit.runs.population import MemberShards, Population, canary_texts, populate
from privaudit.runs.round_metrics import RoundNumbers, certified
from privaudit.runs.run import Run, mark_latest, runs_folder
from privaudit.runs.run_files import (
    OWN_MODEL,
    PERSONAL,
    TRACE,
    Checkpoints,
    as_begun,
    check_environment,
    drop_checkpoints,
    has_more_checkpoints,
    join_models,
    new_header,
    note_environment,
    read_metrics,
    trace_line,
)
from privaudit.runs.run_folder import (
    check_place,
    clear_run,
    lock_run,
    refresh,
    remove_unfinished,
)
from privaudit.runs.run_header import save_header
from privaudit.runs.run_key import RUN_KEY, coins_of, draw_run_key
from privaudit.runs.session import (
    SESSION_KEY,
    coin_key,
    parse_session,
    read_session,
    seal_session,
    session_secret,
)
from privaudit.runs.store import fetch
from privaudit.runs.tasks import RUN_TASKS
from privaudit.runs.utility import Utility, logged, measure_clients
from privaudit.statistics.progress import Watcher, watching


@dataclass
class TrainingState:
    """A run while it is trained."""

    run: Run
    population: Population
    trainer: Trainer
    federation: Federation
    end: ChainEnd
    header: dict[str, Any]
    lease: Lease
    checkpoints: Checkpoints
    files: RoundFiles

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.run.path

    @property
    def transcript(self) -> TranscriptFolder:
        """Where the next round's messages go."""
        append = partial(self.files.add, MANIFEST)
        return TranscriptFolder(self.path / "transcript", append, self.lease.check)

    @property
    def is_traced(self) -> bool:
        """Whether it was from its first round: earlier versions took no notes."""
        return self.header["progress"].get("trace_hash") is not None

    def record(self, index: int, messages: tuple[Message, ...]) -> None:
        """Write a round's messages; only where their chain ends is kept."""
        self.end = self.transcript.write(index, messages, self.end)

    def commit(self, rounds: int) -> None:
        """Make what was written count, in one rename."""
        is_last = rounds == self.run.config.rounds
        saved = self.checkpoints.save(self.federation, rounds, whole=is_last)
        self.header["progress"] |= {
            "rounds": rounds,
            "length": self.end.length,
            "head": self.end.head,
            "metrics_hash": file_hash(self.path / METRICS),
            "trace_hash": file_hash(self.path / TRACE) if self.is_traced else None,
            "checkpoint_hash": saved,
        }
        save_header(self.path, self.header, self.lease)
        drop_checkpoints(self.path, but=self.checkpoints.hashes, ready=self.lease.check)


def restore(run: Run, lease: Lease, files: RoundFiles, *, near: bool) -> TrainingState:
    """Return the state after the last round that counts, and drop what came after.

    Everything is checked before anything is dropped.
    """
    header = copy.deepcopy(run.header)
    if near:
        note_environment(header)
    if remote_code_is_trusted():
        header["remote_code"] = True
    check_environment(run.path, header)
    _ = run.masking, run.secrets  # raises if the key is gone
    progress = run.header["progress"]
    rounds = progress["rounds"]
    trainer, population, seeds = run.trainer, run.population, run.config.seeds
    task, shards = population.task, MemberShards(population, run.ledger)
    federation = Federation.begin(trainer, task, shards, seeds, secrets=run.secrets)
    checkpoints = Checkpoints(run.path, ready=lease.check)
    if rounds:
        trained = dict.fromkeys(chain.from_iterable(run.participants))
        checkpoints.load(federation, rounds, progress["checkpoint_hash"], trained)
    lines, traced = [json.dumps(entry) for entry in run.metrics], run.trace
    fetch(run.path, "transcript/")
    remove_unfinished(run.path)  # also what an owner before is about to put in place
    folder = TranscriptFolder(run.path / "transcript", ready=lease.check)
    end = folder.truncate(head=progress["head"], length=progress["length"]).end
    content = "".join(f"{line}\n" for line in lines).encode()
    write_bytes(run.path / METRICS, content, lease.check)
    if traced is not None:  # in a new file: an owner before may have the old one open
        notes = "".join(f"{trace_line(one)}\n" for one in traced)
        write_bytes(run.path / TRACE, notes.encode(), lease.check)
    files.open(MANIFEST, METRICS, *([TRACE] if traced is not None else []))
    return TrainingState(
        run, population, trainer, federation, end, header, lease, checkpoints, files
    )


def usual_name(config: RunConfig) -> str:
    """Return what a run's folder is called where nobody names it."""
    seed = "" if config.seed is None else f"seed{config.seed}-"
    return f"{config.trainer}-{config.dataset}-{seed}{config.short_hash}"


def place_of(folder: str | Path | None, name: str | None, config: RunConfig) -> Run:
    """Return where a run of a configuration is or would be.

    Without a name it is made from the configuration.
    """
    named = usual_name(config) if name is None else check_name(name)
    return Run(runs_folder(folder) / named)


def is_there(run: Run) -> bool:
    """Say whether a folder holds a run."""
    return (run.path / "run.json").exists()


def _is_of(run: Run, config: RunConfig) -> bool:
    """Say whether a run has this configuration, with data and models as they are now."""
    begun: str = run.header.get("identity_hash", "")
    if not begun:  # earlier versions took no note
        return run.config.identity == config.identity
    return begun == config.identity_hash


def configured(
    make: Callable[..., RunConfig],
    fields: Mapping[str, Any],
    place: Callable[[RunConfig], Run],
    fresh: bool,
) -> tuple[RunConfig, dict[str, float]]:
    """Return a run's configuration, in one precision.

    "auto" is the precision of a run that is there, whatever would be faster today; else
    what the chosen device is faster in.

    ``fresh``: whether runs that are there do not count. With the configuration come the
    seconds that were measured in each precision, if they were.
    """
    if fields.get("precision") != "auto":
        return make(**fields), {}
    choices = {one: make(**{**fields, "precision": one}) for one in FASTER_OF}
    for config in () if fresh else choices.values():
        run = place(config)
        if is_there(run) and _is_of(run, config):
            return config, {}
    measured = seconds_of(chosen_device())
    return choices[min(FASTER_OF, key=lambda one: measured[one])], measured


def read_plan_file(path: Path) -> bytes:
    """Return the content of a plan's file, read before a run is begun or removed.

    What the plan says is checked where it is carried out.

    Raises:
        MissingFileError: There is no such file.
        LimitError: It is larger than a bound.
        ConfigError: It is no JSON of a plan.
    """
    content = read_bytes(path)
    check_json(content, str(path))
    try:
        parsed: Any = json.loads(content)
    except (ValueError, RecursionError):
        parsed = None
    said = parsed.get("sha256") if isinstance(parsed, dict) else None
    if not isinstance(said, str) or not re.fullmatch("[0-9a-f]{64}", said):
        raise ConfigError(
            f"{path} was given as a plan, and is none: it is no JSON object with its "
            "own sha256. Make one with `privaudit plan FILE`."
        )
    return content


def check_given(run: Run, given: Mapping[str, bytes]) -> None:
    """Refuse a run that was begun without a plan or a session, or with another.

    Raises:
        ConfigError: The run has none, or another.
    """
    for name, content in given.items():
        there = run.header.get("files", {}).get(name)
        if there == hashlib.sha256(content).hexdigest():
            continue
        what, kind = "another" if there else "no", name.removesuffix(".json")
        raise ConfigError(
            f"{run.path} was begun with {what} {kind}, and a {kind} holds only if it was "
            "there before training. Use another --name, or --fresh to train anew."
        )


def check_coins(run: Run, coins: Run | None) -> None:
    """Refuse a run in which a record has another coin than in one that it follows.

    Raises:
        ConfigError: One has: the run was begun before, by itself.
    """
    if coins is None:
        return
    truth, other = run.truth, coins.truth
    owned = truth.owner >= 0
    is_same = len(truth.owner) == len(other.owner)
    if not is_same or (truth.is_member != other.is_member)[owned].any():
        raise ConfigError(
            f"{run.path} was to have the coins of {coins.name}, and has others: it was "
            "begun by itself, or on other data. Use another name, or fresh to train it "
            "anew."
        )


def check_reuse(run: Run, config: RunConfig, resume: bool | Literal["near"]) -> None:
    """Refuse to go on with a run of something else, or without being asked to.

    Raises:
        ConfigError: It is of another configuration or of other data, or it is not
            finished and is not to be resumed.
    """
    if not _is_of(run, config):
        raise ConfigError(
            f"{run.path} holds a run of another configuration, or of other data. Use "
            "another --name, or --fresh to replace it."
        )
    if not run.is_complete and not resume:
        raise ConfigError(
            f"{run.path} stopped after {run.header['progress']['rounds']} of "
            f"{config.rounds} rounds. Add --resume to continue, or --fresh to start over."
        )


def stacking_of(
    config: RunConfig, header: Mapping[str, Any], *, near: bool
) -> Stacking:
    """Return what trains together: in a resumed run as much as before."""
    most = config.cohort_size
    if near or not header["progress"]["rounds"]:
        return Stacking(most)
    fit, records = header.get("stacked_clients", most), header.get("records_at_once")
    return Stacking(most, fit, records or 0)


@without_exits()
def train(
    trainer: str = "promptfl",
    *,
    folder: str | Path | None = None,
    name: str | None = None,
    resume: bool | Literal["near"] = False,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
    device: str | torch.device | None = None,
    plan: str | Path | None = None,
    session: str | Path | None = None,
    coins: Run | None = None,
    **fields: Any,
) -> Run:
    """Train with federated learning, record every message, and return the run.

    The same configuration again returns the finished run, with its coins. Trained anew
    with a seed it has equal bytes where processor, number of threads and libraries are
    the same. Without ``seed`` a run that is begun tosses coins of its own, and is
    compared with no other record by record.

    Args:
        trainer: A name from ``privaudit list trainers``.
        folder: Folder of all runs; by default ``./runs``.
        name: Name of the run's folder; by default made from the configuration.
        resume: Continue an interrupted run, to the bytes that it would have had without
            the interruption; or "near": also on another device, with another number of
            threads or other libraries, to nearly those.
        fresh: Delete an interrupted or finished run and start over.
        settings: Parameters of the trainer, by name, as ``--set`` has them.
        watcher: Called with a :class:`privaudit.cli.progress.RoundDone` after each round,
            and before with a ``Phase`` of pictures whose encoding takes long.
        device: Where models compute, such as "cuda"; see
            :func:`privaudit.core.devices.find_device`. By default the chosen one.
        plan: A file of ``privaudit plan``, which goes into the run before training.
        session: One that an auditor answered, whose coins the run gets; its file is
            sealed at the end. It takes a plan.
        coins: A run without a seed, whose coins every record keeps: so that runs can be
            compared, or lack some of its records.
        **fields: Fields of :class:`privaudit.runs.config.RunConfig`, or trainer
            parameters. ``precision`` may be "auto", too: that of a run that is there,
            else what the device is faster in.

    Raises:
        ConfigError: A value is invalid, the run is interrupted, or has other coins.
        RunInUseError: Another process trains it, or took it over meanwhile.
        TranscriptError: The run to resume is damaged; nothing is changed.
        TrainingError: A loss is not finite; earlier rounds are kept.
        StorageError: The folder cannot be written.

    Example:
        >>> run = train("promptfl", rounds=2, seed=7)
        >>> run.is_complete
        True
    """
    parameters = {
        k: fields.pop(k) for k in list(fields) if k not in RunConfig.model_fields
    }
    make = partial(make_config, trainer, {**(settings or {}), **parameters})
    place = partial(place_of, folder, name)
    given = {} if plan is None else {PLAN: read_plan_file(Path(plan))}
    if session is not None:
        answered = read_session(Path(session)).model_copy(update={"seal": None})
        given[SESSION] = answered.to_bytes()
    with use_device(device):
        config, measured = configured(make, fields, place, fresh)
        run = place(config)
        refresh(run.path)
        with watching(run.name, watcher):
            is_done = is_there(run) and _is_of(run, config) and run.is_complete
            if fresh or not is_done or has_more_checkpoints(run.path):
                run = _train_alone(
                    run, config, resume, fresh, watcher, measured, given, coins
                )
    check_given(run, given)
    check_coins(run, coins)
    if session is not None:
        seal_session(Path(session), run)
    mark_latest([run])
    return run


def train_another(
    run: Run, number: int, *, fresh: bool = False, watcher: Watcher | None = None
) -> Run:
    """Train once more as a run was, with coins of its own, and return that run.

    Args:
        run: One that was trained here.
        number: 1 for the first further one. With a seed it has one that is so much
            larger, which moves partition, coins, start, batches and noise; without, coins
            and noise have a key of their own again.
        fresh: Whether a run of that name is trained anew.
        watcher: Called with what is done next.

    Raises:
        ConfigError: The run was trained elsewhere.
    """
    config = run.config
    if run.origin:
        raise ConfigError(
            f"{run.name} was trained elsewhere, and cannot be trained once more here. Train "
            "there with coins of another `privaudit split`, and pool the runs (--pool)."
        )
    seed = None if config.seed is None else config.seed + number
    is_usual = seed is not None and run.name == usual_name(config)
    fields = {**config.model_dump(), "seed": seed}
    return train(
        folder=run.path.parent,
        name=None if is_usual else f"{run.name}-{number + 1}",
        resume=True,
        fresh=fresh,
        watcher=watcher,
        plan=run.path / PLAN if PLAN in run.files else None,
        **fields,
    )


def _train_alone(
    run: Run,
    config: RunConfig,
    resume: bool | Literal["near"],
    fresh: bool,
    watcher: Watcher | None,
    measured: Mapping[str, float],
    given: Mapping[str, bytes],
    coins: Run | None,
) -> Run:
    """Train while no other process does; nothing is written for a bad configuration."""
    check_place(run.path, fresh=fresh)
    own_key()  # a run that cannot be signed is not begun
    if config.is_masked:  # nor one that cannot be masked
        SECURE_SUMS.find(config.secure_aggregation)
    population = None if is_there(run) and not fresh else populate(config)
    if population is not None:  # a trainer may refuse the model
        method = on_device(config.build_trainer(), chosen_device())
        method.start(population.task, config.seeds)
    make_private_folder(run.path)
    with lock_run(run.path) as lease, RoundFiles(run.path, lease) as files:
        check_place(run.path, fresh=fresh)
        run = Run(run.path)  # as it is now that nobody else changes it
        if population is None or (is_there(run) and not fresh):
            check_reuse(run, config, resume)
            check_given(run, given)
        else:
            _begin(run, config, population, lease, given, coins)
            vars(run)["population"] = population  # what is cached is not read again
        if run.is_complete:  # a kill behind the last commit leaves earlier states
            drop_checkpoints(run.path, but=[config.rounds], ready=lease.check)
            return run
        training = restore(run, lease, files, near=resume == "near")
        if measured:
            training.header["precision_seconds"] = dict(measured)
        return _train_rounds(training, watcher, near=resume == "near")


def _begin(
    run: Run,
    config: RunConfig,
    population: Population,
    lease: Lease,
    given: Mapping[str, bytes],
    coins: Run | None,
) -> None:
    """Write an empty run in place of what is there."""
    key = partial(read_bytes, run.path / RUN_KEY)
    if coins is not None:
        key = partial(coin_key, coins)
    elif SESSION in given:
        session = parse_session(given[SESSION], SESSION)
        secret = session_secret(session, config, population, given.get(PLAN))
        coins_key = session.coin_key(secret)  # may refuse: before a run is cleared
        key = partial(bytes, coins_key)
        given = {**given, SESSION_KEY: secret}
    clear_run(run.path, lease.check)
    drawn = draw_run_key(run.path, config)
    for name, content in given.items():
        write_bytes(run.path / name, content)
        drawn[name] = hashlib.sha256(content).hexdigest()
    ledger = Ledger.toss(population.split, coins_of(config, key))
    header = new_header(config, population, ledger)
    _write_empty(run, population, ledger, header, drawn, lease)


def _write_empty(
    run: Run,
    population: Population,
    ledger: Ledger,
    header: Mapping[str, Any],
    drawn: Mapping[str, str],
    lease: Lease,
) -> None:
    """Write a run of no rounds, beside files that are drawn before the first one."""
    write_bytes(run.path / "ledger.npz", ledger.to_bytes())
    if population.canaries is not None:
        write_json(run.path / CANARIES, {"canaries": canary_texts(population)})
    write_bytes(run.path / METRICS, b"", lease.check)
    TranscriptFolder(run.path / "transcript", ready=lease.check).clear()
    save_header(run.path, {**header, **({"files": drawn} if drawn else {})}, lease)
    remove_unfinished(run.path)


def train_again(run: Run, folder: Path, watcher: Watcher | None = None) -> Run:
    """Train a run anew below another folder, with its key, and leave the run as it is.

    The header stays the run's as it was begun, of which the masks of a seed follow, so
    that only what is computed can come out otherwise.

    Raises:
        MissingFileError: The run's key is gone.
        TranscriptError: The key was altered, or data or model are others now.
    """
    config, population = run.config, run.population
    again = Run(folder / run.name)
    make_private_folder(again.path)
    with lock_run(again.path) as lease, RoundFiles(again.path, lease) as files:
        clear_run(again.path, lease.check)
        drawn = {}
        if config.randomness == "system":
            write_bytes(again.path / RUN_KEY, run.read(RUN_KEY))
            drawn = {RUN_KEY: file_hash(again.path / RUN_KEY)}
        ledger = run.ledger
        # Where some were left out, coins are those of a key that the run has not.
        if config.seed is not None or not config.without:
            seeds = coins_of(config, partial(coin_key, run))
            ledger = Ledger.toss(population.split, seeds)
        header = as_begun(run.header) | {"ledger_hash": ledger.hash}
        _write_empty(again, population, ledger, header, drawn, lease)
        vars(again)["population"] = population
        training = restore(again, lease, files, near=True)
        return _train_rounds(training, watcher, near=True)


def _train_rounds(
    training: TrainingState, watcher: Watcher | None, *, near: bool
) -> Run:
    run = training.run
    stacking = stacking_of(run.config, training.header, near=near)
    total = run.config.rounds
    claim = claim_of(training.trainer, training.population.task)
    numbers = RoundNumbers(run.name, run.config, claim, run.metrics)
    for index in range(training.header["progress"]["rounds"], total):
        started = time.perf_counter()
        (record,) = run_round(
            training.trainer,
            training.population.task,
            [training.federation],
            index,
            participation=run.config.participation,
            cohort_size=stacking,
            traced=training.is_traced,
            masking=run.masking,
            dropout=run.config.dropout,
        )
        training.record(index, record.messages)
        if training.is_traced:
            training.files.add(TRACE, [trace_line(record.trace)])
        line, utility = _note_round(training, record, time.perf_counter() - started)
        if index + 1 == total:
            _finish(training)
        if stacking.fit not in (None, run.config.cohort_size):
            training.header["stacked_clients"] = stacking.fit
        if stacking.records:
            training.header["records_at_once"] = stacking.records
        training.commit(index + 1)
        if watcher is not None:
            watcher(numbers.add(line, utility.local if utility else None))
    return Run(run.path)


def _note_round(
    training: TrainingState, record: RoundRecord, seconds: float
) -> tuple[dict[str, Any], Utility | None]:
    """Write what a round was like; return it, and the utility if it was measured."""
    sent = bytes_sent(record.messages)
    losses = training.federation.losses
    utility = _measured(training, record.at.index)
    line = {
        "round": record.at.index,
        "participants": record.at.participants,
        **logged(utility),
        "training_loss": sum(losses.values()) / max(1, len(losses)),
        "bytes_up": sent["up"],
        "bytes_down": sent["down"],
        "seconds": round(seconds, 4),
        "mechanisms": [event.to_json() for event in record.events],
    }
    if record.secure_sum is not None:
        line["secure_sum"] = record.secure_sum
    queries = queries_of(training.trainer, training.federation.shards, record.at)
    if queries is not None:
        line["model_queries"] = queries
    training.files.add(METRICS, [json.dumps(line)])
    return line, utility


def _measured(training: TrainingState, index: int) -> Utility | None:
    """Return the utility after a round; None where it is not measured."""
    if not training.run.config.measures(index):
        return None
    trainer, population = training.trainer, training.population
    task, chosen = population.task, population.tested_clients
    models, _ = give_away(trainer, task, training.federation, index, clients=chosen)
    return measure_clients(trainer, population, models, _own_model(training))


def _own_model(training: TrainingState) -> Tensors | None:
    """Return the server's own model; None where nobody asks for it."""
    task = RUN_TASKS[training.population.task.kind]
    return task.own_model(training.trainer, training.federation.server)


def _finish(training: TrainingState) -> None:
    config, task = training.run.config, training.population.task
    models, messages = give_away(
        training.trainer, task, training.federation, config.rounds,
        publish=config.publish,
    )  # fmt: skip
    training.record(config.rounds, messages)
    check = training.lease.check
    write_tensors(training.path / PERSONAL, join_models(models), check)
    written = [PERSONAL, "privacy.json"]
    own_model = _own_model(training)
    if own_model is not None:
        write_tensors(training.path / OWN_MODEL, own_model, check)
        written.append(OWN_MODEL)
    metrics = read_metrics(training.path, config.rounds)
    sent = training.transcript.read(head=training.end.head, length=training.end.length)
    record = certified(training.run, task, metrics, sent)
    write_json(training.path / "privacy.json", record, check)
    training.header.setdefault("files", {}).update(
        (name, file_hash(training.path / name)) for name in written
    )
