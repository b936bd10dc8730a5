"""What joint regression would find in DP-FPL's uploads if it knew the private prompt p_L.

``python -m privaudit_tools.benchmarks.private_prompts`` trains DP-FPL without noise, and holds
each client's last upload against gradients at p_G + p_L: p_L as a client draws it, as the
server rebuilds it of uploads, the true one after that round, and the true one with an error
of so many parts of its length.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from privaudit import Auditor, train
from privaudit.auditing import record_gradients
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.gradient_regression import took_part
from privaudit.auditing.scenario import find_scenario
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import start_client
from privaudit.runs.run import Run
from privaudit.statistics.roc import pooled_auroc
from privaudit_tools.benchmarks.measuring import machine

ERRORS = (0.3, 0.1, 0.03, 0.01)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the AUROC by each p_L, and what part of an upload gradients leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="*", default=[101, 102])
    seeds = parser.parse_args(arguments).seeds
    print(f"{machine()}\nDP-FPL without noise, seeds {seeds}")
    found: dict[str, list[tuple[np.ndarray, np.ndarray, float]]] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            run = train("dp-fpl", folder=Path(scratch), seed=seed, measured_rounds=1)
            plan = replace(find_scenario("server-reconstruct", 0), attacks={})
            adversary, targets = Auditor(run).prepare(plan)
            for target in targets:
                positions = run.population.indices(target.client)
                truth = run.ledger.is_member[positions]
                for name, prompt in prompts(run, adversary, target):
                    scores, left = regressed(adversary, target, prompt)
                    one = scores[truth], scores[~truth], left
                    found.setdefault(name, []).append(one)
    for name, parts in found.items():
        left = float(np.mean([part[2] for part in parts]))
        value = pooled_auroc([part[:2] for part in parts])
        print(f"{name}: {value}; {left:.2%} left")


def prompts(
    run: Run, adversary: Adversary, target: Target
) -> Iterator[tuple[str, Tensor | None]]:
    """Yield the private prompts that are tried, by name."""
    end = adversary.view.last_broadcast(target.client).tensors["context"]
    true = run.personal_models[target.client]["context"] - end
    rebuilt = adversary.reconstruct(target.client)
    assert rebuilt.shared is not None
    yield "drawn", None
    yield "rebuilt", rebuilt.model["context"] - rebuilt.shared["context"]
    yield "true", true
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(0))
    for error in ERRORS:
        yield f"error {error:.0%}", true + error * true.norm() / noise.norm() * noise


def regressed(
    adversary: Adversary, target: Target, prompt: Tensor | None
) -> tuple[np.ndarray, float]:
    """Return candidates' ratios by the last upload, and what part of it is left."""
    move = record_gradients.chosen_moves(adversary, target.client, 0)[-1]
    begin = partial(_started, prompt=prompt)
    with patch.object(record_gradients, "start_client", begin):
        blocks = record_gradients.gram_blocks(adversary, move, target.candidates)
    took = took_part(blocks)
    assert took is not None
    left = [1 - block.fit.explained for block in blocks if block.fit is not None]
    return took.ratios.numpy(), float(np.mean(left))


def _started(*given: object, prompt: Tensor | None) -> Tensors:
    state = start_client(*given)  # type: ignore[arg-type]
    return state if prompt is None else {**state, "local": prompt}


if __name__ == "__main__":
    main()
