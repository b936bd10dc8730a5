"""What a run cost its clients, and how evenly it served them."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from privaudit.core.errors import ConfigError
from privaudit.core.parameters import to_plain
from privaudit.execution.jobs import computing_here
from privaudit.federation.transcript import PUBLIC, UPLOAD_KINDS, bytes_sent
from privaudit.recording.bundle import ORIGIN
from privaudit.recording.owner import chosen_owner
from privaudit.runs.run import Run
from privaudit.runs.utility import measure_tests
from privaudit_tools.costs.fairness import Fairness, fairness_of
from privaudit_tools.costs.local_costs import LocalCosts

PROBE_SECONDS = 600


@dataclass(frozen=True)
class Costs:
    """What a run cost.

    Attributes:
        up_per_client: Bytes that a client sent, on average over all clients.
        down_per_client: Bytes that it was sent.
        bytes_total: All bytes of the run, personal models that are given away left out.
        per_upload: Bytes of one upload on average; 0 if nothing is sent.
        seconds: Of all rounds, on the machine that simulated all clients.
        rounds: How many.
        queries: Of the model, where clients only ask it; None where they have it.
        rounds_to_target: After how many rounds the target was first seen to be reached;
            None if it never was.
        seen_every_round: Whether utility was measured after each round until then; if
            not, the target may have been reached earlier.
        target: Of local accuracy, or of what is measured in its place.
        fairness: Between clients; None of a recorded federation without its owner.
        local: What one client's round takes; None if it was not measured.
    """

    up_per_client: float
    down_per_client: float
    bytes_total: int
    per_upload: float
    seconds: float
    rounds: int
    queries: int | None
    rounds_to_target: int | None
    seen_every_round: bool
    target: float | None
    fairness: Fairness | None
    local: LocalCosts | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return dict(to_plain(Costs, self))


@dataclass(frozen=True, kw_only=True)
class CostsOfRun(Costs):
    """What the command prints of a run under ``--json``."""

    run: str


def measure_costs(
    run: Run, *, target: float | None = None, probe: bool = True
) -> Costs:
    """Return what a run cost.

    Args:
        run: A finished one.
        target: What local accuracy, or the metric in its place, is to reach.
        probe: Whether one client's round is run again, in a process of its own, to
            count its operations and its memory; not of a recorded federation.

    Raises:
        ConfigError: The run is not finished, or the target is no rate.
    """
    if target is not None and not 0 < target <= 1:
        raise ConfigError(
            f"A target of {target:g} was requested. Use one above 0 and at most 1."
        )
    run.require_complete()
    sent = [m for m in run.transcript.check() if m.receiver != PUBLIC]
    bytes_by = bytes_sent(sent)
    up, down = bytes_by["up"], bytes_by["down"]
    uploads = sum(message.kind in UPLOAD_KINDS for message in sent)
    reached = _reached(run.metrics, target)
    clients = len(run.truth.clients)
    is_unowned = run.origin == ORIGIN and not chosen_owner()
    query_counts = [line.get("model_queries") for line in run.metrics]
    return Costs(
        up_per_client=up / clients,
        down_per_client=down / clients,
        bytes_total=up + down,
        per_upload=up / max(1, uploads),
        seconds=sum(line["seconds"] for line in run.metrics),
        rounds=run.config.rounds,
        queries=sum(q for q in query_counts if q) if any(query_counts) else None,
        rounds_to_target=reached,
        seen_every_round=_measured_until(run.metrics, reached),
        target=target,
        fairness=None if is_unowned else measure_fairness(run),
        local=_probe(run) if probe and not run.origin else None,
    )


def measure_fairness(run: Run) -> Fairness:
    """Return how the personal models' accuracy differs between clients."""
    population, models = run.population, run.personal_models
    tests = measure_tests(run.trainer, population, list(models.values()))
    mix = np.stack([population.mix(client).numpy() for client in models])
    return fairness_of(tests.scores, mix, tests.metric)


def _reached(metrics: list[dict[str, Any]], target: float | None) -> int | None:
    if target is None:
        return None
    for line in metrics:
        accuracy = line["local_accuracy"]
        if accuracy is not None and accuracy >= target:
            return int(line["round"]) + 1
    return None


def _measured_until(metrics: list[dict[str, Any]], rounds: int | None) -> bool:
    """Say whether utility was measured after each of the first rounds, or of all."""
    return all(line["local_accuracy"] is not None for line in metrics[:rounds])


def _probe(run: Run) -> LocalCosts:
    """Count one client's operations and memory in a process of its own."""
    # -P: a file of the working folder is no module of this program.
    program = [sys.executable, "-P", "-m", "privaudit_tools.costs.local_costs"]
    command = [*program, str(run.path), computing_here()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _not_repeated(run, f"it took more than {PROBE_SECONDS} s") from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or "it was killed"
        raise _not_repeated(run, reason)
    costs: Mapping[str, Any] = json.loads(done.stdout)
    return LocalCosts(**costs)


def _not_repeated(run: Run, reason: str) -> ConfigError:
    return ConfigError(
        f"One client's round of {run.name} could not be run again: {reason}. "
        "Leave the measurement out: --no-probe."
    )
