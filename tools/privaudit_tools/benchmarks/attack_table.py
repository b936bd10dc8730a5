"""Attacks at equal budget on four kinds of runs, as the table of docs/attacks.md.

``python -m privaudit_tools.benchmarks.attack_table promptfl dp-fpl lora network`` trains each
kind of run with each seed, makes every attack on all clients, and prints a table in Markdown;
``--scenario`` says who attacks, ``--attacks`` how, if not by all. Attacks that a seed's run
refuses are left out. Every attack with shadow models has as many of them. Seconds, the
processor's on one thread, are what an attack takes alone, its shadow models included.
``--json FILE`` keeps the scores, of one choice of seeds, shadow models and scenario.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from scipy.special import logit
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from privaudit import Auditor, load_run, train
from privaudit.auditing.named_attacks import named_attacks
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.storage import write_bytes
from privaudit.recording.owner import use_owner
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc, tpr_at_fpr
from privaudit_tools.benchmarks.measuring import machine
from privaudit_tools.benchmarks.recorded_network import record_network

SHADOWS, SEEDS = 16, (101, 102)
RMIA = "rmia"
SAME_SHADOWS = "lira"  # as the attack before it: they count in the seconds of both
CLASSIFIERS = (
    RMIA,
    SAME_SHADOWS,
    "rmia:shadows=4",
    "rmia:shadows=2",
    "rmia:shadows=1,mode=offline",
    "shadow",
    "prompt-discriminant",
    "loss-threshold",
    "confidence",
    "modified-entropy",
    "entropy",
    "difficulty-calibration",
    "quantile-regression",
    "fedmia",
    "update-alignment",
    "whitened-alignment",
    "label-only",
    "ramia",
    "upload-inversion",
)
WRITERS = (
    RMIA,
    SAME_SHADOWS,
    "rmia:shadows=4",
    "token-loss",
    "perplexity-zlib",
    "min-k",
    "min-k-plus-plus",
    "max-renyi",
    "mod-renyi",
    "max-prob-gap",
    "extraction",
    "difficulty-calibration",
    "difficulty-calibration:slope=1",
    "gradient-norm",
    "neighbourhood",
    "fedmia",
    "update-alignment",
    "upload-inversion",
)
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "promptfl": ("PromptFL", {"trainer": "promptfl"}),
    "dp-fpl": ("DP-FPL without noise", {"trainer": "dp-fpl"}),
    "lora": (
        "LoRA of tiny-llava",
        {
            "trainer": "lora-fedavg",
            "clients": 3,
            "participation": 1.0,
            "rounds": 2,
            "epochs": 5,
            "shots": 40,
            "public_share": 0.05,
            "tested": 24,
        },
    ),
    "network": ("recorded networks", {}),
}


@dataclass(frozen=True)
class Found:
    """What one attack found on one run: scores and the truth by client."""

    scores: list[np.ndarray]
    truth: list[np.ndarray]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        scores, truth = ([a.tolist() for a in x] for x in (self.scores, self.truth))
        return {"scores": scores, "truth": truth, "seconds": self.seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, attack and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--scenario", default="server-reconstruct")
    parser.add_argument("--attacks", nargs="+")
    parser.add_argument("--shadows", type=int, default=SHADOWS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    design = {
        "seeds": asked.seeds,
        "shadows": asked.shadows,
        "scenario": asked.scenario,
    }
    try:  # what would fail behind hours of training
        SCENARIOS.find(asked.scenario)
        names = {kind: _names(kind, asked.attacks) for kind in asked.kinds or KINDS}
        for some in names.values():
            named_attacks(some, asked.shadows)
        kept = _kept(asked.json, design) if asked.json else {}
    except PrivauditError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    print(f"{machine()}\n{asked.shadows} shadow models, seeds {asked.seeds}")
    for kind, some in names.items():
        found = [
            _attacked(kind, seed, asked.shadows, asked.scenario, some)
            for seed in asked.seeds
        ]
        joined = {
            name: Found(
                [s for one in found for s in one[name].scores],
                [t for one in found for t in one[name].truth],
                float(np.mean([one[name].seconds for one in found])),
            )
            for name in found[0]
            if all(name in one for one in found)
        }
        if asked.json:
            kept[kind] = {name: one.to_dict() for name, one in joined.items()}
            write_bytes(asked.json, json.dumps({**design, "kinds": kept}).encode())
        print(f"\n{KINDS[kind][0]}\n\n{table(joined)}", flush=True)


def _names(kind: str, only: Sequence[str] | None) -> Sequence[str]:
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is no kind of run. There are: {', '.join(KINDS)}.")
    return only or (WRITERS if kind == "lora" else CLASSIFIERS)


def _kept(path: Path, design: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file keeps by kind of run.

    Raises:
        ConfigError: It is not of this module, or its runs had other seeds, shadow models
            or another scenario.
    """
    if not path.exists():
        return {}
    try:
        kept = json.loads(path.read_bytes())
        there, kinds = {name: kept[name] for name in design}, dict(kept["kinds"])
    except (ValueError, TypeError, KeyError):
        there, kinds = {}, {}
    if there != design:
        raise ConfigError(
            f"{path} has scores of {there or 'something else'}, and these are of {design}. "
            "Name another file with --json."
        )
    return kinds


def _attacked(
    kind: str, seed: int, shadows: int, seen_in: str, names: Sequence[str]
) -> dict[str, Found]:
    """Train one run, and make each attack as if it were the only one."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, settings = Path(scratch), dict(KINDS[kind][1])
        if kind == "network":
            owner = record_network(folder / "run", seed)
            run = load_run(folder / "run")
        else:
            owner = None
            name = settings.pop("trainer")
            run = train(name, folder=folder, seed=seed, measured_rounds=1, **settings)
        with use_owner(owner) if owner else nullcontext():
            return dict(_each(Auditor(run), names, shadows, seen_in))


def _each(
    auditor: Auditor, names: Sequence[str], shadows: int, seen_in: str
) -> Iterator[tuple[str, Found]]:
    attacks = named_attacks(names, shadows)
    plan = replace(SCENARIOS.find(seen_in)(), attacks=attacks)
    prepared, targets = auditor.prepare(plan)
    alone, spent = prepared, 0.0
    for label, attack in attacks.items():
        if label != SAME_SHADOWS:
            alone = replace(prepared, store=None)  # nothing shared with another attack
        began = process_time() - (spent if label == SAME_SHADOWS else 0.0)
        played = PlayedScenario(auditor.run, plan, alone, targets)
        try:
            result = played.attack_once(label, attack, alone, targets)
        except PrivauditError as error:
            print(f"{label} is left out: {error}", flush=True)
            continue
        clients = [
            c for c in result.clients if c.is_member.any() and not c.is_member.all()
        ]
        spent = process_time() - began
        scores, truth = [c.scores for c in clients], [c.is_member for c in clients]
        yield label, Found(scores, truth, spent)


def table(found: Mapping[str, Found]) -> str:
    """Return rows of AUROC, TPR at 1 % FPR, seconds and what each adds to RMIA, if made."""
    if not found:
        return "No attack was made with every seed."
    first = next((name for name in found if name.startswith(RMIA)), "")
    gained = f"{first} and it, less {first} and noise" if first else ""
    lines = [
        f"| attack | AUROC | TPR at 1 % | seconds | {gained} |",
        "|---|---|---|---|---|",
    ]
    for name, one in found.items():
        groups = _groups(one.scores, one.truth)
        ranks = _groups([_ranks(s) for s in one.scores], one.truth)
        members, others = (np.concatenate(part) for part in zip(*ranks, strict=True))
        rate = tpr_at_fpr(members, others, 0.01)
        gain = ""
        if first not in ("", name):
            gain = _told(gain_over(found[first], one), signed=True)
        cells = (
            name,
            _told(pooled_auroc(groups)),
            _told(rate),
            f"{one.seconds:.1f}",
            gain,
        )
        lines.append(f"| {' | '.join(cells)} |")
    sizes = np.concatenate(next(iter(found.values())).truth)
    return "\n".join([*lines, f"\nn = {sizes.sum()} + {(~sizes).sum()}"])


def gain_over(rmia: Found, other: Found) -> Estimate:
    """Return what a logistic regression of both gains over one of RMIA and noise.

    Each fold is fitted on the others. The noise is the other attack's ranks, shuffled
    within clients: what a second column costs is in both, so that a score that tells
    nothing gains 0 on average.
    """
    rng = np.random.default_rng(0)
    ranks = [_ranks(scores) for scores in other.scores]
    noise = [rng.permutation(one) for one in ranks]
    both, alone = (_predicted(rmia, second) for second in (ranks, noise))
    parts = zip(both, alone, rmia.truth, strict=True)
    return pooled_paired_auroc_difference(list(parts)).estimate


def _predicted(rmia: Found, second: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return by client what regressions of RMIA's ranks and others say, out of fold."""
    first = np.concatenate([_ranks(s) for s in rmia.scores])
    folds = StratifiedKFold(10, shuffle=True, random_state=0)
    together = cross_val_predict(
        LogisticRegression(),
        np.column_stack([first, np.concatenate(second)]),
        np.concatenate(rmia.truth),
        cv=folds,
        method="decision_function",
    )
    return np.split(together, np.cumsum([len(t) for t in rmia.truth])[:-1])


def _ranks(scores: np.ndarray) -> np.ndarray:
    """Return the logit of ranks within a client: comparable with another client's."""
    return logit((rankdata(scores) - 0.5) / len(scores))


def _groups(
    scores: Sequence[np.ndarray], truth: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(s[t], s[~t]) for s, t in zip(scores, truth, strict=True)]


def _told(one: Estimate, *, signed: bool = False) -> str:
    if one.unresolved:
        return one.unresolved
    sign = "+" if signed else ""
    return f"{one.value:{sign}.3f} [{one.low:{sign}.3f}, {one.high:{sign}.3f}]"


if __name__ == "__main__":
    main()
