"""The audit card: what it can say, and nothing else, signed as an in-toto statement.

Each field is a number in a range, a hash, a version, or a name that code has registered. What an
audit found is one noised number and the verdict that it alone gives, on average and not in
the tail, so that a reader makes interval and verdict again from the card.

Source: in-toto Attestation Framework, Statement v1,
https://github.com/in-toto/attestation; the schema is ``docs/card.schema.json``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from privaudit.core.errors import (
    ConfigError,
    LimitError,
    MissingFileError,
    TranscriptError,
    TrustError,
)
from privaudit.core.formatting import outcome_in_words
from privaudit.core.limits import check_json
from privaudit.core.parameters import readable
from privaudit.core.portable_bits import Bits
from privaudit.core.seeds import Randomness
from privaudit.core.signing import Envelope, Signer, trusted_keys
from privaudit.core.storage import read_bytes
from privaudit.privacy.accountant import Accountant
from privaudit.privacy.certificate import CertifiedView
from privaudit.privacy.events import Adjacency, MechanismEvent, Unit
from privaudit.privacy.noised_auroc import DELTA, DIGITS, epsilon_of, interval
from privaudit.runs.store import local_path
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Sampling, VerdictKind, judge_leak

FORMAT: Final = 3
PREDICATE: Final = "https://github.com/privaudit/privaudit/audit-card/v3"
ALPHA = 0.05
CARD = "card.json"
TRANSCRIPT = "transcript"
NOISED = "noised rank sum, coins fair"

Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Release = Literal["weights", "api", "internal"]
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
Rounds = Annotated[int, Field(ge=0, le=10**6)]
MOST_EVENTS: Final = 2 * 10**6  # that a reader accounts for again
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
    rounds: Rounds
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

    @model_validator(mode="after")
    def _check(self) -> "Certified":
        if (self.epsilon is None) == bool(self.accountant):
            raise ValueError(
                "an epsilon is certified by an accountant, and else by none"
            )
        if self.epsilon is not None and self.declared is not None:
            raise ValueError("it is certified or declared, and says both")
        return self


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Mechanism(MechanismEvent):
    """A mechanism, and in which rounds it was applied.

    Attributes:
        rounds: Stretches of rounds, each by its first and its last.
    """

    rounds: tuple[tuple[Rounds, Rounds], ...] = ()


class Privacy(_CardPart):
    """What is claimed, certified by view, and which mechanisms that rests on."""

    claimed: Claimed
    certified: dict[CertifiedView, Certified]
    mechanisms: tuple[Mechanism, ...]

    @model_validator(mode="after")
    def _check(self) -> "Privacy":
        stretches = [one for event in self.mechanisms for one in event.rounds]
        if any(first > last for first, last in stretches):
            raise ValueError("a stretch of rounds ends before it begins")
        if sum(last - first + 1 for first, last in stretches) > MOST_EVENTS:
            raise ValueError(
                f"more than {MOST_EVENTS:,} events, a mechanism in a round"
            )
        return self


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

    @property
    def in_words(self) -> str:
        """The verdict, on average: a tail would take numbers of single records."""
        words = outcome_in_words(self.verdict)
        return words + " on average" * (words == "no evidence")

    @model_validator(mode="after")
    def _check(self) -> "AuditShown":
        kind = verdict_kind(self.auroc)
        if self.verdict != kind:
            raise ValueError(f"its number says {kind!r}, and it says {self.verdict!r}")
        confidence = 1 - ALPHA / self.corrected_for
        if self.auroc and abs(self.auroc.confidence - confidence) > 1e-9:
            raise ValueError(
                f"among {self.corrected_for} audits an interval is at {confidence:.4f}"
            )
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
        made: The day, in UTC, by its owner's clock.
        release: What others get: the weights, answers to questions, or nothing.
        computed: How "training" and each audit were computed, by scenario, where it is
            stated. No processor: its name is text.
    """

    format: Literal[3] = FORMAT
    privaudit: Version
    made: Annotated[str, Field(pattern=r"^20\d\d-[01]\d-[0-3]\d$")]
    release: Release | None = None
    design: Design
    training: Training
    privacy: Privacy
    utility: UtilityShown | None
    audits: dict[Name, AuditShown]
    commitments: Commitments
    ledger: LedgerTotal
    computed: dict[Name, Computed] = {}

    @model_validator(mode="after")
    def _check(self) -> "Card":
        # Scenarios whose attacks ask one query say one number, which is noted once.
        held = len({one.auroc for one in self.audits.values()} - {None})
        if held > self.ledger.numbers:
            raise ValueError(
                f"{held} numbers are on it, and {self.ledger.numbers} noted"
            )
        return self

    def plain(self) -> dict[str, JsonValue]:
        """Return the card as JSON's types."""
        return self.model_dump(mode="json")


class Subject(_CardPart):
    """What a card is about, by its SHA-256; the transcript by its commitment."""

    name: Name
    digest: Annotated[
        dict[Literal["sha256", "hmac-sha256"], Sha], Field(min_length=1, max_length=1)
    ]


class Statement(_CardPart):
    """An in-toto statement of a card."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=100)]
    predicate_type: Literal["https://github.com/privaudit/privaudit/audit-card/v3"] = (
        Field(alias="predicateType")
    )
    predicate: Card

    @model_validator(mode="after")
    def _check(self) -> "Statement":
        head = {"hmac-sha256": self.predicate.commitments.transcript}
        if Subject(name=TRANSCRIPT, digest=head) not in self.subject:
            raise ValueError("the transcript that it commits to is no subject of it")
        return self

    def render(self) -> bytes:
        """Return the text, the same for the same statement everywhere."""
        plain = self.model_dump(mode="json", by_alias=True)
        return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class SignedCard:
    """A card whose signatures all fit."""

    place: Path
    envelope: Envelope
    statement: Statement

    @property
    def card(self) -> Card:
        """What it says."""
        return self.statement.predicate

    @property
    def keys(self) -> list[str]:
        """Who signed."""
        return [one.keyid for one in self.envelope.signatures]

    def signers(self, wanted: Sequence[str] = ()) -> list[Signer]:
        """Return who signed, of keys that are wanted, or trusted where none is.

        Raises:
            TrustError: A wanted key did not sign, or no trusted one did.
        """
        trusted = trusted_keys()
        lacking = [key for key in wanted if key not in self.keys]
        known = [key for key in self.keys if key in (wanted or trusted)]
        if lacking or not known:
            raise TrustError(
                f"{self.place} is signed by {', '.join(self.keys)}, and not by "
                f"{lacking[0] if lacking else 'a key that you trust'}. If you know whose "
                "key that is, name it with --key, or trust it with `privaudit key trust`; "
                "else do not use this card."
            )
        return [Signer(key, trusted.get(key, "the key asked for")) for key in known]


def read_card(path: str | Path) -> SignedCard:
    """Return the card of a file or of an export's folder.

    Raises:
        MissingFileError: There is none on this machine.
        TranscriptError: A signature does not fit.
        ConfigError: It is no card, contradicts itself, or is of another version.
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
    return parse_card(content, file)


def parse_card(content: object, file: Path) -> SignedCard:
    """Return the card that JSON is; its errors are those of :func:`read_card`."""
    _refuse_earlier(content, file)
    try:
        envelope = Envelope.model_validate_json(json.dumps(content), strict=True)
        check_json(envelope.content, str(file))
        statement = Statement.model_validate_json(envelope.content, strict=True)
    except ValidationError as error:
        raise _no_card(file, readable(error, "card")) from None
    if unfit := envelope.unfit():
        raise TranscriptError(
            f"{file} is not as {unfit[0]} signed it: it was altered, or put together by "
            "someone without the key. Get it from its owner again."
        )
    if statement.render() != envelope.content:
        raise _no_card(file, "its text is not as a card is written")
    return SignedCard(file, envelope, statement)


def _refuse_earlier(content: object, file: Path) -> None:
    said = content if isinstance(content, Mapping) else {}
    if isinstance(said.get("card"), Mapping):
        why = "1, which gives away who is a member: publish it no longer"
    elif said.get("format") == FORMAT - 1:
        why = "2, which nobody signed"
    else:
        return
    raise ConfigError(
        f"{file} is a card of format {why}. This version reads format {FORMAT}; export "
        "the run again."
    )


def _no_card(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file} is no audit card ({why}): it was altered, or is something else. Make "
        "one with `privaudit export RUN --public DIR`."
    )
