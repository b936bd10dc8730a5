"""What to do about a finding: what was measured or proved, then what may be tried.

Nothing is said to lower a leak unless a trade-off measured it, or to protect unless a
certificate says so. All else is a setting that the method has, to be tried and measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from privaudit.auditing.audit import Audit
from privaudit.core.errors import PrivauditError
from privaudit.evaluation.tradeoff.cells import SweepCell
from privaudit.evaluation.tradeoff.result import Tradeoff
from privaudit.evaluation.tradeoff.stored_sweep import SWEEP, read_sweep
from privaudit.federated.trainer import TRAINERS
from privaudit.privacy.certificate import is_repeatable
from privaudit.recording.recorded_config import DeclaredConfig
from privaudit.report import wording
from privaudit.report.decision.badges import (
    KEPT,
    REFUTED,
    audit_rank,
    leak_badge,
    promise_badge,
)

Basis = Literal["Measured", "Proved", "To try", "Next"]
_MOST_CELLS = 3  # of one trade-off
_SETTLED = ("good", "neutral")


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Attributes:
        basis: What it rests on; "To try" rests on nothing yet, and "Next" on no finding.
        text: In a sentence or two.
        command: What does it, or measures it; empty where there is none.
        runs: Labels of the runs that it is about; empty if of all.
    """

    basis: Basis
    text: str
    command: str = ""
    runs: tuple[str, ...] = ()


def advise(audits: Sequence[Audit], labels: Sequence[str]) -> list[Advice]:
    """Return what to do: what is measured, what is proved, then what to try.

    Args:
        audits: Of one scenario.
        labels: Of their runs.
    """
    runs: dict[Advice, list[str]] = {}
    for advice in _from_tradeoffs(audits):
        runs.setdefault(advice, [])
    pairs = sorted(zip(audits, labels, strict=True), key=lambda one: audit_rank(one[0]))
    for audit, label in pairs:
        for advice in _for_run(audit):
            runs.setdefault(advice, []).append(label)
    found = [
        replace(one, runs=tuple(names) if len(names) < len(audits) else ())
        for one, names in runs.items()
    ]
    order: tuple[Basis, ...] = ("Measured", "Proved", "To try")
    ranked = sorted(found, key=lambda one: order.index(one.basis))
    return [*ranked, _measure(audits)]


def _for_run(audit: Audit) -> Iterator[Advice]:
    """Yield what there is to do about one run; little where nothing is amiss."""
    promise = promise_badge(audit)
    if promise == REFUTED:
        yield Advice(
            "Measured",
            "Do not rely on the claimed ε: canaries show more. Look for the fault in "
            "the mechanism or its accounting.",
            "privaudit lint RUN",
        )
    if is_repeatable(audit.certificate):
        yield Advice(
            "Proved",
            "Train again with noise that no seed repeats: the same settings then have "
            f"ε = {wording.certified(audit).strip('()')} against this adversary.",
            "privaudit train --randomness system",
        )
    if "would decide" in audit.verdict.sentence:
        yield Advice(
            "Measured",
            "Audit more members and non-members: the verdict is undecided, and says "
            "about how many would decide it.",
        )
    if audit.verdict.kind == "sampling unknown":
        yield _try(
            "Let an independent fair coin choose the members of the next training, and "
            "declare it: without one no number of an attack is a verdict.",
        )
    if leak_badge(audit).kind in _SETTLED and promise == KEPT:
        return
    if not isinstance(audit.run.config, DeclaredConfig):
        yield from _options(audit)


def _options(audit: Audit) -> Iterator[Advice]:
    """Yield settings of the method, or of a run, that may lower what leaks."""
    config, server = audit.run.config, audit.scenario.threat == "server"
    settings: Mapping[str, object] = config.settings
    trainer, private = config.trainer, f"dp-{config.trainer}"
    proved = audit.certificate["epsilon"] is not None
    if "epsilon" not in settings and private in TRAINERS.names():
        yield _try(
            f"{private} is the same method with noise, and has an ε to be certified.",
            f"privaudit train --trainer {private}:epsilon=8",
        )
    if "epsilon" in settings and settings["epsilon"] is None:
        yield _try(
            "Give the method an ε: it then adds noise, and the certificate says against "
            "whom that counts.",
            f"privaudit train --trainer {trainer}:epsilon=8",
        )
    if str(settings.get("mode", "")).startswith("published") and not proved:
        yield _try(
            "Mode “sound” samples, clips and adds noise as an accountant can certify; "
            "the published modes need not keep what they claim.",
            f"privaudit train --trainer {trainer}:mode=sound,epsilon=8",
        )
    if server and not proved and settings.get("noise_at") == "server":
        yield _try(
            "Let the clients add the noise: a server that adds it sees what it hides, "
            "so that nothing is proved against it.",
            f"privaudit train --trainer {trainer}:mode=sound,epsilon=8,noise_at=client",
        )
    if server and not config.is_masked and trainer != "zero-shot":
        yield _try(
            "Mask the uploads (secure aggregation): the server then sees sums only, and "
            "there is no single model to reconstruct.",
            f"privaudit train --trainer {trainer} --secure-aggregation masked",
        )


def _try(text: str, command: str = "") -> Advice:
    return Advice("To try", text, command)


def _measure(audits: Sequence[Audit]) -> Advice:
    """Return how what was tried is measured, and how it is kept."""
    if all(
        leak_badge(audit).kind in _SETTLED and promise_badge(audit) == KEPT
        for audit in audits
    ):
        return Advice(
            "Next",
            "Keep it so: hold each new run against this one before it is merged.",
            "privaudit gate RUN --write-baseline baseline.json",
        )
    if any(isinstance(audit.run.config, DeclaredConfig) for audit in audits):
        return Advice(
            "Next",
            "Hold the next version against this one, on the same records, before it is "
            "released.",
            "privaudit gate RUN --baseline baseline.json",
        )
    return Advice(
        "Next",
        "Measure what a change does to leakage and to utility, over several seeds, "
        "before you choose it.",
        f"privaudit tradeoff --scenario {audits[0].scenario.name}",
    )


def _from_tradeoffs(audits: Sequence[Audit]) -> Iterator[Advice]:
    """Yield what trade-offs in the folder of the runs have measured with this attack."""
    attacks = {audit.headline.attack for audit in audits}
    for name, found in _beside(audits):
        if found.points[0].attack in attacks:
            yield from _measured(name, found)


def _beside(audits: Sequence[Audit]) -> Iterator[tuple[str, Tradeoff]]:
    """Yield the trade-offs that lie beside the runs; what is damaged says nothing."""
    stored = [audit.run.path for audit in audits if audit.run.is_stored]
    for folder in dict.fromkeys(path.resolve().parent for path in stored):
        places = sorted(folder.iterdir()) if folder.is_dir() else []
        for place in places:
            if not (place / SWEEP).is_file():
                continue
            try:
                yield place.name, read_sweep(place)
            except PrivauditError:
                continue


def _measured(name: str, found: Tradeoff) -> Iterator[Advice]:
    """Yield the settings that lower the leak beyond doubt, the most useful first."""
    lower = [cell for cell in found.cells if cell.change and cell.change.high < 0]
    said = f"In the trade-off “{name}” ({len(found.cells)} settings"
    if not lower:
        yield Advice(
            "Measured", f"{said}) none lowered the AUROC of this attack beyond doubt."
        )
    lower.sort(key=lambda cell: -cell.local.value)
    for cell in lower[:_MOST_CELLS]:
        yield Advice("Measured", f"{said}, {len(cell.seeds)} seeds) {_lowers(cell)}")


def _lowers(cell: SweepCell) -> str:
    assert cell.change is not None
    return (
        f"{cell.name} lowers the AUROC by {wording.point(cell.change).lstrip('-')} "
        f"{wording.interval(cell.change)} against "
        f"{_reference(cell)}; utility is {wording.rate(cell.local)}."
    )


def _reference(cell: SweepCell) -> str:
    if cell.reference is None:
        return "no noise"
    mode, epsilon = cell.reference
    return f"{mode} without noise" if epsilon is None else f"{mode} at ε {epsilon:g}"
