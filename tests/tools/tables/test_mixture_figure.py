from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from privaudit import train
from privaudit.cli.main import app
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.runs.run import Run
from privaudit.trainers.pfedmoap import PFedMoAP
from privaudit.tuning.prompts.experts import start_linear
from privaudit_tools.tables.mixture_figure import (
    expert_weights,
    linear_weights,
    mixture_figure,
    mixture_weights,
    write_mixture_figure,
)
from tests.toy_federation import Play


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    return train(
        "pfedmoap", folder=folder, rounds=2, clients=4, epochs=2, name="mixed", seed=0
    )


def test_weights_sum_to_one_and_others_fall(run: Run) -> None:
    local, *others = mixture_weights(run)
    assert len(others) == 3
    assert local.n == (4,)
    values = [weight.value for weight in others]
    assert values == sorted(values, reverse=True)
    assert local.value + sum(values) == pytest.approx(1, abs=1e-5)


def test_weights_are_means_over_clients_by_hand(run: Run) -> None:
    trainer, population = PFedMoAP(epochs=2), run.population
    means = []
    for client, model in run.personal_models.items():
        tests = population.tests.pick(population.own_records(client))
        weights = expert_weights(trainer, population.task, model, tests)
        largest = weights[:, 1:].max(dim=1).values
        means.append([float(weights[:, 0].mean()), float(largest.mean())])
    local, first, *_ = mixture_weights(run)
    expected = np.mean(means, axis=0)
    assert [local.value, first.value] == pytest.approx(expected, rel=1e-5)
    assert torch.isfinite(torch.tensor([local.low, local.high])).all()


def test_each_run_gets_a_panel(run: Run) -> None:
    assert len(mixture_figure([run, run]).axes) == 2


def test_the_picture_is_one_command_away(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "weights.svg"
    done = CliRunner().invoke(
        app, ["figure", "attention", str(run.path), "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("<svg")
    write_mixture_figure([run], tmp_path / "weights.png")
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_experts_and_odd_names_are_refused(
    run: Run, tmp_path: Path
) -> None:
    plain = train("promptfl", folder=tmp_path, rounds=1, clients=4, epochs=1, seed=0)
    with pytest.raises(ConfigError, match="mixes experts"):
        mixture_weights(plain)
    with pytest.raises(ConfigError, match="ends with"):
        write_mixture_figure([run], tmp_path / "weights.gif")


@pytest.mark.parametrize("gate", ["attention", "linear"])
def test_weights_of_every_gate_sum_to_one(
    gate: Literal["attention", "linear"], play: Play, task: Task
) -> None:
    trainer = PFedMoAP(epochs=3, gate=gate)
    model = play(trainer).models["client-0"]
    weights = expert_weights(trainer, task, model, task.public)
    assert weights.shape == (80, 3)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(80))


def test_a_linear_gate_weighs_by_hand() -> None:
    gate = {"share_weight": torch.zeros(1, 3, 2), "share_bias": torch.zeros(1, 3)}
    gate["share_bias"][0, 1] = float(np.log(3))
    images = torch.tensor([[[1.0, 0.0, 2.0, 0.0]]])
    weights = linear_weights(gate, images, 2, size=2)[0, 0]
    assert weights.tolist() == pytest.approx([0.25, 0.75])


def test_a_linear_gate_gives_experts_beyond_its_own_nothing() -> None:
    stream = Seeds(0).stream("gate")
    gate = {n: t.unsqueeze(0) for n, t in start_linear("share", 2, 4, stream).items()}
    weights = linear_weights(gate, stream.normal_tensor((1, 3, 4)), 5, size=4)
    assert torch.equal(weights[..., 2:], torch.zeros(1, 3, 3))
