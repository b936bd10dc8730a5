"""The order of strength: of attacks, and of the gate's settings."""

from dataclasses import fields, replace
from typing import Any

import pytest

from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.strength import (
    AS_STRICT,
    AttackStrength,
    Relation,
    that_options_choose,
    weaker_settings,
)

RMIA = "Rmia(shadows={}, mode='{}', gamma=1.0, a=None)"
BEFORE = AttackStrength(RMIA.format(8, "online"), "", ("a", "b"), (20, 21))


@pytest.mark.parametrize(
    ("changes", "relation", "why"),
    [
        ({}, "same", ""),
        (
            {"settings": RMIA.format(16, "online")},
            "stronger",
            "shadows is 16 and not 8",
        ),
        ({"settings": RMIA.format(6, "online")}, "weaker", "shadows is 6 and not 8"),
        ({"settings": RMIA.format(8, "offline")}, "another", "mode='offline'"),
        ({"settings": RMIA.format(16, "offline")}, "another", "mode='offline'"),
        (
            {"settings": "Weak(shadows=8, mode='online', gamma=1.0, a=None)"},
            "another",
            "",
        ),
        ({"settings": "Rmia(shadows=8)"}, "another", ""),
        ({"settings": RMIA.format("many", "online")}, "another", ""),
        ({"settings": "64 shadows, by hand"}, "another", "by hand"),
        ({"package": "others 1.2"}, "another", "others 1.2 and not built in"),
        ({"clients": ("a", "b", "c")}, "same", ""),
        ({"clients": ("a", "c")}, "weaker", "not attacked: b"),
        ({"n": (20, 20)}, "weaker", "it has 20 + 20 candidates and not 20 + 21"),
        ({"n": (20, 22)}, "same", ""),
    ],
)
def test_an_attack_is_placed_beside_the_baselines(
    changes: dict[str, Any], relation: Relation, why: str
) -> None:
    found, said = replace(BEFORE, **changes).than(BEFORE)
    assert found == relation
    assert why in said


def test_more_shadows_do_not_make_up_for_a_client_that_is_missing() -> None:
    now = AttackStrength(RMIA.format(16, "online"), "", ("a",), (20, 21))
    assert now.than(BEFORE) == ("weaker", "not attacked: b")


def test_numbers_that_do_not_say_how_they_were_made_are_another_attacks() -> None:
    assert BEFORE.than(AttackStrength(None))[0] == "another"
    assert BEFORE.than(AttackStrength(BEFORE.settings))[0] == "same"


def test_what_no_option_leaves_out_is_not_asked_for() -> None:
    made = {"rmia": BEFORE, "loss-threshold as server-aggregate": BEFORE}
    assert [*that_options_choose(made, "server-reconstruct")] == ["rmia"]


USUAL = GateSettings()
FULL = GateSettings(
    metrics=("auroc", "success", "utility"), attacks=("rmia", "lira"), max_auroc=0.6,
    min_utility=0.8, shadows=16, clients=4, baseline="b.json",
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "changes", "weaker"),
    [
        (USUAL, {}, []),
        (FULL, {}, []),
        (USUAL, {"metrics": ("utility",)}, ["metrics"]),
        (USUAL, {"metrics": ("utility", "success", "auroc")}, []),
        (USUAL, {"guarantees": False}, ["guarantees"]),
        (replace(USUAL, guarantees=False), {"guarantees": True}, []),
        (USUAL, {"margin": 0.06}, ["margin"]),
        (USUAL, {"margin": 0.04, "utility_margin": 0.2}, ["utility_margin"]),
        (USUAL, {"alpha": 0.1}, ["alpha"]),
        (USUAL, {"alpha": 1e-9}, ["alpha"]),  # no regression would be one
        (USUAL, {"attacks": ("entropy",)}, ["attacks"]),
        (USUAL, {"attacks": ("entropy", "rmia")}, []),  # rmia is the headline
        (FULL, {"attacks": ("rmia",)}, ["attacks"]),
        (FULL, {"max_auroc": 0.61}, ["max_auroc"]),
        (FULL, {"max_auroc": None}, ["max_auroc"]),
        (FULL, {"max_auroc": 0.5, "min_utility": 0.9}, []),
        (FULL, {"min_utility": 0.7}, ["min_utility"]),
        (FULL, {"min_utility": None}, ["min_utility"]),
        (FULL, {"shadows": 8}, ["shadows"]),
        (FULL, {"shadows": None}, ["shadows"]),
        (USUAL, {"shadows": 0}, ["shadows"]),
        (FULL, {"shadows": 64, "clients": "all"}, []),
        (FULL, {"clients": 3}, ["clients"]),
        (FULL, {"clients": None}, []),
        (USUAL, {"clients": 1}, ["clients"]),
        (FULL, {"baseline": None}, ["baseline"]),
        (FULL, {"baseline": "c.json"}, ["baseline"]),
        (USUAL, {"baseline": "c.json"}, []),
        (USUAL, {"scenario": "curious-peer"}, ["scenario"]),
        (
            replace(USUAL, scenario="curious-peer"),
            {"scenario": "server-reconstruct"},
            [],
        ),
    ],
)
def test_a_setting_that_asks_for_less_is_found(
    before: GateSettings, changes: dict[str, Any], weaker: list[str]
) -> None:
    found = weaker_settings(replace(before, **changes), before, "rmia")
    assert [name for name, _, _ in found] == weaker


def test_every_setting_has_an_order() -> None:
    assert {*AS_STRICT} == {one.name for one in fields(GateSettings)}
