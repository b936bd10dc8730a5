import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.attack import Target
from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.parts.one_run import ONE_RUN, OneRunAudit, audit_one_run
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import TooFewRecordsError, TranscriptError
from privaudit.federation.trainer import Reconstruction
from privaudit.report.export.verify import leaves
from privaudit.statistics.epsilon.bound import BOUNDS
from privaudit.trainers.promptfl import PromptFL
from tests.altered_cards import other_value, put
from tests.conftest import toy_records
from tests.plugins import install

CLAIM: dict[str, Any] = {
    "claimed": {"epsilon": 0.5, "delta": 1e-5},
    "certified": {"released": {"epsilon": None, "delta": 1e-5}},
}


def audited(scores: np.ndarray, coins: np.ndarray, **planted: Any) -> OneRunAudit:
    """Hold made-up scores of four clients against a claim of 0.5."""
    parts = np.array_split(np.arange(len(scores)), 4)
    scored = [
        ClientScores(f"client-{n}", p, p * 0, scores[p], coins[p], coins[p])
        for n, p in enumerate(parts)
    ]
    return audit_one_run(
        scored=scored, privacy=CLAIM, view="released",
        **{"canaries": None, "scored_by": "made up", **planted},
    )  # fmt: skip


def test_scores_that_know_refute_a_small_claim() -> None:
    rng = np.random.default_rng(0)
    coins = rng.random(400) < 0.5
    found = audited(coins + 0.1 * rng.random(400), coins)
    assert found.verdict.kind == "REFUTED"
    assert found.bound.value > 3
    assert found.bound.n == (int(coins.sum()), int((~coins).sum()))


def test_scores_that_know_nothing_refute_nothing() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(100):
        coins = rng.random(200) < 0.5
        wrong += audited(rng.random(200), coins).verdict.kind == "REFUTED"
    assert wrong <= 11  # 5 % and three standard errors


def test_clients_are_ranked_apart() -> None:
    """A client whose scores all lie higher gives nothing away by that."""
    rng = np.random.default_rng(2)
    coins = rng.random(400) < 0.5
    scores = coins + 0.1 * rng.random(400)
    shifted = scores + np.repeat([0, 10, 20, 30], 100)
    assert audited(shifted, coins).bound.value == audited(scores, coins).bound.value


BOASTFUL = """
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.statistics.epsilon.bound import OneRunMethod


@dataclass(frozen=True, kw_only=True)
class Boastful(OneRunMethod):
    method = "a boast"
    guesses_in: Annotated[int, Field(ge=1)]

    def values(self, scores, is_member):
        return np.full(len(scores), 9.0)

    def ceiling(self, members, nonmembers):
        return 9.0
"""


def test_another_packages_bound_stands_beside_and_refutes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says of itself that it can refute, and has a value far above the claim."""
    points = {"privaudit.bounds": {"boastful": "boastful_bound:Boastful"}}
    install(tmp_path / "site", "boastful_bound", points, BOASTFUL)
    rng = np.random.default_rng(3)
    coins = rng.random(200) < 0.5
    scores = rng.random(200)
    without = audited(scores, coins)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(BOUNDS, "_entries", dict(BOUNDS._entries))
    found = audited(scores, coins)
    assert (found.bound, found.verdict) == (without.bound, without.verdict)
    assert found.verdict.kind != "REFUTED"
    (boast,) = (one for one in found.others if one.method == "a boast")
    assert (boast.value, boast.can_refute) == (9.0, False)
    assert len(found.others) == len(without.others) + 1


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(TooFewRecordsError, match="8 canaries are too few"):
        audited(np.arange(8.0), np.arange(8) % 2 == 0)


def test_crafted_canaries_are_noticed_where_nothing_protects_them(
    tmp_path: Path,
) -> None:
    """Without noise the released prompt has moved against each gradient that was in."""
    run = train(
        "dp-fpl",
        settings={"mode": "published-paper", "batch_size": 1000},
        folder=tmp_path,
        rounds=3,
        clients=3,
        canary="gradient",
        canaries=60,
        measured_rounds=1,
        seed=0,
        randomness="system",
    )
    audit = Auditor(run).attack("one-run")
    found = audit.part(ONE_RUN)
    assert found is not None
    assert found.bound.value > 0.5
    assert found.verdict.kind == "UNTESTABLE"
    assert sum(found.bound.n) == 180
    saved = save_audit(audit, tmp_path / "saved")
    assert '"one_run"' in (saved / "audit.json").read_text()


def test_drawn_pictures_that_a_model_memorises_are_certain(tmp_path: Path) -> None:
    """All weights of the text tower on few records; the same pictures, nothing trained."""
    bounds = {}
    memorising = {"epochs": 60, "batch_size": 0, "learning_rate": 0.003}
    for trainer, settings in (("full-fedavg", memorising), ("zero-shot", {})):
        run = train(
            trainer, settings=settings, folder=tmp_path, seed=3, rounds=2, clients=2,
            canary="drawn", canaries=60, test_share=0.35, public_share=0.55,
            measured_rounds=1,
        )  # fmt: skip
        found = Auditor(run).attack("one-run", shadows=0).part(ONE_RUN)
        assert found is not None
        bounds[trainer] = found.bound
    assert bounds["zero-shot"].n == bounds["full-fedavg"].n
    assert bounds["zero-shot"].value == 0
    assert bounds["full-fedavg"].value > bounds["full-fedavg"].ceiling / 2


@pytest.mark.parametrize("canary", [None, "mislabelled"])
def test_a_stored_bound_is_what_its_scores_give(
    tmp_path: Path, canary: str | None
) -> None:
    run = train("zero-shot", folder=tmp_path, rounds=1, clients=2, canary=canary)
    save_audit(Auditor(run).attack("one-run", shadows=0))
    stored = read_audit(run, "one-run")
    found = restore_audit(stored).part(ONE_RUN)
    assert found is not None
    candidates = len(stored.columns[stored.attacks[0]]["records"])
    assert sum(found.bound.n) == (20 if canary else candidates)
    entry = {"one_run": stored.contents["one_run"]}
    for place, value in leaves(entry).items():
        is_float = isinstance(value, float)
        other = (value / 2 or 0.5) if is_float else other_value(value)
        forged = put(json.loads(json.dumps(entry)), place, other)
        with pytest.raises(TranscriptError):
            restore_audit(replace(stored, contents={**stored.contents, **forged}))
    fewer = {"one_run": {**entry["one_run"], "others": []}}
    with pytest.raises(TranscriptError):
        restore_audit(replace(stored, contents={**stored.contents, **fewer}))


def test_moving_against_a_gradient_counts() -> None:
    from privaudit.auditing.parts.one_run import _moved_against

    crafted = torch.zeros(2, 1, 2)
    crafted[0, 0, 0], crafted[1, 0, 1] = 3.0, -2.0
    records = toy_records(2)
    target = Target(
        "client-0",
        Reconstruction({"context": torch.tensor([[-5.0, 4.0]])}),
        type(records)(records.features, records.labels, crafted=crafted),
    )
    np.testing.assert_allclose(_moved_against(target, PromptFL()), [5.0, 4.0])
