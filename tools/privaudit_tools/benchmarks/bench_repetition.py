"""How often the best of five audits of a run that does not leak is said to leak.

Run by ``make bench``; prints the table of docs/decisions/0013-audits-are-counted.md.
"""

import numpy as np

from privaudit.statistics.verdict import Verdict, judge_leak
from privaudit_tools.selftest.claims import judged

RUNS, AUDITS, RECORDS = 4000, 5, 60


def test_best_of_five() -> None:
    rng = np.random.default_rng(0)
    best, first = [0, 0], [0, 0]  # as one audit, corrected
    alone = 0
    for _ in range(RUNS):
        found = [judged([(*rng.normal(size=(2, RECORDS)),)]) for _ in range(AUDITS)]
        alone += _leaks(found[0])
        for row, audits in enumerate((1, AUDITS)):
            best[row] += any(_leaks(one, audits) for one in found)
            counts = [1] * AUDITS if not row else range(1, AUDITS + 1)
            first[row] += any(map(_leaks, found, counts))
    print("\n| | best of five | stopped at the first leak | one |\n|---|---|---|---|")
    for name, most, stopped in zip(("as one", "corrected"), best, first, strict=True):
        shares = (f"{100 * count / RUNS:.1f} %" for count in (most, stopped, alone))
        print(f"| {name} | {' | '.join(shares)} |")
    assert best[1] / RUNS <= 0.025 + 4 * np.sqrt(0.025 * 0.975 / RUNS)


def _leaks(found: Verdict, audits: int = 1) -> bool:
    judged_again = judge_leak(found.auroc, audits=audits, evidence=found.evidence)
    return judged_again.kind == "leaks"
