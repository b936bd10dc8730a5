from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from privaudit import train
from privaudit.cli.main import app
from privaudit.core.errors import ConfigError
from privaudit.report.figures.mixture_figure import (
    mixture_figure,
    mixture_weights,
    write_mixture_figure,
)
from privaudit.runs.run import Run


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
    trainer, population = run.trainer, run.population
    means = []
    for client, model in run.personal_models.items():
        tests = population.tests.pick(population.own_records(client))
        weights = trainer.mixture_weights(population.task, model, tests)  # type: ignore[attr-defined]
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
        write_mixture_figure([run], tmp_path / "weights.pdf")
