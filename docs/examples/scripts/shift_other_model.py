"""The shift of PromptFL's runs, attacked through a model of other records."""

from dataclasses import replace

import torch

from privaudit import Auditor, load_run
from privaudit.core.seeds import Seeds
from privaudit.federation.rounds import Federation, run_round
from privaudit_labs.shift.distribution_shift import measure_shift
from privaudit_labs.shift.shift_table import shift_table

PREPARE = Auditor.prepare


def attack_other_model(run):
    """Attack the run's clients through a federation that trained on public records."""
    task, seeds = run.population.task, Seeds(run.config.seed + 100)
    order = torch.from_numpy(seeds.stream("others").permutation(len(task.public)))
    size = int(run.ledger.is_member.sum()) // len(task.clients)
    shards = {
        client: task.public.pick(order[size * n : size * (n + 1)])
        for n, client in enumerate(task.clients)
    }
    federation = Federation.begin(run.trainer, task, shards, seeds)
    sent = []
    for index in range(task.rounds):
        (record,) = run_round(run.trainer, task, [federation], index)
        sent.extend(record.messages)

    def prepare(auditor, scenario, *, seed=0):
        adversary, targets = PREPARE(auditor, scenario, seed=seed)
        view = adversary.threat(sent)
        reconstructed = [run.trainer.reconstruct(task, view, t.client) for t in targets]
        pairs = zip(targets, reconstructed, strict=True)
        return replace(adversary, view=view), [
            replace(t, reconstructed=r) for t, r in pairs
        ]

    Auditor.prepare = prepare
    return measure_shift(run, "drawn-digits")


names = [f"promptfl-{seed}" for seed in (1, 2, 3)]
print(shift_table({name: attack_other_model(load_run(name)) for name in names}))
