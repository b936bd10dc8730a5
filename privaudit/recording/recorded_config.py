"""The settings of a recorded federation: those that its recording knows, and no others."""

from typing import Any

from pydantic import field_validator, model_serializer

from privaudit.core.errors import ConfigError
from privaudit.federated.runs.config import RunConfig
from privaudit.federated.trainer import Trainer
from privaudit.models.interfaces import TaskKind
from privaudit.recording.bundle import refuse_control

ORIGIN = "recorded"
KNOWN = (
    "trainer",
    "settings",
    "dataset",
    "model",
    "clients",
    "rounds",
    "participation",
    "publish",
    "randomness",
)


class DeclaredConfig(RunConfig):
    """Settings that hold words of other people's: nothing that a terminal would obey."""

    @property
    def applies_mechanisms(self) -> bool:
        """Whether this package clipped and added noise: others did."""
        return False

    @field_validator("*")
    @classmethod
    def _refuse_control(cls, value: Any) -> Any:
        return refuse_control(value) if isinstance(value, str | dict) else value

    @property
    def coin_seed(self) -> None:
        """None: a ledger says it where anybody knows."""
        return None


class RecordedConfig(DeclaredConfig):
    """A run's settings as its owner declared them; others are neither known nor stored.

    ``trainer``, ``model`` and ``dataset`` are the owner's words, not names of this
    tool. ``participation`` is the share of clients that took part in a round on average.
    """

    @model_serializer(mode="plain")
    def _known(self) -> dict[str, Any]:
        known = {name: getattr(self, name) for name in KNOWN}
        return known | ({"secure_aggregation": "masked"} if self.is_masked else {})

    @property
    def task(self) -> TaskKind:
        """Unknown: the owner's functions say what the model does."""
        raise _no_recipe("its task")

    def build_trainer(self) -> Trainer:
        """Return no trainer: it is the owner's."""
        raise _no_recipe("its trainer")


def _no_recipe(what: str) -> ConfigError:
    return ConfigError(
        f"A recorded federation was asked for {what}, which is its owner's: this "
        "command needs a run that `privaudit train` made."
    )
