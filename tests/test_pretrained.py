"""Where other tests have random weights and drawn texts, here both are real."""

import pytest

from privaudit import Auditor, train
from privaudit.auditing.audit import Audit
from tests.conftest import common_cache
from tests.pretrained import ENCODER, SNIPPETS, pretrained

pytestmark = [pytest.mark.weights, pytest.mark.slow]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    with common_cache(tmp_path_factory):
        run = train(
            "fedpt",
            folder=tmp_path_factory.mktemp("runs"),
            model=f"encoder:{pretrained(ENCODER)}",
            dataset="text-table",
            data=str(pretrained(SNIPPETS)),
            clients=2,
            rounds=3,
            measured_rounds=1,
            test_share=0.4,
            public_share=0.2,
            settings={"peft_method": "lora", "epochs": 2, "learning_rate": 0.002},
            seed=0,
        )
        return Auditor(run).attack("server-reconstruct", shadows=0)


def test_adapters_of_a_pretrained_encoder_learn_what_people_think_of_films(
    audit: Audit,
) -> None:
    tests = audit.run.population.tests.labels
    majority = float(tests.bincount().max() / len(tests))
    assert audit.measured_utility.local.low > majority
    gain = audit.measured_utility.gain
    assert gain is not None
    assert gain.low > 0


def test_every_attack_on_them_gives_an_estimate(audit: Audit) -> None:
    candidates = sum(audit.run.population.task.candidates.values())
    for found in audit.results.values():
        assert sum(found.auroc.n) == candidates
        assert 0 <= found.auroc.low <= found.auroc.high <= 1
