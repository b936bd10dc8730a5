"""Each expert's mixture weight in a run: the picture of pFedMoAP's figure 6."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.trainer import Records, Task
from privaudit.report.figures.figure_style import (
    FAINT,
    colour,
    errors,
    house_style,
    light_grid,
    new_figure,
    write_figure,
)
from privaudit.runs.run import Run
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit.tuning.prompts.experts import (
    PromptExperts,
    attention,
    expert_features,
    gate_part,
    pool,
)

_DASHES = (0, (4, 3))


def mixture_weights(run: Run) -> list[Estimate]:
    """Return the weight of the local expert, then of the others from large to small.

    Of each test picture of a client's classes, averaged over heads and classes; the
    others are sorted picture by picture, so that the first of them is the largest
    weight and not one expert's (of equal experts it would lie above the mean too). Then
    averaged within each client; the interval is over clients.

    Source: Luo et al., "Mixture of experts made personalized: federated prompt learning
    for vision-language models", ICLR 2025, figure 6.

    Raises:
        ConfigError: The run has no model with experts and a trained gate.
    """
    means = _client_means(run)
    longest = max(map(len, means))
    return [
        mean_with_t([float(mean[rank]) for mean in means if len(mean) > rank])
        for rank in range(longest)
    ]


def _client_means(run: Run) -> list[Float[np.ndarray, " experts"]]:
    trainer, population, means = run.trainer, run.population, []
    if isinstance(trainer, PromptExperts):
        for client, model in run.personal_models.items():
            if "experts" in model:
                tests = population.tests.pick(population.own_records(client))
                weights = expert_weights(trainer, population.task, model, tests)
                others = weights[:, 1:].sort(dim=1, descending=True).values
                ranked = torch.cat([weights[:, :1], others], dim=1)
                means.append(ranked.mean(dim=0).double().numpy())
    if not means:
        raise ConfigError(
            f"No model of {run.name} ({run.config.trainer}) mixes experts. Use a run "
            "of pfedmoap with at least two rounds and experts above 0."
        )
    return means


@torch.no_grad()
def expert_weights(
    trainer: PromptExperts, task: Task, model: Tensors, records: Records
) -> Float[Tensor, "records experts"]:
    """Return each expert's weight in a personal model's mixture, the local first.

    The mean over heads and classes, picture by picture.
    """
    models = {name: tensor.unsqueeze(0) for name, tensor in model.items()}
    local = task.prompts(models["context"]).unsqueeze(2)
    experts = torch.cat([local, expert_features(task, models["experts"])], dim=2)
    gate, images = gate_part(models), records.features.unsqueeze(0)
    size = trainer.gate_size(task)
    if trainer.gate == "linear":
        return linear_weights(gate, images, experts.shape[2], size)[0]
    weights = [
        attention(
            gate,
            pool(chunk, size),
            pool(experts, size),
            heads=trainer.heads,
            scale=trainer.gate_scale,
        ).mean(dim=(1, 3))
        for chunk in images.split(64, dim=1)
    ]
    return torch.cat(weights, dim=1)[0]


def linear_weights(
    gate: Stacked, images: Float[Tensor, "k b d"], experts: int, size: int
) -> Float[Tensor, "k b e"]:
    """Return the weight that a linear gate gives each expert; 0 to those left out."""
    shares = pool(images, size) @ gate["share_weight"].mT
    scores = (shares + gate["share_bias"].unsqueeze(1))[..., :experts]
    weights = scores.softmax(dim=-1)
    return torch.nn.functional.pad(weights, (0, experts - weights.shape[-1]))


def mixture_figure(runs: Sequence[Run]) -> Figure:
    """Draw the weights of each run's experts, a panel for each run."""
    weights = [mixture_weights(run) for run in runs]
    with house_style():
        figure = new_figure(1.2 + 3.2 * len(runs), 3.0)
        panels = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
        for run, run_weights, axes in zip(runs, weights, panels, strict=True):
            _draw(axes, run_weights)
            axes.set_title(run.name, fontsize=9)
        panels[0].set_ylabel("Mixture weight")
    return figure


def _draw(axes: Axes, weights: Sequence[Estimate]) -> None:
    light_grid(axes)
    axes.grid(False, axis="x")
    for rank, weight in enumerate(weights):
        axes.bar(rank, weight.value, color=colour(1 if rank == 0 else 0), width=0.75)
        if not weight.unresolved:
            axes.errorbar(
                rank, weight.value, yerr=errors(weight), color="black", capsize=2
            )
    axes.axhline(1 / len(weights), color=FAINT, linestyle=_DASHES, linewidth=1)
    names = ["own", *map(str, range(1, len(weights)))]
    axes.set_xticks(range(len(weights)), names)
    axes.set_xlabel("Expert (others by rank; dashed: equal weights)")


def write_mixture_figure(runs: Sequence[Run], path: Path) -> None:
    """Write the figure as SVG, or as PNG if the name ends so.

    Raises:
        ConfigError: No run, one without experts, or another ending.
        StorageError: The file cannot be written.
    """
    if not runs:
        raise ConfigError("A figure of no runs was requested. Give at least one.")
    what = "Share of each expert in the mixtures of a run"
    write_figure(mixture_figure(runs), path, "attention", what)
