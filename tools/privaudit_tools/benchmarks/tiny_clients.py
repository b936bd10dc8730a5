"""Coverage and false alarms of intervals over many tiny clients.

``python -m privaudit_tools.benchmarks.tiny_clients 3000`` draws federations of clients with two to
four candidates, half of them members by the coin, and scores of a known AUROC, the same
for each client or not; prints in how many of 400 the intervals miss it, and in how many
they lie above 0.5. Then it draws personal models, some of which are tested.
"""

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import norm

from privaudit.runs.tasks import RepeatedRows
from privaudit.runs.utility import mean_accuracy
from privaudit.statistics.roc import pooled_auroc

Groups = list[tuple[np.ndarray, np.ndarray]]
AUROCS = ((0.5, 0.0), (0.5, 0.4), (0.6, 0.0), (0.75, 0.0), (0.9, 0.0), (0.97, 0.0))
CLASSES, TESTS, TESTED = 10, 1_000, 100


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each AUROC, kind of scores and population, and for utility."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clients", type=int)
    parser.add_argument("--replicates", type=int, default=400)
    asked = parser.parse_args(arguments)
    for of, spread in AUROCS:
        for ties in (False, True):
            for population in ("these", "new"):
                rates = miss_rates(
                    asked.clients, asked.replicates, of, spread, ties, population
                )
                shown = " ".join(f"{rate:.4f}" for rate in rates)
                print(of, spread, "0/1" if ties else "normal", population, shown)
    print("utility", *utility_misses(asked.clients, asked.replicates))


def miss_rates(
    clients: int,
    replicates: int,
    of: float,
    spread: float = 0.0,
    ties: bool = False,
    population: str = "these",
) -> tuple[float, float, float, float]:
    """Return the shares of intervals above and below the truth, and above 0.5; the width.

    Args:
        clients: In each federation.
        replicates: Federations.
        of: The AUROC.
        spread: Half of the clients have so much more, the others so much less.
        ties: Scores are 0 or 1, and not normal.
        population: As in :func:`privaudit.statistics.roc.pooled_auroc`.
    """
    rng, found = np.random.default_rng(3), []
    for _ in range(replicates):
        groups, truth = draw_clients(rng, clients, of, spread, ties)
        estimate = pooled_auroc(groups, "new" if population == "new" else "these")
        truth = of if population == "new" else truth
        wrong = estimate.low > truth, estimate.high < truth
        found.append((*wrong, estimate.low > 0.5, estimate.high - estimate.low))
    above, below, leaks, width = np.mean(found, axis=0)
    return float(above), float(below), float(leaks), float(width)


def draw_clients(
    rng: np.random.Generator, clients: int, of: float, spread: float, ties: bool
) -> tuple[Groups, float]:
    """Return scores of members and others by client, and their AUROC by pairs."""
    groups, pairs, inside = [], 0, 0.0
    for size in rng.integers(2, 5, size=clients):
        own = of + spread * rng.choice([-1, 1])
        member = rng.random(size) < 0.5
        scores = rng.standard_normal(size) + norm.ppf(own) * 2**0.5 * member
        if ties:
            rate = np.where(member, own, 1 - own)
            scores = (rng.random(size) < rate).astype(float)
        groups.append((scores[member], scores[~member]))
        count = int(member.sum() * (~member).sum())
        pairs, inside = pairs + count, inside + count * own
    return groups, inside / pairs


def utility_misses(clients: int, replicates: int) -> tuple[float, float]:
    """Return how many intervals of tested clients' utility miss all clients' mean.

    First of means over one or two classes of a client, then over all test records. Models
    and records differ in how good and how hard they are; both are drawn anew.
    """
    rng = np.random.default_rng(4)
    misses = [list(_missed(rng, clients)) for _ in range(replicates)]
    own, everything = np.mean(misses, axis=0)
    return float(own), float(everything)


def _missed(rng: np.random.Generator, clients: int) -> Iterator[bool]:
    tests = 4 * TESTS  # of which a quarter is asked; all of them are the truth
    labels = rng.integers(CLASSES, size=tests)
    hard = norm.cdf(rng.standard_normal(tests))
    good = rng.beta(4, 4, size=clients)
    two = rng.integers(CLASSES, size=(clients, 2))
    own = (labels[None, None] == two[..., None]).any(axis=1)
    right = rng.random((clients, tests), dtype=np.float32) < (
        0.6 * good[:, None] + 0.4 * hard[None]
    )
    asked = rng.permutation(tests)[:TESTS]
    tested = rng.permutation(clients)[: min(TESTED, clients)]
    for weights in (own, np.ones_like(own)):
        truth = (right * weights).sum(axis=1) / weights.sum(axis=1)
        estimate = mean_accuracy(
            RepeatedRows.of(right[tested][:, asked].astype(float)),
            RepeatedRows.of(weights[tested][:, asked]),
            fraction=len(tested) / clients,
        )
        yield estimate.excludes(float(truth.mean()))


if __name__ == "__main__":
    main()
