import json
import os
import shutil
import webbrowser
from functools import partial
from pathlib import Path

import pytest

from privaudit.auditing.auditor import Auditor
from privaudit.auditing.stored_audit import save_audit
from privaudit.evaluation.tradeoff.result import judge_sweep
from privaudit.report import page as report_module
from privaudit.report.page import write_report
from privaudit.report.sweep import write_sweep
from privaudit.runs.run import load_run
from tests.altered_runs import sign_again
from tests.conftest import Cli, common_cache
from tests.privaudit.evaluation.tradeoff.test_result import point

pytestmark = pytest.mark.slow  # trains and attacks once


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures out of pages: to draw them is nearly all of a page's time."""
    always = dict.fromkeys(("tradeoff", "clients", "roc"), "")
    monkeypatch.setattr(report_module, "_figures", lambda data: always)


@pytest.fixture
def report(cli: Cli) -> Cli:
    return Cli(partial(cli, "report"))


@pytest.fixture(scope="module")
def attacked(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two audits; pages are as the attack would write them."""
    place = tmp_path_factory.mktemp("attacked") / "whole"
    shutil.copytree(originals / "whole", place)
    with common_cache(tmp_path_factory):
        for scenario in ("server-reconstruct", "prompt-release"):
            audit = Auditor(load_run(place)).attack(scenario, shadows=0)
            page = save_audit(audit) / "report.html"
            page.write_text("an old one")
        write_report([audit], page)
    return place


@pytest.fixture
def runs() -> Path:
    return Path(os.environ["PRIVAUDIT_RUNS"])


@pytest.fixture
def whole(attacked: Path, runs: Path) -> Path:
    return shutil.copytree(attacked, runs / "whole")


def pages(folder: Path) -> dict[str, bytes]:
    found = folder.rglob("*.html")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_report_is_written_again_to_the_byte(whole: Path, report: Cli) -> None:
    place = whole / "audits" / "prompt-release" / "report.html"
    before = place.read_bytes()
    place.unlink()
    assert Path(report.done("whole", "--scenario", "prompt-release").strip()) == place
    assert place.read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_several_audits_of_a_run_have_an_index_in_it(whole: Path, report: Cli) -> None:
    out = report.done("whole")
    assert Path(out.strip()) == whole / "audits" / "index.html"
    html = Path(out.strip()).read_text()
    for scenario in ("server-reconstruct", "prompt-release"):
        assert f'href="{scenario}/report.html"' in html


@pytest.mark.usefixtures("undrawn")
def test_a_folder_of_runs_has_an_index_of_all_that_is_in_it(
    whole: Path, attacked: Path, cut: Path, runs: Path, report: Cli
) -> None:
    shutil.copytree(attacked, runs / "again")
    write_sweep(judge_sweep([point("dp-fpl", 8.0, 1)]), runs / "tradeoff")
    assert Path(report.done(str(runs)).strip()) == runs / "index.html"
    html = (runs / "index.html").read_text()
    for name in ("whole", "again"):
        assert f'href="{name}/audits/prompt-release/report.html"' in html
    assert 'href="tradeoff/sweep.html"' in html
    assert "cut: stopped after 2 of 3 rounds" in html
    assert 'href="report-prompt-release.html"' in html
    assert (runs / "report-prompt-release.html").exists()


def test_a_tradeoffs_page_is_written_again(runs: Path, report: Cli) -> None:
    page = write_sweep(judge_sweep([point("dp-fpl", 8.0, 1)]), runs / "tradeoff")
    before = page.read_bytes()
    page.unlink()
    assert Path(report.done(str(runs / "tradeoff")).strip()) == page
    assert page.read_bytes() == before


@pytest.mark.usefixtures("undrawn")
def test_it_opens_in_the_usual_browser(
    whole: Path, report: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def show(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    out = report.done("whole", "--scenario", "prompt-release", "--open")
    assert opened == [Path(out.strip()).resolve().as_uri()]


@pytest.mark.usefixtures("undrawn")
def test_without_a_browser_the_page_is_written_all_the_same(
    whole: Path, report: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    page = whole / "audits" / "prompt-release" / "report.html"
    page.unlink()
    code, _, err = report("whole", "--scenario", "prompt-release", "--open")
    assert code == 2
    assert "No browser was found to open" in err
    assert page.exists()


def test_bad_input_is_one_line_and_code_2(
    whole: Path, cut: Path, runs: Path, report: Cli
) -> None:
    (runs / "empty").mkdir()
    for words, says in (
        (["nowhere"], "holds no run"),
        ([str(runs / "empty")], "holds no run"),
        (["cut"], "has no audit to report. Make one with `privaudit attack cut`"),
        (["whole", "--scenario", "black-box"], "There is no audit of black-box"),
        (["whole", "--scenario", "promt-release"], "Did you mean 'prompt-release'?"),
    ):
        assert says in report.refused(*words)


def test_runs_that_nobody_attacked_are_no_report(
    cut: Path, runs: Path, report: Cli
) -> None:
    assert "none of the 1 runs in" in report.refused(str(runs))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["scores.npz", "audit.json"])
def test_a_damaged_audit_is_left_out_said_so_and_the_others_are_written(
    name: str, whole: Path, attacked: Path, runs: Path, report: Cli
) -> None:
    other = shutil.copytree(attacked, runs / "another")
    (other / "audits" / "prompt-release" / "report.html").write_text("old")
    before = pages(runs)
    place = whole / "audits" / "server-reconstruct" / name
    place.write_bytes(place.read_bytes()[:-40])
    code, out, err = report("another", "whole")
    assert (code, out) == (2, "")
    assert str(place.parent) in err
    assert "without 1 of" in err
    after, damaged = pages(runs), "whole/audits/server-reconstruct/report.html"
    assert after.get(damaged) == before.get(damaged)
    assert after["another/audits/prompt-release/report.html"] != b"old"


@pytest.mark.usefixtures("undrawn")
def test_figures_that_the_scores_do_not_give_are_damage(
    whole: Path, report: Cli
) -> None:
    place = whole / "audits" / "server-reconstruct" / "audit.json"
    said = json.loads(place.read_text())
    said["attack_results"]["loss-threshold"]["auroc"].update(
        value=0.5, low=0.4, high=0.6
    )
    place.write_text(json.dumps(said))
    assert "is not the file that the run lists" in report.refused("whole")
    sign_again(whole)
    assert "its scores give" in report.refused("whole")
