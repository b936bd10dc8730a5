"""Export of what others may see of a run: a card, noted and attacked before it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privaudit.core.errors import ConfigError, PrivauditError, TranscriptError
from privaudit.core.parameters import above_zero
from privaudit.core.storage import storage_errors
from privaudit.evaluation.card import CARD, Card, LedgerTotal, read_card
from privaudit.federated.runs.folder.outputs import check_folder, write_output
from privaudit.federated.runs.folder.remote_store import local_path
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.privacy.noised_auroc import DIGITS
from privaudit.report.export.account import BUDGET, Account, opened
from privaudit.report.export.making import (
    audited_scenarios,
    commit_transcript,
    make_card,
    number_of,
)
from privaudit.report.export.run_secret import RunSecret, keep, secret_of


@dataclass(frozen=True)
class Export:
    """What was exported.

    Attributes:
        folder: Where it lies.
        card: What stands in card.json.
        budget: The epsilon that all cards of the ledger may have together.
    """

    folder: Path
    card: Card
    budget: float


def export_public(
    run: Run | str | Path | None = None,
    folder: str | Path = "public",
    *,
    scenarios: Sequence[str] = (),
    budget: float = BUDGET,
    runs: str | Path | None = None,
) -> Export:
    """Write what may leave of a run: one noised number an audit, and its verdict.

    The numbers are noted in the account of the run's ledger, and all its cards are
    attacked together, before the card is written. A number that an earlier card said
    costs nothing again. An earlier card of the run is replaced.

    Args:
        run: A finished run, or its name; the latest by default.
        folder: To be made: nothing else may be there.
        scenarios: Whose audits the card holds; by default all that were made.
        budget: Epsilon at delta 1e-5 of all cards of the ledger together, above 0.
        runs: Where runs are kept.

    Raises:
        ConfigError: The run is unfinished, something else lies in the folder, the
            budget is spent, or a reader would learn more than chance allows.
        MissingFileError: There is no such run, or no such audit.
        TranscriptError: The run, an audit or the account is damaged.
        StorageError: A folder cannot be written.
    """
    above_zero("budget", budget)
    loaded = run if isinstance(run, Run) else load_run(run, folder=runs)
    loaded.require_complete()
    place = local_path(folder)
    chosen = list(dict.fromkeys(scenarios)) or audited_scenarios(loaded)
    with opened(loaded) as (account, note):
        secret = secret_of(loaded)
        _check_free(place, loaded, secret)
        _check_whole(account, secret, loaded)
        numbers = {name: number_of(loaded, name, secret) for name in chosen}
        asked = [number for number in numbers.values() if number is not None]
        after = account.with_numbers(asked)
        if len(after.noted) > len(account.noted):
            after.check_budget(budget, account)
        after.check_readers()
        spent = LedgerTotal(
            numbers=len(after.noted), epsilon=round(after.epsilon, DIGITS)
        )
        card = make_card(loaded, numbers, secret, spent)
        for key in after.noted.keys() - account.noted.keys():
            note(after.noted[key])
        keep(loaded, secret, [number.query.digest for number in asked])
    _write(place, card)
    return Export(place, card, budget)


def _check_whole(account: Account, secret: RunSecret, run: Run) -> None:
    """Refuse to count from an account that lacks what the run's cards have said."""
    lost = set(secret.released) - {digest for digest, _ in account.noted}
    if lost:
        raise TranscriptError(
            f"Earlier cards of {run.place} said {len(lost)} numbers that the account of "
            "its ledger does not have: it lies beside the owner's key, and was removed, "
            "set back or left on another machine. Restore it from a copy."
        )


def _check_free(place: Path, run: Run, secret: RunSecret) -> None:
    """Raise ConfigError unless a folder is free, or holds an earlier card of the run."""
    check_folder(place)
    if not place.exists():
        return
    names = {path.name for path in place.iterdir()} if place.is_dir() else {"a file"}
    if not names or (names == {CARD} and _is_of(place, run, secret)):
        return
    raise ConfigError(
        f"{place} holds {', '.join(sorted(names)[:3])}, and is no earlier export of "
        f"{run.path}. Name another folder, or empty it."
    )


def _is_of(place: Path, run: Run, secret: RunSecret) -> bool:
    try:
        card, _ = read_card(place)
    except PrivauditError:
        return False
    return card.commitments.transcript == commit_transcript(run, secret)


def _write(place: Path, card: Card) -> None:
    """Write a card that others may read."""
    with storage_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    write_output(place / CARD, card.render().encode())
    with storage_errors(place):
        (place / CARD).chmod(0o644)
