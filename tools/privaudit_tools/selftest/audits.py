"""Real federations on the embedded model: is a leak found where there is one only?"""

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from privaudit.auditing.auditor import Auditor
from privaudit.runs.training import train
from privaudit.statistics import roc
from privaudit.statistics.estimate import Estimate
from privaudit_tools.selftest.check import CONFIDENCE, Measure, SelftestCheck

_GROUP = "audits of real runs"
_NOBODY: Mapping[str, Any] = {"trainer": "zero-shot", "rounds": 1}
_MEMORY: Mapping[str, Any] = {"trainer": "pfedprompt", "rounds": 1}


def _attack(
    run: Mapping[str, Any], scenario: str, attack: str, shadows: int = 0
) -> Measure:
    """Return a measure: the AUROC of one attack on a run trained for it."""

    def measure(rng: np.random.Generator) -> Estimate:
        seed = int(rng.integers(2**31))
        with TemporaryDirectory(prefix="privaudit-selftest-") as folder:
            auditor = Auditor(train(**run, folder=folder, seed=seed))
            audit = auditor.attack(scenario, clients=3, shadows=shadows, seed=seed)
        groups = [client.groups for client in audit.results[attack].clients]
        return roc.pooled_auroc(groups, confidence=CONFIDENCE)

    return measure


CHECKS = (
    SelftestCheck(
        _GROUP,
        "loss-threshold on zero-shot, which trained on nobody",
        0.5,
        0.5,
        _attack(_NOBODY, "server-reconstruct", "loss-threshold"),
    ),
    SelftestCheck(
        _GROUP,
        "shadow on zero-shot, which trained on nobody",
        0.5,
        0.5,
        _attack(_NOBODY, "server-reconstruct", "shadow", shadows=10),
    ),
    SelftestCheck(
        _GROUP,
        "loss-threshold on pfedprompt, which keeps its members",
        0.65,
        1.0,
        _attack(_MEMORY, "prompt-release", "loss-threshold"),
    ),
)
