import math
from dataclasses import replace
from typing import Any

import pytest

from privaudit.evaluation.metric import METRICS
from privaudit.statistics.captions.scores import METRICS as CAPTION_METRICS
from privaudit_tools.tables.metrics import (
    PLAIN,
    attack_of,
    check_metrics,
    lacks_owner,
    largest,
    scale,
)
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.utility_words import title

ATTACKS = ("loss-threshold", "token-loss", "max-renyi image 10 % order 2")


def plan_of(**changes: Any) -> TablePlan:
    asked = {
        "title": "t",
        "seeds": [1],
        "rows": [
            {"label": "a", "trainer": "lora-fedavg", "whose": "server"},
            {"label": "b", "trainer": "lora-fedavg", "whose": "client"},
        ],
    }
    return TablePlan.model_validate(asked | changes)


@pytest.mark.parametrize("name", CAPTION_METRICS)
def test_every_metric_of_captions_is_one_of_a_table(name: str) -> None:
    for who in ("server", "clients", "elsewhere"):
        assert f"{who} {name}" in PLAIN
        assert attack_of(f"{who} {name}") is None


def test_a_metric_that_is_no_plain_one_is_an_attack_on_somebodys_model() -> None:
    assert attack_of("client token-loss") == attack_of("token-loss") == "token-loss"
    assert attack_of(f"server {ATTACKS[2]}") == ATTACKS[2]
    assert attack_of("client rmia success") == attack_of("rmia success") == "rmia"
    assert lacks_owner("token-loss")
    assert lacks_owner("rmia success")
    assert not lacks_owner("client rmia success")
    assert not lacks_owner("server token-loss")
    assert not lacks_owner("server exact match")


def test_another_metric_of_attacks_is_named_behind_the_attack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(METRICS.find("success"), code="advantage", heading="Advantage")
    assert attack_of("client rmia advantage") == "rmia advantage"
    monkeypatch.setitem(METRICS._entries, "advantage", other)
    assert attack_of("client rmia advantage") == "rmia"
    assert lacks_owner("rmia advantage")
    check_metrics(["server token-loss advantage"], "some-scenario", ATTACKS)
    plan = plan_of(metrics=["client token-loss advantage"])
    assert title(plan, plan.measured[0]) == (
        "Advantage of token-loss on reconstructed models"
    )


def test_units_by_hand() -> None:
    """1.11 of coco-caption's CIDEr is printed as 111, as papers do."""
    assert scale("server CIDEr-D") * 1.11 == pytest.approx(111)
    assert largest("server CIDEr-D") == 1000
    assert scale("client token-loss") * 0.702 == pytest.approx(70.2)
    assert (scale("megabytes per round"), largest("local")) == (1, 100)
    assert largest("megabytes per round") == math.inf


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("server BLUE-1", "did you mean 'server BLEU-1'"),
        ("clients token-loss", "did you mean 'client token-loss'"),
        ("server max-renyi picture 10 % order 2", "image 10 % order 2'"),
        ("megabytes", "did you mean 'megabytes per round'"),
        (
            "xyz",
            "there are local, neighbour, mix, all, megabytes per round; local or mix "
            "with 'on' and a domain; server, ",
        ),
    ],
)
def test_a_wrong_name_is_refused_with_a_hint(metric: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"is no metric; .*" + says):
        check_metrics(["local", metric], "some-scenario", ATTACKS)


def test_a_bare_attack_is_read_as_the_row_says() -> None:
    plan = plan_of(metrics=["token-loss", "server BLEU-1"])
    assert [plan.read_as("token-loss", row) for row in plan.rows] == [
        "server token-loss",
        "client token-loss",
    ]
    assert plan.wanted == ("server token-loss", "client token-loss", "server BLEU-1")
    assert plan.results
    assert not plan_of(metrics=["server BLEU-1", "local"]).results


PANEL = {"label": "Server", "metrics": ["server BLEU-1", "server CIDEr-D"]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"panels": [PANEL], "metrics": ["local"]}, "metrics and panels are given"),
        ({"panels": [PANEL, PANEL]}, "metrics hold server BLEU-1, server CIDEr-D more"),
        ({"panels": [PANEL | {"heads": ["B"]}]}, "1 heads for 2 metrics"),
        (
            {"panels": [PANEL], "columns": [{"label": "1"}, {"label": "2"}]},
            "panels have metrics as columns, and there are 2 columns",
        ),
        (
            {"metrics": ["elsewhere BLEU-1"]},
            "measured elsewhere, and the plan does not",
        ),
        (
            {"metrics": ["token-loss"], "rows": [{"label": "a", "trainer": "coop"}]},
            "'token-loss' does not say whose model is attacked: write 'server token-l",
        ),
        ({"panels": [PANEL], "paper": {"local": {"a": 1}}}, "paper names 'local'"),
        (
            {"panels": [PANEL], "paper": {"server BLEU-1": {"a": 101}}},
            "paper.server BLEU-1.a: 101 is no number of a paper: .* is at most 100",
        ),
        (
            {"panels": [PANEL], "paper": {"server CIDEr-D": {"a": 1001}}},
            "1001 is no number of a paper: server CIDEr-D is at most 1000",
        ),
    ],
)
def test_a_plan_whose_metrics_do_not_go_together_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        plan_of(**changes)


def test_a_papers_cider_is_beyond_a_hundred() -> None:
    plan = plan_of(panels=[PANEL], paper={"server CIDEr-D": {"a": "111.08±0.76"}})
    found = plan.printed("server CIDEr-D", "a", "accuracy")
    assert found
    assert (found.mean, found.spread) == (111.08, 0.76)


def test_heads_leave_out_the_owner_that_stands_above_all_of_them() -> None:
    (named,) = plan_of(panels=[PANEL]).panels
    assert [named.head(m) for m in named.metrics] == ["BLEU-1", "CIDEr-D"]
    (bare,) = plan_of(panels=[PANEL | {"label": ""}]).panels
    assert [bare.head(m) for m in bare.metrics] == PANEL["metrics"]
    (given,) = plan_of(panels=[PANEL | {"heads": ["B", "C"]}]).panels
    assert [given.head(m) for m in given.metrics] == ["B", "C"]
