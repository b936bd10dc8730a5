"""Shadow models of one digits client, and their records' own gradients.

Run by ``make bench``. Stacked against one after the other: both train the same 64
shadows on the target's candidates, by replay of a PromptFL run, and ask them about all
records; what they say agrees. Gradients of the records of 30 shadows' Poisson samples:
through the text tower's derivative, clients in groups, against autograd through one
graph, where every shadow has as many products as the largest sample has records.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from privaudit import Auditor, train
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.shadow_models import ShadowSignals, ShadowSplit, shadow_signals
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Cohort, Round
from privaudit.tuning.prompts.gradients import ContextGradients, poisson_batch
from privaudit_tools.benchmarks.bench_matmul_share import peak
from privaudit_tools.benchmarks.measuring import machine, spread, timed

SHADOWS, PASSES = 64, 3


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Adversary, Target]:
    folder: Path = tmp_path_factory.mktemp("runs")
    run = train("promptfl", folder=folder, seed=3, measured_rounds=1)
    plan = find_scenario("server-reconstruct", SHADOWS).for_task("classification")
    adversary, targets = Auditor(run).prepare(plan)
    return replace(adversary, store=None), targets[0]


def test_shadows_stacked_against_one_by_one(
    attacked: tuple[Adversary, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    adversary, target = attacked
    tables: dict[int, ShadowSignals] = {}

    def tabled(at_once: int) -> ShadowSignals:
        monkeypatch.setattr("privaudit.auditing.shadow_models.REPLAY_CHUNK", at_once)
        (table,) = shadow_signals(replace(adversary), [target], SHADOWS, "candidates")
        return table

    tabled(SHADOWS)  # the first pass sets up memory
    seconds: dict[int, list[float]] = {SHADOWS: [], 1: []}
    for _ in range(PASSES):
        for at_once, times in seconds.items():
            found = timed(partial(tabled, at_once))
            times.append(found.seconds)
            tables[at_once] = found.result
    ratios = [
        one / many for one, many in zip(seconds[1], seconds[SHADOWS], strict=True)
    ]
    confidences = [table.candidates.signals.confidence for table in tables.values()]
    torch.testing.assert_close(confidences[0], confidences[1], rtol=1e-2, atol=1e-2)
    print(f"\n{machine()}\n{SHADOWS} shadows, {len(target.candidates)} candidates")
    print(f"stacked: {spread(seconds[SHADOWS])} s; one by one: {spread(seconds[1])} s")
    print(f"times as fast: {spread(ratios)}")


def test_what_stacked_shadows_take_their_time_for(
    attacked: tuple[Adversary, Target],
) -> None:
    """Counted products, beside the rate of a large one in the same process."""
    adversary, target = attacked

    def tabled() -> ShadowSignals:
        (table,) = shadow_signals(replace(adversary), [target], SHADOWS, "candidates")
        return table

    with FlopCounterMode(display=False) as counter:
        tabled()  # and the first pass sets up memory
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        tabled()
    by_name = {e.key: e.self_cpu_time_total for e in seen.key_averages()}
    total = sum(by_name.values())
    largest = sorted(by_name.items(), key=lambda one: -one[1])[:12]
    milliseconds, shares = [], []
    for _ in range(PASSES):
        before, seconds = peak(), timed(tabled).seconds
        milliseconds.append(1e3 * seconds / SHADOWS)
        shares.append(counter.get_total_flops() / seconds / max(before, peak()))
    gigaflops = counter.get_total_flops() / SHADOWS / 1e9
    print(f"\n{machine()}\n{spread(milliseconds)} ms a shadow, {gigaflops:.2f} GFLOP")
    print(f"products at the core's peak would take {spread(shares)} of it")
    print(", ".join(f"{name} {time / total:.0%}" for name, time in largest))


def test_records_gradients_against_autograd_through_one_graph(
    attacked: tuple[Adversary, Target],
) -> None:
    adversary, target = attacked
    task, names = adversary.task, [f"shadow-{n}" for n in range(30)]
    split = ShadowSplit.draw(adversary, target, len(names), "candidates")
    cohort = Cohort.of(names, [split.shard(n) for n in range(len(names))])
    batch = poisson_batch(cohort, Round(0, Seeds(0), tuple(names)), 8 / 30)
    shape = len(names), task.prompts.context_tokens, task.prompts.width
    contexts = 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(0))

    def gradients(by_record: bool) -> torch.Tensor:
        forward = ContextGradients.forward(task, contexts, batch, by_record=by_record)
        return torch.cat([part for part, _ in forward.by_record()], dim=1)

    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(PASSES + 1):
        for by_record, times in seconds.items():
            found = timed(partial(gradients, by_record))
            times.append(found.seconds)
    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-4, atol=1e-4)
    ours, autograd = (times[1:] for times in seconds.values())
    ratios = [one / many for one, many in zip(autograd, ours, strict=True)]
    print(
        f"\n{machine()}\n{int(batch.sizes.sum())} records in batches of up to "
        f"{batch.mask.shape[1]}"
    )
    print(f"in groups: {spread(ours)} s; one graph: {spread(autograd)} s")
    print(f"times as fast: {spread(ratios)}")
