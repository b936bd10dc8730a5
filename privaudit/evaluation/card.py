"""The audit card: what it can say, and nothing else.

Each field is a number in a range, a hash, a version, or a name that code has registered. What an
audit found is one noised number and the verdict that it alone gives, on average and not in
the tail, so that a reader makes interval and verdict again from the card.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass as validated

from privaudit.core.errors import ConfigError, LimitError, MissingFileError
from privaudit.core.limits import check_json
from privaudit.core.parameters import readable
from privaudit.core.portable_bits import Bits
from privaudit.core.seeds import Randomness
from privaudit.core.storage import read_bytes
from privaudit.privacy.accountant import Accountant
from privaudit.privacy.events import Adjacency, MechanismEvent, Unit
from privaudit.privacy.noised_auroc import DELTA, DIGITS, epsilon_of, interval
from privaudit.runs.store import local_path
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Sampling, VerdictKind, judge_leak

FORMAT: Final = 2
CARD = "card.json"
NOISED = "noised rank sum, coins fair"

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@-]{0,79}$")]
Version = Annotated[str, Field(pattern=r"^[0-9][0-9a-z.+]{0,29}$")]
BUILD: Final = (
    r"^[0-9][A-Za-z0-9.+-]{0,29}( with [A-Za-z-]{1,20}( [A-Za-z0-9.+-]{1,30})?)?$"
)
Library = Literal["torch", "numpy"]
Build = Annotated[str, Field(pattern=BUILD)]
Settings = Annotated[
    str, Field(max_length=300, pattern=r"^[A-Za-z0-9_]+\([A-Za-z0-9_=., '+-]*\)$")
]
Count = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Spread = Annotated[float, Field(ge=0, le=100)]
Epsilon = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=0, lt=1)]


class _CardPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Design(_CardPart):
    """How membership was drawn.

    Attributes:
        sampling: "coin": a fair coin chose each member.
        unit: What had a coin of its own.
    """

    sampling: Sampling
    unit: Literal["record", "group", "client"]
    clients: Count


class Training(_CardPart):
    """How the models came about; names only where code has registered them."""

    origin: Literal["trained", "recorded", "scores"]
    trainer: Name | None = None
    dataset: Name | None = None
    model: Name | None = None
    model_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")] = ""
    rounds: Count
    randomness: Randomness | None = None


class Computed(_CardPart):
    """In which bits something was computed, and by which builds of libraries.

    Attributes:
        differing: How many operations had other bytes than the portable ones.
    """

    bits: Bits
    differing: Annotated[int, Field(ge=0, le=100)] = 0
    builds: dict[Library, Build]


class Claimed(_CardPart):
    """What the method's own formula claims."""

    epsilon: Epsilon | None
    delta: Delta


class Certified(_CardPart):
    """What is proved of one view.

    Attributes:
        epsilon: None where nothing is proved.
        declared: Of mechanisms that nothing here applied: somebody's word, no proof.
    """

    epsilon: Epsilon | None
    delta: Delta
    unit: Unit
    adjacency: Adjacency
    randomness: Randomness | None = None
    accountant: Accountant | Literal["", "by definition"]
    declared: Epsilon | None = None


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Mechanism(MechanismEvent):
    """A mechanism, and in how many rounds it was applied."""

    rounds: int = Field(default=1, ge=1)


class Privacy(_CardPart):
    """What is claimed, certified by view, and which mechanisms that rests on."""

    claimed: Claimed
    certified: dict[Name, Certified]
    mechanisms: tuple[Mechanism, ...]


class UtilityShown(_CardPart):
    """Of the clients' models, on test records that nobody trains on."""

    metric: Annotated[str, Field(pattern=r"^[A-Za-z0-9 -]{1,40}$")]
    value: float
    low: float
    high: float
    n: tuple[Count, ...]

    @property
    def estimate(self) -> Estimate:
        """With its interval at 95 %."""
        return Estimate(self.value, self.low, self.high, self.n, "on a card")


class NoisedAuroc(_CardPart):
    """The headline's AUROC over all clients, noised.

    Attributes:
        low: What it does not rule out, the noise in it.
        confidence: Of the interval: 95 % for all audits of the run together.
        null_sd: Standard deviation without noise where nothing leaks.
    """

    value: Share
    low: Share
    high: Share
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    candidates: Count
    noise_sd: Spread
    null_sd: Spread

    @model_validator(mode="after")
    def _check(self) -> "NoisedAuroc":
        ends = interval(self.value, self.noise_sd, self.null_sd, self.confidence)
        off = max(abs(self.low - ends[0]), abs(self.high - ends[1]))
        if off > 2 * 10**-DIGITS:  # the last digit on another machine
            raise ValueError(f"its interval is [{ends[0]}, {ends[1]}]")
        return self

    @property
    def estimate(self) -> Estimate:
        """With its widened interval."""
        counts, ends = (self.candidates,), (self.low, self.high)
        return Estimate(self.value, *ends, counts, NOISED, self.confidence)


def verdict_kind(auroc: NoisedAuroc | None) -> VerdictKind:
    """Return what a card's number says; nothing of membership without a number."""
    return "sampling unknown" if auroc is None else judge_leak(auroc.estimate).kind


class AuditShown(_CardPart):
    """What a card says of one audit.

    Attributes:
        threat: The threat model, such as "server"; no client's name.
        headline: The attack that was named beforehand.
        attacks: All that were made, by their registered names.
        unnamed: How many others were, whose names are not this installation's.
        audits: How many were made of the run by then.
        corrected_for: Of how many different ones the interval holds together.
        planned: Whether it was made as it was planned before training.
        auroc: What the headline found; None where no coins are declared.
        scores: Commitment to all scores and guesses.
    """

    threat: Name
    headline: Name
    settings: Settings | None
    attacks: tuple[Name, ...]
    unnamed: Count = 0
    audits: Count
    corrected_for: Annotated[int, Field(ge=1)]
    planned: bool
    auroc: NoisedAuroc | None
    verdict: VerdictKind
    scores: Sha

    @model_validator(mode="after")
    def _check(self) -> "AuditShown":
        kind = verdict_kind(self.auroc)
        if self.verdict != kind:
            raise ValueError(f"its number says {kind!r}, and it says {self.verdict!r}")
        return self


class Commitments(_CardPart):
    """HMACs under a secret that stays with the run."""

    ledger: Sha
    data: Sha
    transcript: Sha
    plan: Sha | None = None


class LedgerTotal(_CardPart):
    """What all cards of the ledger say together, this one among them."""

    numbers: Annotated[int, Field(ge=0, le=10_000)]
    epsilon: Epsilon
    delta: Delta = DELTA

    @model_validator(mode="after")
    def _check(self) -> "LedgerTotal":
        epsilon = round(epsilon_of(self.numbers), DIGITS)
        if self.delta != DELTA or abs(self.epsilon - epsilon) > 2 * 10**-DIGITS:
            raise ValueError(f"so many numbers have epsilon {epsilon} at {DELTA}")
        return self


class Card(_CardPart):
    """A card.

    Attributes:
        computed: How "training" and each audit were computed, by scenario, where it is
            stated; None on cards of earlier versions. No processor: its name is text.
    """

    format: Literal[2] = FORMAT
    privaudit: Version
    design: Design
    training: Training
    privacy: Privacy
    utility: UtilityShown | None
    audits: dict[Name, AuditShown]
    commitments: Commitments
    ledger: LedgerTotal
    computed: dict[Name, Computed] | None = None

    def render(self) -> str:
        """Return the text, the same for the same card everywhere."""
        return f"{json.dumps(self.plain(), indent=1, sort_keys=True)}\n"

    def plain(self) -> dict[str, JsonValue]:
        """Return the card as JSON's types."""
        plain = self.model_dump(mode="json")
        if self.computed is None:
            del plain["computed"]
        return plain


def read_card(path: str | Path) -> tuple[Card, bool]:
    """Return the card of a file or of an export's folder; and whether it is unaltered.

    Raises:
        MissingFileError: There is none on this machine.
        ConfigError: It is no card, was altered so that it contradicts itself, or is of
            another version.
    """
    try:
        file = local_path(path)
        file = file / CARD if file.is_dir() else file
        text = read_bytes(file)
    except LimitError:
        raise
    except (ConfigError, MissingFileError) as error:
        raise MissingFileError(
            f"{error} `privaudit export RUN --public DIR` makes a card of a run."
        ) from None
    check_json(text, str(file))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_card(file, repr(error)) from None
    card = parse_card(content, file)
    return card, card.render().encode() == text


def parse_card(content: object, file: Path) -> Card:
    """Return the card that JSON is.

    Raises:
        ConfigError: As :func:`read_card`.
    """
    if isinstance(content, Mapping) and isinstance(content.get("card"), Mapping):
        raise ConfigError(
            f"{file} is a card of format {content['card'].get('format')!s:.20}, which "
            "holds exact numbers by client that give away who is a member: publish it "
            f"no longer. This version reads format {FORMAT}; export the run again."
        )
    try:
        return Card.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise _no_card(file, readable(error, "card")) from None


def _no_card(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} is no audit card ({why}): it was altered, or is something else. Make "
        "one with `privaudit export RUN --public DIR`."
    )
