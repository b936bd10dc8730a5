"""Privacy as a test: the fixture ``audit``, and the marker ``privacy``.

    @pytest.mark.privacy(below=0.6)
    def test_the_server_learns_little(audit): ...

pytest loads this module in every project that has privaudit installed, so it imports
nothing but pytest, and does nothing where neither is used.
"""

import difflib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from privaudit.auditing.audit import Audit
    from privaudit.checks.gate.checks import GateCheck
    from privaudit.evaluation.metric import Metric
    from privaudit.runs.run import Run

MARKER = "privacy"
_HELP = (
    "privacy(below=None, above=None, baseline=None, metric='auroc', attack=None, "
    "scenario=..., alpha=0.05, run=..., train=..., clients='all', shadows=0, seed=0, "
    "underpowered='fail'): audit a run, and hold a metric to a limit, or its epsilons "
    "to a baseline's (privaudit)."
)
_INI: Mapping[str, tuple[str, str]] = {
    "run": ("", "Name or folder of the run to audit."),
    "train": ("", "Or what to train: a trainer and settings, 'dp-fpl rounds=2'."),
    "runs": ("", "Where runs are kept; by default a folder that is removed again."),
    "scenario": ("server-reconstruct", "Who looks on."),
    "clients": ("all", "How many clients get shadow models, or 'all'."),
    "shadows": ("0", "Shadow models for each of them, 0 or at least 5."),
    "seed": ("0", "Of the adversary's randomness."),
    "underpowered": ("fail", "What too few records are: 'fail' or 'xfail'."),
}
_CACHE = pytest.StashKey[dict["AuditArguments", "Audit"]]()
_FOLDER = pytest.StashKey[Path]()


_LINES = ("below", "above", "baseline")
"""What a marker holds an audit to; the others say which audit, and how."""


@dataclass(frozen=True)
class AuditArguments:
    """What an audit is of; equal ones are made once per session."""

    run: str = ""
    train: str = ""
    scenario: str = ""
    clients: str = ""
    shadows: str = ""
    seed: str = ""


@dataclass(frozen=True)
class MarkerLimit:
    """What a marker holds a metric to; ``below`` a leak, ``above`` a use.

    ``baseline`` is a file that claimed and certified epsilons, and the strength of the
    attacks, may not fall behind. As somebody wrote it: nothing is checked yet.
    """

    metric: str = "auroc"
    attack: str | None = None
    below: object = None
    above: object = None
    baseline: str | None = None
    alpha: float = 0.05
    underpowered: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini options, each with ``privaudit_`` in front."""
    for name, (default, text) in _INI.items():
        parser.addini(f"privaudit_{name}", text, default=default)
    parser.getgroup("privaudit").addoption(
        "--privaudit-contract",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="Ask the contracts of what an installed package adds to privaudit.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _HELP)


class ContractItem(pytest.Item):
    """One contract of a package's trainer, attack, scenario or data set."""

    holds: Callable[[], None]

    def runtest(self) -> None:
        """Ask the contract."""
        self.holds()

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[Any], style: Any = None
    ) -> str:
        """Return what is wrong in a sentence, in place of a traceback."""
        from privaudit.core.errors import PrivauditError
        from privaudit.core.registry import fault_of_plugin, raised

        error, last = excinfo.value, excinfo.traceback[-1]
        if isinstance(error, PrivauditError):
            return str(error)
        at = last.frame.code.raw, last.lineno + 1
        return fault_of_plugin(error) or (
            f"{raised(error, *at)} The package gave something of another type or shape."
        )


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the contracts of the packages that are asked for."""
    packages = config.getoption("privaudit_contract")
    if not packages:
        return
    from privaudit.checks.contracts import contracts_of
    from privaudit.core.errors import PrivauditError

    try:
        asked = [one for package in packages for one in contracts_of(package)]
    except PrivauditError as error:
        raise pytest.UsageError(str(error)) from None
    for name, holds in asked:
        item = ContractItem.from_parent(session, name=name)
        item.holds = holds
        items.append(item)


@pytest.fixture
def audit(request: pytest.FixtureRequest) -> "Audit":
    """Return the audit that the marker or the ini file asks for.

    It is made once per session, whichever tests ask for it.
    """
    marker = request.node.get_closest_marker(MARKER)
    if marker:
        _refuse_unknown(marker)
    return _audit(request.config, dict(marker.kwargs) if marker else {})


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Hold a marked test's audit to its limit before the test itself runs."""
    for marker in item.iter_markers(MARKER):
        if _is_ours(item, marker):
            _refuse_unknown(marker)
            _hold(item.config, dict(marker.kwargs))


def _is_ours(item: pytest.Item, marker: pytest.Mark) -> bool:
    """Say whether a marker is meant for this plugin, be it misspelt.

    A project that does not use the plugin may have a marker of the same name.
    """
    if any(item.config.getini(f"privaudit_{name}") for name in ("run", "train")):
        return True
    return any(difflib.get_close_matches(name, _names()) for name in marker.kwargs)


def _names() -> list[str]:
    """Return all keywords of the marker."""
    return [*AuditArguments.__match_args__, *MarkerLimit.__match_args__]


def _refuse_unknown(marker: pytest.Mark) -> None:
    unknown = [name for name in marker.kwargs if name not in _names()]
    if marker.args or unknown:
        what = ", ".join([*map(repr, marker.args), *unknown])
        _fail(f"@pytest.mark.privacy has no {what}. It has: {', '.join(_names())}.")
    how = [name for name in MarkerLimit.__match_args__ if name in marker.kwargs]
    if how and not {*_LINES} & {*how}:
        _fail(
            f"@pytest.mark.privacy has {', '.join(how)} and holds nothing to it. Give "
            "below=NUMBER, above=NUMBER or baseline=FILE."
        )


def _fail(text: str) -> NoReturn:
    __tracebackhide__ = True
    pytest.fail(text, pytrace=False)


def _hold(config: pytest.Config, asked: Mapping[str, Any]) -> None:
    from privaudit.core.errors import PrivauditError

    __tracebackhide__ = True
    if not {*_LINES} & asked.keys():
        return
    audited = _audit(config, asked)
    names = MarkerLimit.__match_args__
    limit = MarkerLimit(**{name: asked[name] for name in names if name in asked})
    try:
        if limit.baseline is not None:
            _hold_to_baseline(config, audited, limit)
        if limit.below is None and limit.above is None and limit.baseline is not None:
            return
        check = _check(audited, limit)
    except PrivauditError as error:
        _fail(f"privaudit: {error}")
    if check.outcome == "pass":
        return
    lenient = _lenient(config, limit)
    message = _message(audited, check)
    if check.outcome == "underpowered" and lenient == "xfail":
        pytest.xfail(message)
    _fail(message)


def _hold_to_baseline(
    config: pytest.Config, found: "Audit", limit: MarkerLimit
) -> None:
    """Fail where an epsilon, or an attack, is weaker than a baseline's."""
    from privaudit.checks.gate.gate import check_against

    __tracebackhide__ = True
    assert limit.baseline is not None
    checks = check_against(found, limit.baseline)
    worse = [check for check in checks if check.outcome != "pass"]
    if not worse:
        return
    lenient = _lenient(config, limit)
    message = "\n".join(check.sentence for check in worse) + (
        f"\n  Run: {found.run.path}\n  What to do: Restore the privacy that was removed, "
        f"or the attack's strength, or, if it is meant, write {limit.baseline} again."
    )
    if lenient == "xfail" and all(one.outcome == "underpowered" for one in worse):
        pytest.xfail(message)
    _fail(message)


def _lenient(config: pytest.Config, limit: MarkerLimit) -> str:
    wanted: str = limit.underpowered or config.getini("privaudit_underpowered")
    if wanted not in ("fail", "xfail"):
        _fail(f"privaudit: underpowered is {wanted!r}, and may be fail or xfail.")
    return wanted


def _check(found: "Audit", limit: MarkerLimit) -> "GateCheck":
    from privaudit.checks.gate.checks import as_sampled, judge, limited
    from privaudit.core.errors import ConfigError
    from privaudit.evaluation.metric import METRICS

    if limit.metric not in METRICS.names():
        raise ConfigError(
            f"@pytest.mark.privacy has metric={limit.metric!r}, and there are "
            f"{' and '.join(METRICS.names())}. Choose one."
        )
    metric = METRICS.find(limit.metric)
    wanted, other = "below", "above"
    if metric.side == "utility":
        wanted, other = other, wanted
    value, idle = getattr(limit, wanted), getattr(limit, other)
    if not isinstance(value, int | float) or not 0 < value < 1 or idle is not None:
        raise ConfigError(
            f"@pytest.mark.privacy on {limit.metric} needs {wanted}=NUMBER in (0, 1) "
            f"alone, and has below={limit.below}, above={limit.above}."
        )
    question = limited(metric, *_measured(found, metric, limit), float(value), wanted)
    asked = as_sampled(question, found.run.sampling)
    return judge([asked], limit.alpha)[0]


def _measured(
    found: "Audit", metric: "Metric[Any]", limit: MarkerLimit
) -> tuple[str, Any]:
    """Return what a metric is of, and the scores that it measures."""
    from privaudit.core.errors import UnknownNameError
    from privaudit.evaluation.compare.measured import score_tests

    if metric.side == "utility":
        tests = score_tests(found.run)
        return tests.metric, tests
    attack = limit.attack or found.headline.attack
    if attack not in found.results:
        what = f"attack of {found.scenario.name} on this run"
        raise UnknownNameError(what, attack, found.results)
    return attack, found.results[attack].clients


def _message(found: "Audit", check: "GateCheck") -> str:
    question = check.question
    if question.sampling == "unknown":
        advice = (
            "More records decide nothing. Audit a run whose members a fair coin chose, "
            'or set underpowered="xfail".'
        )
    elif check.outcome == "underpowered":
        advice = (
            f"Too few records to say. Audit a run with more candidates, move "
            f'{question.setting}={question.limit:g}, or set underpowered="xfail".'
        )
    elif question.about == "utility":
        advice = (
            "The models are of less use than this test asks for. Train longer or with "
            f"less noise, or lower {question.setting}={question.limit:g}."
        )
    else:
        advice = (
            "An adversary can tell which records were trained on, better than this "
            "test allows. Train with more privacy (a lower epsilon, fewer rounds), or "
            f"raise {question.setting}={question.limit:g} if so much may leak."
        )
    return (
        f"{check.sentence}\n"
        f"  Asked: {found.scenario.question} (scenario {found.scenario.name})\n"
        f"  Run: {found.run.path}\n"
        f"  What to do: {advice}"
    )


def _audit(config: pytest.Config, asked: Mapping[str, Any]) -> "Audit":
    from privaudit.core.errors import PrivauditError

    __tracebackhide__ = True
    what = _asked(config, asked)
    made = config.stash.setdefault(_CACHE, {})
    if what not in made:
        try:
            made[what] = _attack(config, what)
        except PrivauditError as error:
            _fail(f"privaudit: {error}")
    return made[what]


def _asked(config: pytest.Config, marker: Mapping[str, Any]) -> AuditArguments:
    """Return what the marker says, and for the rest the ini file."""
    names = AuditArguments.__match_args__
    ini = {name: str(config.getini(f"privaudit_{name}")) for name in names}
    if marker.get("train"):
        ini["run"] = ""
    return AuditArguments(**{name: str(marker.get(name, ini[name])) for name in names})


def _attack(config: pytest.Config, asked: AuditArguments) -> "Audit":
    from privaudit.auditing.auditor import Auditor
    from privaudit.cli.options import attacked
    from privaudit.core.errors import ConfigError

    if not (asked.shadows.isdecimal() and asked.seed.isdecimal()):
        raise ConfigError(
            f"shadows={asked.shadows} and seed={asked.seed} are to be whole numbers."
        )
    return Auditor(_run(config, asked)).attack(
        asked.scenario,
        clients=attacked(asked.clients),
        shadows=int(asked.shadows),
        seed=int(asked.seed),
    )


def _run(config: pytest.Config, asked: AuditArguments) -> "Run":
    from privaudit.core.errors import ConfigError
    from privaudit.core.parameters import parse_pairs
    from privaudit.runs.run import load_run
    from privaudit.runs.training import train

    folder: str = config.getini("privaudit_runs")
    if asked.run:
        return load_run(asked.run, folder=folder or None)
    if not asked.train:
        raise ConfigError(
            "There is no run to audit. Name one with `privaudit_run` in the pytest "
            "configuration, or what to train with `privaudit_train = promptfl "
            "rounds=2`; or run= or train= of @pytest.mark.privacy."
        )
    trainer, *texts = asked.train.split()
    fields = parse_pairs("dp-fpl rounds=2", texts)
    return train(trainer, folder=folder or _own_folder(config), **fields)


def _own_folder(config: pytest.Config) -> Path:
    """Return a folder for this session's runs; they hold the truth about membership."""
    if _FOLDER not in config.stash:
        folder = Path(tempfile.mkdtemp(prefix="privaudit-"))
        config.stash[_FOLDER] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    return config.stash[_FOLDER]
