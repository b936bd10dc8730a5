"""What to do about a finding: what was measured or proved, then what may be tried.

Nothing is said to lower a leak unless a trade-off measured it, or to protect unless a
certificate says so. All else is a setting that the method has, to be tried and measured, by
a command made of the run's own configuration: what it changes, and all else as it was. Each
is read again as its command reads it, and checked; where it would be refused, or would
train something else, there is none.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

from privaudit.auditing.audit import Audit
from privaudit.auditing.named_attacks import refuse_all_members
from privaudit.auditing.scenario import find_scenario, weight_attacks
from privaudit.core.errors import PrivauditError
from privaudit.core.parameters import complete_settings, parse_spec
from privaudit.evaluation.tradeoff.plan import cells_of, make_plan
from privaudit.evaluation.tradeoff.result import (
    SWEEP,
    SweepCell,
    Tradeoff,
    read_sweep,
    study_of,
)
from privaudit.federation.trainer import TRAINERS
from privaudit.recording.bundle import DeclaredConfig
from privaudit.report import wording
from privaudit.report.report_data import (
    DECLARED,
    KEPT,
    NOT_PROVED,
    REFUTED,
    Findings,
    ReportData,
)
from privaudit.runs.config import RunConfig, build_trainer, make_config, parameters_of

_CHOSEN_ANEW = ("trainer", "settings", "seed", "randomness")
_MOST = 2000  # characters that anybody would paste
_USUAL_MODES = ("published-paper", "sound")  # of a trade-off


def private_twin(trainer: str) -> str:
    """Return the trainer that is the same method with noise; empty without one."""
    twin = f"dp-{trainer}"
    return twin if TRAINERS.has(twin) else ""


def knows(trainer: str, parameter: str) -> bool:
    """Say whether a trainer is known here, and has that parameter."""
    return TRAINERS.has(trainer) and parameter in parameters_of(trainer)


def train_command(
    config: RunConfig,
    trainer: str = "",
    settings: Mapping[str, Any] | None = None,
    **fields: Any,
) -> str:
    """Return the command that trains a run anew; empty where there is none.

    Trainer, settings and fields take the place of the run's own. The seed is left out:
    it is chosen anew.
    """
    name = trainer or config.trainer
    try:
        own = {k: v for k, v in _settings(config).items() if knows(name, k)}
        spec = _spec(name, {**own, **(settings or {})})
        words = ["--trainer", spec]
        for field, value in _fields(config, spec, fields).items():
            option = field.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", _text(value)]
    except PrivauditError:
        return ""
    return _joined("train", words)


def tradeoff_command(config: RunConfig, scenario: str) -> str:
    """Return the command that weighs a run's method, with and without noise; or none."""
    try:
        find_scenario(scenario, 0)
        refuse_all_members(config)
        settings = _settings(config)
        mode = settings.pop("mode", None)
        settings.pop("epsilon", None)
        spec = _spec(config.trainer, settings)
        fields = {k: _text(v) for k, v in _fields(config, spec, {}).items()}
    except PrivauditError:
        return ""
    twin = "" if knows(config.trainer, "epsilon") else private_twin(config.trainer)
    entries: dict[str, Any] = {
        "trainers": [name for name in (config.trainer, twin) if name],
        "seeds": [10],
        "scenario": scenario,
        "settings": {k: _text(v) for k, v in settings.items()},
        "fields": fields,
    }
    for modes in _modes(mode):
        try:
            cells_of(make_plan({**entries, **({"modes": modes} if modes else {})}))
        except PrivauditError:
            continue
        words = ["--scenario", scenario, "--trainers", ",".join(entries["trainers"])]
        words += ["--modes", ",".join(modes)] if modes else []
        for option, values in (("--set", entries["settings"]), ("--field", fields)):
            for k, v in values.items():
                words += [option, f"{k}={v}"]
        return _joined("tradeoff", words)
    return ""


def _modes(mode: str | None) -> Iterator[list[str]]:
    """Yield modes to weigh, by default the usual ones; not all go with all settings."""
    yield [] if mode in (None, *_USUAL_MODES) else [str(mode), "sound"]
    yield ["sound"]


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return the parameters of a run that are not the trainer's defaults."""
    usual = complete_settings(build_trainer(config.trainer, {}))
    return {
        name: value
        for name, value in config.settings.items()
        if name not in usual or value != usual[name]
    }


def _fields(config: RunConfig, spec: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that have to be said, and those that are changed."""
    wanted = {**config.model_dump(), **changed}
    wanted = {n: value for n, value in wanted.items() if n not in _CHOSEN_ANEW}
    said = config.model_dump(exclude_defaults=True)
    said = {n: v for n, v in {**said, **changed}.items() if n in wanted}
    randomness = {n: v for n, v in changed.items() if n == "randomness"}
    usual = _made(spec, {**said, **randomness})
    said |= {n: v for n, v in wanted.items() if v is not None and usual[n] != v}
    made = _made(spec, {**said, **randomness})
    if {n: made[n] for n in wanted} != wanted:
        raise PrivauditError("No option takes back what another sets.")
    return {**said, **randomness}


def _made(spec: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that a command makes."""
    name, settings = parse_spec("--trainer", spec, "dp-fpl:epsilon=8")
    return make_config(name, settings, **fields).model_dump()


def _spec(name: str, settings: Mapping[str, Any]) -> str:
    said = ",".join(f"{key}={_text(value)}" for key, value in settings.items())
    return f"{name}:{said}" if said else name


def _text(value: Any) -> str:
    """Return a value as a command line has it: none, true, 8."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _joined(command: str, words: list[str]) -> str:
    text = shlex.join(["privaudit", command, *words])
    return text if len(text) <= _MOST else ""


Basis = Literal["Measured", "Proved", "To try", "Next"]
_MOST_CELLS = 3  # of one trade-off
_BUDGET = 8.0  # where the run has none
_CLIENTS_ADD_IT = (
    "Let the clients add the noise: a server that adds it sees what it hides, so that "
    "nothing is proved against it."
)

_MASK = (
    "Mask the uploads (secure aggregation): the server then sees sums only, and there is "
    "no single model to reconstruct."
)


_NOISE_BY: Mapping[str, str] = {
    "flwr": "in Flower by Opacus in the client, or LocalDpMod, behind name_partition",
    "nvflare": "in NVFlare by Opacus in the client, with EngineFilter, or SVTPrivacy",
    "transformers": "by Opacus in a loop of your own: Hugging Face's Trainer has none",
}
_MASKS_BY: Mapping[str, str] = {
    "flwr": " In Flower: SecAggPlusWorkflow, and secaggplus_mod in the client.",
    "nvflare": " In NVFlare: HEModelEncryptor among the client's filters.",
}


class Urgency(IntEnum):
    """What advice is sorted by: what it answers, the worst first."""

    REFUTED = 0
    NOT_PROVED = 1
    LEAK = 2
    UNDECIDED = 3
    LOWERED = 4  # by a trade-off, where nothing leaks
    OPTION = 5
    NEXT = 6
    NONE_LOWERED = 7


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Attributes:
        basis: What it rests on; "To try" rests on nothing yet, and "Next" on no finding.
        command: What does it, or measures it; empty where there is none.
        urgency: The kind of finding that it answers: by it advice is ordered.
        runs: Labels of the runs that it is about; empty if of all.
    """

    basis: Basis
    text: str
    command: str = ""
    urgency: Urgency = field(default=Urgency.OPTION, compare=False)
    runs: tuple[str, ...] = ()


def advise(data: ReportData) -> list[Advice]:
    """Return what to do about runs of one scenario, the most urgent first.

    What is measured or proved, then what may be tried.
    """
    runs: dict[Advice, list[str]] = {}
    beside = list(_beside(data.audits))
    for one in data.worst_first:
        for advice in [*_from_tradeoffs(one, beside), *_for_run(one)]:
            runs.setdefault(advice, []).append(one.label)
    found = [
        replace(advice, runs=tuple(names) if len(names) < len(data.runs) else ())
        for advice, names in runs.items()
    ]
    return sorted([*found, *_measure(data)], key=lambda advice: advice.urgency)


def _for_run(one: Findings) -> Iterator[Advice]:
    """Yield what there is to do about one run; little where nothing is amiss."""
    audit, promise, config = one.audit, one.promise, one.audit.run.config
    trained = _is_trained(audit)
    if promise == REFUTED:
        yield Advice(
            "Measured",
            "Do not rely on the claimed ε: canaries show more. Look for the fault in "
            "the mechanism or its accounting.",
            shlex.join(["privaudit", "lint", audit.run.name]),
            Urgency.REFUTED,
        )
    if trained and audit.assurance.short == "not private":
        yield Advice(
            "Proved",
            "Train again with noise that no seed repeats: the same settings then have "
            f"ε = {wording.certified(audit).strip('()')} against this adversary.",
            train_command(config, randomness="system"),
            Urgency.NOT_PROVED,
        )
    if one.attack in weight_attacks() and one.leak.kind == "alarm":
        yield Advice("To try", _hides_in_weights(audit), urgency=Urgency.LEAK)
    if one.strength.is_weak and audit.verdict.kind in ("no evidence", "underpowered"):
        yield Advice(
            "To try",
            "Make a stronger attack before you rely on this one, which asks the target "
            f"alone: {one.strength.stronger}.",
            one.strength.command,
            Urgency.UNDECIDED,
        )
    if audit.verdict.trainings is not None:
        yield Advice(
            "Measured",
            "Audit more members and non-members, of more trainings: the verdict is "
            "undecided, and says about how many would decide it.",
            urgency=Urgency.UNDECIDED,
        )
    if audit.verdict.kind == "sampling unknown":
        yield Advice(
            "To try",
            "Declare the random split, if one was made; or let an independent fair coin "
            "choose the members of the next training: without either no number of an "
            "attack is a verdict.",
            urgency=Urgency.UNDECIDED,
        )
    if trained and not _is_settled(one):  # settings that the method takes
        options = [*_noises(one), *_masks(one)]
        yield from (advice for advice in options if advice.command)
    if not trained and one.leak.kind == "alarm":
        yield from _elsewhere(one)


def _elsewhere(one: Findings) -> Iterator[Advice]:
    """Yield what may lower a leak of what is trained elsewhere, by nobody's command here."""
    audit = one.audit
    bundle = getattr(audit.run, "bundle", None)  # of a recorded run, which takes torch
    library = next((n for n in _NOISE_BY if bundle and n in bundle.libraries), "")
    if one.promise not in (KEPT, DECLARED):
        yield Advice(
            "To try",
            "Clip what each record, or client, adds, and add noise to it (DP-SGD, "
            f"{_NOISE_BY.get(library, 'as by Opacus')}): the one remedy whose ε bounds "
            "every attack.",
            urgency=Urgency.LEAK,
        )
    yield Advice(
        "To try",
        "Memorise less: fewer epochs, local steps or rounds, fewer trained parameters, "
        "weight decay, and each record once.",
        urgency=Urgency.LEAK,
    )
    if audit.scenario.threat == "server" and not audit.run.config.is_masked:
        how = _MASKS_BY.get(library, "")
        yield Advice("To try", f"{_MASK}{how}", urgency=Urgency.LEAK)


def _is_trained(audit: Audit) -> bool:
    return not isinstance(audit.run.config, DeclaredConfig)


def _hides_in_weights(audit: Audit) -> str:
    """Say what hides members where weights tell them, here and at what cost."""
    attacked = audit.headline.clients
    each = sum(len(one.scores) for one in attacked) / len(attacked)
    sent = max((line.get("bytes_up", 0) for line in audit.run.metrics), default=0)
    numbers = sent / 4 / audit.run.config.clients
    crowd = (
        f" Here about {numbers:,.0f} numbers of a client stand against {each:.0f} "
        f"candidates: sums of {max(2, round(numbers / each)):,} clients."
    )
    return (
        "Weights alone tell members. Noise hides them if clients add it and it is "
        "certified: at multiplier 1 one release leaves an AUROC of 0.76 at most; it "
        "costs accuracy, in a sum of k clients 1/√k of it each. So do sums in which "
        "candidates outnumber what is sent, and fewer numbers, always the same ones, "
        f"at the cost of what these cannot learn.{crowd if numbers else ''} Batches "
        "beyond a layer's width stop projection-residual alone. Noise that only blurs "
        "the span, and random subsets of factors, are no defence."
    )


def _is_settled(one: Findings) -> bool:
    return one.leak.kind in ("good", "neutral") and one.promise == KEPT


def _noises(one: Findings) -> Iterator[Advice]:
    """Yield settings of noise that may lower what leaks."""
    audit = one.audit
    config, server = audit.run.config, audit.scenario.threat == "server"
    trainer, twin = config.trainer, private_twin(config.trainer)
    budget = config.settings.get("epsilon")
    published = str(config.settings.get("mode", "")).startswith("published")
    proved = audit.certificate["epsilon"] is not None
    hidden = {"noise_at": "client"} if server and knows(trainer, "noise_at") else {}
    sound = {"mode": "sound", "epsilon": _BUDGET if budget is None else budget}
    lacking, leaks = _urgency(one, Urgency.NOT_PROVED), _urgency(one)
    if not knows(trainer, "epsilon") and twin:
        yield Advice(
            "To try",
            f"{twin} is the same method with noise, and has an ε to be certified.",
            train_command(config, twin, {"epsilon": _BUDGET}),
            leaks,
        )
    if knows(trainer, "epsilon") and budget is None and not published:
        yield Advice(
            "To try",
            "Give the method an ε: it then adds noise, and the certificate says against "
            "whom that counts.",
            train_command(config, settings={"epsilon": _BUDGET, **hidden}),
            leaks,
        )
    if published and not proved:
        yield Advice(
            "To try",
            "Mode “sound” samples, clips and adds noise as an accountant can certify; "
            "the published modes need not keep what they claim."
            + (f" {_CLIENTS_ADD_IT}" if hidden else ""),
            train_command(config, settings={**sound, **hidden}),
            lacking,
        )
    own_server = config.settings.get("noise_at") == "server"
    if server and not proved and not published and own_server and budget is not None:
        yield Advice(
            "To try",
            _CLIENTS_ADD_IT,
            train_command(config, settings={**sound, **hidden}),
            lacking,
        )


def _masks(one: Findings) -> Iterator[Advice]:
    """Yield that uploads be masked, where some are sent and it needs their sum only."""
    audit = one.audit
    sent = any(line.get("bytes_up") for line in audit.run.metrics)
    if audit.scenario.threat == "server" and sent and not audit.run.config.is_masked:
        yield Advice(
            "To try",
            _MASK,
            train_command(audit.run.config, secure_aggregation="masked"),
            _urgency(one),
        )


def _urgency(one: Findings, of_promise: Urgency = Urgency.OPTION) -> Urgency:
    """Return how urgent a setting is that may lower the leak, or prove a promise."""
    leak = Urgency.LEAK if one.leak.kind == "alarm" else Urgency.OPTION
    return min(leak, of_promise) if one.promise == NOT_PROVED else leak


def _measure(data: ReportData) -> Iterator[Advice]:
    """Yield how what was tried is measured, and how it is kept."""
    worst, leaks = data.worst_first[0].audit, data.worst_first[0].leak.kind == "alarm"
    scenario, run = worst.scenario.name, worst.run.name
    gate = ["privaudit", "gate"]
    options = ["--scenario", scenario]
    written = shlex.join([*gate, run, *options, "--write-baseline", "baseline.json"])
    against = shlex.join([*gate, "NEXT", *options, "--baseline", "baseline.json"])
    if all(map(_is_settled, data.runs)):
        yield _next(
            f"Keep it so: write a baseline of {run}, and hold each new run against it "
            "before it is merged.",
            written,
        )
        yield _next("Hold a new run against that baseline.", against)
    elif leaks and not _is_trained(worst):
        yield _next(
            "Train again with one change, on the same members, audit that as NEXT, and "
            "hold the two against each other.",
            shlex.join(["privaudit", "compare", "NEXT", run, *options]),
        )
    elif not leaks and not all(map(_is_trained, data.audits)):
        yield _next(
            f"Write a baseline of {run}: the next version is held against it.", written
        )
        yield _next(
            "Hold the next version against that baseline, on the same records, before "
            "it is released.",
            against,
        )
    else:
        yield _next(
            "Measure what a change does to leakage and to utility, over several seeds, "
            "before you choose it.",
            tradeoff_command(worst.run.config, scenario),
        )


def _next(text: str, command: str) -> Advice:
    return Advice("Next", text, command, Urgency.NEXT)


def _from_tradeoffs(
    one: Findings, beside: Sequence[tuple[str, Tradeoff]]
) -> Iterator[Advice]:
    """Yield what trade-offs measured of this attack, in this study and no other.

    Older ones do not say what they trained, so that nothing is quoted of them.
    """
    if not beside:
        return
    own, leaks = study_of(one.audit), one.leak.kind == "alarm"
    for name, found in beside:
        studies = {point.study for point in found.points}
        others = {study and replace(study, trainer=own.trainer) for study in studies}
        is_own = own in studies and others == {own}
        if is_own and found.points[0].attack == one.attack:
            yield from _measured(name, found, leaks)


def _beside(audits: Sequence[Audit]) -> Iterator[tuple[str, Tradeoff]]:
    """Yield the trade-offs that lie beside the runs; what is damaged says nothing."""
    stored = [audit.run.path for audit in audits if audit.run.is_stored]
    for folder in dict.fromkeys(path.resolve().parent for path in stored):
        below = sorted(folder.iterdir()) if folder.is_dir() else []
        for one in below:
            if not (one / SWEEP).is_file():
                continue
            try:
                yield one.name, read_sweep(one)
            except PrivauditError:
                continue


def _measured(name: str, found: Tradeoff, leaks: bool) -> Iterator[Advice]:
    """Yield the settings that lower the leak beyond doubt, the most useful first."""
    lower = [cell for cell in found.cells if cell.change and cell.change.high < 0]
    said = f"In the trade-off “{name}” ({len(found.cells)} settings"
    if not lower:
        yield Advice(
            "Measured",
            f"{said}) none lowered the AUROC of this attack beyond doubt.",
            urgency=Urgency.NONE_LOWERED,
        )
    urgency = Urgency.LEAK if leaks else Urgency.LOWERED
    lower.sort(key=lambda cell: -cell.local.value)
    for cell in lower[:_MOST_CELLS]:
        text = f"{said}, {len(cell.seeds)} seeds) {_lowers(cell)}"
        yield Advice("Measured", text, urgency=urgency)


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
