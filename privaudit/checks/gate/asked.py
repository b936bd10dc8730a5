"""All that one gate asks: changes since what it compares with, and limits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from privaudit.auditing.storage.load import StoredAudit
from privaudit.checks.gate.against import Against
from privaudit.checks.gate.baseline import Baseline
from privaudit.checks.gate.checks import GateQuestion
from privaudit.checks.gate.demands import LEAKS, Demands
from privaudit.checks.gate.paired_baseline import check_same, joined_audit, joined_tests
from privaudit.checks.gate.questions import (
    auroc_at,
    changes,
    leak_limit,
    use_limit,
    use_name,
    utility_at,
)
from privaudit.checks.gate.settings import GateSettings
from privaudit.checks.gate.unpaired_baseline import PublicNumbers, unpaired
from privaudit.evaluation.compare.comparable import score_tests
from privaudit.evaluation.compare.paired_metrics import (
    Measured,
    measure_pair,
    measure_use,
)


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
        f"{name}{ending}"
        for name in attacks
        for ending in LEAKS.values()
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
    endings = tuple(LEAKS[m] for m in settings.metrics if m in LEAKS)
    chosen: list[Measured] = []
    if endings:
        other = joined_audit(audit, against, attacks)
        measured = measure_pair(audit, other, attacks, utility=False)
        chosen = [one for one in measured if one.name.endswith(endings)]
    known = audit.run.has_utility or against.metric is not None
    if "utility" in settings.metrics and known:
        chosen.append(measure_use(*joined_tests(audit.run, against)))
    yield from changes(chosen, settings)


def limits_of(audit: StoredAudit, settings: GateSettings) -> Iterator[GateQuestion]:
    """Yield a question for each limit, of every attack that was made."""
    if settings.max_auroc is not None:
        for name in audit.attacks:  # all that were made, on the server's model too
            at = auroc_at(audit.clients(name))
            yield leak_limit(f"{name} AUROC", at, settings.max_auroc)
    if settings.min_utility is not None:
        tests = score_tests(audit.run)
        name = use_name(tests.metric)
        yield use_limit(name, utility_at(tests), settings.min_utility)


def decided_by(
    demands: Demands, against: Against | None, settings: GateSettings
) -> Iterator[str]:
    """Yield in words which attacks decided, and how strong each was."""
    asked = [] if against is None else demands.comparable(settings)
    if not LEAKS.keys() & {*settings.metrics}:
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
