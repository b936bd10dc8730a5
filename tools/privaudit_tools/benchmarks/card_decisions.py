"""``python -m privaudit_tools.benchmarks.card_decisions [COUNT]``: which verdicts a card keeps.

Simulated runs of fair coins and normal scores, whose members score higher: the verdict of
an audit, with fewer permutations, beside the one of a card's noised number.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
from scipy.special import ndtri

from privaudit.privacy.noised_auroc import RankQuery, interval
from privaudit.statistics import membership_test
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import judge_leak
from privaudit_tools.selftest.claims import judged

SIZES = ((46, 44, 42), (54,) * 10, (200,) * 10, (1000,) * 10)  # candidates by client
AUROCS = (0.5, 0.55, 0.6, 0.7)
KINDS = ("leaks", "no evidence", "underpowered", "reversed")


def verdicts_of(
    sizes: Sequence[int], auroc: float, rng: np.random.Generator
) -> tuple[str, str]:
    """Return the verdict of one run's audit, and that of its card."""
    count, ends = sum(sizes), np.cumsum(sizes)[:-1]
    is_member = rng.random(count) < 0.5
    scores = rng.normal(size=count) + ndtri(auroc) * 2**0.5 * is_member
    parts = zip(np.split(scores, ends), np.split(is_member, ends), strict=True)
    exact = judged([(s[x], s[~x]) for s, x in parts])
    query = RankQuery.of(np.split(np.arange(count), ends), np.split(scores, ends))
    noise = round(rng.normal() * query.scale)
    value = query.auroc(query.exact(is_member) * query.fine + noise)
    low, high = interval(value, query.noise_sd, query.null_sd, 0.95)
    card = judge_leak(Estimate(value, low, high, (count,), "on a card"))
    return exact.kind, card.kind


def main(count: int) -> None:
    """Print a row for each design: shares of verdicts, and how often both agree."""
    rng = np.random.default_rng(5)
    print("| candidates | AUROC | an audit, in % | a card | same verdict |")
    for sizes in SIZES:
        for auroc in AUROCS:
            with patch.object(membership_test, "DRAWS", 199):
                pairs = [verdicts_of(sizes, auroc, rng) for _ in range(count)]
            exact, card = (Counter(kinds) for kinds in zip(*pairs, strict=True))
            shares = [
                " / ".join(f"{100 * found[kind] / count:.0f}" for kind in KINDS)
                for found in (exact, card)
            ]
            same = 100 * sum(one == other for one, other in pairs) / count
            design = f"{sum(sizes)} of {len(sizes)}"
            print(f"| {design} | {auroc} | {shares[0]} | {shares[1]} | {same:.0f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
