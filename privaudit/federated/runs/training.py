"""Training a run from its configuration, round by round, so that a kill loses nothing."""

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from privaudit.core.devices import chosen_device, use_device
from privaudit.core.errors import without_exits
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
from privaudit.federated.federation import RoundRecord, give_away, run_round
from privaudit.federated.on_device import on_device
from privaudit.federated.runs.config import RunConfig, make_config
from privaudit.federated.runs.folder.checkpoints import (
    drop_checkpoints,
    has_more_checkpoints,
)
from privaudit.federated.runs.folder.lease import Lease
from privaudit.federated.runs.folder.own_files import CANARIES
from privaudit.federated.runs.folder.round_files import METRICS, RoundFiles
from privaudit.federated.runs.folder.run_files import (
    OWN_MODEL,
    PERSONAL,
    TRACE,
    as_begun,
    join_models,
    new_header,
    read_metrics,
    trace_line,
)
from privaudit.federated.runs.folder.run_folder import (
    check_place,
    clear_run,
    remove_unfinished,
)
from privaudit.federated.runs.folder.run_header import save_header
from privaudit.federated.runs.folder.run_key import RUN_KEY, coins_of, draw_run_key
from privaudit.federated.runs.folder.run_lock import lock_run, refresh
from privaudit.federated.runs.folder.run_names import mark_latest
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.planted import canary_texts
from privaudit.federated.runs.population import Population, populate
from privaudit.federated.runs.reuse import (
    check_coins,
    check_plan,
    check_reuse,
    configured,
    is_finished,
    is_there,
    place_of,
    put_plan,
    read_plan_file,
    stacking_of,
)
from privaudit.federated.runs.round_metrics import RoundNumbers, certified
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.tasks import RUN_TASKS
from privaudit.federated.runs.training_state import TrainingState, restore
from privaudit.federated.runs.utility import Utility, logged, measure_clients
from privaudit.federated.trainer_abilities import claim_of, queries_of
from privaudit.federated.transcripts.folder import TranscriptFolder
from privaudit.federated.transcripts.transcript import bytes_sent
from privaudit.statistics.progress import Watcher, watching


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
        settings: Trainer parameters.
        watcher: Called with a :class:`privaudit.cli.progress.RoundDone` after each round,
            and before with a ``Phase`` of pictures whose encoding takes long.
        device: Where models compute, such as "cuda"; see
            :func:`privaudit.core.devices.find_device`. By default the chosen one.
        plan: A file of ``privaudit plan``, which goes into the run before training.
        coins: A run without a seed, whose coins every record keeps: so that runs can be
            compared, or lack some of its records.
        **fields: Fields of :class:`privaudit.federated.runs.config.RunConfig`, or trainer
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
    planned = None if plan is None else read_plan_file(Path(plan))
    with use_device(device):
        config, measured = configured(make, fields, place, fresh)
        run = place(config)
        refresh(run.path)
        with watching(run.name, watcher):
            if fresh or not is_finished(run, config) or has_more_checkpoints(run.path):
                run = _train_alone(
                    run, config, resume, fresh, watcher, measured, planned, coins
                )
    check_plan(run, planned)
    check_coins(run, coins)
    mark_latest([run])
    return run


def _train_alone(
    run: Run,
    config: RunConfig,
    resume: bool | Literal["near"],
    fresh: bool,
    watcher: Watcher | None,
    measured: Mapping[str, float],
    plan: bytes | None,
    coins: Run | None,
) -> Run:
    """Train while no other process does; nothing is written for a bad configuration."""
    check_place(run.path, fresh=fresh)
    own_key()  # a run that cannot be signed is not begun
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
            check_plan(run, plan)
        else:
            _begin(run, config, population, lease, plan, coins)
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
    plan: bytes | None,
    coins: Run | None,
) -> None:
    """Write an empty run in place of what is there."""
    clear_run(run.path, lease.check)
    drawn = draw_run_key(run.path, config) | put_plan(run.path, plan)
    key = partial(read_bytes, run.path / RUN_KEY)
    if coins is not None:
        key = partial(coins.read, RUN_KEY)
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
        if not keeps_coins_of_another(config):
            seeds = coins_of(config, partial(run.read, RUN_KEY))
            ledger = Ledger.toss(population.split, seeds)
        header = as_begun(run.header) | {"ledger_hash": ledger.hash}
        _write_empty(again, population, ledger, header, drawn, lease)
        vars(again)["population"] = population
        training = restore(again, lease, files, near=True)
        return _train_rounds(training, watcher, near=True)


def keeps_coins_of_another(config: RunConfig) -> bool:
    """Say whether a run's coins are those of a key that it has not: some were left out."""
    return config.seed is None and bool(config.without)


def _train_rounds(
    training: TrainingState, watcher: Watcher | None, *, near: bool
) -> Run:
    run = training.run
    stacking = stacking_of(run.config, training.header, near=near)
    total, claim = (
        run.config.rounds,
        claim_of(training.trainer, training.population.task),
    )
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
