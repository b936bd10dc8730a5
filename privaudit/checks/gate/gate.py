"""The gate: may this run be merged? Pass, regression, or too few records to say.

A run is compared with a baseline record by record, and held to limits of its own. What
a single pair of runs shows holds for these two models: another seed is another model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from privaudit.auditing.assurance import Assurance, assure, covering
from privaudit.auditing.repetition.audit_log import Tried, count_tried
from privaudit.auditing.repetition.plan import AuditPlan, differences, plan_of
from privaudit.auditing.scenario import find_plan
from privaudit.auditing.storage.load import (
    StoredAudit,
    check_audit_file,
    read_audit,
    shared_attacks,
)
from privaudit.checks.gate.baseline import (
    Baseline,
    check_attacks,
    make_baseline,
    parse_baseline,
    read_contents,
    save_baseline,
    stated_of,
)
from privaudit.checks.gate.checks import (
    GateCheck,
    GateQuestion,
    Outcome,
    judge,
    overall,
)
from privaudit.checks.gate.guarantees import GuaranteeCheck, compare_guarantees
from privaudit.checks.gate.paired_baseline import check_same, joined_audit, joined_tests
from privaudit.checks.gate.questions import (
    as_sampled,
    auroc_at,
    changes,
    leak_limit,
    use_limit,
    use_name,
    utility_at,
)
from privaudit.checks.gate.settings import Configured, GateSettings, SettingLine
from privaudit.checks.gate.unpaired_baseline import (
    PublicNumbers,
    parse_numbers,
    unpaired,
)
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.evaluation.compare.comparable import score_tests
from privaudit.evaluation.compare.paired_metrics import (
    Measured,
    measure_pair,
    measure_use,
)
from privaudit.federated.runs.folder.remote_store import local_path
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import UNKNOWN_SAMPLING

EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "regression": 1, "underpowered": 3}

_SUMMARIES: Mapping[Outcome, str] = {
    "pass": "Pass: {count} of {count} checks rule out what they look for",
    "regression": "Regression: {bad} of {count} checks found one",
    "underpowered": "Underpowered: {bad} of {count} checks are not decided",
}
_OF_ONE: Mapping[Outcome, str] = {
    "pass": "Pass: the one check rules out what it looks for",
    "regression": "Regression: the one check found one",
    "underpowered": "Underpowered: the one check is not decided",
}
_SHORT: Mapping[str, str] = {"auroc": " AUROC", "success": " success rate"}


@dataclass(frozen=True)
class GateResult:
    """What came of the gate.

    Attributes:
        run: Name of the run that is judged.
        baseline: What it was compared with; None where limits alone are asked.
        paired: Whether each record was compared with itself.
        settings: What was asked.
        checks: The answers: changes first, then limits, then guarantees.
        places: Where settings were set.
        assurance: What is proved of the run; a pass proves nothing.
        tried: How often the run was audited: the checks share alpha with all those.
        deviations: By what the settings are not as the run's plan has them.
    """

    run: str
    baseline: str | None
    paired: Literal["record", "no", "no baseline"]
    settings: GateSettings
    checks: tuple[GateCheck | GuaranteeCheck, ...]
    places: Mapping[str, SettingLine] = field(default_factory=dict)
    assurance: Assurance = field(default_factory=lambda: Assurance("proved"))
    tried: Tried = field(default_factory=Tried)
    deviations: tuple[str, ...] = ()

    @property
    def alpha(self) -> float:
        """The chance of any false regression that is left to this audit."""
        return self.settings.alpha / self.tried.different

    @property
    def outcome(self) -> Outcome:
        """The worst of the answers."""
        return overall(self.checks)

    @property
    def tested(self) -> tuple[GateCheck, ...]:
        """The checks that are tests; epsilons are compared exactly."""
        return tuple(check for check in self.checks if isinstance(check, GateCheck))

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regression, 3 underpowered."""
        return EXIT_CODES[self.outcome]

    @property
    def sentence(self) -> str:
        """What is said in one line."""
        bad = sum(check.outcome == self.outcome for check in self.checks)
        summaries = _OF_ONE if len(self.checks) == 1 else _SUMMARIES
        said = summaries[self.outcome].format(bad=bad, count=len(self.checks))
        beside = f" against {self.baseline}" if self.baseline else ""
        count = self.tried.different
        among = f"; one of {count} audits of the run" if count > 1 else ""
        if self.tried.planned:
            odd = [*self.tried.deviations, *self.deviations]
            among += f"; not as planned: {'; '.join(odd)}" if odd else "; as planned"
        return f"{said} ({self.run}{beside}, {self.settings.scenario}{among})."

    @property
    def plain(self) -> str:
        """What a pass means for who merges; empty where it is none."""
        if self.outcome != "pass":
            return ""
        worse = (
            f"nothing that was compared with {self.baseline} is worse than its line allows"
            if self.baseline
            else "every value that was asked for is on the right side of its line"
        )
        return (
            f"In plain words: {worse}, so nothing here speaks against merging. Attacks "
            "that were not made may find more."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "run": self.run,
            "baseline": self.baseline,
            "paired": self.paired,
            "scenario": self.settings.scenario,
            "alpha": self.settings.alpha,
            "audits": {"made": self.tried.made, "different": self.tried.different},
            "planned": self.tried.planned,
            "deviations": [*self.tried.deviations, *self.deviations],
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "sentence": self.sentence,
            "assurance": self.assurance.kind,
            "unproved": self.assurance.sentence,
            "checks": [check.to_dict() for check in self.checks],
        }


def gate(
    run: Run | str | Path | None = None,
    baseline: Baseline | PublicNumbers | Run | str | Path | None = None,
    configured: Configured | GateSettings | None = None,
    *,
    folder: str | Path | None = None,
) -> GateResult:
    """Check a run against a baseline and absolute limits: pass, regression, underpowered.

    Non-inferiority tests at the settings' margins, with Holm's correction over all
    checks, at alpha divided by the number of different audits of the run; epsilons are
    compared exactly.

    Args:
        run: A finished and audited run; by default the latest.
        baseline: A file of :func:`write_baseline`, an audit card or audit.json (both
            unpaired), or another run; by default that of the settings.
        configured: Metrics, margins and limits; by default :class:`GateSettings`.
        folder: Folder of all runs; by default ``./runs``.

    Raises:
        MissingFileError: A run, audit or baseline is missing.
        UnknownNameError: The audit has no such attack.
        ConfigError: The two cannot be compared (the message says by what they differ),
            or there is nothing to check.
        TranscriptError: An audit or the baseline is damaged.
    """
    config = configured or GateSettings()
    if isinstance(config, GateSettings):
        config = Configured(config)
    settings = config.settings
    loaded = run if isinstance(run, Run) else load_run(run, folder=folder)
    against = _load_baseline(baseline or settings.baseline, settings.scenario)
    audit = read_audit(loaded.require_complete(), settings.scenario)
    attacks = list(settings.attacks) or shared_attacks([audit])[:1]
    questions = [
        *_changes(audit, against, attacks, settings),
        *_limits(audit, settings),
    ]
    questions = [as_sampled(question, loaded.sampling) for question in questions]
    planned = plan_of(loaded)
    for name in attacks:
        audit.leak(name)  # so that a name is right, with or without a baseline
    tried = _tried(audit)
    checks: list[GateCheck | GuaranteeCheck] = [
        *judge(questions, settings.alpha / tried.different),
        *_guarantees(loaded, against, settings),
    ]
    _require_some(checks, settings)
    return GateResult(
        run=loaded.name,
        baseline=_name(against),
        paired=_pairing(against),
        settings=settings,
        checks=tuple(checks),
        places=config.places,
        assurance=_assurance(audit),
        tried=tried,
        deviations=_deviations(planned, settings),
    )


def check_guarantees(
    run: Run, baseline: str | Path, *, scenario: str = "server-reconstruct"
) -> list[GuaranteeCheck]:
    """Return the run's claimed and certified epsilons beside a baseline's.

    Args:
        run: A finished one; no audit is needed.
        baseline: As in :func:`gate`.
        scenario: Of the baseline.

    Raises:
        MissingFileError: There is no such baseline.
        ConfigError: It states nothing, or is of another scenario.
        TranscriptError: It is damaged.
    """
    against = _load_baseline(baseline, scenario)
    assert against is not None
    return list(compare_guarantees(stated_of(run), against.guarantees))


def write_baseline(
    run: Run | str | Path | None,
    path: str | Path,
    *,
    scenario: str = "server-reconstruct",
    utility: bool = True,
    folder: str | Path | None = None,
) -> Path:
    """Write what later runs are compared with, and return the file.

    The file is as sensitive as the ledger; see :mod:`privaudit.checks.gate.baseline`.

    Args:
        run: A finished and audited run; the latest by default.
        path: Replaced if it is there; the folder must exist.
        scenario: Under which the run was audited.
        utility: Whether to ask the models for their utility.
        folder: Where runs are kept.

    Raises:
        MissingFileError: There is no such run or audit.
        StorageError: The file cannot be written.
    """
    loaded = run if isinstance(run, Run) else load_run(run, folder=folder)
    return save_baseline(make_baseline(loaded, scenario, utility=utility), Path(path))


def _load_baseline(
    baseline: Baseline | PublicNumbers | Run | str | Path | None, scenario: str
) -> Baseline | PublicNumbers | None:
    if isinstance(baseline, Run):
        return make_baseline(baseline, scenario)
    if not isinstance(baseline, str | Path):
        return baseline
    path = local_path(baseline)
    path = path / "card.json" if path.is_dir() else path
    contents = read_contents(path)
    if "baseline" not in contents:
        check_audit_file(path)
        return parse_numbers(contents, scenario, path)
    saved = parse_baseline(contents, path)
    if saved.scenario != scenario:
        raise IncompatibleRunsError(
            f"{path} is a baseline of the scenario {saved.scenario}, and the gate asks "
            f"about {scenario}. Choose one."
        )
    return saved


def _changes(
    audit: StoredAudit,
    against: Baseline | PublicNumbers | None,
    attacks: Sequence[str],
    settings: GateSettings,
) -> Iterator[GateQuestion]:
    if isinstance(against, PublicNumbers):
        yield from unpaired(audit, against, attacks, settings)
    elif against is not None:
        check_same(audit.run, against)
        endings = tuple(_SHORT[m] for m in settings.metrics if m in _SHORT)
        chosen: list[Measured] = []
        if endings:
            check_attacks(against, audit, attacks)
            other = joined_audit(audit, against)
            measured = measure_pair(audit, other, attacks, utility=False)
            chosen = [one for one in measured if one.name.endswith(endings)]
        known = audit.run.has_utility or against.metric is not None
        if "utility" in settings.metrics and known:
            chosen.append(measure_use(*joined_tests(audit.run, against)))
        yield from changes(chosen, settings)


def _limits(audit: StoredAudit, settings: GateSettings) -> Iterator[GateQuestion]:
    if settings.max_auroc is not None:
        for name in audit.attacks:  # all that were made, on the server's model too
            at = auroc_at(audit.clients(name))
            yield leak_limit(f"{name} AUROC", at, settings.max_auroc)
    if settings.min_utility is not None:
        tests = score_tests(audit.run)
        name = use_name(tests.metric)
        yield use_limit(name, utility_at(tests), settings.min_utility)


def _guarantees(
    run: Run, against: Baseline | PublicNumbers | None, settings: GateSettings
) -> Iterator[GuaranteeCheck]:
    if against is not None and settings.guarantees:
        yield from compare_guarantees(stated_of(run), against.guarantees)


def _deviations(planned: AuditPlan | None, settings: GateSettings) -> tuple[str, ...]:
    """Return by what thresholds are not as they were planned."""
    if planned is None:
        return ()
    now = {name: getattr(settings, name) for name in planned.thresholds}
    return differences(planned.thresholds, now)


def _tried(audit: StoredAudit) -> Tried:
    headline = next(iter(audit.contents["leaks"].values()))
    auroc = Estimate.from_dict(headline["auroc"])
    return count_tried(audit.run, headline["attack"], auroc)


def _assurance(audit: StoredAudit) -> Assurance:
    privacy, one_run = audit.run.privacy, audit.contents.get("one_run")
    verdict = one_run["verdict"] if one_run else {}
    refuted = verdict.get("kind") == "REFUTED" or bool(verdict.get("alarm"))
    view = audit.contents["threat"].partition(":")[0]
    unit = find_plan(audit.scenario).unit
    certificate = covering(privacy["certified"][view], unit, audit.run.truth.group)
    found = assure(privacy["claimed"]["epsilon"], certificate, refuted=refuted)
    if audit.run.sampling == "coin":
        return found
    return replace(found, sentence=f"{found.sentence} {UNKNOWN_SAMPLING}".strip())


def _require_some(
    checks: Sequence[GateCheck | GuaranteeCheck], settings: GateSettings
) -> None:
    if not checks:
        raise ConfigError(
            "The gate has nothing to ask: there is no baseline and no limit, or the "
            f"metrics {list(settings.metrics)} are none. Give --baseline FILE, "
            "--max-auroc or --min-utility, or set them in [tool.privaudit.gate]."
        )


def _name(against: Baseline | PublicNumbers | None) -> str | None:
    if against is None:
        return None
    return against.run if isinstance(against, Baseline) else against.name


def _pairing(
    against: Baseline | PublicNumbers | None,
) -> Literal["record", "no", "no baseline"]:
    if against is None:
        return "no baseline"
    return "record" if isinstance(against, Baseline) else "no"
