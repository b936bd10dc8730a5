"""A coin of two parties, owner and auditor, of whom neither can choose how it falls.

  offer   by the owner, before anything is trained: a commitment to a secret of 256 bits,
          and to whose coin is whose: data, partition, configuration and plan of audits
  answer  by the auditor, who saw the commitment alone: a secret too, the number of this
          session among all that this owner began with them, and a key for the opening
  seal    by the owner, once training has ended and before any audit: a commitment to
          the signed run

Coins follow from both secrets, so that who has one knows no coin. Each part is signed, and
names the hash of the one before. The auditor notes every session beside the own key, and
answers none twice: of two answers an owner could choose.

Source: Blum, "Coin flipping by telephone: a protocol for solving impossible problems",
ACM SIGACT News 15(1), 1983.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.core.limits import check_json
from privaudit.core.parameters import readable
from privaudit.core.seeds import KEY, derive
from privaudit.core.signing import (
    Signer,
    check_signature,
    keys_folder,
    opening_key,
    own_key,
    sign,
)
from privaudit.core.storage import make_private_folder, read_bytes, to_json, write_bytes
from privaudit.datasets.split import Split
from privaudit.runs.config import RunConfig, make_config
from privaudit.runs.ledger import Ledger
from privaudit.runs.own_files import SESSION, write_output
from privaudit.runs.population import Population, populate
from privaudit.runs.run import AUDITS, Run
from privaudit.runs.run_key import RUN_KEY

SESSION_KEY = "kept/session.key"
NOTES = "sessions"  # the folder beside the auditor's key
Sha = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _SessionPart(BaseModel):
    """What one party said, with its signature."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    signature: dict[Literal["key", "value"], Annotated[str, Field(max_length=128)]]

    @property
    def _purpose(self) -> str:
        return f"{type(self).__name__.lower()} of a session"

    @property
    def _said(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"signature"})

    def signer(self, place: Path) -> Signer:
        """Return who signed it; errors are those of :func:`check_signature`."""
        return check_signature(self._purpose, self._said, self.signature, place)

    @property
    def hash(self) -> str:
        """The SHA-256 of all of it, which the next part names."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


P = TypeVar("P", bound=_SessionPart)


def _signed(kind: type[P], **said: Any) -> P:
    """Return a part signed with one's own key."""
    draft = kind(signature={}, **said)
    return kind(signature=sign(draft._purpose, draft._said), **said)


class Offer(_SessionPart):
    """What the owner commits to.

    Attributes:
        nonce: Drawn by the system; with the owner's private key it gives the secret.
        design: As :func:`design_of` has it; no record can be found by it.
    """

    session: Literal[1] = 1
    nonce: Sha
    commitment: Sha
    design: Sha


class Answer(_SessionPart):
    """What the auditor adds.

    Attributes:
        number: From 1, of all sessions that this owner began, whatever became of them.
        key: Public half of the key that opens scores and truth.
        made: By the auditor's clock, in UTC.
    """

    after: Sha
    secret: Sha
    number: Annotated[int, Field(ge=1, le=10**6)]
    key: Sha
    made: Annotated[str, Field(max_length=40)]


class Seal(_SessionPart):
    """That one run was trained, by an HMAC of its first signature under the secret."""

    after: Sha
    run: Sha


class Session(BaseModel):
    """A session as far as it has come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offer: Offer
    answer: Answer | None = None
    seal: Seal | None = None

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        return to_json(self.model_dump(mode="json"))

    def check(self, place: Path) -> "Session":
        """Return it, if all that is signed was signed by keys that are trusted.

        Raises:
            TranscriptError: A part was altered, or is not of the one before.
            TrustError: A signature is of a key that is not trusted.
        """
        owner, before = self.offer.signer(place), self.offer.hash
        later: list[Answer | Seal | None] = [self.answer, self.seal]
        for part in (one for one in later if one):
            signer, follows = part.signer(place), part.after == before
            if not follows or (isinstance(part, Seal) and signer != owner):
                raise TranscriptError(
                    f"{place} holds parts of several sessions. Restore it from a copy."
                )
            before = part.hash
        if self.seal and not self.answer:
            raise TranscriptError(f"{place} is sealed, and no auditor answered it.")
        return self

    @property
    def answered(self) -> Answer:
        """The auditor's answer; a ConfigError without one."""
        if self.answer is None:
            raise ConfigError(
                "The session has no answer yet. Its auditor answers with `privaudit key "
                "answer FILE`; train with the same command then."
            )
        return self.answer

    def coin_key(self, secret: bytes) -> bytes:
        """Return what the coins follow from; the owner's secret is given."""
        both = secret + bytes.fromhex(self.answered.secret)
        return derive(both, f"coins of a session|{self.offer.commitment}", KEY)

    @property
    def note(self) -> Path:
        """Where an auditor notes it."""
        return keys_folder() / NOTES / f"{self.offer.commitment}.json"


def commit(secret: bytes, design: str) -> str:
    """Return the commitment to a secret and a design."""
    text = f"privaudit session|{design}|".encode()
    return hashlib.sha256(text + secret).hexdigest()


def seal_of(secret: bytes, run: Run) -> str:
    """Return what a seal says of a run, whose first signature covers all its training."""
    return hmac.new(secret, run.latest().seal.encode(), hashlib.sha256).hexdigest()


def design_of(header: Mapping[str, Any], plan: str, split: Split) -> str:
    """Return a SHA-256 of what decides whose coin is whose, and what becomes of it.

    Args:
        header: Configuration and hashes of data and model, as a run's header has them.
        plan: The SHA-256 of the file of planned audits.
        split: Who owns each record, and which share a coin.
    """
    nobody = Ledger(split.owner, np.zeros(len(split.owner), bool), group=split.group)
    decides = [header[name] for name in ("config", "data_hash", "model_hash")]
    text = json.dumps([*decides, plan, nobody.hash], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _design(config: RunConfig, population: Population, plan: bytes | None) -> str:
    if plan is None:
        raise ConfigError(
            "A session was given without a plan of audits, so that any audit could be "
            "left out afterwards. Make one with `privaudit plan FILE`, and give it with "
            "--plan."
        )
    header = {
        "config": config.model_dump(), "data_hash": population.dataset.hash,
        "model_hash": population.model_hash,
    }  # fmt: skip
    return design_of(header, hashlib.sha256(plan).hexdigest(), population.split)


def offer_session(
    path: Path,
    trainer: str,
    settings: Mapping[str, Any],
    plan: Path | None,
    **fields: Any,
) -> None:
    """Commit to coins of two parties, and write the offer; nothing is trained.

    Args:
        path: The file to send to the auditor.
        trainer: As :func:`privaudit.train` has it.
        settings: The trainer's parameters.
        plan: The file of planned audits.
        **fields: Of the configuration, as there.

    Raises:
        ConfigError: There is no plan; a seed would give the coins, or they are none of
            records or groups.
        StorageError: The file cannot be written.
    """
    config = make_config(trainer, settings, **fields)
    if config.seed is not None or config.members != "coin":
        given = f"--seed {config.seed}" if config.members == "coin" else "--members"
        raise ConfigError(
            f"Coins of two parties were requested with {given}, which decides on members "
            "without the auditor. Leave it out."
        )
    planned = None if plan is None else read_bytes(plan)
    nonce = os.urandom(KEY).hex()
    design = _design(config, populate(config), planned)
    commitment = commit(_secret(nonce), design)
    offer = _signed(Offer, nonce=nonce, commitment=commitment, design=design)
    write_output(path, Session(offer=offer).to_bytes())


def _secret(nonce: str) -> bytes:
    """Return the owner's secret of an offer: nothing of the private key follows from it."""
    return derive(own_key().private_bytes_raw(), f"secret of a session|{nonce}", KEY)


def read_session(path: Path) -> Session:
    """Return the session of a file, whose signatures fit; errors are those of its parts."""
    return parse_session(read_bytes(path), str(path)).check(path)


def parse_session(content: bytes, what: str) -> Session:
    """Return the session that a file's content is; no signature is checked."""
    check_json(content, what)
    try:
        return Session.model_validate_json(content)
    except ValidationError as error:
        raise ConfigError(
            f"{what} is no session. {readable(error, 'session')}"
        ) from None


def answer_session(path: Path) -> Session:
    """Answer an owner's offer, or note that its run was sealed; once each.

    Raises:
        ConfigError: It is no session.
        TranscriptError: Another run was sealed before, or the file was altered.
        TrustError: The owner's key is not trusted.
        StorageError: It cannot be noted, or written.
    """
    session = read_session(path)
    noted = read_session(session.note) if session.note.exists() else None
    if noted is None:
        if session.answer is not None:
            raise TranscriptError(
                f"{path} has an answer, and none was given here. Ask its owner for the "
                "offer alone."
            )
        owner = session.offer.signature["key"]
        answer = _signed(Answer,
            after=session.offer.hash, secret=os.urandom(KEY).hex(), key=opening_key(),
            number=len(sessions_with(owner)) + 1,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        noted = session.model_copy(update={"answer": answer})
    elif session.seal != noted.seal and session.seal is not None:
        whole = noted.model_copy(update={"seal": noted.seal or session.seal})
        if whole != session:
            raise TranscriptError(
                f"{path} is not the session that was answered here, or another run was "
                "sealed before. What was said first counts."
            )
        noted = session
    make_private_folder(noted.note.parent)
    write_bytes(noted.note, noted.to_bytes())
    write_output(path, noted.to_bytes())
    return noted


def sessions_with(owner: str) -> list[Session]:
    """Return all sessions that were answered here to an owner's key."""
    found = map(read_session, (keys_folder() / NOTES).glob("*.json"))
    return [one for one in found if one.offer.signature["key"] == owner]


def session_secret(
    session: Session, config: RunConfig, population: Population, plan: bytes | None
) -> bytes:
    """Return the owner's secret, if it and the design are what was committed to.

    Raises:
        ConfigError: Key, data, configuration or plan are others.
    """
    secret = _secret(session.offer.nonce)
    if commit(secret, _design(config, population, plan)) != session.offer.commitment:
        raise ConfigError(
            "The session was offered with another key, configuration, plan, data set or "
            "model than this training has. Repeat that command, or offer another "
            "session: the auditor counts it."
        )
    return secret


def session_of(run: Run) -> Session | None:
    """Return the session that a run was trained in, without its seal; None without one."""
    if SESSION not in run.files:
        return None
    return parse_session(run.read(SESSION), f"{run.place}/{SESSION}")


def coin_key(run: Run) -> bytes:
    """Return what a run's coins follow from, where it has no seed."""
    session = session_of(run)
    return session.coin_key(run.read(SESSION_KEY)) if session else run.read(RUN_KEY)


def seal_session(path: Path, run: Run) -> None:
    """Seal a run that was trained in a session: write that into the session's file.

    Raises:
        ConfigError: It was audited before.
    """
    session = read_session(path)
    if session.seal is not None:
        return
    if any(name.startswith(AUDITS) for name in run.files):
        raise ConfigError(
            f"{run.place} was audited before {path} was sealed, so that an auditor cannot "
            "know that it was not chosen for what was found. Offer another session."
        )
    after = session.answered.hash
    seal = _signed(Seal, after=after, run=seal_of(run.read(SESSION_KEY), run))
    write_output(path, session.model_copy(update={"seal": seal}).to_bytes())
