"""How often the best of five audits of a run that does not leak is said to leak.

Run by ``make bench``; prints the table of docs/decisions/0013-audits-are-counted.md.
"""

import numpy as np

from privaudit.statistics.roc import auroc
from privaudit.statistics.verdict import judge_leak

RUNS, AUDITS, RECORDS = 4000, 5, 60


def test_best_of_five() -> None:
    rng = np.random.default_rng(0)
    best, first = [0, 0], [0, 0]  # as one audit, corrected
    alone = 0
    for _ in range(RUNS):
        found = [auroc(*rng.normal(size=(2, RECORDS))) for _ in range(AUDITS)]
        largest = max(found, key=lambda one: one.value)
        alone += judge_leak(found[0]).kind == "leaks"
        for row, audits in enumerate((1, AUDITS)):
            best[row] += judge_leak(largest, audits=audits).kind == "leaks"
            counts = [1] * AUDITS if not row else range(1, AUDITS + 1)
            first[row] += any(
                judge_leak(one, audits=count).kind == "leaks"
                for one, count in zip(found, counts, strict=True)
            )
    print("\n| | best of five | stopped at the first leak | one |\n|---|---|---|---|")
    for name, most, stopped in zip(("as one", "corrected"), best, first, strict=True):
        shares = (f"{100 * count / RUNS:.1f} %" for count in (most, stopped, alone))
        print(f"| {name} | {' | '.join(shares)} |")
    assert best[1] / RUNS <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / RUNS)
