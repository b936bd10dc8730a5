"""What a table asks of a finished run: attacks, utility by domain and elsewhere.

Both take their time, so what they found is kept beside the run, below ``audits/table``,
with what it is of: a run that was trained anew, or other attacks, are asked again.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.core.errors import ConfigError
from privaudit.core.storage import parse_json, to_json
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.sources import load_dataset
from privaudit.evaluation.metric import metrics_of
from privaudit.federation.trainer import ClientId
from privaudit.runs.population import (
    Population,
    encode_for,
    load_model,
    refuse_mismatch,
    some_of,
)
from privaudit.runs.run import AUDITS, Run
from privaudit.runs.tasks import measure_writing
from privaudit.runs.utility import measure_clients
from privaudit_tools.tables.metrics import (
    ELSEWHERE,
    Metric,
    attack_of,
    domain_of,
    named,
)
from privaudit_tools.tables.parts import Elsewhere

FORMAT = 2  # raised when the same question has another answer
Found = Mapping[Metric, float]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Afterwards:
    """What a table asks of each of its runs.

    Attributes:
        metrics: Full names of what is printed.
        scenario: Whose attacks are made; empty for none.
        elsewhere: Where the server's model is measured too.
        shadows: Shadow models for each of some clients.
        attacked: For how many clients; attacks without any attack everyone.
    """

    metrics: tuple[Metric, ...] = ()
    scenario: str = ""
    elsewhere: Elsewhere | None = None
    shadows: int = 0
    attacked: int | Literal["all"] = "all"


def measure_afterwards(run: Run, asked: Afterwards) -> dict[Metric, float]:
    """Return what attacks and another data set say of a finished run.

    Raises:
        ConfigError: The run cannot be attacked, or not be measured there.
        MissingFileError: The other data set is missing.
        StorageError: The answers cannot be kept.
    """
    values: dict[Metric, float] = {}
    if asked.scenario:
        values |= _leaks(run, asked)
    if asked.elsewhere:
        values |= _elsewhere(run, asked.elsewhere)
    if domains := [metric for metric in asked.metrics if domain_of(metric)]:
        values |= _in_domains(run, domains)
    return values


def _in_domains(run: Run, metrics: Sequence[Metric]) -> Found:
    """Return what the finished models of each domain's clients score."""
    return _remembered(
        run, "domains", {"metrics": list(metrics)}, lambda: _measured_in(run, metrics)
    )


def _measured_in(run: Run, metrics: Sequence[Metric]) -> Found:
    found: dict[Metric, float] = {}
    for metric in metrics:
        if (asked := domain_of(metric)) is None:
            continue
        name, domain = asked
        clients = clients_of(run.population, domain)
        models = {one: run.personal_models[one] for one in clients}
        utility = measure_clients(run.trainer, run.population, models)
        found[metric] = {"local": utility.local, "mix": utility.mix}[name].value
    return found


def clients_of(population: Population, domain: str) -> list[ClientId]:
    """Return the clients whose candidates are all of one domain.

    Raises:
        ConfigError: The data set has no domain of that name, or no client has records
            of it alone.
    """
    names, domains = population.dataset.domain_names, population.dataset.domains
    clients: list[ClientId] = []
    if domains is not None and domain in names:
        of_it = domains == names.index(domain)
        everyone = population.task.clients
        clients = [one for one in everyone if of_it[population.indices(one)].all()]
    if not clients:
        raise ConfigError(
            f"Accuracy on {domain!r} was requested, and no client has records of that "
            f"domain alone. The domains are: {', '.join(names) or 'none'}; use "
            "--partition domains."
        )
    return clients


def _leaks(run: Run, asked: Afterwards) -> Found:
    """Return what each attack finds on clients' reconstructed models, and on the server's."""
    scenario = _with_what_is_printed(
        find_scenario(asked.scenario, asked.shadows), asked.metrics
    )

    def attack() -> Found:
        audit = Auditor(run).attack(scenario, clients=asked.attacked)
        return {
            **_found_by("client", audit.results),
            **_found_by("server", audit.part(SERVER_MODEL)),
        }

    attacks = {name: repr(attack) for name, attack in scenario.attacks.items()}
    request = {
        "threat": scenario.threat,
        "attacks": attacks,
        "attacked": asked.attacked,
    }
    return _remembered(run, scenario.name, request, attack)


def _with_what_is_printed(scenario: Scenario, metrics: Sequence[Metric]) -> Scenario:
    """Return the scenario with the attacks that metrics name, if it has them all."""
    named_ones = {name for metric in metrics if (name := attack_of(metric))}
    if not named_ones or not named_ones <= scenario.attacks.keys():
        return scenario
    kept = {n: one for n, one in scenario.attacks.items() if n in named_ones}
    return replace(scenario, attacks=kept)


def _found_by(whose: str, results: Mapping[str, AttackResult]) -> Found:
    return {
        named(whose, attack, number): number.shown(result).value
        for number in metrics_of("leak")
        for attack, result in results.items()
    }


def _elsewhere(run: Run, place: Elsewhere) -> Found:
    """Return what the server's model scores on another data set."""
    foreign = load_dataset(place.dataset, place.data)
    asked = {**place.model_dump(), "hash": foreign.hash}
    name = f"{ELSEWHERE}-{place.dataset}"
    return _remembered(
        run, name, asked, lambda: _measure_elsewhere(run, place, foreign)
    )


def _measure_elsewhere(run: Run, place: Elsewhere, foreign: Dataset) -> Found:
    """Measure on as many records as the run was tested on, the same for all runs."""
    population, config = run.population, run.config
    model = run.own_model
    if model is None:
        return {}
    if foreign.hash == population.dataset.hash:
        raise ConfigError(
            f"{place.dataset} is what the run was trained on, so its records are no "
            "foreign non-members. Name another data set."
        )
    refuse_mismatch(config, foreign)
    records = encode_for(config, load_model(config), foreign)
    sample = records.pick(some_of(len(records), config.tested))
    written = measure_writing(run.trainer, population.task, [model], sample)
    return {
        f"{ELSEWHERE} {written.metric}": float(written.scores.mean()),
        **{f"{ELSEWHERE} {name}": e.value for name, e in written.captions.items()},
    }


def _remembered(
    run: Run, name: str, asked: Mapping[str, Any], measure: Callable[[], Found]
) -> Found:
    """Return the finite numbers of what was found, or is found now."""
    return remembered(
        run,
        f"{AUDITS}table/{name}.json",
        asked,
        lambda: {n: v for n, v in measure().items() if math.isfinite(v)},
    )


def remembered(
    run: Run, place: str, asked: Mapping[str, Any], measure: Callable[[], Answer]
) -> Answer:
    """Return what was found when the same was asked of the same run, or ask.

    Args:
        run: A finished run, which keeps the answer.
        place: Of the answer in the run, below its audits.
        asked: Whatever the answer depends on besides the run, as JSON knows it.
        measure: Returns the answer, as JSON knows it.
    """
    key = _key(run, asked)
    if (stored := _kept(run, place)).get("key") != key:
        stored = {"key": key, "asked": asked, "found": measure()}
        run.add({place: to_json(stored)})
    found: Answer = stored["found"]
    return found


def _kept(run: Run, place: str) -> dict[str, Any]:
    if place not in run.files or not (run.path / place).exists():
        return {}
    return parse_json(run.read(place), run.path / place)


def _key(run: Run, asked: Mapping[str, Any]) -> str:
    """Return a hash of the run, its transcript, its data and the question."""
    names = ("privaudit", "config", "model_hash", "data_hash", "ledger_hash")
    of = {name: run.header[name] for name in (*names, "progress", "files")}
    text = json.dumps([FORMAT, of, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
