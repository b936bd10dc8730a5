"""Does a card say what its run says? Each part is made again and compared.

A card is found untrue if its text was altered, or if anything in the run that it was
made of was: transcript, ledger, scores, numbers. What nothing in the run gives again,
such as utility and settings, is compared with what its owner signed, and is so taken on
trust; ``again`` plays the attacks anew, and certifies anew.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError
from privaudit.federated.runs.folder.run_names import (
    load_run,
    places_in,
    runs_folder,
    shared_place,
)
from privaudit.federated.runs.round_metrics import certify_again
from privaudit.federated.runs.runs import Run
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.allow_list import AllowList
from privaudit.report.export.audits import AUDITS
from privaudit.report.export.card import TRIED, card_parts, read_card
from privaudit.report.export.hmac import read_key
from privaudit.report.export.replay import Replayed, alike, replay
from privaudit.statistics.progress import Watcher

_MADE_AGAIN = ("leaks", "server_model", "unknown_attacks", "scores", "question")
_CHAINED = ("run/progress/head", "run/progress/length")  # the transcript gives them
_CERTIFIED = ("data", "privacy", "run/model_hash")  # given by data, model, mechanisms
_ABOUT_ITSELF = ("card", "sha256")


@dataclass(frozen=True)
class Mismatch:
    """One place in which a card and its run differ.

    Attributes:
        place: In the card, keys and positions joined by slashes.
        why: What stands in the one and in the other, or what is wrong with the run.
    """

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True)
class Verification:
    """What became of a card.

    Attributes:
        run: What it was held against.
        values: How many values were compared.
        on_trust: How many of these stand in a signed file only: nothing gave them
            again.
        mismatches: All that does not match; empty if the card is true.
        replayed: What the attacks gave when they were played anew, if they were.
    """

    run: Run
    values: int
    on_trust: int
    mismatches: tuple[Mismatch, ...]
    replayed: tuple[Replayed, ...] = ()

    @property
    def matches(self) -> bool:
        """Whether the card says what the run says."""
        return not self.mismatches and all(one.matches for one in self.replayed)


def verify_card(
    card: str | Path,
    run: Run | str | Path | None = None,
    *,
    runs: str | Path | None = None,
    again: bool = False,
    watcher: Watcher | None = None,
) -> Verification:
    """Make each part of a card again from its run, and say what does not match.

    Args:
        card: The file, or the folder of an export.
        run: The run; by default the one with the card's transcript.
        runs: Where to look for it.
        again: Play each audit's attacks anew, with the same adversary's seed, and
            compare their scores, and what no scores are kept of, within 1e-5.
        watcher: Called with a :class:`privaudit.cli.progress.Phase` of what is played next.

    Raises:
        ConfigError: That is no card, or ``again`` was asked of scores alone.
        MissingFileError: There is no card, or no run of it.
    """
    content, as_written = read_card(card)
    if run is not None:
        candidates = [run if isinstance(run, Run) else load_run(run, folder=runs)]
    else:
        candidates = _runs_of(content, runs)
    tried = [_compare(content, as_written, one) for one in candidates]
    best = next((one for one in tried if one.matches), tried[0])
    if again and best.run.origin == SCORES:
        raise ConfigError(
            f"{best.run.name} holds scores of an attack that was made elsewhere, so that "
            "it cannot be made again here. Leave --again out."
        )
    return _again(best, content, watcher) if again else best


def _again(
    found: Verification, card: Mapping[str, Any], watcher: Watcher | None
) -> Verification:
    """Play the attacks anew, and certify anew."""
    amiss = list(found.mismatches)
    try:
        if not alike(found.run.privacy, _plain(certify_again(found.run))):
            why = "the mechanisms that the run recorded do not give this record"
            amiss.append(Mismatch("privacy", why))
    except PrivauditError as error:
        amiss.append(Mismatch("privacy", str(error)))
    played = [replay(found.run, one, card, watcher) for one in sorted(card[AUDITS])]
    said = dict(leaves(card))
    return replace(
        found,
        on_trust=sum(is_on_trust(place, again=True) for place in said),
        mismatches=tuple(amiss),
        replayed=tuple(played),
    )


def _plain(content: Mapping[str, Any]) -> Any:
    """Return what JSON makes of it."""
    return json.loads(json.dumps(content))


def _runs_of(card: Mapping[str, Any], folder: str | Path | None) -> list[Run]:
    """Return the runs whose transcript ends as the card's."""
    head, runs, refused = card["run"]["progress"]["head"], [], []
    for place in places_in(folder):
        try:
            run = load_run(place)
            if run.header["progress"]["head"] == head:
                runs.append(run)
        except PrivauditError as error:
            refused.append(f" {place.name} there was refused: {error}")
    if not runs:
        where = shared_place(runs_folder(folder))
        raise MissingFileError(
            f"No run in {where} has the card's transcript, which ends in {head}: its run "
            "is elsewhere, or run.json was altered. Name the run, or say with "
            f"--runs where it is kept.{''.join(refused[:1])}"
        )
    return runs


def _compare(card: Mapping[str, Any], as_written: bool, run: Run) -> Verification:
    mismatches, said = [], dict(leaves(card))
    if not as_written:
        why = "the text is not as it was written: its own hash does not match"
        mismatches.append(Mismatch("card", why))
    values = {p: v for p, v in said.items() if p.split("/")[0] not in _ABOUT_ITSELF}
    for name, part in _parts(card, run).items():
        claimed = {p: v for p, v in values.items() if f"{p}/".startswith(f"{name}/")}
        values = {p: v for p, v in values.items() if p not in claimed}
        try:
            there = dict(leaves(part(), name))
        except PrivauditError as error:
            mismatches.append(Mismatch(name, str(error)))
            continue
        mismatches.extend(_differences(claimed, there))
    left = {p: v for p, v in values.items() if p != AUDITS}
    mismatches.extend(_differences(left, {}))
    count = sum(place.split("/")[0] not in _ABOUT_ITSELF for place in said)
    on_trust = sum(map(is_on_trust, said))
    return Verification(run, count, on_trust, tuple(mismatches))


def _parts(card: Mapping[str, Any], run: Run) -> dict[str, Callable[[], Any]]:
    sieve, tried = AllowList(), card.get(TRIED)
    count = tried.get("audits") if isinstance(tried, dict) else 0
    logged = count if isinstance(count, int) else 0  # later ones are none of the card's
    scenarios = sorted(card[AUDITS])
    parts = card_parts(run, scenarios, lambda: read_key(run), sieve, logged)
    return parts if TRIED in card else {n: p for n, p in parts.items() if n != TRIED}


def _differences(card: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[Mismatch]:
    """Yield where two sets of leaves differ, in value or in type."""
    for place in {**card, **run}:
        one, other = (
            json.dumps(contents[place]) if place in contents else "nothing"
            for contents in (card, run)
        )
        if one != other:
            yield Mismatch(place, f"the card says {one}, the run gives {other}")


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what JSON holds, each value with its place.

    Example:
        >>> dict(leaves({"a": [1, {"b": 2}], "c": {}}))
        {'a/0': 1, 'a/1/b': 2, 'c': {}}
    """
    below: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        below = [(str(key), one) for key, one in value.items()]
    elif isinstance(value, list):
        below = [(str(index), one) for index, one in enumerate(value)]
    if not below:
        yield place, value
    for key, one in below:
        yield from leaves(one, f"{place}/{key}" if place else key)


def is_on_trust(place: str, *, again: bool = False) -> bool:
    """Say whether a value stands in a signed file only: nothing gives it again.

    Args:
        place: In the card.
        again: Whether attacks were played, and mechanisms certified, anew.
    """
    parts = place.split("/")
    if parts[0] == AUDITS:
        return len(parts) > 2 and parts[2] not in _MADE_AGAIN and not again
    if again and (parts[0] in _CERTIFIED or place in _CERTIFIED):
        return False
    return parts[0] in ("run", "data", "privacy", TRIED) and place not in _CHAINED
