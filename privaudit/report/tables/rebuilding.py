"""What rebuilding each client tells beyond the server's own model."""

from privaudit.auditing.audit import Audit
from privaudit.report.wording import interval, point
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate


def rebuilding(audit: Audit) -> str:
    """Say what rebuilding clients told beyond the server's own model, if both are."""
    gain = gain_of_rebuilding(audit)
    if gain is None:
        return ""
    if not gain.excludes(0):
        learned = "no clear difference"
    else:
        learned = "rebuilding tells more" if gain.value > 0 else "rebuilding tells less"
    server = audit.aggregate[audit.headline.attack].auroc
    return (
        f"On the server's own model, the average of all clients', “"
        f"{audit.headline.attack}” has an AUROC of {point(server)} {interval(server)}; "
        f"on the clients' rebuilt models {point(audit.auroc)} "
        f"{interval(audit.auroc)}. On the same records that is "
        f"{point(gain, signed=True)} {interval(gain)}: {learned}."
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
