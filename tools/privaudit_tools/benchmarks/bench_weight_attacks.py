"""False alarms of attacks on weights on 1,000 nulls, and what a large layer costs.

Run by ``make bench``; the tables of docs/weights.md are ``weight_attacks``'s. Features are
drawn here, so that nothing needs data.
"""

import resource

import numpy as np
import pytest
import torch

from privaudit.attacks.projection_residual import StackedLayer
from privaudit.auditing.gradient_regression import GramBlock, took_part
from privaudit.models.layer_factors import LayerFactors
from privaudit.statistics.roc import auroc
from privaudit_tools.benchmarks.bench_new_attacks import report
from privaudit_tools.benchmarks.measuring import machine, timed
from privaudit_tools.benchmarks.weight_attacks import scores
from privaudit_tools.benchmarks.weight_federations import (
    LENGTH,
    Model,
    Setting,
    Table,
    federation,
)

FEDERATIONS, TOSSES = 20, 50
EACH = Setting(classes=10, candidates=80)
SETTINGS = {
    "trained on half of the candidates, coins tossed anew": EACH,
    "AdamW, coins tossed anew": Setting(
        classes=10, candidates=80, optimiser="adamw", rate=1e-3, steps=10, batch=16
    ),
    "saw no candidate": Setting(classes=10, candidates=80, outside=1.0),
    "saw no candidate, factors": Setting(
        classes=10, candidates=80, model="lora", size=8, rounds=3, outside=1.0
    ),
}


def drawn(seed: int, count: int = 400, width: int = 128) -> Table:
    """Draw Gaussian features whose spectrum falls, and labels of a linear map."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator)
    x = x * torch.arange(1, width + 1) ** -0.5
    x = LENGTH * torch.nn.functional.normalize(x, dim=1)
    y = (x @ torch.randn(width, EACH.classes, generator=generator)).argmax(dim=1)
    return Table(x, y)


@pytest.mark.parametrize("name", SETTINGS)
def test_false_alarms(name: str) -> None:
    """A toss that no score depends on says who is called a member."""
    rng = np.random.default_rng(0)
    alarms: dict[str, list[bool]] = {"joint": [], "projection": []}
    for seed in range(FEDERATIONS):
        (seen,) = federation(SETTINGS[name], drawn(seed), seed)
        found = scores(SETTINGS[name], seen)
        for _ in range(TOSSES):
            coin = rng.random(EACH.candidates) < 0.5
            for method, above in alarms.items():
                one = found[method]
                above.append(auroc(one[coin], one[~coin]).low > 0.5)
    for method, above in alarms.items():
        report(f"{name}, {method}", float(np.mean(above)), len(above), 0.025)


@pytest.mark.parametrize("model", ["head", "adapter", "lora"])
def test_one_record_s_features_are_read_off(model: Model) -> None:
    """A client of one record: the update's first direction beside its features."""
    setting = Setting(
        classes=10, candidates=2, model=model, size=16, clients=6, rounds=2, draws=1
    )
    found = []
    for seed in range(20):
        for seen in federation(setting, drawn(seed), seed):
            mine = seen.candidates[seen.is_member].x
            moves = [move.deltas for move in seen.moves]
            rows = torch.cat([next(iter(move.values())) for move in moves])
            if len(mine) == 1:
                read = torch.linalg.svd(rows, full_matrices=False)[2][0]
                found.append(float(torch.cosine_similarity(read, mine[0], 0).abs()))
    print(f"\n{model}: cosine {min(found):.4f} to {max(found):.4f}, n = {len(found)}")


def test_a_layer_of_4096_by_4096_takes_seconds() -> None:
    """1,000 candidates, half of them members: both attacks, and the most memory."""
    generator = torch.Generator().manual_seed(0)
    x, deltas = torch.randn(2, 1000, 1, 4096, generator=generator)
    is_member = torch.rand(1000, generator=generator) < 0.5
    move = -1e-3 * (deltas[is_member, 0].T @ x[is_member, 0])
    layer = LayerFactors(x, deltas)

    def joint() -> torch.Tensor | None:
        found = took_part([GramBlock.of_factors(layer, move.double())])
        return None if found is None else found.ratios

    stacked = StackedLayer([layer])
    stacked.add(move.double(), 1e-9)
    print(f"\n{machine()}")
    for name, call in (("joint", joint), ("projection", stacked.scores)):
        took = timed(call)
        found = np.asarray(took.result)
        value = auroc(found[is_member.numpy()], found[~is_member.numpy()])
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name}: {took.seconds:.1f} s, AUROC {value}, at most {most:.1f} GiB")
        assert value.value > 0.99
