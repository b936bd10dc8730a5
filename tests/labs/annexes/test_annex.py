import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, train
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import ConfigError
from privaudit.evaluation.card import read_card
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export import export_public
from privaudit.report.export.export import code_digest
from privaudit.runs.run import load_run
from privaudit_labs.annexes.annex import _ROWS, DISCLAIMER, annex_facts, make_annex
from tests.conftest import Cli
from tests.privaudit.cli.test_json import valid
from tests.privaudit.core.test_lazy_torch import HEAVY, without

KINDS = ("edpb", "nist", "aisvs", "model-card", "cyclonedx")


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """The card of an audit of scores that leak for certain."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=300) + 3, rng.normal(size=300)
    audit = Auditor.from_scores(*scores, sampling="coin")
    run = save_audit(audit, tmp_path / "mine")
    (tmp_path / "model").write_bytes(b"weights")
    about: dict[str, Any] = {"release": "api", "models": [tmp_path / "model"]}
    export_public(load_run(tmp_path / "mine"), tmp_path / "card", **about)
    assert run
    return tmp_path / "card"


def test_every_scenario_is_in_an_annex_or_is_of_no_class() -> None:
    tried = {s for row in _ROWS["edpb"]["rows"] for s in row.get("scenarios", [])}
    own = {name for name in SCENARIOS.names() if not SCENARIOS.package_of(name)}
    assert tried - {*SCENARIOS.in_labs()} == own | {SCORES}
    assert set().union(*_ROWS["release"].values()) < tried


def test_what_ran_has_its_result_and_what_did_not_a_reason(card: Path) -> None:
    contents, text = make_annex(annex_facts(str(card)), "edpb")
    rows = {row["item"]: row for row in contents["rows"]}
    membership = rows.pop("membership inference")
    assert membership["status"] == "tested"
    assert membership["said"].startswith("scores (scores): leaks, AUROC 0.9")
    assert {row["status"] for row in rows.values()} == {"not tested"}
    assert rows["model inversion"]["said"] == "it takes server-invert of privaudit-labs"
    assert all(row["said"] in text for row in contents["rows"])
    assert text.rstrip().endswith(DISCLAIMER)


@pytest.mark.parametrize(
    ("release", "status"),
    [("weights", "not tested"), ("api", "not tested"), ("internal", "not applicable")],
)
def test_what_is_released_decides_on_adversaries(
    card: Path, release: str, status: str
) -> None:
    facts = annex_facts(str(card.parent / "mine"), release)  # type: ignore[arg-type]
    rows = {row["item"]: row["status"] for row in facts.rows("edpb")}
    assert rows["regurgitation of training data"] == status
    assert rows["membership inference"] == "tested"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("randomness", "mark"), [("system", ""), ("seed", " (repeatable, not private)")]
)
def test_a_guarantee_is_stated_with_its_unit_and_neighbours(
    tmp_path: Path, randomness: Any, mark: str
) -> None:
    run = train(
        "dp-fpl", rounds=2, clients=2, epsilon=8, randomness=randomness, seed=0,
        settings={"noise_at": "client"},
    )  # fmt: skip
    facts = annex_facts(str(export_public(run, tmp_path / "card").folder))
    rows = {row["item"]: row for row in facts.rows("nist")}
    said = rows["epsilon, delta, unit of privacy, neighbours"]["said"].split("; ")
    assert f"server: epsilon 7.96 at delta 1e-05, record, add/remove-one{mark}" in said
    assert rows["algorithms"]["said"].startswith("discrete-gaussian noise on")
    assert rows["side channels"]["said"] == f"noise drawn from: {randomness}"
    assert rows["bias"]["status"] == "not tested"


def test_no_epsilon_is_stated_without_noise_and_no_auroc_without_coins(
    whole: Path, tmp_path: Path
) -> None:
    facts = annex_facts(str(whole))
    said = [row["said"] for kind in ("nist", "aisvs") for row in facts.rows(kind)]
    assert said.count("no epsilon is certified") == 2
    assert "no epsilon is claimed" in said
    scores = np.arange(50.0) + 9, np.arange(50.0)
    save_audit(Auditor.from_scores(*scores), tmp_path / "mine")
    (found,) = annex_facts(str(tmp_path / "mine")).found
    assert (found.outcome, found.auroc) == ("sampling unknown", None)


def test_a_run_s_annex_has_exact_numbers_and_is_no_model_card(card: Path) -> None:
    facts = annex_facts(str(card.parent / "mine"))
    assert "keep this private" in make_annex(facts, "aisvs")[1]
    for kind in ("model-card", "cyclonedx"):
        with pytest.raises(ConfigError, match="name a card"):
            make_annex(facts, kind)


def test_a_card_of_another_release_is_refused(card: Path) -> None:
    with pytest.raises(ConfigError, match="says api"):
        annex_facts(str(card), "weights")


def test_a_model_card_has_metrics_that_the_hub_reads(card: Path) -> None:
    contents, text = make_annex(annex_facts(str(card)), "model-card")
    front = text.split("---\n")[1].removeprefix("model-index: ")
    assert json.loads(front) == contents["model-index"]
    (result,) = contents["model-index"][0]["results"]
    assert {"task", "dataset", "metrics"} == set(result)
    (metric,) = result["metrics"]
    assert metric["type"] == "auroc"
    assert 0.9 < metric["value"] <= 1


def test_a_bill_of_materials_has_model_tool_and_audit(card: Path) -> None:
    """``make test-twins`` holds it to CycloneDX's schema."""
    contents, text = make_annex(annex_facts(str(card)), "cyclonedx")
    assert json.loads(text) == contents
    said = read_card(card)
    (tool,) = contents["metadata"]["tools"]["components"]
    assert (tool["name"], tool["version"]) == ("privaudit", said.card.privaudit)
    assert tool["hashes"] == [{"alg": "SHA-256", "content": code_digest()}]
    (model,) = contents["components"]
    assert model["type"] == "machine-learning-model"
    digest = hashlib.sha256(b"weights").hexdigest()
    (part,) = model["components"]
    assert part["hashes"] == [{"alg": "SHA-256", "content": digest}]
    (metric,) = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    auroc = said.card.audits["scores"].auroc
    assert auroc
    ends = metric["confidenceInterval"]
    shown = metric["value"], ends["lowerBound"], ends["upperBound"]
    assert tuple(map(float, shown)) == (auroc.value, auroc.low, auroc.high)
    considered = model["modelCard"]["considerations"]
    assert considered["technicalLimitations"][-1] == DISCLAIMER
    tried = considered["ethicalConsiderations"]
    assert [one["name"].partition(":")[0] for one in tried] == ["membership inference"]


def test_annexes_are_read_without_torch(card: Path, cli: Cli) -> None:
    text = ""
    for kind in KINDS:
        text += cli.done("annex", card, "--for", kind)
        (told,) = valid(cli, "annex", card, "--for", kind)
        assert told.get("rows") or told["bomFormat"] == "CycloneDX"
    *before, last = (f"annex {card.name} --for {kind}" for kind in KINDS)
    done = without(*HEAVY, run=last, folder=card.parent, before=before)
    assert (done.returncode, done.stdout) == (0, text), done.stderr
