"""Joint regression of models that write: gradients at broadcasts alone, or at Radau's points.

``python -m privaudit_tools.benchmarks.gradient_points RUN [RUN ...]`` scores some clients by
four uploads at two points of their paths, by four at their beginnings alone, and by eight:
the first and the last cost as many passes. Of several runs AUROCs are averaged within clients.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from privaudit import Auditor, load_run
from privaudit.attacks.joint_regression import JointRegression
from privaudit.auditing import record_gradients
from privaudit.auditing.scenario import find_scenario
from privaudit.federation.trainer import Task
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.roc import pooled_auroc
from privaudit_tools.benchmarks.measuring import machine

Scored = tuple[dict[str, np.ndarray], np.ndarray]
VARIANTS = {
    "four uploads, two points": (4, False),
    "four uploads, broadcasts": (4, True),
    "eight uploads, broadcasts": (8, True),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the AUROC by each, and the paired difference from the first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--clients", type=int, nargs="*", default=[0, 3, 6, 9])
    asked = parser.parse_args(arguments)
    scored = [one for run in asked.runs for one in _scored(run, asked.clients)]
    first, *others = VARIANTS
    members = sum(int(truth.sum()) for _, truth in scored)
    count = sum(map(len, (truth for _, truth in scored)))
    print(f"{machine()}\nn = {members} + {count - members}")
    for name in VARIANTS:
        print(name, pooled_auroc([(s[name][t], s[name][~t]) for s, t in scored]))
    for name in others:
        pairs = [(scores[name], scores[first], truth) for scores, truth in scored]
        print(f"{name}, less the first: {pooled_paired_auroc_difference(pairs)}")


def _scored(place: Path, clients: Sequence[int]) -> list[Scored]:
    """Return chosen clients' scores by variant, and who is a member."""
    run = load_run(place)
    plan = replace(find_scenario("server-reconstruct", 0), attacks={})
    adversary, targets = Auditor(run).prepare(plan)
    found = []
    for target in [targets[client] for client in clients]:
        scores = {}
        for name, (uploads, alone) in VARIANTS.items():

            def begins_alone(task: Task, alone: bool = alone) -> bool:
                return alone

            with patch.object(record_gradients, "begins_alone", begins_alone):
                (one,) = JointRegression(rounds=uploads)(adversary, [target])
            scores[name] = one.scores
        positions = run.population.indices(target.client)
        found.append((scores, run.ledger.is_member[positions]))
    return found


if __name__ == "__main__":
    main()
