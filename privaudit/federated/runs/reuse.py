"""Whether a run that is there is the one that is asked for."""

from typing import Literal

from privaudit.core.errors import ConfigError
from privaudit.federated.runs.config import RunConfig
from privaudit.federated.runs.runs import Run


def usual_name(config: RunConfig) -> str:
    """Return what a run's folder is called where nobody names it."""
    return f"{config.trainer}-{config.dataset}-seed{config.seed}-{config.digest}"


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
