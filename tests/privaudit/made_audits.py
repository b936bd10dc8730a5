"""Audits of runs that never were, from scores drawn at random."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.attacks.shadow import Shadow
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.closeness import (
    CLOSENESS,
    Closeness,
    ReconstructionFidelity,
)
from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND, LeakageByRound
from privaudit.auditing.parts.one_run import BY_GRADIENT, ONE_RUN, OneRunAudit
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import Scenario, grid_cells, token_attacks
from privaudit.core.signing import OWN, Signer
from privaudit.datasets.dataset import Dataset, PixelImages
from privaudit.runs.config import RunConfig
from privaudit.runs.run import Run
from privaudit.runs.utility import Utility
from privaudit.statistics.claim import Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import EpsilonBound
from privaudit.statistics.estimate import Estimate, mean_with_t

NOWHERE = Path("runs-that-never-were")
CLASS_NAMES = ("zero", "one", "two")
FIRST_RECORD = 41_000_000  # a fake run's records: numbers that are nothing else


def noise_event(multiplier: float, where: str = "server") -> dict[str, Any]:
    """Return one mechanism as privacy.json lists it."""
    return {
        "release": "global",
        "kind": "gaussian",
        "noise_multiplier": multiplier,
        "sensitivity": 1.0,
        "clip_norm": 10.0,
        "sampling_rate": 0.1,
        "sampling": "poisson",
        "noise_at": where,
        "parties": 5,
        "steps": 1,
        "rounds": [0, 1, 2],
    }


def privacy_of(
    claimed: float | None, certified: float | None, noise: float
) -> dict[str, Any]:
    certificate = {
        "epsilon": certified,
        "delta": 1e-5,
        "view": "server",
        "mechanism": "3 steps of a Gaussian mechanism" if certified else "none counts",
        "accountant": "opacus PRV" if certified else "",
        "why": "Every upload carries noise." if certified else "No noise was added.",
        "unit": "record",
        "adjacency": "add/remove-one",
        "randomness": "system",
    }
    source = "Tran et al. 2025, theorem 3.3" if claimed else "no privacy mechanism"
    return {
        "claimed": {"epsilon": claimed, "delta": 1e-5, "source": source},
        "certified": {"server": certificate, "released": certificate},
        "mechanisms": [noise_event(noise)] if noise else [],
    }


def client_scores(
    rng: np.random.Generator, name: str, count: int, shift: float, first: int
) -> ClientScores:
    # The same truth for every attack and run, as on one partition.
    truth = np.random.default_rng(first).random(count) < 0.5
    scores = rng.normal(size=count) + shift * truth
    return ClientScores(
        client=name,
        records=np.arange(first, first + count),
        labels=rng.integers(0, len(CLASS_NAMES), count),
        scores=scores,
        guesses=scores > shift / 2,
        is_member=truth,
    )


@cache  # evaluated once in a process: nothing changes a result
def leak_of(
    attack: str, shift: float, clients: int, candidates: int, seed: int, first: int
) -> AttackResult:
    rng = np.random.default_rng(seed)
    joined = [
        client_scores(rng, f"client-{k}", candidates, shift, first + k * candidates)
        for k in range(clients)
    ]
    return evaluate_scores(attack, f"{attack}(shadows=64)", "fixed on shadows", joined)


def accuracy(value: float, half: float = 0.03, n: int = 540) -> Estimate:
    return Estimate(value, value - half, value + half, (n,), "mean over clients")


def fake_run(config: RunConfig, privacy: dict[str, Any], records: int) -> Run:
    """Return a run that has nothing on disk: what a report reads is put in place."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.random((records, 1, 8, 8), dtype=np.float32))
    labels = torch.zeros(records, dtype=torch.long)
    dataset = Dataset(PixelImages(pixels), labels, CLASS_NAMES)
    run = Run(NOWHERE / f"{config.trainer}-{config.short_hash}")
    run.__dict__.update(
        config=config,
        privacy=privacy,
        metrics=[{"local_accuracy": 0.5, "bytes_up": 10, "bytes_down": 20}] * 3,
        population=SimpleNamespace(dataset=dataset, canaries=None),
        truth=SimpleNamespace(
            group=None, cluster=None, sampling="coin", coin=None, clients=()
        ),
        participants=[],
        header={"privaudit": "0.1.0", "model_hash": "abc"},
        signers=(Signer("ab" * 32, OWN), None),
    )
    return run


def make_audit(
    trainer: str = "promptfl",
    *,
    shift: float = 0.5,
    clients: int = 3,
    candidates: int = 120,
    seed: int = 0,
    local: float = 0.8,
    epsilons: tuple[float | None, float | None] = (None, None),
    noise: float = 0.0,
    closeness: bool = False,
    first: int = FIRST_RECORD,
    question: str = "What does the server learn?",
    attacks: Sequence[str] = ("shadow", "loss-threshold"),
    **settings: Any,
) -> Audit:
    """Return the audit of a run that never was, from scores drawn at random."""
    config = RunConfig(trainer=trainer, settings=settings, clients=5, rounds=3)
    pair = mean_with_t([0.9, 0.95]), mean_with_t([0.1, -0.05])
    return Audit(
        run=fake_run(config, privacy_of(*epsilons, noise), clients * candidates),
        scenario=Scenario(
            "server-reconstruct",
            question,
            "server",
            {"shadow": Shadow(), "loss-threshold": LossThreshold()},
        ),
        results={
            name: leak_of(name, shift / (1 + i), clients, candidates, seed + i, first)
            for i, name in enumerate(attacks)
        },
        utility=Utility(
            local=accuracy(local),
            neighbour=accuracy(local - 0.2),
            mix=accuracy(local),
            gain=accuracy(local - 0.6, 0.02),
            zero_shot=accuracy(0.6),
        ),
        seed=0,
        parts={
            CLOSENESS.name: ReconstructionFidelity(
                ("the client's own training in its last round",),
                closeness=Closeness(*pair, *pair, *pair) if closeness else None,
            )
        },
    )


def make_watched(
    trainer: str = "promptfl", *, by_round: Sequence[float] = (), **rest: Any
) -> Audit:
    """Return one with figures for single rounds."""
    audit = make_audit(trainer, **rest)
    found = {
        2 * k: Estimate(value, value - 0.05, value + 0.05, (200, 200), "AUROC")
        for k, value in enumerate(by_round or (0.5, 0.52, 0.6, 0.62, 0.58))
    }
    rounds = LeakageByRound("update-alignment", "of the round", found)
    return replace(audit, parts={**audit.parts, LEAKAGE_BY_ROUND.name: (rounds,)})


def lower_bound(
    value: float, ceiling: float = 3.5, *, refutes: bool = True
) -> EpsilonBound:
    """Return a bound that never was."""
    return EpsilonBound(
        value, 0.95, 1e-5, (101, 99), ceiling, "one run", "one-run binomial", refutes
    )


def make_claimed(
    shown: float = 0.77, *, claimed: float | None = 8.0, **rest: Any
) -> Audit:
    """Return one with bounds on epsilon from canaries of one run."""
    epsilons = (claimed, claimed and claimed + 1)
    audit = make_audit("dp-fpl", epsilons=epsilons, noise=1.0, **rest)
    planted = audit.run.config.model_copy(update={"canary": "gradient"})
    vars(audit.run)["config"] = planted
    guarantee = None if claimed is None else Guarantee(claimed, 1e-5)
    found = OneRunAudit(
        "gradient",
        BY_GRADIENT,
        judge_claim(guarantee, None, lower_bound(shown)),
        (lower_bound(shown + 0.5, 5.0, refutes=False),),
    )
    return replace(audit, parts={**audit.parts, ONE_RUN.name: found})


CAPTION_METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D")
WORD_ATTACKS = ("max-renyi", "min-k", *(cell.attack for cell in grid_cells()))


def make_writer(
    trainer: str = "lora-fedavg",
    *,
    metric: str = "ROUGE-L",
    shift: float = 0.6,
    server_shift: float = 0.2,
    traffic: tuple[int, int] = (2_000_000, 2_000_000),
    **rest: Any,
) -> Audit:
    """Return one of a run whose models write: with a grid, and the server's model."""
    rest = {"candidates": 40, "attacks": WORD_ATTACKS, "closeness": True, **rest}
    audit = make_audit(trainer, shift=shift, **rest)
    server = make_audit(trainer, shift=server_shift, **{**rest, "seed": 50})
    line = {"local_accuracy": None, "bytes_up": traffic[0], "bytes_down": traffic[1]}
    audit.run.__dict__["metrics"] = [line, {**line, "local_accuracy": 0.5}]
    metrics = {name: accuracy(0.4) for name in CAPTION_METRICS}
    utility = replace(
        audit.measured_utility,
        metric=metric,
        server=accuracy(0.31),
        everywhere=accuracy(0.47),
        captions={"clients": metrics, "server": metrics} if metric == "ROUGE-L" else {},
    )
    return replace(
        audit,
        utility=utility,
        parts={
            CLOSENESS.name: replace(audit.part(CLOSENESS), staleness=4),
            SERVER_MODEL.name: server.results,
        },
        scenario=replace(audit.scenario, attacks=token_attacks()),
    )
