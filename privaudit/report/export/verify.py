"""Does a card say what its run says? It is made again, noise and all, and compared.

A card is found untrue if its text was altered, or if anything in the run that it was
made of was: transcript, ledger, scores. What nothing in the run gives again, such as
utility and settings, is compared with what its owner signed, and is so taken on trust;
``again`` plays the attacks anew, beside what the run kept of them, and certifies anew.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import attack_again
from privaudit.auditing.stored_audit import StoredAudit, read_audit, score_columns
from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError
from privaudit.core.parameters import alike
from privaudit.evaluation.card import Card, SignedCard, UtilityShown, read_card
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.alone import CardCheck, Mismatch, check_card
from privaudit.report.export.export import (
    FILE,
    MODELS,
    RunSecret,
    commit_transcript,
    make_card,
    number_of,
    secret_of,
    subjects_of,
    utility_shown,
)
from privaudit.runs.round_metrics import certify_again
from privaudit.runs.run import Run, load_run, places_in, runs_folder, shared_place
from privaudit.statistics.progress import Watcher

TOLERANCE = 1e-5  # absolute below 1, relative above
LAST_DIGIT = 1.1e-3  # of utility as it is shown


@dataclass(frozen=True)
class Replayed:
    """What an audit gave when it was played anew.

    Attributes:
        largest: By how much one differs at most, in units of itself if it is above 1.
        why: All that does not match; empty if the audit gave the same.
    """

    scenario: str
    scores: int
    largest: float
    why: tuple[str, ...]

    @property
    def matches(self) -> bool:
        """Whether it gave the same, within :data:`TOLERANCE`."""
        return not self.why


def replay(
    run: Run,
    scenario: str,
    card: Card,
    watcher: Watcher | None = None,
) -> Replayed:
    """Play an audit anew, with the seed that the run kept, and compare.

    Nothing that an earlier audit kept is used: shadow models are trained again.
    """
    try:
        stored = read_audit(run, scenario)
        audit, contents = _play(run, stored, watcher)
        count, largest, why = _compare_scores(stored, audit)
    except PrivauditError as error:
        return Replayed(scenario, 0, math.nan, (str(error),))
    again = utility_shown(run, [contents])
    if again and card.utility and not _near(card.utility, again):
        why.append("utility comes out otherwise")
    return Replayed(scenario, count, largest, tuple(why))


def _near(card: UtilityShown, again: UtilityShown) -> bool:
    """Say whether a card's rounded utility is the same: a last digit may differ."""
    both = zip(card.model_dump().values(), again.model_dump().values(), strict=True)
    return all(
        abs(one - other) <= LAST_DIGIT if isinstance(one, float) else one == other
        for one, other in both
    )


def _show(path: Path, link: Path) -> None:
    """Have a file or a folder at another path, too."""
    try:
        link.symlink_to(path)
    except OSError:  # Windows lets few users make links
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, link)


def _play(
    run: Run, stored: StoredAudit, watcher: Watcher | None
) -> tuple[Audit, dict[str, Any]]:
    """Return an audit of the run without what earlier ones left, and its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / run.name
        bare.mkdir(mode=0o700)
        for path in run.path.iterdir():
            if path.name != "audits":
                _show(path.resolve(), bare / path.name)
        audit = attack_again(stored, load_run(bare), watcher)
        return audit, audit.to_dict()  # which reads the run


def _compare_scores(stored: StoredAudit, audit: Audit) -> tuple[int, float, list[str]]:
    """Return how many scores there are, the largest difference, and what is amiss."""
    again, made = audit.scored, score_columns(audit)
    if set(again) != set(stored.attacks):
        odd = ", ".join(sorted(set(again) ^ set(stored.attacks)))
        return 0, math.nan, [f"other attacks are played by this version: {odd}"]
    count, largest, why = 0, 0.0, []
    for attack in stored.attacks:
        kept = stored.columns[attack]
        new = {n: made[f"{attack}/{n}"] for n in ("client", "records", "scores")}
        if not all(np.array_equal(kept[n], new[n]) for n in ("client", "records")):
            why.append(f"{attack} was made on other candidates")
            continue
        before, after = kept["scores"], new["scores"]
        gap = float((np.abs(after - before) / np.maximum(1, np.abs(before))).max())
        count, largest = count + len(before), max(largest, gap)
        if gap > TOLERANCE:
            why.append(f"{attack}: a score differs by {gap:.3g} from what was kept")
    return count, largest, why


_MADE_AGAIN = ("audits", "commitments", "design", "format", "ledger")
_CERTIFIED = ("privacy", "utility", "training")  # what ``again`` makes again, too


@dataclass(frozen=True)
class Verification:
    """What became of a card.

    Attributes:
        check: What the card shows by itself.
        on_trust: How many of these stand in a signed file only: nothing gave them
            again.
        mismatches: All that does not match; empty if the card is true.
        replayed: What the attacks gave when they were played anew, if they were.
    """

    run: Run
    check: CardCheck
    values: int
    on_trust: int
    mismatches: tuple[Mismatch, ...]
    replayed: tuple[Replayed, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether the card says what the run says."""
        played = all(one.matches for one in self.replayed)
        return self.check.matches and not self.mismatches and played


def verify_card(
    card: str | Path,
    run: Run | str | Path | None = None,
    *,
    runs: str | Path | None = None,
    again: bool = False,
    keys: Sequence[str] = (),
    files: Sequence[Path] = (),
    watcher: Watcher | None = None,
) -> Verification:
    """Make a card again from its run, and say what does not match.

    Args:
        card: The file, or the folder of an export.
        run: The run; by default the one with the card's transcript.
        runs: Where to look for it.
        again: Play each audit's attacks anew, with the same adversary's seed, and
            compare their scores within 1e-5.
        keys: As :func:`check_card` takes them.
        files: What subjects of the card must be.
        watcher: Called with a :class:`privaudit.cli.progress.Phase` of what is played next.

    Raises:
        ConfigError: That is no card, or ``again`` was asked of scores alone.
        MissingFileError: There is no card, or no run of it.
        TrustError: It is signed by a key that is neither asked for nor trusted.
    """
    signed = read_card(card)
    content, check = signed.card, check_card(signed, keys, files)
    if run is not None:
        candidates = [run if isinstance(run, Run) else load_run(run, folder=runs)]
    else:
        candidates = _runs_of(content, runs)
    tried = [_compare(signed, check, one) for one in candidates]
    best = next((one for one in tried if one.matches), tried[0])
    if again and best.run.origin == SCORES:
        raise ConfigError(
            f"{best.run.name} holds scores of an attack that was made elsewhere, so that "
            "it cannot be made again here. Leave --again out."
        )
    return _again(best, content, watcher) if again else best


def _again(found: Verification, card: Card, watcher: Watcher | None) -> Verification:
    """Play the attacks anew, and certify anew."""
    amiss = list(found.mismatches)
    try:
        certified = json.loads(json.dumps(certify_again(found.run)))
        if not alike(found.run.privacy, certified):
            why = "the mechanisms that the run recorded do not give this record"
            amiss.append(Mismatch("privacy", why))
    except PrivauditError as error:
        amiss.append(Mismatch("privacy", str(error)))
    played = [replay(found.run, one, card, watcher) for one in sorted(card.audits)]
    again = _on_trust(card, (*_MADE_AGAIN, *_CERTIFIED))
    return replace(
        found, on_trust=again, mismatches=tuple(amiss), replayed=tuple(played)
    )


def _runs_of(card: Card, folder: str | Path | None) -> list[Run]:
    """Return the runs whose transcript a card commits to."""
    runs, refused = [], []
    for path in places_in(folder):
        try:
            run = load_run(path)
            known = FILE in run.files and _is_of(card, run)
            runs += [run] * known
        except PrivauditError as error:
            refused.append(f" {path.name} there was refused: {error}")
    if not runs:
        where = shared_place(runs_folder(folder))
        raise MissingFileError(
            f"No run in {where} has the transcript that the card commits to: its run is "
            "elsewhere, or was altered. Name the run, or say with --runs where it is "
            f"kept.{''.join(refused[:1])}"
        )
    return runs


def _is_of(card: Card, run: Run) -> bool:
    return card.commitments.transcript == commit_transcript(run, secret_of(run))


def _compare(signed: SignedCard, check: CardCheck, run: Run) -> Verification:
    """Hold a card against one made again of as many audits as there were then."""
    amiss, card = [], signed.card
    try:
        secret = secret_of(run)
        if not _is_of(card, run):
            why = "the run's transcript is another, or its secret is"
            amiss.append(Mismatch("commitments/transcript", why))
        amiss += _differences(leaves(card.plain()), leaves(_remade(card, run, secret)))
        amiss += _unnoted(card, run, secret)
        amiss += _other_subjects(signed, run)
    except PrivauditError as error:
        amiss.append(Mismatch("run", str(error)))
    values = len(leaves(card.plain()))
    return Verification(run, check, values, _on_trust(card, _MADE_AGAIN), tuple(amiss))


def _remade(card: Card, run: Run, secret: RunSecret) -> dict[str, Any]:
    numbers = {name: number_of(run, name, secret) for name in sorted(card.audits)}
    logged = max((one.audits for one in card.audits.values()), default=0)
    said = card.model_dump(include={"made", "release"})
    return make_card(run, numbers, secret, card.ledger, logged, **said).plain()


def _unnoted(card: Card, run: Run, secret: RunSecret) -> Iterator[Mismatch]:
    """Yield what a card says that no export noted, or fewer numbers than it holds."""
    for name in card.audits:
        number = number_of(run, name, secret)
        if number and number.query.digest not in secret.released:
            yield Mismatch(f"audits/{name}", "no export of the run noted this number")


def _other_subjects(signed: SignedCard, run: Run) -> Iterator[Mismatch]:
    """Yield models of the run, and its session, that a card lacks or says to be others."""
    there = {one.name: one.digest.get("sha256") for one in signed.statement.subject}
    own = subjects_of(run)
    said = {n for n in there if n in MODELS.values() or n.startswith("session-")}
    for name in sorted(said | own.keys()):
        if there.get(name) != own.get(name):
            yield Mismatch(f"subject/{name}", "the run's is another")


def _differences(card: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Yield where two sets of leaves differ, in value or in type."""
    for entry in {**card, **run}:
        one, other = (
            json.dumps(contents[entry]) if entry in contents else "nothing"
            for contents in (card, run)
        )
        if one != other:
            yield Mismatch(entry, f"the card says {one}, the run gives {other}")


def leaves(value: Any, entry: str = "") -> dict[str, Any]:
    """Return what JSON holds, each value by its entry.

    Example:
        >>> leaves({"a": [1, {"b": 2}], "c": {}})
        {'a/0': 1, 'a/1/b': 2, 'c': {}}
    """
    below: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        below = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, list):
        below = [(str(index), one) for index, one in enumerate(value)]
    if not below:
        return {entry: value}
    found: dict[str, Any] = {}
    for key, one in below:
        found |= leaves(one, f"{entry}/{key}" if entry else key)
    return found


def _on_trust(card: Card, made: tuple[str, ...]) -> int:
    """Return how many values stand in a signed file only."""
    return sum(entry.split("/")[0] not in made for entry in leaves(card.plain()))
