"""Reuse of a run: whether one that is there is the one that is asked for."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from privaudit.core.devices import chosen_device
from privaudit.core.errors import ConfigError
from privaudit.core.limits import check_json
from privaudit.core.storage import read_bytes, write_bytes
from privaudit.federated.local_training import Stacking
from privaudit.federated.runs.config import RunConfig
from privaudit.federated.runs.folder.names import check_name
from privaudit.federated.runs.folder.own_files import PLAN
from privaudit.federated.runs.folder.run_names import runs_folder
from privaudit.federated.runs.runs import Run
from privaudit.models.precisions import FASTER_OF, seconds_of


def usual_name(config: RunConfig) -> str:
    """Return what a run's folder is called where nobody names it."""
    seed = "" if config.seed is None else f"seed{config.seed}-"
    return f"{config.trainer}-{config.dataset}-{seed}{config.digest}"


def place_of(folder: str | Path | None, name: str | None, config: RunConfig) -> Run:
    """Return where a run of a configuration is or would be.

    Without a name it is made from the configuration.
    """
    named = usual_name(config) if name is None else check_name(name)
    return Run(runs_folder(folder) / named)


def is_there(run: Run) -> bool:
    """Say whether a folder holds a run."""
    return (run.path / "run.json").exists()


def is_finished(run: Run, config: RunConfig) -> bool:
    """Say whether a run of this configuration, and of these data, is there and done."""
    return is_there(run) and _is_of(run, config) and run.is_complete


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


def put_plan(path: Path, plan: bytes | None) -> dict[str, str]:
    """Write the plan of a run's audits into its folder, and return it by its hash.

    Raises:
        StorageError: The folder cannot be written.
    """
    if plan is None:
        return {}
    write_bytes(path / PLAN, plan)
    return {PLAN: hashlib.sha256(plan).hexdigest()}


def check_plan(run: Run, plan: bytes | None) -> None:
    """Refuse a run that was begun without a plan of its audits, or with another.

    Raises:
        ConfigError: The run has none, or another.
    """
    if plan is None:
        return
    there = run.header.get("files", {}).get(PLAN)
    if there != hashlib.sha256(plan).hexdigest():
        what = "another" if there else "no"
        raise ConfigError(
            f"{run.path} was begun with {what} plan, and a plan holds only if it was "
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
    if len(truth.owner) == len(other.owner) and np.array_equal(
        truth.is_member[owned], other.is_member[owned]
    ):
        return
    raise ConfigError(
        f"{run.path} was to have the coins of {coins.name}, and has others: it was begun "
        "by itself, or on other data. Use another name, or fresh to train it anew."
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
