"""Scored runs, in place of a run where scores alone were given, or those of several runs.

Its folder holds run.json (``"origin": "scores"``), the ledger and one audit, and no
transcript, no model and no records. So nothing is certified, nothing measures utility,
and no further attack can be made.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast

from pydantic import JsonValue, model_serializer

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.storage import make_private_folder, write_bytes
from privaudit.federation.trainer import Trainer
from privaudit.federation.transcript import Transcript
from privaudit.recording.bundle import DeclaredConfig, refuse_control
from privaudit.runs.ledger import Ledger
from privaudit.runs.own_files import HEADER
from privaudit.runs.population import Population
from privaudit.runs.run import RUN_ORIGINS, Run, load_run
from privaudit.runs.run_files import software
from privaudit.runs.run_folder import (
    check_place,
    clear_run,
    lock_run,
    remove_unfinished,
)
from privaudit.runs.run_header import FORMAT, save_header
from privaudit.statistics.verdict import Sampling

SCORES = "scores"  # the origin, the scenario, and who looks on
_NOTHING_PROVED: Mapping[str, Any] = {
    "claimed": {"epsilon": None, "delta": 1e-5, "source": "no mechanism is on record"},
    "certified": {
        SCORES: {
            "epsilon": None,
            "delta": 1e-5,
            "view": SCORES,
            "mechanism": "none is on record",
            "accountant": "",
            "why": "Scores alone were given, and no record of the training.",
            "unit": "record",
            "adjacency": "add/remove-one",
            "randomness": None,
        }
    },
    "mechanisms": [],
}


class ScoredConfig(DeclaredConfig):
    """What is declared of scores: the owner's words, and how members were chosen."""

    trainer: str = SCORES
    dataset: str = ""
    model: str = ""
    rounds: int = 1
    sampling: Sampling = "unknown"

    @model_serializer(mode="plain")
    def _known(self) -> dict[str, Any]:
        known = ("trainer", "settings", "dataset", "model", "clients", "sampling")
        return {name: getattr(self, name) for name in known}


@RUN_ORIGINS.register(SCORES)
@dataclass(frozen=True)
class ScoredRun(Run):
    """Scores that somebody else computed, in memory or in a folder.

    Attributes:
        path: The folder; in memory a name alone.
        unwritten: Header and ledger that its folder will hold; None where it was read.
    """

    path: Path
    unwritten: tuple[dict[str, Any], Ledger] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        ledger: Ledger,
        config: ScoredConfig,
        class_names: Sequence[str],
        names_hash: str,
        privacy: Mapping[str, Any] | None = None,
    ) -> "ScoredRun":
        """Return a run in memory, which reports call ``name``.

        ``names_hash`` says which records they are, by their names; empty where they have
        none: then no other scores are known to be of the same records. ``privacy`` is
        claimed and certified of each training that scores are pooled of.
        """
        head = secrets.token_hex(32)
        header = {
            "format": FORMAT,
            "origin": SCORES,
            "privaudit": version("privaudit"),
            **software(("numpy",)),
            "threads": 1,
            "config": config.model_dump(),
            "class_names": list(class_names),
            "model_hash": "",
            "data_hash": names_hash or head,  # other scores never share a head
            "ledger_hash": ledger.hash,
            **({} if privacy is None else {"privacy": dict(privacy)}),
            "progress": {
                "rounds": 0,
                "length": 0,
                "head": head,
                "metrics_hash": hashlib.sha256(b"").hexdigest(),
                "checkpoint_hash": None,
            },
        }
        return cls(Path(name), (header, ledger))

    def write(self, folder: str | Path) -> "ScoredRun":
        """Write a folder without its audit, and return the run in it.

        Earlier scores there are replaced.
        """
        path = Path(folder)
        check_place(path, fresh=False)
        if (path / HEADER).exists():
            if not isinstance(load_run(path.resolve()), ScoredRun):
                raise ConfigError(
                    f"{path} holds a run that was trained or recorded, and scores were "
                    "to be written there. Name another folder."
                )
            clear_run(path)
        make_private_folder(path)
        with lock_run(path) as lease:
            write_bytes(path / "ledger.npz", self.truth.to_bytes())
            save_header(path, self.header, lease)
            remove_unfinished(path)  # the mark that a replaced run's files may go
        return ScoredRun(path)

    @property
    def is_stored(self) -> bool:
        """Whether it lies in a folder."""
        return self.unwritten is None

    @property
    def is_pool(self) -> bool:
        """Whether its scores are of several trainings, and what is proved of each stands by."""
        return "privacy" in self.header

    @cached_property
    def header(self) -> dict[str, Any]:
        """What run.json says, or will say."""
        return dict(self.unwritten[0]) if self.unwritten else super().header

    @cached_property
    def truth(self) -> Ledger:
        """Whose each record is, and who is a member."""
        return self.unwritten[1] if self.unwritten else super().truth

    @cached_property
    def config(self) -> ScoredConfig:
        """What is declared of the scores."""
        return self._checked_config(ScoredConfig)

    @property
    def class_names(self) -> tuple[str, ...]:
        """By class index."""
        names = list(map(str, self.header.get("class_names", ())))
        try:
            refuse_control(cast(JsonValue, names))
        except ValueError as error:
            raise TranscriptError(
                f"{self.path / HEADER} holds names of classes that cannot be shown: "
                f"{error}. Take the scores from their source again."
            ) from None
        return tuple(names)

    @property
    def has_names(self) -> bool:
        """Whether its records have names, by which others' scores are paired."""
        header = self.header
        return bool(header["data_hash"] != header["progress"]["head"])

    @property
    def is_complete(self) -> bool:
        """Scores are all that there is to come."""
        return True

    @property
    def has_utility(self) -> bool:
        """Nothing is known of the model."""
        return False

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """That nothing is claimed, and nothing proved; of a pool, as of each training."""
        return dict(self.header.get("privacy", _NOTHING_PROVED))

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """None: no round is known."""
        return []

    @cached_property
    def trainer(self) -> Trainer:
        """None: see :meth:`_refuse`."""
        self._refuse("its trainer")

    @property
    def trains_shadows(self) -> bool:
        """No: there is nothing to train."""
        return False

    @cached_property
    def population(self) -> Population:
        """None: see :meth:`_refuse`."""
        self._refuse("its records")

    @cached_property
    def transcript(self) -> Transcript:
        """Without a message."""
        return Transcript()

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(
            f"{self.name} was asked for {what}, and it holds scores that were computed "
            "elsewhere, and nothing else. Use a run that was trained or recorded."
        )
