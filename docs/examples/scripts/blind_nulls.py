"""How often the blind baseline finds something where nothing is."""

import numpy as np

from privaudit.statistics.roc import auroc
from privaudit_labs.shift.blind_baseline import blind_scores, pooled_blind_auroc

for count, columns in ((60, 2), (60, 20), (200, 20), (600, 20), (600, 74)):
    ours, plain = [], []
    for seed in range(500):
        rng = np.random.default_rng(seed)
        truth = rng.random(count) < 0.5
        scores = blind_scores(rng.normal(size=(count, columns)), truth, seed)
        groups = scores[truth], scores[~truth]
        ours.append(pooled_blind_auroc([groups]))
        plain.append(auroc(*groups))
    above = sum(one.low > 0.5 for one in ours)
    print(
        count,
        columns,
        *(sum(e.excludes(0.5) for e in es) for es in (ours, plain)),
        above,
    )
