"""All that one gate asks: changes since what it compares with, and limits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.against import Against
from privaudit.checks.gate.baseline import Baseline
from privaudit.checks.gate.checks import GateQuestion
from privaudit.checks.gate.demands import Demands
from privaudit.checks.gate.paired_baseline import check_same, joined_audit, joined_tests
from privaudit.checks.gate.questions import changes, limited
from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.unpaired_baseline import PublicNumbers, unpaired
from privaudit.evaluation.compare.comparable import score_tests
from privaudit.evaluation.compare.measured import (
    Measured,
    measure_attacks,
    measure_use,
)
from privaudit.evaluation.metric import metrics_of
from privaudit.evaluation.metrics.auroc import AUROC
from privaudit.evaluation.metrics.utility import UTILITY


def changes_since(
    audit: StoredAudit,
    against: Against | None,
    demands: Demands,
    settings: GateSettings,
) -> Iterator[GateQuestion]:
    """Yield a question for each metric that is compared, if anything is.

    Raises:
        IncompatibleRunsError: The two cannot be compared; the text says by what.
    """
    attacks = demands.comparable(settings)
    stronger = {
        metric.name(name)
        for name in attacks
        for metric in metrics_of("leak", settings.metrics)
        if demands.relation(name) == "stronger"
    }
    if isinstance(against, PublicNumbers):
        questions = unpaired(audit, against, attacks, settings)
    elif against is not None:
        questions = _paired(audit, against, attacks, settings)
    else:
        return
    for one in questions:
        yield replace(one, stronger=one.name in stronger)


def _paired(
    audit: StoredAudit,
    against: Baseline,
    attacks: Sequence[str],
    settings: GateSettings,
) -> Iterator[GateQuestion]:
    check_same(audit.run, against)
    chosen: list[Measured] = []
    if metrics_of("leak", settings.metrics):
        other = joined_audit(audit, against, attacks)
        chosen = measure_attacks(audit, other, attacks, settings.metrics)
    known = audit.run.has_utility or against.metric is not None
    if metrics_of("use", settings.metrics) and known:
        tests = joined_tests(audit.run, against)
        chosen += measure_use(*tests, settings.metrics)
    yield from changes(chosen, settings)


def limits_of(audit: StoredAudit, settings: GateSettings) -> Iterator[GateQuestion]:
    """Yield a question for each limit, of every attack that was made."""
    if settings.max_auroc is not None:
        for name in audit.attacks:  # all that were made, on the server's model too
            clients = audit.clients(name)
            yield limited(AUROC, name, clients, settings.max_auroc, "max_auroc")
    if settings.min_utility is not None:
        tests = score_tests(audit.run)
        least = settings.min_utility
        yield limited(UTILITY, tests.metric, tests, least, "min_utility")


def decided_by(
    demands: Demands, against: Against | None, settings: GateSettings
) -> Iterator[str]:
    """Yield in words which attacks decided, and how strong each was."""
    asked = [] if against is None else demands.comparable(settings)
    if not metrics_of("leak", settings.metrics):
        asked = []
    if settings.max_auroc is not None:
        asked = [*demands.made]
    by_strength: dict[str, list[str]] = {}
    for name in asked:
        if name in demands.made:
            by_strength.setdefault(str(demands.made[name]), []).append(name)
    each = [f"{', '.join(names)} ({how})" for how, names in by_strength.items()]
    if each:
        yield f"Attacks that decided: {'; '.join(each)}."
