"""Attack results: from scores and ledger to estimates and verdicts."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.evidence import LIMITS, Limits, weigh
from privaudit.statistics.membership_test import (
    ALPHA,
    MembershipTest,
    Strata,
    membership_test,
)
from privaudit.statistics.roc import (
    Clusters,
    RocCurve,
    advantage,
    auroc,
    class_averaged_success,
    pooled_auroc,
    pooled_ranks,
    roc_curve,
    success_rate,
    tied,
    tpr_at_fpr,
    uneven,
)
from privaudit.statistics.shadow_comparison import (
    difference_with_shadow_error,
    shadow_error,
    with_shadow_error,
)
from privaudit.statistics.verdict import (
    ASSIGNED,
    Pooled,
    Sampling,
    Verdict,
    as_tested,
    judge_leak,
)

FPRS = (0.1, 0.01, 0.001)


@dataclass(frozen=True)
class ClientScores:
    """One client's scores beside the truth.

    Where records share a coin, each candidate is a group: its score is the mean of its
    records' scores, and more than half of them must be guessed to be members.

    Attributes:
        records: Positions of the candidates in the data set; of a group, its first.
        scores: Higher means more likely a member.
        guesses: By a threshold fixed elsewhere.
        left_out: The scores without each of some sets of shadow models; None where
            there are none.
        cluster: Numbers that candidates share which resemble one another, and had a
            coin each; None if none do.
    """

    client: str
    records: Int[np.ndarray, " candidates"]
    labels: Int[np.ndarray, " candidates"]
    scores: Float[np.ndarray, " candidates"]
    guesses: Bool[np.ndarray, " candidates"]
    is_member: Bool[np.ndarray, " candidates"]
    left_out: Float[np.ndarray, "sets candidates"] | None = None
    cluster: Int[np.ndarray, " candidates"] | None = None

    @property
    def clusters(self) -> Clusters | None:
        """Clusters of the members, and of the non-members."""
        if self.cluster is None:
            return None
        return self.cluster[self.is_member], self.cluster[~self.is_member]

    @property
    def groups(
        self,
    ) -> tuple[Float[np.ndarray, " members"], Float[np.ndarray, " others"]]:
        """Members' and non-members' scores."""
        return self.scores[self.is_member], self.scores[~self.is_member]


@dataclass(frozen=True)
class AttackResult:
    """What one attack found out.

    Attributes:
        settings: Its parameters, as a record.
        threshold: How the threshold of the guesses was fixed.
        auroc: Per-client AUROCs averaged by pairs, for other records of these clients.
        auroc_new_clients: The same, for other clients.
        tpr_at_fpr: By false-positive rate, one threshold for the ranks that scores have
            within their client; unresolved where a small client beside a large one is
            hardly ever above it.
        success: Share of right guesses, averaged over classes.
        advantage: True- less false-positive rate of the guesses.
        tied: How many candidates share their score with another of the same client:
            no threshold parts them.
        package: Whose plugin the attack is, with its version; empty for a built-in one.
    """

    attack: str
    settings: str
    threshold: str
    auroc: Estimate
    auroc_new_clients: Estimate
    tpr_at_fpr: Mapping[float, Estimate]
    success: Estimate
    success_plain: Estimate
    advantage: Estimate
    verdict: Verdict
    tied: int
    clients: Sequence[ClientScores] = field(repr=False)
    package: str = ""

    @functools.cached_property
    def by_client(self) -> Mapping[str, Estimate]:
        """The AUROC of each client with members and others: most of an evaluation's time."""
        return {
            c.client: _knowing_shadows(auroc(*c.groups, clusters=c.clusters), [c])
            for c in self.clients
            if all(map(len, c.groups))
        }

    @property
    def tpr(self) -> Estimate:
        """The true-positive rate at 1 % false positives."""
        return self.tpr_at_fpr[0.01]

    def roc(self) -> RocCurve:
        """Return the ROC curve over all clients' candidates, ranked within clients."""
        return roc_curve(*ranked(self.clients))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores, for audit.json."""
        return {
            "attack": self.attack,
            "settings": self.settings,
            **({"package": self.package} if self.package else {}),
            "threshold": self.threshold,
            "auroc": self.auroc.to_dict(),
            "auroc_new_clients": self.auroc_new_clients.to_dict(),
            "tpr_at_fpr": {f"{f:g}": e.to_dict() for f, e in self.tpr_at_fpr.items()},
            "success": self.success.to_dict(),
            "success_plain": self.success_plain.to_dict(),
            "advantage": self.advantage.to_dict(),
            "by_client": {c: e.to_dict() for c, e in self.by_client.items()},
            "tied": self.tied,
            "verdict": self.verdict.to_dict(),
        }


def evaluate_scores(
    attack: str,
    settings: str,
    threshold: str,
    clients: Sequence[ClientScores],
    package: str = "",
    sampling: Sampling = "coin",
    limits: Limits = LIMITS,
    test: MembershipTest | None = None,
) -> AttackResult:
    """Return what an attack's scores say, given the truth and how it was chosen.

    ``test`` is what was found of them before: permutations take time.
    """
    members, others = ranked(clients)
    truth = np.concatenate([c.is_member for c in clients])
    guesses = np.concatenate([c.guesses for c in clients])
    labels = np.concatenate([c.labels for c in clients])
    groups, clusters = [c.groups for c in clients], [c.clusters for c in clients]
    is_assigned, (strata, clustered) = sampling in ASSIGNED, in_strata(clients)
    pooled, evidence = leak_auroc(clients, is_tested=is_assigned), None
    if is_assigned:
        test = test or membership_test(strata)
        pooled = as_tested(pooled, test)
    if sampling != "unknown":
        evidence = weigh(test, strata, clustered, limits)
    alike = clusters_of(clients)
    both = None if alike is None else (alike[truth], alike[~truth])
    return AttackResult(
        attack=attack,
        settings=settings,
        threshold=threshold,
        auroc=pooled,
        auroc_new_clients=pooled_auroc(groups, population="new", clusters=clusters),
        tpr_at_fpr={
            fpr: _unresolved_if_uneven(
                tpr_at_fpr(members, others, fpr, clusters=both), clients, fpr
            )
            for fpr in FPRS
        },
        success=class_averaged_success(truth, guesses, labels, clusters=alike),
        success_plain=success_rate(truth, guesses, clusters=alike),
        advantage=advantage(truth, guesses, clusters=alike),
        verdict=judge_leak(pooled, limits, sampling, evidence=evidence),
        tied=sum(tied(c.scores) for c in clients),
        clients=clients,
        package=package,
    )


def with_audits(
    result: AttackResult, sampling: Sampling, audits: int, pooled: Pooled | None = None
) -> AttackResult:
    """Return a result with the verdict that so many audits of the run leave.

    Each of m different audits is held to an m-th of the error that one may make, so
    that the chance of any false "leaks" stays what it is for one, whichever is shown.
    ``pooled``: of how many trainings, where the result does not know yet.

    Source: Bonferroni's inequality; the audits may depend on one another as they like.
    """
    found, pooled = result.verdict, pooled or result.verdict.pooled
    evidence, strata = found.evidence, in_strata(result.clients)
    share = audits * pooled.share
    if evidence is not None and share != found.share:
        evidence = weigh(evidence.test, *strata, found.limits, ALPHA / share)
    verdict = judge_leak(result.auroc, found.limits, sampling, audits, evidence, pooled)
    return replace(result, verdict=verdict)


def in_strata(
    clients: Sequence[ClientScores],
) -> tuple[Strata, list[Int[np.ndarray, " _"]] | None]:
    """Return scores and truth, and clusters, of clients with members and others."""
    known = [c for c in clients if all(map(len, c.groups))]
    alike = [c.cluster for c in known if c.cluster is not None]
    strata = [(c.scores, c.is_member) for c in known]
    is_known = len(alike) == len(known)
    # Of trainings in which each record is once, the bound on the tail holds as it is.
    repeats = any(len(np.unique(one)) < len(one) for one in alike)
    return strata, alike if is_known and repeats else None


def _unresolved_if_uneven(
    rate: Estimate, clients: Sequence[ClientScores], fpr: float
) -> Estimate:
    """Return a rate, unresolved where clients' sizes differ so that it hides some."""
    reason = uneven([len(c.scores) for c in clients], fpr)
    if rate.unresolved or not reason:
        return rate
    return unresolved(reason, rate.n, rate.method, rate.confidence)


def leak_auroc(
    clients: Sequence[ClientScores],
    confidence: float = 0.95,
    *,
    is_tested: bool = False,
) -> Estimate:
    """Return per-client AUROCs averaged by pairs, for other records and other shadows.

    ``is_tested`` is as :func:`privaudit.statistics.roc.auroc_interval` has it.
    """
    pooled = pooled_auroc(
        [c.groups for c in clients],
        confidence=confidence,
        clusters=[c.clusters for c in clients],
        is_tested=is_tested,
    )
    return _knowing_shadows(pooled, clients)


def _knowing_shadows(estimate: Estimate, clients: Sequence[ClientScores]) -> Estimate:
    """Return an AUROC whose interval knows of the adversary's own coins, if it had any."""
    left_out = _without_each_set(clients)
    if not left_out:
        return estimate
    return with_shadow_error(estimate, shadow_error(left_out))


def knowing_shadows_of(
    first: Sequence[ClientScores],
    second: Sequence[ClientScores],
    signs: tuple[float, float] = (1.0, 1.0),
) -> Callable[[Comparison], Comparison]:
    """Return what widens a paired difference by what the shadows of both attacks add.

    Of the same records, set by set, so that what both share is no error. Where the
    numbers of sets differ, or one has none, as of independent shadows: that is rather
    too much. Signs turn either's scores.
    """
    sets = [
        _without_each_set(clients, sign)
        for clients, sign in zip((first, second), signs, strict=True)
    ]
    known = [one for one in sets if one]
    if not known:
        return lambda comparison: comparison
    paired = len(known) == 2 and len(sets[0]) == len(sets[1])
    if paired:
        error = shadow_error(*sets)
    else:
        error = functools.reduce(operator.add, map(shadow_error, known))
    return lambda one: difference_with_shadow_error(one, error)


def _without_each_set(clients: Sequence[ClientScores], sign: float = 1.0) -> list[Any]:
    """Return members' and others' scores without each set of shadows; none if unknown."""
    known = [c for c in clients if c.is_member.any() and not c.is_member.all()]
    tables = [c.left_out for c in known if c.left_out is not None]
    if len(tables) < len(known) or len({len(table) for table in tables}) != 1:
        return []
    truths = [c.is_member for c in known]
    return [
        [
            (sign * s[truth], sign * s[~truth])
            for s, truth in zip(rows, truths, strict=True)
        ]
        for rows in zip(*tables, strict=True)
    ]


def clusters_of(clients: Sequence[ClientScores]) -> Int[np.ndarray, " all"] | None:
    """Return the clusters of all candidates in order; None where a client has none."""
    numbers = [one.cluster for one in clients if one.cluster is not None]
    return np.concatenate(numbers) if len(numbers) == len(clients) else None


def paired_scores(
    first: Sequence[ClientScores], second: Sequence[ClientScores]
) -> list[tuple[Any, Any, Any]]:
    """Return two attacks' scores of the same records beside the truth, by client."""
    pairs = zip(first, second, strict=True)
    return [(one.scores, other.scores, one.is_member) for one, other in pairs]


def ranked(
    clients: Sequence[ClientScores],
) -> tuple[Float[np.ndarray, " members"], Float[np.ndarray, " others"]]:
    """Return members and non-members of all clients, ranked within their client."""
    ranks = pooled_ranks([c.scores for c in clients])
    truth = np.concatenate([c.is_member for c in clients])
    return ranks[truth], ranks[~truth]
