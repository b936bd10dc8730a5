"""What rebuilding each client tells beyond the server's own model."""

from privaudit.auditing.audit import Audit
from privaudit.report.wording import interval, point
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate


def rebuilding(audit: Audit) -> str:
    """State what reconstruction reveals beyond the server's model, if both exist."""
    gain = gain_of_rebuilding(audit)
    if gain is None:
        return ""
    if not gain.excludes(0):
        learned = "no clear difference"
    else:
        more = "more" if gain.value > 0 else "less"
        learned = f"reconstructed clients leak {more}"
    server = audit.aggregate[audit.headline.attack].auroc
    return (
        f"On the server's own model, the average of all clients', “"
        f"{audit.headline.attack}” has an AUROC of {point(server)} {interval(server)}; "
        f"on the reconstructed clients {point(audit.auroc)} {interval(audit.auroc)}. "
        f"Paired difference on the same records: {point(gain, signed=True)} "
        f"{interval(gain)}, {learned}."
    )


def gain_of_rebuilding(audit: Audit) -> Estimate | None:
    """Return the headline attack's AUROC on clients less that on the server's model.

    Paired by record; None where the server's model was not attacked, or no client has
    both members and others.
    """
    common = audit.aggregate.get(audit.headline.attack)
    if common is None:
        return None
    both = zip(audit.headline.clients, common.clients, strict=True)
    groups = [(own.scores, server.scores, own.is_member) for own, server in both]
    if not any(truth.any() and not truth.all() for *_, truth in groups):
        return None
    return pooled_paired_auroc_difference(groups).estimate
