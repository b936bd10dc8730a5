"""bundle.json: what whoever recorded a federation declares of it, and its settings.

Specified in docs/format.md, by the JSON schema of :class:`Bundle`.
"""

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_serializer,
)

from privaudit.core.errors import ConfigError, TranscriptError, shown
from privaudit.core.parameters import MOST, readable
from privaudit.core.seeds import Randomness
from privaudit.core.storage import read_json
from privaudit.federation.trainer import Trainer
from privaudit.federation.transcript import GENESIS
from privaudit.models.interfaces import TaskKind
from privaudit.recording.opacus import EngineNote
from privaudit.runs.config import RunConfig
from privaudit.runs.ledger import CLIENT_NAME, check_client_name

BUNDLE = "bundle.json"
INCOMPLETE = "bundle-incomplete.json"
"""What bundle.json is called where the recorder had to stop before the federation."""
FORMAT = 2  # of bundle.json; raised when an older reader would misread it
CLIPPED_BY = "clipped_by"
"""The setting that says "server" where uploads are clipped after they were sent."""
_HASH = r"[0-9a-f]{64}"
PARTIES = ("server", "public", "clients")  # who sends and receives beside clients

_CONTROL = r"\x00-\x1f\x7f-\x9f"


def refuse_control(value: JsonValue) -> JsonValue:
    """Return a value of JSON with finite numbers, whose texts no terminal would obey."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is not finite")
    texts = [value] if isinstance(value, str) else []
    if isinstance(value, dict):
        texts += value
        below = [*value.values()]
    else:
        below = value if isinstance(value, list) else []
    if any(re.search(f"[{_CONTROL}]", text) for text in texts):
        raise ValueError("a text holds a control character")
    for entry in below:
        refuse_control(entry)
    return value


Text = Annotated[str, Field(max_length=200, pattern=rf"^[^{_CONTROL}]*$")]
"""A line of words: nothing that a terminal would obey."""
ClientName = Annotated[str, Field(pattern=rf"^{CLIENT_NAME.pattern}$")]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Aggregation(_Declared):
    """How the server makes one model of uploads."""

    kind: Literal["mean", "sum", "individual"] = Field(
        "mean",
        description="mean: the weighted mean of uploads; sum: some function of their "
        "sum, which is all that the server needs; individual: each upload by itself.",
    )
    weight: Text | None = Field(
        None,
        description="The tensor of an upload, one number, that weighs it in the mean. "
        "None: all uploads weigh alike.",
    )
    uploads: Literal["models", "differences"] = Field(
        "models",
        description="models: tensors as the client trained them; differences: those "
        "less what it had received in the round, under the same names.",
    )


class DeclaredClaim(_Declared):
    """The epsilon that the federation's method claims by a formula of its own."""

    epsilon: float | None = Field(None, ge=0, allow_inf_nan=False)
    delta: float = Field(1e-5, gt=0, lt=1)
    source: Text = "none"


class NotedEngine(_Declared):
    """What a client's privacy engine did in a round, as the client noted it."""

    round: int = Field(ge=0, le=MOST)
    client: ClientName
    note: EngineNote


class Bundle(_Declared):
    """The content of bundle.json."""

    format: Literal[2] = 2
    recorder: Text = Field(description="Which program recorded, and its version.")
    rounds: int = Field(ge=0, le=MOST, description="Rounds that were recorded whole.")
    clients: tuple[ClientName, ...] = Field(
        description="Clients that sent or received something, in order of appearance."
    )
    aggregation: Aggregation = Aggregation()
    trainer: Text = Field("recorded", description="The method, in the owner's words.")
    model: Text = Field("", description="The model, in the owner's words.")
    dataset: Text = Field("", description="The data, in the owner's words.")
    settings: Annotated[dict[str, JsonValue], AfterValidator(refuse_control)] = Field(
        default_factory=dict, description="Settings that a reader of the report needs."
    )
    model_hash: str = Field(
        "", pattern=rf"^({_HASH})?$", description="SHA-256 of the frozen weights."
    )
    data_hash: str = Field(
        "", pattern=rf"^({_HASH})?$", description="SHA-256 of the records."
    )
    ended: bool = Field(
        True,
        description="Whether the federation came to its end: false until the recording "
        "is closed. Of one that was stopped only the rounds before are there.",
    )
    libraries: dict[Text, Text] = Field(default_factory=dict, description="Versions.")
    seconds: tuple[float, ...] = Field(
        (), description="Of each round, from its first message to its last."
    )
    length: int = Field(ge=0, le=MOST, description="Lines of the manifest.")
    head: str = Field(GENESIS, pattern=rf"^{_HASH}$", description="Of the hash chain.")
    mechanisms: list[dict[str, JsonValue]] = Field(
        default_factory=list,
        description="Privacy mechanisms as they were applied: the fields of "
        "privaudit.privacy.events.MechanismEvent, and the rounds of each.",
    )
    engines: tuple[NotedEngine, ...] = Field(
        (), description="What clients' privacy engines did, by round and client."
    )
    claimed: DeclaredClaim = DeclaredClaim()
    randomness: Randomness = Field(
        "system",
        description="Where noise comes from: system, which nobody can repeat; or seed.",
    )


def read_bundle(folder: Path) -> Bundle:
    """Return what a recorded folder declares."""
    place = folder / BUNDLE
    content = read_json(place)
    if content.get("format") != FORMAT:
        raise TranscriptError(
            f"{place} is of format {shown(str(content.get('format')))}, and this version "
            f"reads format {FORMAT}. Record again, or use the version that wrote it."
        )
    return bundle_of(content, place)


def bundle_of(content: dict[str, Any], place: Path) -> Bundle:
    """Return the bundle that a JSON object describes."""
    try:  # as JSON, which has lists where Python has tuples
        bundle = Bundle.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise TranscriptError(
            f"{place} cannot be read: {readable(error, 'bundle')} docs/format.md says "
            "what belongs there."
        ) from None
    for name in bundle.clients:
        check_client_name(name)
    return bundle


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
