"""Recorded federations whose models write: attacked on the tokens of their answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, one_hot

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.core.errors import AttackError
from privaudit.core.tensors import Tensors
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from privaudit.report.page import render_report
from privaudit.runs.ledger import Coin, Ledger
from privaudit.runs.run import Run

VOCABULARY, QUESTION, ANSWER = 40, 3, 5
OWNER = np.array([0] * 24 + [1] * 24 + [PUBLIC] * 20 + [TEST] * 10)
WORDS = torch.randint(
    VOCABULARY, (len(OWNER), QUESTION + ANSWER), generator=torch.Generator().manual_seed(0)
)  # fmt: skip


class Bigrams:
    """Which token follows which, given the record's first: a table that memorises."""

    task = "generation"

    def query(self, tensors: Tensors, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        words = WORDS[positions]
        labels = words.clone()
        labels[:, :QUESTION] = -100
        return tensors["table"][words[:, :1], words], labels

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        table = received["table"].clone()
        words = WORDS[positions]
        for step in range(QUESTION - 1, QUESTION + ANSWER - 1):
            table[words[:, 0], words[:, step], words[:, step + 1]] += 2
        return {"table": table}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return record(tmp_path_factory.mktemp("bigrams") / "run")


def record(
    place: Path,
    *,
    learns: bool = True,
    owner: Bigrams | None = None,
    first: dict[str, Tensor] | None = None,
) -> Run:
    """Record a federation that trains on its members, or on public records alone."""
    coin = np.random.default_rng(3).random(len(OWNER)) < 0.5
    ledger = Ledger(OWNER, coin & (OWNER >= 0), coin=Coin("seed", 0))
    server = first or {"table": torch.zeros([VOCABULARY] * 3)}
    owner = owner or Bigrams()
    with Recorder(place, ledger=ledger) as recorder:
        for index in range(2):
            sent = []
            for client in ledger.clients:
                recorder.broadcast(index, client, server)
                trained = ledger.members_of(client) if learns else ledger.public
                sent.append(owner.local_update(server, trained, index))
                recorder.update(index, client, sent[-1])
            server = {
                n: torch.stack([one[n] for one in sent]).mean(dim=0) for n in server
            }
        for client in ledger.clients:
            recorder.broadcast(2, client, server)
    assert recorder.run is not None
    return recorder.run


def audited(run: Run, scenario: str, owner: Any = Bigrams, **options: Any) -> Audit:
    with use_owner(owner()):
        fresh = type(run)(run.path)  # owners are asked once
        return Auditor(fresh).attack(scenario, **options)


@pytest.mark.parametrize(
    "scenario",
    [
        *("server-reconstruct", "server-aggregate", "curious-peer"),
        *("prompt-release", "black-box", "update-watch", "one-run"),
    ],
)
def test_memorised_answers_are_found(run: Run, scenario: str) -> None:
    audit = audited(run, scenario)
    assert audit.auroc.value > 0.95
    assert audit.utility is None
    assert not [n for n in audit.results if "image" in n or n == "perplexity-zlib"]
    assert "token-loss" in render_report([audit])
    if scenario == "server-reconstruct":  # shows what it learns as one that sees less
        assert "token-loss as server-aggregate" in audit.results


class Layered(Bigrams):
    """The same as one layer's product with what stands for a question and a token."""

    def query(self, tensors: Tensors, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        words = WORDS[positions]
        labels = words.clone()
        labels[:, :QUESTION] = -100
        places = one_hot(words[:, :1] * VOCABULARY + words, VOCABULARY**2).float()
        return linear(places, tensors["layer"]), labels

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        layer = received["layer"].clone().requires_grad_()
        logits, labels = self.query({"layer": layer}, positions)
        loss = cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])
        (step,) = torch.autograd.grad(loss, [layer])
        return {"layer": (layer - 1e-3 * step).detach()}


def test_weights_of_a_model_that_writes_carry_the_verdict(tmp_path: Path) -> None:
    first = {"layer": torch.zeros(VOCABULARY, VOCABULARY**2)}
    run = record(tmp_path / "run", owner=Layered(), first=first)
    audit = audited(run, "server-reconstruct", Layered, shadows=0)
    assert audit.headline.attack in ("joint-regression", "projection-residual")
    assert audit.auroc.value > 0.99


def test_nothing_is_found_of_answers_that_were_never_seen(tmp_path: Path) -> None:
    audit = audited(record(tmp_path / "run", learns=False), "server-reconstruct")
    for name in ("token-loss", "min-k-plus-plus", "mod-renyi"):
        found = audit.results[name].auroc
        assert found.low <= 0.5 <= found.high


def test_a_model_without_layers_is_not_asked_about_each_record_alone(run: Run) -> None:
    asked = list[int]()

    class Counting(Bigrams):
        def query(self, tensors: Tensors, positions: np.ndarray) -> Any:
            asked.append(len(positions))
            return super().query(tensors, positions)

    assert "joint-regression" in audited(run, "server-reconstruct", Counting).results
    assert asked.count(1) < len(OWNER)


def test_an_owner_may_measure_utility(run: Run) -> None:
    class Measuring(Bigrams):
        def utility(self, tensors: Tensors, positions: np.ndarray) -> np.ndarray:
            return np.full(len(positions), 0.25)

    audit = audited(run, "prompt-release", Measuring)
    assert audit.measured_utility.local.value == 0.25
    assert audit.measured_utility.metric == "utility"


@pytest.mark.parametrize(
    ("scenario", "attacks", "says"),
    [
        ("black-box-labels", (), "generative models"),
        ("prompt-release", ("perplexity-zlib",), "do not give what it needs"),
        ("prompt-release", ("token-loss:slice=instruction",), "do not give"),
        ("prompt-release", ("max-renyi:slice=image",), "do not give"),
    ],
)
def test_what_answers_alone_do_not_tell_is_refused(
    run: Run, scenario: str, attacks: tuple[str, ...], says: str
) -> None:
    with pytest.raises(AttackError, match=says):
        audited(run, scenario, attacks=attacks)


def test_logits_without_labels_are_refused(run: Run) -> None:
    class Forgetful(Bigrams):
        def query(self, tensors: Tensors, positions: np.ndarray) -> Any:
            return super().query(tensors, positions)[0]

    with pytest.raises(AttackError, match="wanted is a pair"):
        audited(run, "prompt-release", Forgetful)
