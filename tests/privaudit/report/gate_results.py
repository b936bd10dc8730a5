"""Results of the gate made by hand, one check of each outcome, for reports of it."""

from collections.abc import Mapping

from privaudit.checks.gate.checks import GateQuestion, judge
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.settings import GateSettings, SettingLine
from privaudit.statistics.estimate import Estimate

NASTY = 'a|b`<script>alert("1")</script>&amp;]]>\x00\x1b[31m\n# **x** [l](u) \u202eé'


def question(name: str, value: float) -> GateQuestion:
    def at(confidence: float) -> Estimate:
        half = 0.02 * confidence
        return Estimate(value, value - half, value + half, (9, 8), "z", confidence)

    return GateQuestion(name, "leak", "margin", 0.05, 0.5 + value, 0.5, at)


def made(
    name: str = "run", lines: Mapping[str, SettingLine] | None = None, **values: float
) -> GateResult:
    """Return a result with a check of each name; by default one of each outcome."""
    wanted = values or {"worse": 0.3, "same": 0.0, "open": 0.05}
    limited = GateQuestion(
        f"limit of {name}", "leak", "max_auroc", 0.6, 0.9, None,
        question("", 0.9).interval_at,
    )  # fmt: skip
    asked = [*(question(key, value) for key, value in wanted.items()), limited]
    checks = tuple(judge(asked))
    return GateResult(name, "before", "record", GateSettings(), checks, lines or {})
