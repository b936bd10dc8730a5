"""The gate: may this run be merged? Pass, regression, or what is open.

A run is compared with a baseline record by record, and held to limits of its own. What
a single pair of runs shows holds for these two models: another seed is another model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from privaudit.auditing.audit import Assurance, Audit, assure, covering
from privaudit.auditing.audit_log import (
    AuditPlan,
    AuditTally,
    differences,
    plan_of,
    tally_of,
)
from privaudit.auditing.scenario import find_plan
from privaudit.auditing.stored_audit import (
    AUDIT,
    StoredAudit,
    check_audit_file,
    read_audit,
)
from privaudit.checks.gate.baseline import (
    Against,
    Pairing,
    make_baseline,
    parse_baseline,
    parse_numbers,
    read_contents,
    save_baseline,
    stated_of,
    tool_of,
)
from privaudit.checks.gate.checks import (
    AnyCheck,
    GateCheck,
    GateQuestion,
    Outcome,
    as_sampled,
    judge,
    limited,
    overall,
)
from privaudit.checks.gate.guarantees import GuaranteeCheck, compare_guarantees
from privaudit.checks.gate.settings import Configured, GateSettings, SettingLine
from privaudit.checks.gate.strength import (
    Made,
    Relation,
    Shortfall,
    less_asked,
    made_in,
    made_now,
    short_of_baseline,
    short_of_settings,
    unheld,
    unsigned,
)
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.core.formatting import outcome_in_words, p_value
from privaudit.evaluation.compare.measured import score_tests
from privaudit.evaluation.metric import Metric, metrics_of
from privaudit.evaluation.metrics.auroc import AUROC
from privaudit.evaluation.metrics.tpr import TPR
from privaudit.evaluation.metrics.utility import UTILITY
from privaudit.models.interfaces import TaskKind
from privaudit.runs.own_files import HEADER
from privaudit.runs.run import Run, load_run
from privaudit.runs.store import local_path
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import ONE_TRAINING, UNKNOWN_SAMPLING, top_of


@dataclass(frozen=True)
class Demands:
    """What is asked of an audit.

    Attributes:
        named: Those of the baseline, the headline first; empty without one.
        short: What was to be made or asked, and was not.
        notes: What differs from the baseline, and what an option accepted.
    """

    made: Made
    named: Made
    short: tuple[Shortfall, ...]
    notes: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The attack that is asked where settings name none."""
        return next(iter(self.named or self.made))

    def relation(self, attack: str) -> Relation | None:
        """Return how an attack compares with the baseline's; None if one lacks it."""
        if attack not in self.made or attack not in self.named:
            return None
        return self.made[attack].than(self.named[attack])[0]

    def comparable(self, settings: GateSettings) -> list[str]:
        """Return those asked attacks that were made, and not otherwise than before."""
        return [
            name
            for name in dict.fromkeys(settings.attacks or (self.headline,))
            if name in self.made and self.relation(name) != "another"
        ]


def hold(
    audit: StoredAudit, against: Against | None, config: Configured, vouched: bool
) -> Demands:
    """Return what an audit is short of.

    What it is compared with is vouched for if it is signed, or was accepted unsigned.

    Raises:
        UnknownNameError: Settings name an attack that there is not.
        TranscriptError: The log of the run's audits was cut or altered.
    """
    scenario, run = config.settings.scenario, audit.run
    made = made_in(audit)
    named = {} if against is None else against.demanded(scenario)
    headline = next(iter(named or made))
    short, notes = _less_asked(config, against, headline)
    if against is not None:
        short += against.stale(tool_of(run, scenario))
        notes += against.notes(run, config.settings, config.source)
        if config.baseline_unheld:
            short.append(unheld(config.settings.baseline or ""))
        if not vouched:
            short.append(unsigned(against.label))
    changes = against is not None and metrics_of("leak", config.settings.metrics)
    if changes or _limits_on_leaks(config.settings):
        short += short_of_baseline(run.name, scenario, made, named)
        short += short_of_settings(
            run.name, made, config.settings, _kind(run, against),
            by_default=against is None or against.gate is None,
        )  # fmt: skip
    distinct = {(one.name, one.code): one for one in reversed(short)}
    return Demands(made, named, tuple(reversed(distinct.values())), tuple(notes))


def _less_asked(
    config: Configured, against: Against | None, headline: str
) -> tuple[list[Shortfall], list[str]]:
    """Return settings that ask for less, and in words those that an option chose."""
    before, source = config.reference, config.source
    if before is None and against is not None:
        before, source = against.gate, f"the baseline of {against.label}"
    if before is None:
        return [], []
    short, notes = [], []
    for one in less_asked(config.settings, before, headline, source):
        if config.chosen is None or one.name in config.chosen:
            notes.append(
                f"Less is asked than in {source}, by an option: {one.name} is {one.now} "
                f"and not {one.before}."
            )
        else:
            short.append(one)
    return short, notes


def _kind(run: Run, against: Against | None) -> TaskKind | None:
    """Return what models do of which an adversary could train shadows."""
    if against is not None or not run.trains_shadows:
        return None
    return run.population.task.kind if run.origin else run.config.task


EXIT_CODES: Mapping[Outcome, int] = {"pass": 0, "regression": 1}
UNDECIDED = 3  # the exit code of any other outcome

_SAID: Mapping[Outcome, tuple[str, str]] = {
    "pass": ("rules out what it looks for", "rule out what they look for"),
    "regression": ("found one", "found one"),
    "rose, size open": ("found a rise", "found a rise"),
    "fell, size open": ("found a fall", "found a fall"),
    "underpowered": ("is not decided", "are not decided"),
}
"""What one check, or several, did."""


@dataclass(frozen=True)
class GateResult:
    """What came of the gate.

    Attributes:
        baseline: What it was compared with; None where limits alone are asked.
        paired: Whether each record was compared with itself.
        checks: The answers: changes first, then limits, then guarantees, then of what
            the audit or the settings are short.
        assurance: What is proved of the run; a pass proves nothing.
        tally: How often the run was audited: the checks share alpha with all those.
        deviations: By what the settings are not as the run's plan has them.
        notes: Which attacks decided and how strong they were, by what the run differs
            from its baseline, and what an option accepted.
    """

    run: str
    baseline: str | None
    paired: Pairing
    settings: GateSettings
    checks: tuple[AnyCheck, ...]
    lines: Mapping[str, SettingLine] = field(default_factory=dict)
    assurance: Assurance = field(default_factory=lambda: Assurance("proved"))
    tally: AuditTally = field(default_factory=AuditTally)
    deviations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def alpha(self) -> float:
        """The chance of any false regression that is left to this audit."""
        return self.settings.alpha / self.tally.different

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
        """0 pass, 1 regression, 3 neither."""
        return EXIT_CODES.get(self.outcome, UNDECIDED)

    @property
    def untried(self) -> str:
        """Whether no check is of a leak, in words; empty where one is."""
        is_tried = any(check.rule.startswith("leak-") for check in self.checks)
        return "" if is_tried else "no leak checked"

    @property
    def sentence(self) -> str:
        """What is said in one line."""
        alike = sum(check.outcome == self.outcome for check in self.checks)
        of_one, of_several = _SAID[self.outcome]
        said = f"{alike} of {len(self.checks)} checks {of_several}"
        if len(self.checks) == 1:
            said = f"the one check {of_one}"
        outcome = outcome_in_words(self.outcome).capitalize()
        beside = f" against {self.baseline}" if self.baseline else ""
        count = self.tally.different
        among = f"; one of {count} audits of the run" if count > 1 else ""
        if self.tally.planned:
            odd = [*self.tally.deviations, *self.deviations]
            among += f"; not as planned: {'; '.join(odd)}" if odd else "; as planned"
        among += f"; {self.untried}" if self.untried else ""
        return (
            f"{outcome}: {said} ({self.run}{beside}, {self.settings.scenario}{among})."
        )

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
        told = (
            f"{self.untried}: that is another question"
            if self.untried
            else (
                "so nothing here speaks against merging. Attacks that were not made may find more"
            )
        )
        return f"In plain words: {worse}, {told}."

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "run": self.run,
            "baseline": self.baseline,
            "paired": self.paired,
            "scenario": self.settings.scenario,
            "alpha": self.settings.alpha,
            "audits": {"made": self.tally.made, "different": self.tally.different},
            "planned": self.tally.planned,
            "deviations": [*self.tally.deviations, *self.deviations],
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "sentence": self.sentence,
            "assurance": self.assurance.kind,
            "unproved": self.assurance.sentence,
            "notes": list(self.notes),
            "checks": [check.to_dict() for check in self.checks],
        }


def gate(
    run: Run | str | Path | None = None,
    baseline: Against | Run | str | Path | None = None,
    configured: Configured | GateSettings | None = None,
    *,
    folder: str | Path | None = None,
    accept_unsigned: bool = False,
) -> GateResult:
    """Check a run against a baseline and absolute limits: pass, regression, or open.

    Non-inferiority tests at the settings' margins, with Holm's correction over all
    checks, at alpha divided by the number of different audits of the run; epsilons are
    compared exactly. Less than the baseline or the settings ask for is no pass.

    Args:
        run: A finished and audited run; by default the latest.
        baseline: A file of :func:`write_baseline`, an audit card or audit.json (both
            unpaired), or another run; by default that of the settings.
        configured: Metrics, margins and limits; by default :class:`GateSettings`.
        folder: Folder of all runs; by default ``./runs``.
        accept_unsigned: Take a baseline that nobody signed, such as an audit.json.

    Raises:
        MissingFileError: A run, audit or baseline is missing.
        UnknownNameError: The audit has no such attack.
        ConfigError: The two cannot be compared (the message says by what they differ),
            or there is nothing to check.
        TranscriptError: An audit or the baseline is damaged, or altered.
        TrustError: The baseline is signed by a key that is not trusted.
    """
    config = configured or GateSettings()
    if isinstance(config, GateSettings):
        config = Configured(config)
    if baseline is not None and config.chosen is not None:
        config = replace(config, chosen={*config.chosen, "baseline"})
    settings = config.settings
    loaded = run if isinstance(run, Run) else load_run(run, folder=folder)
    against, signed = _load_against(baseline or settings.baseline, settings.scenario)
    audit = read_audit(loaded.require_complete(), settings.scenario)
    demands = hold(audit, against, config, signed or accept_unsigned)
    questions = [
        *_changes_since(audit, against, demands, settings),
        *_limits_of(audit, settings),
    ]
    questions = [as_sampled(question, loaded.sampling) for question in questions]
    planned = plan_of(loaded)
    tally = _tally(audit)
    guarantees = (
        compare_guarantees(stated_of(loaded), against.guarantees)
        if against is not None and settings.guarantees
        else ()
    )
    checks: list[AnyCheck] = [
        *judge(questions, settings.alpha / tally.different),
        *guarantees,
        *demands.short,
    ]
    if not checks:
        raise ConfigError(
            "The gate has nothing to ask: there is no baseline and no limit, or the "
            f"metrics {list(settings.metrics)} are none. Give --baseline FILE, --max-auroc, "
            "--max-tpr or --min-utility, or set them in [tool.privaudit.gate]."
        )
    return GateResult(
        run=loaded.name,
        baseline=None if against is None else against.label,
        paired="no baseline" if against is None else against.pairing,
        settings=settings,
        checks=tuple(checks),
        lines=config.lines,
        assurance=_assurance(audit),
        tally=tally,
        deviations=_deviations(planned, settings),
        notes=(
            *_decided_by(demands, against, settings),
            *_in_tail(audit, settings),
            *_steadier(checks, audit, against, demands),
            *demands.notes,
        ),
    )


def check_against(
    found: Audit, baseline: str | Path
) -> list[GuaranteeCheck | Shortfall]:
    """Return an audit's claimed and certified epsilons beside a baseline's.

    With them comes what its attacks are short of. Nobody needs to have stored it.

    Raises:
        MissingFileError: There is no such baseline.
        ConfigError: It states nothing, or is of another scenario, data set or model.
        TranscriptError: It was altered, or is not signed.
        TrustError: It is signed by a key that is not trusted.
    """
    scenario, run = found.scenario.name, found.run
    against, signed = _load_against(baseline, scenario)
    assert against is not None
    against.check_alike(run)
    named = against.demanded(scenario)
    short = [
        *([] if signed else [unsigned(against.label)]),
        *against.stale(version("privaudit")),
        *short_of_baseline(run.name, scenario, made_now(found), named),
    ]
    return [*compare_guarantees(stated_of(run), against.guarantees), *short]


def write_baseline(
    run: Run | str | Path | None,
    path: str | Path,
    *,
    scenario: str = "server-reconstruct",
    utility: bool = True,
    settings: GateSettings | None = None,
    folder: str | Path | None = None,
) -> Path:
    """Write and sign what later runs are held to, and return the file.

    The file is as sensitive as the ledger; see :mod:`privaudit.checks.gate.baseline`.

    A file that is there is replaced. The settings are those that later ones may not
    fall behind.

    Raises:
        MissingFileError: There is no such run or audit.
        StorageError: The file cannot be written.
    """
    loaded = run if isinstance(run, Run) else load_run(run, folder=folder)
    made = make_baseline(loaded, scenario, utility=utility, settings=settings)
    return save_baseline(made, Path(path))


def _load_against(
    baseline: Against | Run | str | Path | None, scenario: str
) -> tuple[Against | None, bool]:
    """Return what a run is compared with, and whether somebody vouches for it."""
    if isinstance(baseline, Run):
        return make_baseline(baseline, scenario), True
    if not isinstance(baseline, str | Path):
        return baseline, True
    path = local_path(baseline)
    path = path / "card.json" if path.is_dir() else path
    contents = read_contents(path)
    if "baseline" not in contents:
        check_audit_file(path)
        numbers = parse_numbers(contents, scenario, path)
        return numbers, numbers.is_signed or _lies_in_a_run(path)
    saved = parse_baseline(contents, path)
    if saved.scenario != scenario:
        raise IncompatibleRunsError(
            f"{path} is a baseline of the scenario {saved.scenario}, and the gate asks "
            f"about {scenario}. Choose one."
        )
    return saved, True


def _lies_in_a_run(path: Path) -> bool:
    """Say whether it is a run's audit.json, which the run's signature covers."""
    run = path.resolve().parent.parent.parent
    return path.name == AUDIT and (run / HEADER).exists()


def _changes_since(
    audit: StoredAudit,
    against: Against | None,
    demands: Demands,
    settings: GateSettings,
) -> Iterator[GateQuestion]:
    """Yield a question for each metric that is compared, if anything is."""
    if against is None:
        return
    attacks = demands.comparable(settings)
    stronger = {
        metric.name(name)
        for name in attacks
        for metric in metrics_of("leak", settings.metrics)
        if demands.relation(name) == "stronger"
    }
    for one in against.questions(audit, attacks, settings):
        yield replace(one, stronger=one.name in stronger)


def _limits_of(audit: StoredAudit, settings: GateSettings) -> Iterator[GateQuestion]:
    """Yield a question for each limit, of every attack that was made."""
    for name in audit.attacks:  # all that were made, on the server's model too
        for setting, (metric, limit) in _limits_on_leaks(settings).items():
            yield limited(metric, name, audit.clients(name), limit, setting)
    if settings.min_utility is not None:
        tests = score_tests(audit.run)
        least = settings.min_utility
        yield limited(UTILITY, tests.metric, tests, least, "min_utility")


def _limits_on_leaks(settings: GateSettings) -> dict[str, tuple[Metric[Any], float]]:
    """Return metrics of attacks that have a limit, by its setting."""
    limits = {
        "max_auroc": (AUROC, settings.max_auroc),
        "max_tpr": (TPR, settings.max_tpr),
    }
    return {n: (m, value) for n, (m, value) in limits.items() if value is not None}


def _decided_by(
    demands: Demands, against: Against | None, settings: GateSettings
) -> Iterator[str]:
    """Yield in words which attacks decided, and how strong each was."""
    asked = [] if against is None else demands.comparable(settings)
    if not metrics_of("leak", settings.metrics):
        asked = []
    if _limits_on_leaks(settings):
        asked = [*demands.made]
    by_strength: dict[str, list[str]] = {}
    for name in asked:
        if name in demands.made:
            by_strength.setdefault(str(demands.made[name]), []).append(name)
    each = [f"{', '.join(names)} ({how})" for how, names in by_strength.items()]
    if each:
        yield f"Attacks that decided: {'; '.join(each)}."


def _in_tail(audit: StoredAudit, settings: GateSettings) -> Iterator[str]:
    """Yield that the run's highest scores tell members, which no AUROC need show."""
    evidence = audit.verdict().evidence
    test = evidence.test if evidence else None
    if settings.max_tpr is None and test and "tail" in test.parts():
        yield (
            f"By {audit.attacks[0]} {top_of(test)} (p {p_value(test.tail)}): hold them to a limit, "
            "too (max_tpr)."
        )


def _steadier(
    checks: Sequence[AnyCheck],
    audit: StoredAudit,
    against: Against | None,
    demands: Demands,
) -> Iterator[str]:
    """Yield which attack pairs such runs best, where the change by another is open.

    Noise in training moves what shadow models say from run to run, and a loss little:
    docs/gate.md has both measured.
    """
    decided = ("pass", "regression")
    changes = (one for one in checks if one.rule == "leak-change")
    left_open = [one.name for one in changes if one.outcome not in decided]
    if against is None or not left_open:
        return
    same = [name for name in demands.made if demands.relation(name) == "same"]
    asked = GateSettings(audit.scenario, metrics=("auroc",))
    estimates = {
        question.name: question.interval_at(0.95)
        for question in against.questions(audit, same, asked)
    }
    reach = {n: (e.high - e.low) / 2 for n, e in estimates.items() if not e.unresolved}
    best = min(reach, key=lambda name: reach[name], default="")
    for name in left_open:
        if name in reach and reach[best] < reach[name] / 1.5:
            yield (
                f"The change of {name} is known to ±{reach[name]:.3f}, and that of {best} "
                f"to ±{reach[best]:.3f}: for later changes name that attack (attacks), and "
                "hold this one to a limit (max_auroc). Chosen now, it decides nothing."
            )


def _deviations(planned: AuditPlan | None, settings: GateSettings) -> tuple[str, ...]:
    """Return by what thresholds are not as they were planned."""
    if planned is None:
        return ()
    now = {name: getattr(settings, name) for name in planned.thresholds}
    return differences(planned.thresholds, now)


def _tally(audit: StoredAudit) -> AuditTally:
    found = audit.verdict()
    if found.pooled != ONE_TRAINING:  # counted when it was made: a pool has no log
        return AuditTally(found.audits, found.audits * found.pooled.share)
    headline = next(iter(audit.contents["attack_results"].values()))
    auroc = Estimate.from_dict(headline["auroc"])
    return tally_of(audit.run, headline["attack"], auroc)


def _assurance(audit: StoredAudit) -> Assurance:
    privacy, one_run = audit.run.privacy, audit.contents.get("one_run")
    verdict = one_run["verdict"] if one_run else {}
    refuted = verdict.get("kind") == "REFUTED" or bool(verdict.get("alarm"))
    view = audit.contents["threat"].partition(":")[0]
    unit = find_plan(audit.scenario).unit
    certificate = covering(privacy["certified"][view], unit, audit.run.truth.group)
    found = assure(privacy["claimed"]["epsilon"], certificate, refuted=refuted)
    if audit.run.sampling != "unknown":
        return found
    sentence = f"{found.sentence} {UNKNOWN_SAMPLING}".strip()
    return replace(found, sentence=sentence, sampling=audit.run.sampling)
