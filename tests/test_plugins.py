"""An attack and a trainer from the literature, each added in one file and found by name.

The attack stands in a folder of attacks, as if it were in attacks/; then both are in a
package of other people.
"""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import privaudit.attacks
from privaudit import Auditor, Run, train
from privaudit.auditing.attack import ATTACKS, Adversary, Scores, Target
from privaudit.auditing.named_attacks import named_attacks
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.checks.plugin_trial import try_mechanisms
from privaudit.core.errors import AttackError, ConfigError, PluginError
from privaudit.federation.trainer import TRAINERS
from privaudit.models.interfaces import AnyTask
from privaudit.report.export import export_public, verify_card
from privaudit.report.page import write_report
from tests.conftest import Cli, refused
from tests.plugins import install

Call = Callable[..., tuple[int, str, str]]
GAP_ATTACK = '''
"""Gap attack: a record that the model classifies rightly was trained on."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, Scores, Target
from privaudit.auditing.signals import target_signals
from privaudit.models.interfaces import AnyTask


@ATTACKS.register("gap-attack")
@dataclass(frozen=True)
class GapAttack:
    """Call a record a member if its margin over the likeliest other class is positive.

    Source: Yeom et al., "Privacy risk in machine learning", CSF 2018, section 3.2.

    Attributes:
        margin: In nats.
    """

    threshold: ClassVar[str] = "right or wrong: nothing is fitted"
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    margin: float = 0.0

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score 1 where the model is right, else 0."""
        margins = [target_signals(adversary, t)[0].margin[0].numpy() for t in targets]
        return [Scores((m > self.margin) * 1.0, m > self.margin) for m in margins]
'''
SERVER_MOMENTUM = '''
"""FedAvgM: PromptFL whose server adds a share of its last step to each step."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.federation.trainer import TRAINERS
from privaudit.trainers.promptfl import PromptFL


@TRAINERS.register("prompt-fedavgm")
@dataclass(frozen=True)
class PromptFedAvgM(PromptFL):
    """Average prompts with momentum on the server.

    Source: Hsu et al., "Measuring the effects of non-identical data distribution", 2019.

    Attributes:
        beta: Share of the last step.
    """

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def aggregate(self, task, server, inbox, at):
        averaged, events = super().aggregate(task, server, inbox, at)
        old, mean = server["context"], averaged["context"]
        step = mean - old + self.beta * server.get("step", 0 * mean)
        return {"context": old + step, "step": step}, events
'''

QUIET = """
from pydantic.dataclasses import dataclass

from privaudit.trainers.dp_promptfl import DPPromptFL
from tests.privaudit.checks.lint.declared_trainers import HONEST, WRONG

Silent, Honest = type(WRONG["noise is not added"]), type(HONEST["clients"])


@dataclass(frozen=True)
class Quiet(DPPromptFL):
    'Declare what DP-PromptFL does, and leave the noise out.'

    def noise(self, like, grid, streams):
        return 0 * super().noise(like, grid, streams)
"""
NOISED = {
    "quiet-promptfl": "quiet:Quiet",
    "silent-means": "quiet:Silent",
    "honest-means": "quiet:Honest",
}


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Forget after a test what it registered."""
    yield
    ATTACKS._entries.pop("gap-attack", None)
    for name in ("prompt-fedavgm", *NOISED):
        TRAINERS._entries.pop(name, None)
    for module in ("privaudit.attacks.gap_attack", "others", "quiet"):
        sys.modules.pop(module, None)


@pytest.fixture
def gap_attack(
    forgotten: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Put one file into a folder of attacks."""
    (tmp_path / "attacks").mkdir()
    (tmp_path / "attacks" / "gap_attack.py").write_text(GAP_ATTACK)
    folders = [*privaudit.attacks.__path__, str(tmp_path / "attacks")]
    monkeypatch.setattr(privaudit.attacks, "__path__", folders)


@pytest.fixture
def others(
    forgotten: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Install a package with an attack and a trainer."""

    def build(code: str) -> None:
        points = {
            "privaudit.attacks": {"gap-attack": "others:GapAttack"},
            "privaudit.trainers": {"prompt-fedavgm": "others:PromptFedAvgM"},
        }
        install(tmp_path / "site", "others", points, code)
        monkeypatch.syspath_prepend(tmp_path / "site")

    return build


def test_an_attack_in_one_file_is_played_reported_and_exported_in_its_own_words(
    gap_attack: None, whole: Path, tmp_path: Path, cli: Cli
) -> None:
    asked = ("--attack", "gap-attack:margin=0.5", "--shadows", "0")
    printed = cli.done("attack", str(whole), *asked)
    (line,) = (x for x in printed.splitlines() if x.startswith("whole, gap-attack:mar"))
    assert line.count("AUROC 0.") == 1
    assert cli("attack", str(whole), *asked, "--quiet")[1].splitlines()[-1] == line
    label, words = "gap-attack:margin=0.5", "margin over the likeliest other class is"
    folder = whole / "audits" / "server-reconstruct"
    results = json.loads((folder / "audit.json").read_text())["attack_results"]
    assert next(iter(results)) == "loss-threshold"  # still what the verdict is about
    assert results[label]["settings"] == "GapAttack(margin=0.5)"
    page = (folder / "report.html").read_text()
    for said in (label, words, "right or wrong: nothing is fitted"):
        assert said in page
    run = Run(whole)
    again = restore_audit(read_audit(run, "server-reconstruct"))
    assert repr(again.scenario.attacks[label]) == "GapAttack(margin=0.5)"
    found = export_public(run, tmp_path / "out")
    assert "gap-attack" in found.card.audits["server-reconstruct"].attacks
    assert verify_card(found.folder, run, again=True).matches


def test_another_packages_attack_and_trainer_are_used_like_ones_own(
    others: Callable[[str], None], tmp_path: Path, cli: Cli
) -> None:
    others(GAP_ATTACK + SERVER_MOMENTUM)
    quick = ("--rounds", "2", "--set", "epochs=1", "--clients", "3", "--quiet")
    made = ("--trainer", "prompt-fedavgm:beta=0.5", "--name", "theirs")
    code, _, err = cli("train", "--seed", 0, *made, *quick)
    assert (code, err) == (0, "")
    asked = ("attack", "theirs", "--shadows", "0", "--attack", "gap-attack")
    assert cli(*asked)[0] == 0
    _, listed, _ = cli("list", "prompt-fedavgm")
    assert "Share of the last step." in listed
    assert "Installed by others 1.2." in listed
    run = Run(Path(os.environ["PRIVAUDIT_RUNS"]) / "theirs")
    found = export_public(run, tmp_path / "out")
    assert found.card.training.trainer == "prompt-fedavgm"
    assert "gap-attack" in found.card.audits["server-reconstruct"].attacks
    page = (run.path / "audits/server-reconstruct/report.html").read_text()
    assert "<dt>trainer from</dt><dd>others 1.2</dd>" in page
    assert "GapAttack(margin=0.0) of others 1.2" in page
    assert verify_card(found.folder, run, again=True).matches


def test_a_package_that_cannot_be_imported_stops_only_who_asks_for_it(
    others: Callable[[str], None], cli: Cli
) -> None:
    others("import nothing_of_that_name")
    code, _, err = cli("train", "--seed", 0, "--trainer", "prompt-fedavgm")
    assert (code, err.count("\n")) == (2, 1)
    assert "'prompt-fedavgm' of the package others 1.2 cannot be used" in err
    assert "Install what provides nothing_of_that_name, or remove" in err
    for what in ("attacks", "trainers"):
        assert "of the package others 1.2 cannot be used" in cli.done("list", what)
    assert cli("train", "--seed", 0, "--rounds", "1", "--clients", "2")[0] == 0
    with pytest.raises(PluginError):
        Auditor().attack(attacks=["gap-attack"])


def test_a_plugin_that_ends_the_process_is_no_success(
    others: Callable[[str], None], cli: Cli
) -> None:
    code = GAP_ATTACK + SERVER_MOMENTUM
    for line in ("margins = [", "step = "):
        assert code.count(f"        {line}") == 1
        code = code.replace(f"        {line}", f"        exit()\n        {line}")
    others(code)
    says = r"others\.py ended the process \(sys\.exit\) in line .*, while it was called"
    quick: dict[str, Any] = {"rounds": 1, "clients": 2, "epochs": 1}
    with pytest.raises(PluginError, match=says):
        train("prompt-fedavgm", **quick)
    run = train("promptfl", name="sound", **quick)
    with pytest.raises(PluginError, match=says):
        Auditor(run).attack(attacks=["gap-attack"], shadows=0)
    exit_code, out, err = cli("attack", "--attack", "gap-attack", "--shadows", "0")
    assert (exit_code, out) == (2, "")
    assert re.search(says, err)


def test_what_is_no_longer_installed_is_said_to_be_left_out(
    gap_attack: None, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(whole)
    save_audit(Auditor(run).attack(attacks=["gap-attack"], shadows=0))
    monkeypatch.undo()
    del ATTACKS._entries["gap-attack"]
    audit = restore_audit(read_audit(run, "server-reconstruct"))
    page = tmp_path / "page.html"
    write_report([audit], page)
    assert "gap-attack" in page.read_text()
    found = export_public(run, tmp_path / "out")
    shown = found.card.audits["server-reconstruct"]
    assert "gap-attack" not in shown.attacks
    assert shown.unnamed == 1


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("gap-atack", "No attack is called 'gap-atack'.* Did you mean 'gap-attack'"),
        ("gap-attack:width=1", "'gap-attack' has no parameter 'width'.*margin"),
        ("gap-attack:margin=a", "cannot take margin = 'a'"),
        ("gap-attack:margin", "sets nothing"),
        ("gap-attack:", "lacks a parameter"),
        ("lira:shadows=4", "cannot take shadows = '4'"),
        ("shadow:hidden=9999999", "at most 1,000,000"),
        ("token-loss:slice=answer\n", "cannot take slice"),
    ],
)
def test_a_misspelt_attack_is_refused_before_anything_is_loaded(
    gap_attack: None, attack: str, why: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_names = import_module("privaudit.runs.run")
    monkeypatch.setattr(run_names, "latest_runs", None)
    cli.refused("attack", "--attack", attack)
    with pytest.raises(ConfigError, match=why):
        named_attacks([attack], 0)


def test_an_attack_on_other_models_than_the_runs_is_refused(whole: Path) -> None:
    unchecked: Any = inspect.unwrap(Auditor.attack)  # as it runs outside of tests
    with pytest.raises(AttackError, match="'min-k' was requested, and the run's model"):
        unchecked(Auditor(Run(whole)), attacks=["min-k"], shadows=0, seed=np.int64(3))


class Gives:
    """An attack that gives the scores that it was made with."""

    threshold: ClassVar[str] = "none"
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    def __init__(self, change: Callable[[Scores], Any]) -> None:
        self.change = change

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Any]:
        """Change what would be right."""
        sizes = [len(target.candidates) for target in targets]
        right = [Scores(np.zeros(n), np.zeros(n, bool)) for n in sizes]
        given = [self.change(scores) for scores in right]
        return [one for one in given if one is not None]


def altered(made: Scores, **values: Any) -> Scores:
    """Put values in that the type checks of tests would not let in."""
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda s: altered(s, scores=s.scores[1:]), "scores of shape .* candidates of"),
        (lambda s: altered(s, guesses=s.guesses[:, None]), "guesses of shape"),
        (lambda s: altered(s, guesses=s.scores), "not True or False"),
        (lambda s: replace(s, scores=s.scores + np.nan), "not finite"),
        (lambda s: altered(s, scores=s.scores.tolist()), "as a list, and not as an ar"),
        (lambda s: altered(s, left_out=[s.scores]), "without some shadows as a list"),
        (lambda s: altered(s, scores=s.scores.astype(str)), "not finite numbers"),
        (lambda s: altered(s, scores=s.scores + 0j), "not finite numbers"),
        (lambda s: s.scores, "a ndarray for client-0, and not Scores"),
        (lambda s: None, "0 results for"),
    ],
)
def test_an_attack_that_gives_something_else_is_named_with_its_fault(
    change: Callable[[Scores], Any], fault: str, whole: Path
) -> None:
    with pytest.raises(
        AttackError, match=f"'mine' gave .*{fault}.*fault of the attack"
    ):
        Auditor(Run(whole)).attack(attacks={"mine": Gives(change)}, shadows=0)


@pytest.mark.parametrize(
    ("without", "why"),
    [
        (
            '    threshold: ClassVar[str] = "right or wrong: nothing is fitted"',
            "no thres",
        ),
        ('    task: ClassVar[AnyTask] = "classification"', r"GapAttack\) has no task"),
        ("@dataclass(frozen=True)", "is no dataclass"),
    ],
)
def test_an_attack_that_lacks_something_is_refused_when_it_is_named(
    without: str, why: str, others: Callable[[str], None]
) -> None:
    others(GAP_ATTACK.replace(without, ""))
    with pytest.raises(ConfigError, match=why):
        named_attacks(["gap-attack"], 0)


def test_a_trainer_that_lacks_something_leaves_no_folder(
    others: Callable[[str], None],
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    others(
        "from pydantic.dataclasses import dataclass\n"
        "from privaudit.federation.trainer import BaseTrainer\n"
        "@dataclass(frozen=True)\n"
        "class PromptFedAvgM(BaseTrainer):\n    def query(self): ...\n"
    )
    err = cli.refused("train", "--seed", 0, "--trainer", "prompt-fedavgm")
    assert "(others.PromptFedAvgM) has no local_update. Inherit from BaseTrainer" in err
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


@pytest.fixture
def noised(
    forgotten: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    """Install trainers that declare noise; train one of them."""
    points = {"privaudit.trainers": NOISED}
    install(tmp_path / "site", "quiet", points, QUIET)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return lambda name, **more: train(name, name=name, rounds=2, clients=3, **more)


def test_what_another_packages_trainer_declares_is_certified_nowhere(
    noised: Callable[..., Run], tmp_path: Path, cli: Cli
) -> None:
    run = noised("quiet-promptfl", epsilon=8)
    proofs = run.privacy["certified"].values()
    assert {proof["epsilon"] for proof in proofs} == {None}
    assert all(7 < proof["declared"] <= 8 for proof in proofs)
    printed = cli("attack", "quiet-promptfl", "--shadows", "0")[1]
    audit = restore_audit(read_audit(run, "server-reconstruct"))
    assert (audit.claimed_epsilon, audit.certified_epsilon) == (8, None)
    assert audit.declared_epsilon == pytest.approx(7.9, abs=0.1)
    page = tmp_path / "page.html"
    write_report([audit], page)
    found = export_public(run, tmp_path / "out")
    card = found.card.privacy.certified["server"]
    assert (card.epsilon, card.declared) == (None, audit.declared_epsilon)
    assert verify_card(found.folder, run, again=True).matches
    assert "8, declared 7." in page.read_text() or ">declared 7." in page.read_text()
    for text in (page.read_text(), str(audit.assurance), printed):
        assert "declared" in text
        assert not re.search(r"(certified|proved)[^.;]{0,12} (ε = )?\(?7\.", text)


def test_lint_tries_another_packages_trainer_out_without_being_asked(
    noised: Callable[..., Run], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = partial(try_mechanisms, most=100)
    monkeypatch.setattr("privaudit.checks.lint.linter.try_mechanisms", few)
    noised("quiet-promptfl", epsilon=8)
    code, printed, _ = cli("lint", "quiet-promptfl")
    assert code == 1
    assert "error: mechanisms-tried: What the view server holds is the same" in printed
    noised("honest-means")
    printed = cli.done("lint", "honest-means", "--trial", "60")
    assert "note: mechanisms-tried: 100 rounds with a record and 100 without" in printed
    assert "not tried out" in cli("lint", "honest-means", "--trial", "0")[1]


def test_claim_takes_another_packages_trainer_as_it_is(
    noised: Callable[..., Run], cli: Cli, tmp_path: Path
) -> None:
    numbers, asked = tmp_path / "numbers.json", ("claim", "--trainer", "silent-means")
    assert "--seed was given" in refused(cli, *asked, "--seed", "7")
    code, printed, _ = cli(*asked, "--out", numbers)
    assert code == 1
    assert "the same under every secret key" in printed
    assert json.loads(numbers.read_text())["faults"]
