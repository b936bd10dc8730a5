"""Scores that were computed elsewhere end as any audit does.

Slips are refused that gave a verdict: masks as scores, wrong words, models in training mode.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privaudit import Auditor, load_run
from privaudit.auditing.audit import Audit
from privaudit.auditing.external_models import (
    as_logits,
    shadow_scores,
    signals_of_logits,
)
from privaudit.auditing.score_table import ScoreTable
from privaudit.auditing.scored_audit import Declared, audit_scores, refuse_mask
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.checks.gate.gate import gate, write_baseline
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    PrivauditError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.evaluation.compare.compare import compare
from privaudit.recording.origins.scores import SCORES, ScoredRun
from privaudit.report.ci_formats import gate_junit, gate_markdown, gate_sarif
from privaudit.report.export import export_public, verify_card
from privaudit.report.index import IndexEntry, write_index
from privaudit.report.page import render_report
from privaudit.report.report_data import Findings, class_sentence
from privaudit.runs.run_header import save_header
from privaudit.statistics.evidence import Limits
from privaudit.statistics.roc import pooled_auroc
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling
from tests.altered_cards import statement_in
from tests.conftest import Cli

ASKED = GateSettings(scenario=SCORES)
COUNT = 120  # of members, and of others


def audit_of(
    shift: float, sampling: Sampling = "coin", *, named: bool = True, seed: int = 0
) -> Audit:
    """Scores of three clinics and two classes, of members higher by so much."""
    rng = np.random.default_rng(seed)
    members, others = rng.normal(size=(2, COUNT)) + np.array([[shift], [0]])
    everybody = np.arange(2 * COUNT)
    return Auditor.from_scores(
        members,
        others,
        clients=[f"clinic {n % 3}" for n in everybody],
        classes=["cat" if n % 2 else "dog" for n in everybody],
        records=everybody if named else None,
        sampling=sampling,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores before and after a change, of members with the lower ones, unnamed ones."""
    place = tmp_path_factory.mktemp("scored")
    for name, audit in {
        "before": audit_of(0.1),
        "after": audit_of(1.5, seed=1),
        "turned": audit_of(-3.0, seed=2),
        "unnamed": audit_of(0.1, named=False),
        "undeclared": audit_of(1.5, "unknown"),
        "undeclared-noise": audit_of(0.0, "unknown"),
    }.items():
        save_audit(audit, place / name)
    return place


@pytest.fixture
def runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(folder))
    return folder


def restored(name: str) -> Audit:
    return restore_audit(read_audit(load_run(name), SCORES))


def test_scores_of_clients_are_ranked_within_each() -> None:
    audit = audit_of(1.0)
    groups = [client.groups for client in audit.headline.clients]
    assert audit.auroc == pooled_auroc(groups)
    assert set(audit.headline.by_client) == {"clinic 0", "clinic 1", "clinic 2"}
    moved = np.concatenate([client.scores for client in audit.headline.clients])
    assert len(moved) == 2 * COUNT
    shifted = [100.0 * (n % 3) for n in range(2 * COUNT)]
    scores = np.random.default_rng(0).normal(size=2 * COUNT)
    apart, plain = (
        Auditor.from_scores(
            one[:COUNT], one[COUNT:], clients=np.arange(2 * COUNT) % 3
        ).auroc
        for one in (scores + shifted, scores)
    )
    assert apart == plain


def test_without_labs_what_is_known_without_the_model_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privaudit.auditing.scored_audit.audit_parts", list)
    with pytest.raises(ConfigError, match=r"PANORAMIA.*pip install \./labs"):
        Auditor.from_scores([1.0, 2.0], [0.0, 1.0], known=np.arange(4))


@pytest.mark.usefixtures("fewer_permutations")
def test_records_that_share_a_coin_count_once() -> None:
    """Ten near-duplicates of each: counted by record, noise would be a leak."""
    rng = np.random.default_rng(0)
    false_alarms = {True: 0, False: 0}
    for _ in range(40):
        patients = np.repeat(rng.normal(size=(2, 20)), 10, axis=1)
        for grouped in false_alarms:
            audit = Auditor.from_scores(
                *patients,
                groups=np.repeat(np.arange(40), 10) if grouped else None,
                sampling="coin",
            )
            false_alarms[grouped] += audit.verdict.kind in ("leaks", "reversed")
    assert audit.auroc.n == (200, 200)
    assert false_alarms[False] > 12
    assert false_alarms[True] <= 5
    audit = Auditor.from_scores(*patients, groups=np.repeat(np.arange(40), 10))
    assert audit.auroc.n == (20, 20)
    assert "groups of records that share a coin" in render_report([audit])


def test_it_reads_as_its_auroc() -> None:
    audit = audit_of(1.0)
    assert str(audit) == f"AUROC {audit.auroc}"
    assert repr(audit) == f"<Audit of scores, scores: AUROC {audit.auroc}>"
    assert audit.verdict == audit.headline.verdict


def test_without_a_coin_a_shift_of_the_data_is_no_leak() -> None:
    """The scores know where a record is from, and no model of anybody's."""
    rng = np.random.default_rng(3)
    sources = rng.normal(1, size=300), rng.normal(size=300)
    audit = Auditor.from_scores(*sources)
    assert audit.auroc.low > 0.7
    assert audit.verdict.kind == "sampling unknown"
    assert "Leaks" not in render_report([audit]).partition("Glossary")[0]
    assert Auditor.from_scores(*sources, sampling="coin").verdict.kind == "leaks"


def test_all_three_ways_take_what_is_known_of_the_records() -> None:
    said = {"clients": list("abab"), "records": list("wxyz"), "sampling": "coin"}
    plain = Auditor.from_scores([3.0, 1.0], [2.0, 0.0], **said, attack="signal")  # type: ignore[arg-type]
    called = Auditor.from_signal(float, [3, 1], [2, 0], **said, attack="signal")
    assert called.to_dict() == plain.to_dict()
    rng = np.random.default_rng(0)
    shadows, is_in = rng.normal(size=(8, 20)), rng.random((8, 20)) < 0.5
    lira = Auditor.from_shadows(
        shadows[0],
        shadows,
        is_in,
        np.arange(20) % 2 == 0,
        clients=np.arange(20) // 10,
        sampling="coin",
    )
    assert (lira.headline.attack, len(lira.headline.clients)) == ("lira", 2)
    assert lira.headline.settings == "shadows=8, scale=log-odds"
    with pytest.raises(ConfigError, match=r"21 scores|20 scores.*shape \(21,\)"):
        Auditor.from_scores(np.arange(10), np.arange(10), clients=range(21))


def test_the_page_shows_groups_and_nothing_of_a_training(runs: Path) -> None:
    audit = audit_of(1.5)
    page = render_report([audit])
    for name in ("clinic 2", "Leakage by class", "Whoever can compute these scores"):
        assert name in page
    for section in ("Reconstructed models", "Utility.", "bytes sent", "signed by"):
        assert section not in page
    alone = render_report([Auditor.from_scores([1.0, 3.0], [0.0, 2.0])])
    assert 'id="panel-roc"' in alone
    assert 'id="panel-clients"' not in alone
    assert 'id="panel-classes"' not in alone
    assert "signed by" in render_report([restored("after")])


def test_a_turned_separation_is_named_wherever_it_is_shown(runs: Path) -> None:
    audits = [restored("turned"), restored("undeclared")]
    page = re.sub("<[^>]*>", "", render_report(audits))
    assert "Of 2 runs, 1 separated with the sign turned, 1 without a verdict." in page
    assert "Separates, sign turned" in page
    assert "with the sign turned: 9" in page  # of 100 pairs


def test_a_folder_gives_the_same_audit_again(runs: Path) -> None:
    audit, again = audit_of(1.5, seed=1), restored("after")
    assert isinstance(again.run, ScoredRun)
    assert again.to_dict() == {**audit.to_dict(), "run": "after"}
    assert again.run.class_names == ("cat", "dog")
    saved = read_audit(again.run, SCORES)
    assert render_report([again], class_names=[saved.class_names]) == render_report(
        [again]
    )


def test_altered_truth_and_scores_are_refused(runs: Path, tmp_path: Path) -> None:
    for name in ("ledger.npz", "audits/scores/scores.npz"):
        save_audit(audit_of(1.0, seed=5), tmp_path / "one")
        foreign = Auditor.from_scores([1.0, 2.0, 4.0], [0.0, 3.0])
        other = save_audit(foreign, tmp_path / "two").parents[1]
        (tmp_path / "one" / name).write_bytes((other / name).read_bytes())
        with pytest.raises(TranscriptError, match="altered"):
            restore_audit(read_audit(load_run(tmp_path / "one"), SCORES))


def test_words_that_a_terminal_would_obey_are_refused(tmp_path: Path) -> None:
    save_audit(audit_of(1.0), tmp_path / "mine")
    header = json.loads((tmp_path / "mine" / "run.json").read_text())
    del header["signature"], header["added"]
    config = {**header["config"], "dataset": "mine\x1b[2J"}
    save_header(tmp_path / "mine", {**header, "config": config})
    with pytest.raises(PrivauditError, match="control character"):
        _ = load_run(tmp_path / "mine").config
    save_header(tmp_path / "mine", {**header, "class_names": ["a", "b\x1b[2J"]})
    with pytest.raises(PrivauditError, match="control character"):
        _ = ScoredRun(tmp_path / "mine").class_names


def test_scores_replace_scores_and_nothing_else(tmp_path: Path) -> None:
    for shift in (0.0, 2.0):
        place = save_audit(audit_of(shift), tmp_path / "mine")
    held = json.loads((place / "audit.json").read_text())
    assert held["attack_results"]["scores"]["verdict"]["kind"] == "leaks"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt and no run"):
        save_audit(audit_of(0.0), tmp_path / "full")
    with pytest.raises(ConfigError, match="lies in no folder"):
        save_audit(audit_of(0.0))


def test_a_gate_compares_each_record_with_itself(runs: Path, tmp_path: Path) -> None:
    file = write_baseline("before", tmp_path / "before.json", scenario=SCORES)
    outcomes = {}
    for name in ("before", "after", "turned"):
        found = gate(name, file, ASKED)
        assert found.paired == "record"
        (check,) = found.checks  # no utility, and no epsilon to lose
        outcomes[name] = found.outcome
    assert outcomes == {"before": "pass", "after": "regression", "turned": "regression"}
    assert "Members have the lower scores now" in check.sentence
    assert 'failures="1"' in gate_junit(found)
    assert "❌ regression" in gate_markdown(found)
    with pytest.raises(IncompatibleRunsError, match="records of unnamed have no names"):
        gate("unnamed", file, ASKED)
    limit = GateSettings(scenario=SCORES, max_auroc=0.9)
    assert "coin" not in gate("unnamed", None, limit).assurance.sentence
    said = gate("undeclared", None, limit)
    assert UNKNOWN_SAMPLING in said.assurance.sentence


@pytest.mark.parametrize("name", ["undeclared", "undeclared-noise"])
def test_without_a_coin_the_gate_decides_nothing(
    runs: Path, tmp_path: Path, name: str
) -> None:
    """Neither a leak beyond the limit nor one that is ruled out."""
    file = write_baseline(name, tmp_path / "same.json", scenario=SCORES)
    found = gate(name, file, replace(ASKED, max_auroc=0.7))
    assert found.exit_code == 3
    assert [check.outcome for check in found.checks] == ["underpowered"] * 2
    assert all(UNKNOWN_SAMPLING in check.sentence for check in found.checks)
    assert 'failures="2"' in gate_junit(found)
    messages = [
        one["message"]["text"] for one in gate_sarif(found)["runs"][0]["results"]
    ]
    assert len(messages) == 2
    assert all(
        said.startswith("No verdict on membership: no coin") for said in messages
    )
    export_public(name, tmp_path / "card")
    with pytest.raises(ConfigError, match="no estimate at attack_results/scores/auroc"):
        gate("before", tmp_path / "card", ASKED, accept_unsigned=True)


def test_without_a_coin_nothing_else_is_a_verdict(runs: Path, tmp_path: Path) -> None:
    same = compare("undeclared", "undeclared", scenario=SCORES)
    assert {entry.change.kind for entry in same.changes} == {"sampling unknown"}
    assert all(UNKNOWN_SAMPLING in entry.sentence for entry in same.changes)
    assert (same.regressed, same.passes) == (False, False)
    audit = restored("undeclared")
    index = write_index(tmp_path, [IndexEntry(audit, tmp_path / "r.html")]).read_text()
    assert "best of 1<" in index
    classes = Findings(audit).classes
    assert {one.standing for one in classes} == {"no verdict"}
    assert class_sentence(classes).startswith("No verdict on any class.")


def test_two_audits_are_compared_by_their_records(runs: Path) -> None:
    found = compare("after", "before", scenario=SCORES)
    assert [change.name for change in found.changes] == [
        "scores AUROC",
        "scores success rate",
        "scores share told at 1 % false alarms",
    ]
    assert found.regressed
    with pytest.raises(IncompatibleRunsError, match="the column record"):
        compare("unnamed", "unnamed", scenario=SCORES)
    other = Auditor.from_scores([1.0, 2.0], [0.0, 3.0], records=list("abcd"))
    save_audit(other, runs / "other")
    with pytest.raises(IncompatibleRunsError, match="other data"):
        compare("other", "before", scenario=SCORES)


def test_a_card_holds_verdicts_and_no_name_of_the_owner_s(
    runs: Path, tmp_path: Path
) -> None:
    shown = export_public("undeclared", tmp_path / "card").card.audits[SCORES]
    card = json.dumps(statement_in(tmp_path / "card"))
    assert (shown.verdict, shown.auroc) == ("sampling unknown", None)
    assert (shown.attacks, shown.settings) == (("scores",), None)
    assert "clinic" not in card
    assert load_run("undeclared").header["data_hash"] not in card
    assert verify_card(tmp_path / "card").matches
    with pytest.raises(ConfigError, match="Leave --again out"):
        verify_card(tmp_path / "card", again=True)


def test_no_attack_can_be_made_on_scores(runs: Path) -> None:
    with pytest.raises(ConfigError, match="holds scores that were computed elsewhere"):
        Auditor("after").attack("black-box", shadows=0)


def test_scores_of_noise_and_a_mask_are_no_leak(rng: np.random.Generator) -> None:
    """As other libraries take them, in either order, of any type; and said to be coins."""
    scores, mask = rng.normal(size=200), rng.random(200) < 0.5
    masks: list[Any] = [mask, mask.astype(int), mask.astype(float)]
    masks.append(mask.astype(float).tolist())
    for one in [*masks, torch.from_numpy(mask)]:
        for pair in ((scores, one), (one, scores)):
            with pytest.raises(ConfigError, match=r"scores\[mask\], scores\[~mask\]"):
                Auditor.from_scores(*pair, sampling="coin")
    whole = np.arange(200) % 7  # whole numbers beside truths
    with pytest.raises(ConfigError, match="looks like a mask"):
        Auditor.from_scores(whole, mask)
    right = Auditor.from_scores(scores[mask], scores[~mask], sampling="coin")
    assert right.auroc.low < 0.5 < right.auroc.high


def test_scores_that_are_0_and_1_are_scores(rng: np.random.Generator) -> None:
    """Of attacks on labels alone, also of as many members as others."""
    members, others = rng.random((2, 150)) < np.array([[0.9], [0.6]])
    for kind in (bool, int, float, np.float32):
        ours, theirs = members.astype(kind), others.astype(kind)
        assert Auditor.from_scores(ours, theirs).auroc.low > 0.5
        assert Auditor.from_scores(ours, theirs[:100]).auroc.low > 0.5
    Auditor.from_scores(rng.random(150), others[:149].astype(float))  # another length
    Auditor.from_scores(rng.random(150), np.ones(150))  # saturated
    Auditor.from_scores([0.9, 0.8, 0.4], [0.7, 0.3, 0.1])


def test_other_words_for_who_is_a_member_are_no_scores(
    rng: np.random.Generator,
) -> None:
    """Of 1 and -1, 1 and 2, or positions, as arrays of both kinds or a list; or classes."""
    scores, mask = rng.normal(size=200), rng.random(200) < 0.5
    where = np.flatnonzero(mask)
    with pytest.raises(ConfigError, match="it looks like classes"):
        Auditor.from_scores(scores, rng.integers(0, 9, size=200))
    with pytest.raises(ConfigError, match="it looks like a mask"):
        Auditor.from_scores(rng.integers(0, 9, size=200), mask.astype(int))
    said: list[Any] = [np.where(mask, 1, -1), np.where(mask, -1.0, 1.0), mask + 1]
    said += [
        where,
        where.astype(float),
        where.astype(float).tolist(),
        rng.permutation(where),
    ]
    for one in said:
        for pair in ((scores, one), (one, scores)):
            with pytest.raises(ConfigError, match=r"it looks like a (mask|list) of"):
                Auditor.from_scores(*pair, sampling="coin")


def test_scores_that_tell_nobody_apart_are_no_all_clear(
    rng: np.random.Generator,
) -> None:
    scores = rng.normal(size=200)
    for pair in ((np.zeros(300), np.zeros(200)), (scores, scores[::-1])):
        with pytest.raises(ConfigError, match="nothing was measured"):
            Auditor.from_scores(*pair, sampling="coin")
    right = np.arange(200) < 120
    Auditor.from_scores(right, rng.permutation(right), sampling="coin")  # as labels are


def test_a_coin_is_not_believed_of_members_that_it_hardly_gives(
    rng: np.random.Generator,
) -> None:
    """A card would divide by pairs that fair coins give: 0.592 was said of 0.923."""
    few, many = rng.normal(size=30), rng.normal(2, size=570)
    with pytest.raises(ConfigError, match=r"570 of 600 .* fair coin .* 10\^8"):
        Auditor.from_scores(many, few, sampling="coin")
    halves = ["a"] * 100 + ["b"] * 100
    with pytest.raises(ConfigError, match="100 of 100"):
        Auditor.from_scores(
            many[:100], few.repeat(4)[:100], clients=halves, sampling="coin"
        )
    assert Auditor.from_scores(many, few, sampling="population").auroc.value > 0.8


@pytest.mark.parametrize("sampling", ["coin", "split"])
def test_one_wrong_row_makes_no_coins_of_records(sampling: str) -> None:
    """Nothing leaks, patients' records are alike: by record 17 of 60 tables would "leak"."""
    group = np.repeat(np.arange(60), 5)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn, scores = rng.random(60) < 0.5, rng.normal(size=60)[group]
        is_member = drawn[group]
        is_member[7] ^= True
        table = ScoreTable.of(scores + rng.normal(0, 0.3, 300), is_member, groups=group)
        with pytest.raises(ConfigError, match=r"59 of 60 .* '5, 6, 7, 8, 9' [14] of 5"):
            audit_scores(table, Declared(sampling=sampling))


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.usefixtures("fewer_permutations")
def test_records_of_a_group_may_have_coins_of_their_own(size: int) -> None:
    clients = np.repeat(["few members", "many"], 60)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        for sampling, share in (("coin", 0.5), ("split", np.repeat([0.1, 0.9], 60))):
            scores, is_member = rng.normal(size=120), rng.random(120) < share
            groups = np.arange(120) // size
            table = ScoreTable.of(scores, is_member, clients, groups=groups)
            assert table.cluster is not None
            audit_scores(table, Declared(sampling=sampling))


def test_whole_numbers_on_both_sides_are_scores(rng: np.random.Generator) -> None:
    signs = np.where(rng.random((2, 150)) < 0.6, 1, -1)
    counts = rng.integers(0, 40, size=150)
    for pair in ((*signs,), (counts, signs[0, :149]), (counts, np.arange(100))):
        Auditor.from_scores(*pair)
        Auditor.from_scores(*(one.astype(float) for one in pair[::-1]))
    Auditor.from_scores(rng.random(151), counts)  # with ties: no list of positions
    Auditor.from_scores(np.where(signs[0] > 0, 0.1, 0.9), signs[1])  # two and two
    Auditor.from_scores([0.9, 0.8, 0.4], np.arange(3))


def test_scores_that_look_like_a_mask_have_a_way(rng: np.random.Generator) -> None:
    scores, others = rng.random(50), rng.integers(0, 2, 50)
    with pytest.raises(ConfigError, match=r"add 0\.5"):
        refuse_mask(scores, others)
    found = Auditor.from_scores(scores + 0.5, others + 0.5)
    assert found.auroc.n == (50, 50)


def test_words_that_nobody_knows_are_refused() -> None:
    """Each was taken for the last choice, in silence or with a traceback."""
    likely = torch.softmax(torch.randn(20, 4), dim=1)
    labels = torch.zeros(20, dtype=torch.long)
    unchecked = inspect.unwrap(as_logits)  # as it runs outside of tests
    with pytest.raises(UnknownNameError, match="Did you mean 'probabilities'"):
        unchecked(likely, "probability")
    with pytest.raises(UnknownNameError, match="Known: logits, probabilities"):
        unchecked(likely, "probs")
    with pytest.raises(ConfigError, match="look like probabilities"):
        signals_of_logits(likely, labels)
    with pytest.raises(ConfigError, match="do not lie in"):
        signals_of_logits(likely.log(), labels, "probabilities")
    for outputs in ("logits", "probabilities"):
        with pytest.raises(ConfigError, match="Divide them by 100"):
            signals_of_logits(100 * likely, labels, outputs)
    unchecked, odd = inspect.unwrap(signals_of_logits), likely.log()
    for given, classes, why in (
        ((odd,), labels, "outputs.logits"),
        ({"logits": odd}, labels, "outputs.logits"),
        (odd[:, :1], labels, "one logit x"),
        (odd, labels.float(), r"labels.long\(\)"),
        (odd, np.full(20, "cat"), "without numbers"),
    ):
        with pytest.raises(ConfigError, match=why):
            unchecked(given, classes)
    shadows, is_in = np.zeros((6, 1)), np.arange(6)[:, None] < 3
    scored = inspect.unwrap(shadow_scores)
    with pytest.raises(UnknownNameError, match="Did you mean 'log-odds'"):
        scored(np.ones(1), shadows, is_in, "rmia", "logodds")
    with pytest.raises(ConfigError, match="is_in holds other values"):
        scored(np.ones(1), is_in, shadows + 0.5)
    for score, why in ((3, "in place of a scoring"), (str.split, "returned a list")):
        with pytest.raises(ConfigError, match=why):
            inspect.unwrap(Auditor.from_signal)(score, ["a"], ["b"])
    with pytest.raises(ConfigError, match="Scores of type"):
        inspect.unwrap(Auditor.from_scores)(["in", "out"], [1.0, 2.0])
    table = ScoreTable.of(np.arange(4.0), np.arange(4) < 2)
    said = object.__new__(Declared)
    for name, value in {**vars(Declared()), "sampling": "Coin"}.items():
        object.__setattr__(said, name, value)
    with pytest.raises(UnknownNameError, match="Did you mean 'coin'"):
        inspect.unwrap(audit_scores)(table, said)


class Custom(nn.Module):
    """What no list of layers knows: noise in training mode."""

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return records + torch.randn(1) * self.training


def ways(model: nn.Module) -> list[Callable[[Any], float]]:
    """Return the ways in which a score asks a model."""

    def closed(record: float) -> float:
        return float(model(torch.full((1, 4), record)).detach().sum())

    def given(asked: nn.Module, record: float) -> float:
        return float(asked(torch.full((1, 4), record)).detach().sum())

    class Scorer:
        def __init__(self) -> None:
            self.model = model

        def __call__(self, record: float) -> float:
            return given(self.model, record)

    return [
        Scorer(),
        Scorer().__call__,
        closed,
        lambda record: closed(record),
        functools.partial(given, model),
        functools.wraps(closed)(lambda record: closed(record)),
    ]


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.BatchNorm1d(4), Custom(), nn.Sequential(nn.AlphaDropout())],
)
def test_a_model_in_training_mode_is_not_audited(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    for score in ways(model):
        model.train()
        with pytest.raises(ConfigError, match=r"\.eval\(\)"):
            Auditor.from_signal(score, [3.0, 4.0, 5.0], [1.0, 2.0, 4.0])
        model.eval()
        Auditor.from_signal(score, [3.0, 4.0, 5.0], [1.0, 2.0, 4.0])


def test_modes_that_change_nothing_are_audited(rng: np.random.Generator) -> None:
    """A linear model in training mode, dropout of probability 0, and chance elsewhere."""
    plain = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)).train()
    for score in ways(plain):
        Auditor.from_signal(score, [3.0, 4.0, 5.0], [1.0, 2.0, 4.0])
    Auditor.from_signal(lambda x: x + rng.random(), [3.0, 4.0], [1.0, 2.0])


def test_limits_are_said_and_kept(tmp_path: Path, cli: Cli) -> None:
    """What decides is 120 + 120 at limits this wide; the usual ones decide nothing."""
    members, others = np.random.default_rng(1).normal(size=(2, COUNT))
    file = tmp_path / "some.csv"
    rows = [(score, 1) for score in members] + [(score, 0) for score in others]
    lines = "".join(f"{score},{member}\n" for score, member in rows)
    file.write_text(f"score,member\n{lines}")
    usual = Auditor.from_scores(members, others, sampling="coin")
    limits = Limits(margin=0.2, tail_margin=0.3, fpr=0.05)
    wide = Auditor.from_scores(members, others, sampling="coin", limits=limits)
    assert (usual.verdict.kind, wide.verdict.kind) == ("underpowered", "no evidence")
    assert "told at 5 % false alarms, within 30 %" in wide.verdict.sentence
    asked = ["--margin", "0.2", "--tail-margin", "0.3", "--fpr", "0.05"]
    runs = ["--runs", str(tmp_path / "runs")]
    cli.done("scores", file, "--sampling", "coin", *asked, *runs)
    kept = restore_audit(read_audit(load_run(tmp_path / "runs" / "some"), SCORES))
    assert kept.verdict == wide.verdict


def test_members_of_a_coin_and_a_split_are_permuted_and_samples_are_not() -> None:
    """3 % of members stand out: only where a draw assigned them are the highest tested."""
    members, others = np.random.default_rng(1).normal(size=(2, 1000))
    members[:30] += 8
    audits = {
        how: Auditor.from_scores(members, others, sampling=how)
        for how in ("coin", "split", "population", "unknown")
    }
    coin, split, population, unknown = (one.verdict for one in audits.values())
    assert (coin.kind, coin.parts, coin.sentence) == (
        split.kind, ("tail",), split.sentence,
    )  # fmt: skip
    assert "of the 3" in coin.sentence
    assert population.kind == "underpowered"  # the bound knows of the tail all the same
    assert population.test is None
    assert population.tail_bound == coin.tail_bound
    assert (unknown.kind, unknown.evidence) == ("sampling unknown", None)
