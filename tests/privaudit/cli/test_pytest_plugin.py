import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.stored_audit import save_audit
from privaudit.checks.gate import checks
from privaudit.checks.gate.gate import write_baseline
from privaudit.evaluation.compare.measured import score_tests
from privaudit.evaluation.metric import METRICS
from privaudit.recording.owner import use_owner
from privaudit.runs.ledger import Coin
from privaudit.runs.run import RUN_ORIGINS
from tests.conftest import common_cache
from tests.places import ROOT
from tests.privaudit.recording.small_federation import Linear, record, toss

pytest_plugins = ["pytester"]

# Whether or not the entry point is installed, the plugin is loaded exactly once.
LOADED = ("-pno:privaudit", "-pprivaudit.cli.pytest_plugin", "-pno:cacheprovider")

# pytester forgets modules that only its tests import, and registries do not.
PRELOADED = (checks, score_tests, save_audit, write_baseline)
for registry in (ATTACKS, METRICS, RUN_ORIGINS, SCENARIOS):
    for name in registry.names():
        registry.find(name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that leaks something, and whose own AUROC is known by its interval."""
    folder = tmp_path_factory.mktemp("plugin")
    with common_cache(tmp_path_factory):
        run = train(
            "zero-shot", folder=folder, name="audited", rounds=1, clients=3, seed=0
        )
        Auditor(run).attack(shadows=0)
    return run.path


@pytest.fixture(scope="module")
def tuned(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of PromptFL, which claims nothing."""
    with common_cache(tmp_path_factory):
        made = train(
            "promptfl", folder=run.parent, name="tuned", rounds=1, clients=3, seed=0
        )
    return made.path


@pytest.fixture
def project(pytester: pytest.Pytester, run: Path) -> pytest.Pytester:
    pytester.makeini(f"[pytest]\nprivaudit_run = {run}\naddopts = --strict-markers\n")
    return pytester


def marked(*markers: str) -> str:
    tests = [
        f"@pytest.mark.privacy({marker})\ndef test_{index}(): pass\n"
        for index, marker in enumerate(markers)
    ]
    return "import pytest\n" + "".join(tests)


def test_the_fixture_is_the_audit_and_is_made_once(project: pytest.Pytester) -> None:
    project.makepyfile("""
        import pytest
        made = []
        def test_first(audit): made.append(audit)
        def test_second(audit):
            assert audit is made[0]
            assert audit.auroc.low <= audit.auroc.value
            assert audit.scenario.name == "server-reconstruct"
        @pytest.mark.privacy(scenario="prompt-release")
        def test_third(audit):
            assert audit.scenario.name == "prompt-release"
    """)
    project.runpytest(*LOADED).assert_outcomes(passed=3)


def test_a_limit_is_passed_failed_or_not_decided(
    project: pytest.Pytester, run: Path
) -> None:
    found = Auditor(Run(run)).attack(shadows=0).auroc
    above, below = found.high + 0.01, found.low - 0.01
    project.makepyfile(
        marked(
            f"below={above}",
            f"below={below}",
            f"below={found.value}",
            f"below={found.value}, underpowered='xfail'",
            f"below={below}, underpowered='xfail'",
        )
    )
    project.runpytest(*LOADED).assert_outcomes(passed=1, failed=3, xfailed=1)


def test_an_ini_option_makes_what_is_not_decided_an_expected_failure(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(marked("below=0.5"))
    options = ("-o", "privaudit_underpowered=xfail")
    project.runpytest(*LOADED, *options).assert_outcomes(xfailed=1)


def test_without_a_coin_a_leak_is_not_ruled_out(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    record(tmp_path / "run", replace(toss(), coin=Coin("none")), Linear(learns=False))
    pytester.makeini(f"[pytest]\nprivaudit_run = {tmp_path / 'run'}\n")
    pytester.makepyfile(marked("below=0.999", "metric='success', below=0.999"))
    with use_owner(Linear()):
        result = pytester.runpytest(*LOADED)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["No verdict on membership: *", "*a fair coin chose,*"])


def test_a_failure_says_number_interval_n_and_what_to_do(
    project: pytest.Pytester,
) -> None:
    project.makepyfile(marked("below=0.1"))
    result = project.runpytest(*LOADED)
    result.stdout.re_match_lines(
        [
            r"Regression: loss-threshold AUROC is 0\.\d+ \[0\.\d+, 0\.\d+\], "
            r"n = \d+ \+ \d+, above the limit of 0\.1\.",
            r"  Asked: What does a curious server learn",
            r"  Run: .*audited",
            r"  What to do: An adversary can tell .* raise below=0\.1 ",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_all_metrics_have_a_limit_on_their_own_side(project: pytest.Pytester) -> None:
    project.makepyfile(
        marked(
            "metric='success', below=0.99",
            "metric='utility', above=0.01",
            "metric='utility', above=0.999",
            "attack='entropy', below=0.99",
        )
    )
    result = project.runpytest(*LOADED)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*accuracy on own classes is * below the limit*"])


def test_every_marker_of_a_test_is_held_and_the_test_itself_runs_after_it(
    project: pytest.Pytester,
) -> None:
    project.makepyfile("""
        import pytest
        class TestBoth:
            pytestmark = pytest.mark.privacy(below=0.1)
            @pytest.mark.privacy(below=0.99)
            def test_both(self): pass
        @pytest.mark.privacy(below=0.99)
        def test_more(audit): assert audit.auroc.value > 0.99, "its own"
    """)
    result = project.runpytest(*LOADED)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*its own*"])


WRONG = {
    "below=0.6, scenarioo='x'": "has no scenarioo",
    "above=0.6": "on auroc needs below=NUMBER",
    "below=60": "on auroc needs below=NUMBER",
    "below=1": "on auroc needs below=NUMBER",
    "below=0.99, above=0.8": "on auroc needs below=NUMBER in (0, 1) alone",
    "metric='f1', below=0.5": "has metric='f1'",
    "below=0.6, attack='los-threshold'": "Did you mean 'loss-threshold'",
    "below=0.6, scenario='nobody'": "No scenario is called 'nobody'",
    "below=0.6, run='no-such-run'": "holds no run",
    "below=0.6, shadows='x'": "whole numbers",
    "below=0.5, underpowered='skip'": "may be fail or xfail",
    # These would hold nothing.
    "bellow=0.6": "has no bellow",
    "Below=0.6": "has no Below",
    "0.6": "has no 0.6",
    "limit=0.6": "has no limit",
    "metric='auroc'": "has metric and holds nothing to it",
    "baseline='no.json'": "There is no baseline no.json",
}


def test_a_wrong_marker_is_one_clear_failure(project: pytest.Pytester) -> None:
    project.makepyfile(marked(*WRONG))
    _, _, failed = project.inline_run(*LOADED).listoutcomes()
    for report, says in zip(failed, WRONG.values(), strict=True):
        assert report.when == "call"
        assert says in report.longreprtext


def test_a_misspelt_keyword_is_an_error_without_any_setting(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(marked("bellow=0.6"))
    pytester.runpytest(*LOADED).assert_outcomes(failed=1)


def test_the_example_of_the_docs_fails_for_a_model_without_privacy(
    pytester: pytest.Pytester, tuned: Path
) -> None:
    """A run that claims nothing: nothing is certified against its server."""
    text = ROOT.joinpath("docs", "gate.md").read_text()
    (example,) = re.findall(r"```python\n(import pytest.*?)```", text, re.DOTALL)
    body = re.search(r"def test_the_server.*?(?=\n\n)", example, re.DOTALL)
    assert body is not None
    pytester.makeini(f"[pytest]\nprivaudit_run = {tuned}\n")
    pytester.makepyfile(f"import pytest\n{body[0]}\n")
    pytester.runpytest(*LOADED).assert_outcomes(failed=1)


def test_epsilons_are_held_to_a_baseline(
    project: pytest.Pytester, run: Path, tuned: Path
) -> None:
    save_audit(Auditor(Run(run)).attack(shadows=0))
    path = write_baseline(Run(run), project.path / "base.json", utility=False)
    other = f"baseline='{path}', run='{tuned}'"
    project.makepyfile(marked(f"baseline='{path}'", other))
    result = project.runpytest(*LOADED)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["Regression: claimed epsilon was 0 at*and is none*"])


def test_attacks_are_held_to_a_baseline(project: pytest.Pytester, run: Path) -> None:
    """Weaker than the baseline's, of another model, or signed by nobody: no pass."""
    save_audit(Auditor(Run(run)).attack(shadows=5))
    path = write_baseline(Run(run), project.path / "b.json", utility=False)
    weaker = f"baseline='{path}', below=0.99"
    project.makepyfile(
        marked(weaker, f"{weaker}, underpowered='xfail'", f"{weaker}, shadows=5")
    )
    result = project.runpytest(*LOADED)
    result.assert_outcomes(passed=1, failed=1, xfailed=1)
    result.stdout.fnmatch_lines(["Undecided: rmia was not made*--shadows 5`."])
    contents = json.loads(path.read_text())
    del contents["signature"]
    path.write_text(json.dumps(contents))
    project.makepyfile(marked(f"{weaker}, shadows=5"))
    result = project.runpytest(*LOADED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is not signed*"])


def test_without_a_run_it_says_how_to_name_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(audit): pass")
    result = pytester.runpytest(*LOADED)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*There is no run to audit*privaudit_train*"])


def test_what_is_trained_for_a_session_is_removed_again(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        import pytest
        from pathlib import Path
        @pytest.mark.privacy(train="zero-shot rounds=1 clients=2", below=0.99)
        def test_it(audit):
            assert audit.run.config.clients == 2
            Path("where").write_text(str(audit.run.path))
    """)
    pytester.runpytest(*LOADED).assert_outcomes(passed=1)
    where = Path((pytester.path / "where").read_text())
    assert not where.exists()
    assert not where.parent.exists()


def test_a_project_that_does_not_use_it_is_left_alone(
    pytester: pytest.Pytester,
) -> None:
    """Its own fixture and its own marker of the same names keep their meaning."""
    pytester.makeconftest("""
        import pytest
        @pytest.fixture
        def audit(): return "mine"
    """)
    pytester.makepyfile("""
        import pytest
        @pytest.mark.privacy("gdpr", owner="me")
        def test_it(audit): assert audit == "mine"
    """)
    pytester.runpytest(*LOADED, "--strict-markers").assert_outcomes(passed=1)


def test_loading_it_imports_nothing_heavy() -> None:
    script = (
        "import sys, privaudit.cli.pytest_plugin\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pydantic', 'typer', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_pytest_finds_it_by_its_entry_point() -> None:
    named = {point.name: point.value for point in entry_points(group="pytest11")}
    if "privaudit" not in named:
        pytest.skip("installed before there was a plugin: pip install -e . again")
    assert named["privaudit"] == "privaudit.cli.pytest_plugin"
