"""An audit played anew, beside what the run kept of it."""

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.audit import Audit
from privaudit.auditing.storage.again import attack_again
from privaudit.auditing.storage.load import StoredAudit, read_audit
from privaudit.core.errors import PrivauditError
from privaudit.evaluation.card import Card, UtilityShown
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.report.export.making import utility_shown
from privaudit.statistics.progress import Watcher

TOLERANCE = 1e-5  # absolute below 1, relative above
LAST_DIGIT = 1.1e-3  # of utility as it is shown


@dataclass(frozen=True)
class Replayed:
    """What an audit gave when it was played anew.

    Attributes:
        scenario: Its name.
        scores: How many scores were compared.
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


def _show(path: Path, place: Path) -> None:
    """Have a file or a folder at another place, too."""
    try:
        place.symlink_to(path)
    except OSError:  # Windows lets few users make links
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, place)


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
    again = audit.scored
    if set(again) != set(stored.attacks):
        odd = ", ".join(sorted(set(again) ^ set(stored.attacks)))
        return 0, math.nan, [f"other attacks are played by this version: {odd}"]
    count, largest, why = 0, 0.0, []
    for attack in stored.attacks:
        old, new = stored.clients(attack), again[attack].clients
        if not _same_candidates(old, new):
            why.append(f"{attack} was made on other candidates")
            continue
        before = np.concatenate([one.scores for one in old])
        after = np.concatenate([one.scores for one in new])
        gap = float((np.abs(after - before) / np.maximum(1, np.abs(before))).max())
        count, largest = count + len(before), max(largest, gap)
        if gap > TOLERANCE:
            why.append(f"{attack}: a score differs by {gap:.3g} from what was kept")
    return count, largest, why


def _same_candidates(kept: Sequence[ClientScores], new: Sequence[ClientScores]) -> bool:
    if [one.client for one in kept] != [one.client for one in new]:
        return False
    return all(
        np.array_equal(a.records, b.records) for a, b in zip(kept, new, strict=True)
    )


def alike(card: Any, run: Any) -> bool:
    """Say whether JSON is the same but for rounding."""
    if isinstance(card, Mapping) and isinstance(run, Mapping):
        return card.keys() == run.keys() and all(alike(card[k], run[k]) for k in run)
    if isinstance(card, list) and isinstance(run, list):
        return len(card) == len(run) and all(map(alike, card, run))
    if isinstance(card, float) and isinstance(run, float):
        return math.isclose(card, run, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(card == run)
