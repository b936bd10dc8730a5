"""Quantile regression by ridge, as the attack has it, beside boosted trees of the pinball loss.

``python -m privaudit_tools.benchmarks.boosted_quantiles`` trains PromptFL, and scores each client's
candidates by their confidence's quantile among public records like them, by both learners of
:mod:`privaudit_labs.attacks.quantile_regression`: Bertran et al. (NeurIPS 2023) have trees on
tables.
Trees take 1 s a client, and 6 s with cross-fitted ranks of public records for a threshold.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from privaudit import Auditor, train
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.signals import target_signals
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.roc import pooled_auroc
from privaudit_labs.attacks.quantile_regression import (
    _confidence,
    _Expected,
    _inputs,
    between_quantiles,
)
from privaudit_tools.benchmarks.measuring import machine

FOLDS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both AUROCs, that of the plain confidence, and the paired difference."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="*", default=[101])
    asked = parser.parse_args(arguments)
    scored = [one for seed in asked.seeds for one in _scored(seed)]
    print(f"{machine()}\nPromptFL, seeds {asked.seeds}")
    for name in ("confidence", "ridge", "trees"):
        found = pooled_auroc([(s[name][t], s[name][~t]) for s, t in scored])
        print(f"{name}: {found}")
    pairs = [(scores["trees"], scores["ridge"], truth) for scores, truth in scored]
    print(f"trees less ridge: {pooled_paired_auroc_difference(pairs)}")


def _scored(seed: int) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Return each client's scores by name, and who is a member."""
    with tempfile.TemporaryDirectory() as scratch:
        run = train("promptfl", folder=Path(scratch), seed=seed, measured_rounds=1)
        plan = replace(find_scenario("server-reconstruct", 0), attacks={})
        adversary, targets = Auditor(run).prepare(plan)
        public, found = adversary.task.public, []
        for target in targets:
            classes = int(max(public.labels.max(), target.candidates.labels.max())) + 1
            known, asked = (
                _inputs(r, classes, True) for r in (public, target.candidates)
            )
            own, values = map(_confidence, target_signals(adversary, target))
            gaussian = _Expected.fit(known, values, FOLDS)
            scores = {
                "confidence": own,
                "ridge": gaussian.standardised(asked, own),
                "trees": between_quantiles(known, values, asked, own),
            }
            positions = run.population.indices(target.client)
            found.append((scores, run.ledger.is_member[positions]))
        return found


if __name__ == "__main__":
    main()
