"""All checks; one more is one more line in its module, or a module in this line."""

from privaudit_tools.selftest import audits, claims, epsilon, false_alarms, intervals
from privaudit_tools.selftest.check import SelftestCheck

CHECKS: tuple[SelftestCheck, ...] = (
    *intervals.CHECKS,
    *false_alarms.CHECKS,
    *claims.CHECKS,
    *epsilon.CHECKS,
    *audits.CHECKS,
)
