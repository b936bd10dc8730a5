"""What DHAPA's statistics leak to who has no complete list of records, of the run d10-1."""

from dataclasses import replace

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from privaudit.attacks.shared_statistics import SharedStatistics
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.scenario import find_scenario
from privaudit.runs.run import load_run

run, plan = load_run("d10-1"), find_scenario("shared-statistics", 0)
adversary, targets = Auditor(run).prepare(plan)
for missing in (0, 1, 2, 5, 10):
    draw, listed, truth = np.random.default_rng(0), [], []
    for target in targets:
        member = run.ledger.is_member[run.population.indices(target.client)]
        keep = np.ones(len(member), bool)
        there = np.flatnonzero(member)
        keep[draw.choice(there, min(missing, len(there)), replace=False)] = False
        some = target.candidates.pick(torch.from_numpy(keep))
        listed.append(replace(target, candidates=some))
        truth.append(member[keep])
    scores = SharedStatistics()(adversary, listed)
    print(
        missing,
        roc_auc_score(
            np.concatenate(truth), np.concatenate([s.scores for s in scores])
        ),
    )
