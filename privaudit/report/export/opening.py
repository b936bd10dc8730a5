"""What an owner opens to the auditor of a session, and what the auditor makes of it.

The opening holds truth, scores, log, plan and secrets of a session's run, and neither a
record nor a weight. With it coins, estimates, verdicts, corrections and the card are made
again; that scores are those of the attacks takes the run itself.
"""

import io
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from privaudit.auditing.audit_log import LOG, plan_of
from privaudit.auditing.stored_audit import read_audit, stored_scenarios
from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError, shown
from privaudit.core.limits import limit_of
from privaudit.core.seeds import Seeds
from privaudit.core.signing import keys_folder, seal, unseal
from privaudit.core.storage import (
    make_private_folder,
    read_bytes,
    read_npz,
    write_bytes,
)
from privaudit.datasets.split import Split
from privaudit.evaluation.card import Card, SignedCard, read_card
from privaudit.federation.transcript import Transcript
from privaudit.privacy.certificate import events_by_round
from privaudit.privacy.events import MechanismEvent
from privaudit.report.export.alone import COUNTED, TRUE_SCORES, Mismatch
from privaudit.report.export.export import FILE
from privaudit.report.export.recompute import unlike_scores
from privaudit.report.export.verify import Verification, verify_card
from privaudit.runs.lease import METRICS
from privaudit.runs.ledger import Ledger
from privaudit.runs.names import is_name
from privaudit.runs.own_files import HEADER, PLAN, SESSION, write_output
from privaudit.runs.run import Run
from privaudit.runs.session import (
    NOTES,
    SESSION_KEY,
    Session,
    commit,
    design_of,
    read_session,
    seal_of,
    session_of,
    sessions_with,
)

_ALWAYS = (
    HEADER, METRICS, "ledger.npz", "privacy.json", PLAN, SESSION, SESSION_KEY, FILE, LOG,
)  # fmt: skip
_AUDIT = re.compile(r"audits/[a-z0-9][a-z0-9_-]*/(audit\.json|scores\.npz)")
_TRUSTED = (
    "utility, and bounds on epsilon by secrets or crafted gradients: as next",
    "that the scores are those of the attacks, made as planned: `verify --again` and "
    "`--recompute` find out, with the run",
)


def _purpose(session: str) -> str:
    return f"privaudit opening of session {session}"


def require_session(run: Run) -> Session:
    """Return the session that a run was trained in.

    Raises:
        ConfigError: There is none.
    """
    if session := session_of(run):
        return session
    raise ConfigError(
        f"{run.place} was trained without an auditor, so that nobody is there to open "
        "it to. Train with --session FILE."
    )


def write_opening(run: Run, path: Path) -> None:
    """Write what only the auditor of a run's session can open, behind the session's name.

    Raises:
        ConfigError: The run was trained without one.
        MissingFileError: A file is gone, or no card was exported.
        StorageError: It cannot be written.
    """
    session = require_session(run)
    buffer, names = io.BytesIO(), (*_ALWAYS, *filter(_AUDIT.fullmatch, run.files))
    contents = {name: read_bytes(run.path / name, limit_of(name)) for name in names}
    arrays = {f"{run.name}/{n}": np.frombuffer(c, "u1") for n, c in contents.items()}
    np.savez(buffer, allow_pickle=False, **arrays)
    name, key = session.offer.commitment, session.answered.key
    write_output(path, name.encode() + seal(buffer.getvalue(), key, _purpose(name)))


@dataclass(frozen=True)
class OpenedRun(Run):
    """A run without records, messages and weights, as its auditor has it."""

    @cached_property
    def transcript(self) -> Transcript:
        """No message: that the owner keeps them is on trust."""
        return Transcript()


def _opened(path: Path) -> tuple[OpenedRun, Session]:
    """Unpack an opening beside the auditor's key, and return the session as noted there.

    There its log of audits is held against the longest that was opened before.
    """
    content = read_bytes(path)
    name = content[:64].decode("ascii", errors="replace")
    place = keys_folder() / NOTES / f"{name}.json"
    if not re.fullmatch("[0-9a-f]{64}", name) or not place.exists():
        raise MissingFileError(
            f"{path} is no opening of a session that was answered with this key. Only who "
            "answered a session can check it."
        )
    arrays = read_npz(unseal(content[64:], _purpose(name)), str(path))
    run = _unpack(arrays, place.with_suffix(""), path)
    return OpenedRun(run), read_session(place)


def _unpack(arrays: Mapping[str, np.ndarray], folder: Path, opening: Path) -> Path:
    """Write an opening's files in place of earlier ones, and return the run's folder."""
    run = next(iter(arrays), "").partition("/")[0]
    for key in arrays:
        above, _, name = key.partition("/")
        known = name in _ALWAYS or _AUDIT.fullmatch(name)
        if above != run or not is_name(run) or not known:
            raise ConfigError(
                f"{opening} holds {shown(key)}, which is no file that an owner opens. Ask "
                "for another."
            )
    shutil.rmtree(folder, ignore_errors=True)
    for key, content in arrays.items():
        make_private_folder((folder / key).parent)
        write_bytes(folder / key, content.tobytes())
    return folder / run


def verify_as_auditor(
    card: str | Path,
    opening: Path,
    keys: tuple[str, ...] = (),
    files: tuple[Path, ...] = (),
) -> Verification:
    """Make a card again from what its owner opened to oneself, and check the session.

    Args:
        card: The file, or the folder of an export.
        opening: What ``privaudit export --opening`` wrote.
        keys: As :func:`check_card` takes them.
        files: What subjects of the card must be.

    Raises:
        ConfigError: It is no card, or no opening.
        MissingFileError: The session was not answered here.
        TranscriptError: An opened file is not as it was signed.
        TrustError: It is not for this key, or its owner is not trusted.
    """
    run, noted = _opened(opening)
    return check_opened(read_card(card), run, noted, keys, files)


def check_opened(
    signed: SignedCard,
    run: Run,
    noted: Session,
    keys: tuple[str, ...] = (),
    files: tuple[Path, ...] = (),
) -> Verification:
    """Hold a card, a run without weights and the session as it was noted together."""
    found = verify_card(signed.place, run, keys=keys, files=files)
    try:
        faults = tuple(_faults(signed.card, run, noted))
    except (PrivauditError, IndexError, KeyError, TypeError) as error:
        faults = (Mismatch("session", str(error)),)
    check = found.check
    trusted = (
        *_TRUSTED,
        *(t for t in check.trusted if t not in (TRUE_SCORES, COUNTED)),
    )
    if not faults and found.matches:
        recomputed = (*check.recomputed, *_recomputed(run, noted))
        check = replace(check, recomputed=recomputed, trusted=trusted)
    return replace(found, check=check, mismatches=(*faults, *found.mismatches))


def _recomputed(run: Run, noted: Session) -> Iterator[str]:
    scenarios = ", ".join(stored_scenarios(run))
    truth = run.truth.owner >= 0
    yield f"the coins of {int(truth.sum())} candidates, from the secrets of both parties"
    yield (
        f"every AUROC, interval, p-value, bound on epsilon and verdict of {scenarios}, "
        "from scores, coins and log"
    )
    others = sessions_with(noted.offer.signature["key"])
    unsealed = sum(one.seal is None for one in others)
    yield (
        f"session {noted.answered.number} of {len(others)} that the owner began here, "
        f"{unsealed} of them without a trained model"
    )


def _faults(card: Card, run: Run, noted: Session) -> Iterator[Mismatch]:
    """Yield what of a session was not kept to."""
    session = session_of(run)
    if session != noted.model_copy(update={"seal": None}):
        yield Mismatch("session", "the run holds another than the one answered here")
    if run.signers[0].key != noted.offer.signature["key"]:
        yield Mismatch("session", "another than its owner signed the run")
    secret = run.read(SESSION_KEY)
    split = Split(run.truth.owner, group=run.truth.group)
    design = design_of(run.header, run.files.get(PLAN, ""), split)
    if commit(secret, design) != noted.offer.commitment:
        why = (
            "secret, data, owners, configuration or plan are not those that were "
            "committed to before the coin"
        )
        yield Mismatch("session/commitment", why)
    elif (
        Ledger.toss(split, Seeds.of_key(noted.coin_key(secret))).hash != run.truth.hash
    ):
        yield Mismatch("session/coins", "the secrets of both give other members")
    if noted.seal is None:
        why = "no run was sealed: `privaudit key answer` notes it before any audit"
        yield Mismatch("session/seal", why)
    elif noted.seal.run != seal_of(secret, run):
        yield Mismatch("session/seal", "another run was sealed before the audits")
    rounds = [[*map(MechanismEvent.from_json, o["mechanisms"])] for o in run.metrics]
    if events_by_round(run.privacy["mechanisms"], len(rounds)) != rounds:
        yield Mismatch("privacy/mechanisms", "the rounds list others in metrics.jsonl")
    yield from _of_audits(card, run)


def _of_audits(card: Card, run: Run) -> Iterator[Mismatch]:
    """Yield planned audits that are not shown, and others' numbers."""
    plan = plan_of(run)
    for one in plan.audits if plan else ():
        shown = card.audits.get(one.scenario)
        if shown is None or not shown.planned:
            why = "it was planned, and the card does not show it as planned"
            yield Mismatch(f"audits/{one.scenario}", why)
    for scenario in stored_scenarios(run):
        for why in unlike_scores(read_audit(run, scenario)):
            yield Mismatch(f"audits/{scenario}", why)
