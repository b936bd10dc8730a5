from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit import Auditor, train
from privaudit.core.errors import ConfigError, PrivauditWarning
from privaudit.datasets.dataset import Dataset, PixelImages
from privaudit.datasets.sources import load_dataset
from privaudit.datasets.split import PUBLIC, TEST, Split
from privaudit.federation.trainer import Records, Task
from privaudit.models.registry import load_frozen
from privaudit.runs.config import RunConfig, make_config
from privaudit.runs.population import Population, populate
from privaudit.runs.run import Run
from privaudit.runs.utility import mean_accuracy

LABELS = torch.tensor([0, 0, 1, 1, 0, 0, 1, 2, 0, 1])
DOMAINS = torch.tensor([0, 0, 0, 1, 0, 1, 0, 0, 1, 1])
OWNERS = np.array([0, 0, 0, 1, TEST, TEST, TEST, TEST, TEST, TEST])


def small(task: Task, domains: bool) -> Population:
    """Client 0 has classes 0, 0, 1 of domain 0; client 1 has class 1 of domain 1."""
    dataset = Dataset(
        PixelImages(torch.zeros(10, 1, 2, 2)),
        LABELS,
        ("a", "b", "c"),
        domains=DOMAINS if domains else None,
        domain_names=("x", "y") if domains else (),
    )
    records = Records(torch.zeros(10, 12), LABELS)
    return Population(dataset, records, Split(OWNERS), task, "")


def test_own_records_are_of_own_classes_and_own_domains(task: Task) -> None:
    """The tests' classes are 0 0 1 2 0 1, their domains 0 1 0 0 1 1."""
    plain, apart = small(task, domains=False), small(task, domains=True)
    assert plain.own_records("client-0").tolist() == [1, 1, 1, 0, 1, 1]
    assert plain.own_records("client-1").tolist() == [0, 0, 1, 0, 0, 1]
    assert apart.own_records("client-0").tolist() == [1, 0, 1, 0, 0, 0]
    assert apart.own_records("client-1").tolist() == [0, 0, 0, 0, 0, 1]


def test_the_mix_weighs_test_records_as_candidates_are_mixed_by_hand(
    task: Task,
) -> None:
    """2 candidates of class 0 on 3 test records, 1 of class 1 on 2."""
    plain, apart = small(task, domains=False), small(task, domains=True)
    expected = [2 / 3, 2 / 3, 1 / 2, 0, 2 / 3, 1 / 2]
    assert plain.mix("client-0").tolist() == pytest.approx(expected)
    assert apart.mix("client-0").tolist() == [2, 0, 1, 0, 0, 0]
    right = np.array([[1.0, 1, 0, 0, 1, 0]])
    weights = plain.mix("client-0").numpy()[None]
    assert mean_accuracy(right, weights).value == pytest.approx(2 / 3)


def test_the_mix_is_the_accuracy_on_test_records_split_alike(
    task: Task, rng: np.random.Generator
) -> None:
    """Drawing test records in the client's shares gives the weighted mean."""
    population = small(task, domains=False)
    right = np.array([1.0, 0, 1, 0, 0, 0])
    weights = population.mix("client-0").numpy()
    labels, drawn = LABELS[4:].numpy(), []
    for _ in range(4000):
        label = rng.choice([0, 0, 1])
        drawn.append(right[rng.choice(np.flatnonzero(labels == label))])
    weighted = mean_accuracy(right[None], weights[None]).value
    assert np.mean(drawn) == pytest.approx(weighted, abs=0.03)


def test_records_that_a_model_has_seen_become_public() -> None:
    dataset = load_dataset("digits")
    seen = (3, 5, 1700)
    model = load_frozen("tiny-clip")
    model.public_indices, model.data_hash = seen, dataset.hash
    np.testing.assert_array_equal(model.known_records(dataset), seen)
    model.data_hash = "of another data set"
    with pytest.warns(PrivauditWarning, match="Pretrain it again"):
        assert model.known_records(dataset) is None
    model.public_contents = (bytes(dataset.contents[3].tolist()).hex(),)
    cut = load_dataset("digits", classes="three,four")
    np.testing.assert_array_equal(model.known_records(cut), [0])
    assert load_frozen("tiny-clip").known_records(dataset) is None


def test_the_digits_are_split_as_they_always_were() -> None:
    """Integer draws are the same on every machine; the data's hash is of its bytes."""
    population = populate(make_config("zero-shot"))
    split = population.split
    assert population.dataset.hash.startswith("5190f3682ae30381")
    assert [len(split.of(owner)) for owner in (TEST, PUBLIC)] == [539, 719]
    assert split.of(TEST)[:5].tolist() == [2, 8, 9, 10, 17]
    assert [len(split.of(client)) for client in range(3)] == [56, 53, 58]


def test_a_configuration_of_an_earlier_version_is_read(whole: Path) -> None:
    now = Run(whole).config.model_dump()
    new = {"data", "shots", "members", "measured_rounds"}
    before = {k: v for k, v in now.items() if k not in new}
    before |= {"test_share": 0.3, "public_share": 0.4}
    then = RunConfig(**before)
    assert (then.data, then.shots, then.members) == (None, None, "coin")
    owner = populate(then).split.owner
    np.testing.assert_array_equal(owner, Run(whole).population.split.owner)


def test_a_run_on_all_candidates_measures_utility_and_refuses_audits(
    tmp_path: Path,
) -> None:
    run = train("zero-shot", members="all", shots=4, clients=2, folder=tmp_path, seed=0)
    assert run.ledger.is_member.sum() == (run.population.split.owner >= 0).sum() == 40
    with pytest.raises(ConfigError, match=r"members from\. Use .* coin\)\.$"):
        Auditor(run)


def test_a_run_without_public_records_trains_on_all_that_are_not_tested(
    tmp_path: Path,
) -> None:
    def trained(name: str) -> Run:
        return train(
            "promptfl", epochs=1, members="all", public_share=0, tested=20, clients=2,
            rounds=1, seed=1, folder=tmp_path, name=name,
        )  # fmt: skip

    run, again = trained("one"), trained("again")
    owner = run.population.split.owner
    assert [(owner == one).sum() for one in (PUBLIC, TEST)] == [0, 539]
    assert run.ledger.is_member.sum() == len(owner) - 539
    assert 0 <= run.metrics[-1]["local_accuracy"] <= 1
    assert run.transcript.head == again.transcript.head
    with pytest.raises(ConfigError, match=r"nor reference records for .* above 0\."):
        Auditor(run)
