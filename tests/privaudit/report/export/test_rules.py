"""Every text that code can write of a privacy record has a rule that knows it."""

import itertools
import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.dominated_views import attack_in_place
from privaudit.auditing.scenario import SCENARIOS
from privaudit.federated.trainer import TRAINERS, Task
from privaudit.federated.trainer_abilities import claim_of
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.privacy.discrete_gaussian import Grid
from privaudit.privacy.events import MechanismEvent, NoiseAt, Release
from privaudit.report.export.allow_list import OMITTED, AllowList, entries, number
from privaudit.report.export.rules import AUDIT, CONFIG, HEADER, LEAK, PRIVACY
from privaudit.report.export.texts import (
    CLAIM,
    MECHANISM,
    WHY,
    attack_words,
    is_label,
    may_leave,
)

CANARY = "a red hat"
Json = st.recursive(
    st.none() | st.booleans() | st.just(CANARY) | st.lists(st.just(CANARY)),
    lambda below: st.lists(below) | st.dictionaries(st.just(CANARY), below),
)
RULES = {"audit": AUDIT, "leak": LEAK, "header": HEADER, "privacy": PRIVACY}


def test_an_unknown_key_is_left_out_with_all_below_it() -> None:
    sieve = AllowList()
    kept = entries({"known": number})(sieve, {"known": 1, "new": {"known": 2}}, "file")
    assert kept == {"known": 1}
    assert sieve.unknown == ["file/new"]


def test_what_a_certificate_allows_of_reconstruction_is_exported() -> None:
    audit = {"reconstruction": {"1000": 0.5, CANARY: 1.0}}
    assert AUDIT(AllowList(), audit, "audit") == {"reconstruction": {"1000": 0.5}}
    assert AUDIT(AllowList(), {"reconstruction": None}, "audit") == {}


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(RULES)))
def test_whatever_stands_under_a_known_key_no_free_text_gets_through(
    data: st.DataObject, name: str
) -> None:
    keys = st.sampled_from(
        ["utility", "local", "value", "method", "n", "config", "settings", "trainer",
         "claimed", "source", "certified", "server", "why", "one_run", "bound",
         "rounds", "attack", "auroc", "by_client", "client-1", "progress", "head",
         "verdict", "kind", "rebuilt", "missing", "closeness", "cosine", CANARY]
    )  # fmt: skip
    tree = st.recursive(Json, lambda below: st.dictionaries(keys, below))
    kept = RULES[name](AllowList(), data.draw(tree), name)
    assert kept is OMITTED or CANARY not in json.dumps(kept)


@pytest.mark.parametrize("view", get_args(CertifiedView))
def test_what_certificates_say_is_known(view: CertifiedView) -> None:
    kinds = itertools.product(get_args(Release), get_args(NoiseAt), (0.0, 1.0))
    for release, noise_at, noise in kinds:
        if release == "local" and noise_at in ("server", "distributed"):
            continue
        event = MechanismEvent(release, noise, 1.0, 1.0, 0.5, "poisson", noise_at, 2)
        discrete = event.on(Grid.of(1.0), 10)
        for rounds in ([[event]], [[event], []], [], [[discrete]]):
            said = certify(rounds, view, 1e-5)
            for rule, text in ((WHY, said.why), (MECHANISM, said.mechanism)):
                assert rule(AllowList(), text, "") == text


@pytest.mark.parametrize("name", TRAINERS.names())
def test_what_trainers_claim_and_take_is_known(name: str, task: Task) -> None:
    from privaudit.federated.runs.config import make_config, parameters_of

    options: list[dict[str, Any]] = [{}]
    if "epsilon" in parameters_of(name):
        options = [
            {"epsilon": 8.0, "mode": mode} for mode in ("sound", "published-paper")
        ]
        options.append({"epsilon": None})
    for chosen in options:
        config = make_config(name, chosen)
        source = claim_of(config.build_trainer(), task).source
        assert CLAIM(AllowList(), source, "") == source
        sieve = AllowList()
        kept = CONFIG(sieve, config.model_dump(), "config")
        assert (sieve.odd, sieve.unknown) == ([], [])
        assert sorted(sieve.withheld) == [
            "config/checkpoint",
            "config/classes",
            "config/data",
            "config/groups",
            "config/image_column",
            "config/label_column",
            "config/owner_column",
            "config/seed",
            "config/sizes",
            "config/template",
            "config/text_column",
            "config/without",
        ]
        assert kept["settings"] == config.settings


@pytest.mark.parametrize("name", ATTACKS.names())
def test_what_attacks_say_of_themselves_may_leave(name: str) -> None:
    words = attack_words(name, repr(ATTACKS.find(name)()))
    assert set(words) == {"description", "settings", "threshold"}


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_what_scenarios_call_their_attacks_may_leave(name: str) -> None:
    plan = SCENARIOS.find(name)(shadows=7)
    for label, attack in plan.attacks.items():
        assert is_label(label)
        assert attack_words(label, repr(attack))["threshold"] == attack.threshold
    named = next(iter(plan.attacks))
    assert all(is_label(attack_in_place(named, weaker)) for weaker in plan.dominates)


@pytest.mark.parametrize(
    "label",
    ["", CANARY, "lira:mode=red", "lira:red=1", "lira as nobody", "lira hat", "lira\n",
     "max-renyi image 11 % order 2", "loss-threshold as black-box as black-box"],
)  # fmt: skip
def test_nobody_can_write_anything_into_an_attacks_name(label: str) -> None:
    assert not is_label(label)


@pytest.mark.parametrize(
    "settings", ["", "a red hat", "Lira(mode='red')", "Lira(red=1)", "Lira()", "1 / 0"]
)
def test_settings_that_no_attack_writes_are_not_said(settings: str) -> None:
    assert set(attack_words("lira", settings)) == {"description"}


@pytest.mark.parametrize(
    "words", ["/home/ann", "in ~/data", "see (../x)", "C:\\x", "http://x", "a" * 301,
              "a\nb", "\x1b[31m", ""],
)  # fmt: skip
def test_words_with_places_or_without_end_stay_here(words: str) -> None:
    assert not may_leave(words)


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        ("tiny-clip", "tiny-clip"),
        ("surrogate:/home/ann/weights", "surrogate"),
        ("llava:ann/secret-model", "llava"),
        ("open_clip:ViT-B-16@openai", "open_clip:ViT-B-16@openai"),
        ("open_clip:/home/ann", OMITTED),
    ],
)
def test_a_models_folder_stays_here(model: str, kept: Any) -> None:
    assert CONFIG(AllowList(), {"model": model}, "config").get("model", OMITTED) == kept
