"""AUROC of an attack: within clients, averaged by pairs, and its difference by DeLong."""

from collections.abc import Sequence

from privaudit.auditing.attack_result import (
    ClientScores,
    knowing_shadows_of,
    leak_auroc,
)
from privaudit.evaluation.metric import METRICS, Metric, PairedNumbers
from privaudit.statistics.comparisons import paired_auroc_at
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc, sign_turned


def _paired(
    first: Sequence[ClientScores], second: Sequence[ClientScores]
) -> PairedNumbers:
    (value, turned), (other, other_turned) = map(_leak_of, (first, second))
    signs = -1.0 if turned else 1.0, -1.0 if other_turned else 1.0
    at = paired_auroc_at(
        [
            (signs[0] * a.scores, signs[1] * b.scores, a.is_member)
            for a, b in zip(first, second, strict=True)
        ],
        [client.cluster for client in first],
    )
    knowing = knowing_shadows_of(first, second, signs)

    def interval_at(confidence: float) -> Estimate:
        return knowing(at(confidence)).estimate

    return PairedNumbers(value, other, interval_at, (turned, other_turned))


def _leak_of(clients: Sequence[ClientScores]) -> tuple[float, bool]:
    """Return an AUROC, and whether it is that of the scores with the sign turned.

    Else a model whose members have the lower scores would pass for one that leaks less.
    """
    groups = [one.groups for one in clients]
    auroc = pooled_auroc(groups, clusters=[one.clusters for one in clients])
    turned = auroc.high < 0.5
    return (sign_turned(auroc) if turned else auroc).value, turned


AUROC = METRICS.register("auroc")(
    Metric(
        "auroc", "AUROC", "leak", "auroc", leak_auroc, _paired,
        field="auroc", heading="AUROC", turn=sign_turned, of_scores=True,
    )
)  # fmt: skip
