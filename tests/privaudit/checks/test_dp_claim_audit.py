import inspect
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.checks import dp_claim_audit
from privaudit.checks.dp_claim_audit import (
    ClaimAudit,
    ClaimReadings,
    audit_claim,
    audit_readings,
)
from privaudit.core.errors import ConfigError
from privaudit.runs.config import make_config
from privaudit.runs.population import Population, populate
from privaudit.statistics.claim import Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import IndependentRuns
from privaudit.statistics.epsilon.many_runs import SplitThreshold
from tests.conftest import Cli, refused
from tests.privaudit.execution.some_jobs import LikeOthers

PUBLISHED = {"mode": "published-paper", "epsilon": 0.1, "batch_size": 32}


@cache
def population() -> Population:
    return populate(make_config("dp-fpl", clients=2))


def audit(**options: Any) -> ClaimAudit:
    settings = options.pop("settings", PUBLISHED)
    usual = {"runs": 60, "rounds": 3, "population": population()}
    return inspect.unwrap(audit_claim)("dp-fpl", settings, **{**usual, **options})


def apart(found: ClaimAudit) -> float:
    """Return by how many deviations the scores with and without the canary differ."""
    inside, outside = (found.scores[found.is_member == coin] for coin in (True, False))
    return float((inside.mean() - outside.mean()) / outside.std())


def expected(size: int = 32) -> float:
    """Return what the accountant says of them, at an epsilon of 0.1 and such batches."""
    return float(2 * size * 0.1 / np.sqrt(np.log(1e5)))


@pytest.fixture(scope="module")
def published() -> ClaimAudit:
    return audit(runs=120)


def test_the_published_noise_does_not_keep_what_it_claims(
    published: ClaimAudit,
) -> None:
    assert published.verdict.kind == "REFUTED"
    assert not published.verdict.alarm
    assert 0.1 < published.bound.value < published.bound.ceiling


def test_the_scores_differ_as_the_accountant_says(published: ClaimAudit) -> None:
    """Each round moves by 2 C of noise sqrt(T ln 1/delta) / epsilon C / B.

    So all of them by 2 B epsilon / sqrt(ln 1/delta) standard deviations, 1.89.
    """
    assert apart(published) == pytest.approx(expected(), abs=0.45)


@pytest.mark.parametrize(
    ("records", "settings"), [(40, {"batch_size": 128}), (4, {"clip_global": 500.0})]
)
def test_the_worst_neighbours_stay_the_worst(
    records: int, settings: dict[str, Any]
) -> None:
    """Beside many records, and at other clip norms, the mean is clipped as well."""
    settings = {**PUBLISHED, **settings}
    found = apart(audit(settings=settings, records=records, runs=120))
    assert found == pytest.approx(expected(settings["batch_size"]), rel=0.35)


def test_a_sound_mechanism_is_not_refuted() -> None:
    """Nor by the median of many splits, on the same runs."""
    found = audit(settings={"epsilon": 0.5}, bound="multi-split")
    split = SplitThreshold(delta=1e-5)(IndependentRuns(found.scores, found.is_member))
    for bound in (found.bound, split):
        verdict = judge_claim(Guarantee(0.5, 1e-5), Guarantee(0.5, 1e-5), bound)
        assert verdict.kind in ("NOT REFUTED", "UNDERPOWERED")
        assert not verdict.alarm
    assert "median of 101" in found.to_dict()["bound"]["method"]
    assert found.bound.ceiling < split.ceiling


def test_a_published_claim_is_refuted_for_records_that_are_replaced() -> None:
    """ "Differ in one sample" may mean either, and the worst pairs of both are alike."""
    replaced = audit(runs=120, adjacency="replace-one")
    assert replaced.verdict.kind == "REFUTED"
    assert replaced.bound.adjacency == "replace-one"
    assert "replace-one" in replaced.verdict.sentence
    assert apart(replaced) == pytest.approx(expected(), abs=0.45)


def test_a_sound_claim_is_about_records_that_are_added() -> None:
    found = audit(settings={"epsilon": 8.0}, runs=20, adjacency="replace-one")
    assert found.verdict.kind == "UNTESTABLE"
    assert "the canaries are replace-one" in found.verdict.sentence
    assert not found.verdict.alarm


def test_a_picture_is_replaced_by_a_picture() -> None:
    found = audit(canary="picture", runs=20, adjacency="replace-one")
    assert found.bound.n[0] + found.bound.n[1] == 20


@pytest.mark.parametrize("canary", ["gradient", "mislabelled", "picture"])
@pytest.mark.parametrize("where", ["peer", "released"])
def test_every_canary_is_seen_from_everywhere(canary: Any, where: Any) -> None:
    found = audit(canary=canary, where=where, runs=20, rounds=2)
    assert np.isfinite(found.scores).all()
    assert len(found.scores) == len(found.is_member) == 20
    assert found.to_dict()["where"] == where


def test_the_same_seed_gives_the_same_scores() -> None:
    one, other = audit(runs=20, rounds=2), audit(runs=20, rounds=2)
    np.testing.assert_array_equal(one.scores, other.scores)


def test_a_run_s_score_does_not_depend_on_how_many_others_there_are() -> None:
    few, many = audit(runs=20, rounds=2), audit(runs=24, rounds=2)
    np.testing.assert_allclose(few.scores, many.scores[:20], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": {}}, "claims no epsilon"),
        ({"runs": 5}, "at least 20 runs"),
        ({"records": 0}, "1 record"),
        ({"records": 2000}, "are public"),
        ({"clients": 3}, "clients was given"),
        ({"participation": 0.5}, "does not use it"),
        ({"where": "server"}, "No view is called 'server'.*: peer, released"),
        ({"canary": "pictures"}, "No canary .* 'picture'"),
        ({"bound": "x"}, "No bound is .*: multi-split, split"),
        ({"adjacency": "add-remove"}, "No adjacency is .*: add/remove-one, replace"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        audit(**options)


def test_a_trainer_that_takes_no_canary_is_refused() -> None:
    with pytest.raises(ConfigError, match="chosen gradient"):
        audit_claim("dp-fedotp", {"epsilon": 1.0}, runs=20, population=population())


def test_the_command_says_it_and_exits_with_1(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "claim.json"
    words = "--set mode=published-paper --repeats 100 --rounds 2 --bound multi-split"
    code, said, _ = cli("claim", "--epsilon", 0.1, *words.split(), "--out", out)
    assert code == 1
    assert said.count("REFUTED: ") == said.count("median of 101") == 2
    assert "Refuted whatever neighbours are" in said
    assert said.count("differ in one sample: whether") == 2
    stored = json.loads(out.read_text())
    assert stored["refuted"] is True
    for one, adjacency in zip(
        stored["audits"], ("add/remove-one", "replace-one"), strict=True
    ):
        assert one["bound"]["adjacency"] == adjacency
        assert one["verdict"]["kind"] == "REFUTED"
        assert one["verdict"]["sentence"].endswith(f"Audited is {adjacency}.")
    assert "it has two clients" in refused(cli, "claim", "--field", "clients=3")
    for odd in ("--canary", "--bound", "--adjacency"):
        assert f"{odd} x is unknown" in refused(cli, "claim", odd, "x")


def test_runs_score_the_same_wherever_they_are_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dp_claim_audit, "CLIENTS_AT_ONCE", 16)  # 8 runs together
    seen_counts: list[tuple[int, int]] = []
    few: dict[str, Any] = {"runs": 20, "rounds": 1}
    here = audit(**few)
    there = audit(
        **few,
        executor=LikeOthers(),
        progress=lambda *counts: seen_counts.append(counts),
    )
    assert np.array_equal(here.scores, there.scores)
    assert here.verdict == there.verdict
    assert seen_counts == [(4, 20), (12, 20), (20, 20)]  # the last ones first


def test_a_claim_that_may_mean_either_is_not_refuted_by_one(
    published: ClaimAudit,
) -> None:
    holds = replace(
        published,
        verdict=replace(
            published.verdict,
            kind="UNTESTABLE",
            bound=replace(published.bound, adjacency="replace-one"),
        ),
    )
    found = ClaimReadings([published, holds])
    assert not found.refuted
    assert found.sentence.startswith("Refuted for add/remove-one alone")
    assert ClaimReadings([holds, holds]).sentence == "Refuted for neither adjacency."


def test_a_sound_claim_says_its_adjacency_and_is_audited_once() -> None:
    few: dict[str, Any] = {"runs": 20, "rounds": 1, "population": population()}
    found = audit_readings("dp-fpl", {"epsilon": 0.5}, **few)
    (one,) = found.audits
    assert one.bound.adjacency == "add/remove-one"
    assert "differ in one sample" not in one.sentence
    assert (found.sentence, found.to_dict()) == ("", one.to_dict())
    with pytest.raises(ConfigError, match="about add/remove-one alone"):
        audit_readings("dp-fpl", {"epsilon": 0.5}, "both", **few)
