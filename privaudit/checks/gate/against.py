"""What a run is compared with: a baseline's file, another run, or public numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from privaudit.auditing.scenario import OF_SCORES, find_plan
from privaudit.auditing.storage.load import AUDIT, check_audit_file
from privaudit.checks.gate.baseline import (
    Baseline,
    make_baseline,
    parse_baseline,
    read_contents,
)
from privaudit.checks.gate.strength import AttackStrength, Made
from privaudit.checks.gate.unpaired_baseline import PublicNumbers, parse_numbers
from privaudit.core.errors import IncompatibleRunsError
from privaudit.federated.runs.folder.own_files import HEADER
from privaudit.federated.runs.folder.remote_store import local_path
from privaudit.federated.runs.runs import Run

Against = Baseline | PublicNumbers
Pairing = Literal["record", "no", "no baseline"]


def load_against(
    baseline: Against | Run | str | Path | None, scenario: str
) -> tuple[Against | None, bool]:
    """Return what a run is compared with, and whether somebody vouches for it.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: It is none to compare with, of another version or scenario.
        TranscriptError: It was cut or altered, or a baseline is not signed.
        TrustError: It is signed by a key that is not trusted.
    """
    if isinstance(baseline, Run):
        return make_baseline(baseline, scenario), True
    if not isinstance(baseline, str | Path):
        return baseline, True
    path = local_path(baseline)
    path = path / "card.json" if path.is_dir() else path
    contents = read_contents(path)
    if "baseline" not in contents:
        check_audit_file(path)
        return parse_numbers(contents, scenario, path), _lies_in_a_run(path)
    saved = parse_baseline(contents, path)
    if saved.scenario != scenario:
        raise IncompatibleRunsError(
            f"{path} is a baseline of the scenario {saved.scenario}, and the gate asks "
            f"about {scenario}. Choose one."
        )
    return saved, True


def _lies_in_a_run(path: Path) -> bool:
    """Say whether it is a run's audit.json, which the run's signature covers."""
    return (
        path.name == AUDIT and (path.resolve().parent.parent.parent / HEADER).exists()
    )


def demanded_by(against: Against, scenario: str) -> Made:
    """Return the attacks that are to be made, the headline first, and how."""
    if isinstance(against, Baseline):
        return against.attacks
    leaks = against.contents["leaks"]
    own = [name for name in find_plan(scenario).attacks if name in leaks]
    ordered = {name: leaks[name] for name in [*own, *leaks]}
    return {
        name: _said(leak, scenario)
        for name, leak in ordered.items()
        if isinstance(leak, dict)
    }


def _said(leak: Mapping[str, Any], scenario: str) -> AttackStrength:
    settings = "" if scenario == OF_SCORES.name else leak.get("settings")
    how = settings if isinstance(settings, str) else None
    return AttackStrength(how, str(leak.get("package", "")))


def name_of(against: Against | None) -> str | None:
    """Return what it is called; None of nothing."""
    if against is None:
        return None
    return against.run if isinstance(against, Baseline) else against.name


def pairing_of(against: Against | None) -> Pairing:
    """Return whether each record is compared with itself."""
    if against is None:
        return "no baseline"
    return "record" if isinstance(against, Baseline) else "no"
