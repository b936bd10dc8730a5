"""What weights give away, at real width: the tables of docs/weights.md.

``python -m privaudit_tools.benchmarks.weight_attacks --data FOLDER --rows FOLDER`` trains each
setting's federations, attacks what was sent by the package's own functions, and prints
tables in Markdown. Rows are kept in a folder, so that a command that was stopped goes on;
``--only WORD`` takes the tables or settings whose names hold it, and ``--show`` only prints.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from privaudit.attacks.projection_residual import Residuals
from privaudit.auditing.gradient_regression import (
    GramBlock,
    likeliest,
    over_rounds,
    took_part,
)
from privaudit.auditing.record_gradients import SIMPSON, Move, along_layers
from privaudit.core.storage import write_json
from privaudit.core.tensors import Tensors
from privaudit.models.layer_factors import LayerFactors, where_reached
from privaudit.models.watched_layers import watch_layers
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.statistics.epsilon.one_run import OneRunGuesses
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc
from privaudit_tools.benchmarks.measuring import machine
from privaudit_tools.benchmarks.weight_federations import (
    Attacked,
    Setting,
    Table,
    Weights,
    federation,
    logits,
    output_gradients,
    records,
)
from privaudit_tools.benchmarks.weight_settings import TABLES

METHODS = ("joint", "projection", "alignment", "loss")
EACH = "joint, as if in each round"  # where a round is one batch
BY_ROWS = (
    "prompt",
    "projected head",
)  # no layer multiplies a record by what is learned
DELTA = 1e-5
Scored = dict[str, np.ndarray]


def layers(
    setting: Setting, frozen: Weights, some: Table, model: Tensors
) -> Mapping[str, LayerFactors]:
    """Return how records enter the layers of a model, as the package finds it."""
    weights = {**frozen, **model}
    if setting.clip:  # the adversary knows how gradients are clipped
        deltas = output_gradients(model["head"], some, setting.clip)
        return {"head": LayerFactors(some.x[:, None], deltas[:, None])}

    def loss() -> Tensor:
        said = logits(setting.model, weights, some.x)
        return cross_entropy(said, some.y, reduction="sum")

    return watch_layers(model, len(some.x), loss)


def gradient_rows(
    setting: Setting, frozen: Weights, some: Table, model: Tensors
) -> Tensor:
    """Return each record's gradient of the one tensor that is learned."""
    ((name, value),) = model.items()

    def loss(learned: Tensor, x: Tensor, y: Tensor) -> Tensor:
        said = logits(setting.model, {**frozen, name: learned}, x[None])
        return cross_entropy(said, y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=32)
    return each(value, some.x, some.y).flatten(1)


def blocks_of(
    setting: Setting, seen: Attacked, frozen: Weights
) -> list[list[GramBlock]]:
    """Return how candidates' gradients lie beside each move."""
    rounds = []
    asked, public = seen.candidates, 0
    if 0 < setting.outside < 1:
        asked, public = seen.beside_public(), len(seen.public.x)
    for move in seen.moves:
        if setting.model in BY_ROWS:
            rounds.append([_block_of_rows(setting, seen, frozen, move)])
        else:
            rounds.append(
                along_layers(move, partial(layers, setting, frozen, asked), public)
            )
    return rounds


def _block_of_rows(
    setting: Setting, seen: Attacked, frozen: Weights, move: Move
) -> GramBlock:
    rows = sum(
        weight * gradient_rows(setting, frozen, seen.candidates, move.point(share))
        for share, weight in SIMPSON
    )
    assert isinstance(rows, Tensor)
    (moved,) = move.deltas.values()
    sizes = rows.square().mean(dim=0).clamp(min=1e-20).rsqrt()
    return likeliest(GramBlock.of_rows(one, moved) for one in (rows, rows * sizes))


def projection(setting: Setting, seen: Attacked, frozen: Weights) -> np.ndarray | None:
    """Return projection residuals, or energies, beside those of public records."""
    if setting.model in BY_ROWS:
        return None
    found = Residuals()
    for move in seen.moves:
        own, public = (
            where_reached(layers(setting, frozen, some, move.received))
            for some in (seen.candidates, seen.public)
        )
        # Of factors that coins choose, one was sent.
        sent = {name: one for name, one in own.items() if name in move.deltas}
        found.add(move, sent, public, public)
    total = found.scores()
    return None if total is None else total[: len(seen.candidates.x)]


def scores(setting: Setting, seen: Attacked) -> Scored:
    """Return candidates' scores by each method."""
    learned = set().union(*(move.received for move in seen.moves))
    frozen = {n: w for n, w in seen.end.items() if n not in learned}
    rounds = blocks_of(setting, seen, frozen)
    blocks = [block for of_round in rounds for block in of_round]
    summed, share, count = took_part(blocks), setting.batch_share, len(seen.is_member)
    drawn = [[replace(one, batch_share=share) for one in some] for some in rounds]
    took = over_rounds(drawn) if share < 1 else summed
    said = logits(setting.model, seen.end, seen.candidates.x)
    aligned = [
        (one.along / (one.gram.diagonal().clamp(min=1e-30) * one.energy).sqrt())[:count]
        for one in blocks
        if one.energy > 0
    ]
    found: dict[str, np.ndarray | None] = {
        "joint": None if took is None else took.ratios.numpy(),
        EACH: None if share == 1 or summed is None else summed.ratios.numpy(),
        "projection": projection(setting, seen, frozen),
        "alignment": torch.stack(aligned).sum(dim=0).numpy(),
        "loss": -cross_entropy(said, seen.candidates.y, reduction="none").numpy(),
    }
    return {name: one for name, one in found.items() if one is not None}


@dataclass(frozen=True)
class Row:
    """What was found in one setting.

    Attributes:
        aurocs: By method: value, low, high.
        n: Members and others among the candidates, over all clients and draws.
        members: A client's, on average.
        seconds: Of the processor, by training and all attacks.
        epsilon: A lower bound at 95 %, by the joint scores, where noise is certified.
    """

    aurocs: Mapping[str, tuple[float, float, float]]
    n: tuple[int, int]
    members: float
    seconds: float
    epsilon: float | None = None


def measured(setting: Setting, data: Path) -> Row:
    """Train a setting's federations, and attack each client or each sum."""
    begun = process_time()
    table = records(data, setting.features, setting.classes)
    groups: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    bounds: list[float] = []
    for draw in range(setting.draws):
        for seen in federation(setting, table, draw):
            truth = seen.is_member.numpy()
            for name, one in scores(setting, seen).items():
                groups.setdefault(name, []).append((one[truth], one[~truth]))
                if name == "joint" and setting.noise:
                    bounds.append(_epsilon(one, truth))
    found = {name: pooled_auroc(group) for name, group in groups.items()}
    n = next(iter(found.values())).n
    assert isinstance(n, tuple)
    clients = setting.draws * setting.clients
    return Row(
        {name: _numbers(one) for name, one in found.items()},
        (int(n[0]), int(n[1])),
        n[0] / clients / (1 - setting.outside),
        process_time() - begun,
        float(np.median(bounds)) if bounds else None,
    )


def _epsilon(found: np.ndarray, truth: np.ndarray) -> float:
    side = len(truth) // 10
    bound = OneRunGuesses(guesses_in=side, guesses_out=side, delta=DELTA)
    return float(bound.values(found[None], truth[None])[0])


def _numbers(found: Estimate) -> tuple[float, float, float]:
    return float(found.value), float(found.low), float(found.high)


def kept_row(folder: Path, name: str, setting: Setting) -> Row | None:
    """Return the row that is kept of this setting; None where it is another's."""
    path = folder / f"{_slug(name)}.json"
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    if kept["setting"] != json.loads(json.dumps(asdict(setting))):
        return None
    return Row(**kept["row"])


def keep_row(folder: Path, name: str, setting: Setting, row: Row) -> None:
    """Write a row, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"setting": asdict(setting), "row": asdict(row)}
    write_json(folder / f"{_slug(name)}.json", content)


def _slug(name: str) -> str:
    return "".join(one if one.isalnum() or one in ".-" else "_" for one in name)


def lines(folder: Path, settings: Mapping[str, Setting], table: str) -> Iterator[str]:
    """Yield a table in Markdown, of the rows that there are."""
    private = any(one.noise for one in settings.values())
    drawn = any(one.batch_share < 1 for one in settings.values())
    methods = (METHODS[0], EACH, *METHODS[1:]) if drawn else METHODS
    more = (" ε, certified | ε, at least |", "---|---|") if private else ("", "")
    yield f"| setting | records a client | n | {' | '.join(methods)} | ceiling |{more[0]}"
    yield "|---" * (len(methods) + 4) + f"|{more[1]}"
    for name, setting in settings.items():
        row = kept_row(folder, f"{table} {name}", setting)
        if row is None:
            continue
        cells = [name, f"{row.members:.0f}", f"{row.n[0]:,} + {row.n[1]:,}"]
        best = max(one[0] for one in row.aurocs.values())
        cells += [_cell(row, method, best) for method in methods]
        cells.append(f"{setting.ceiling:.3f}")
        if private:
            cells += [*_epsilons(setting, row)]
        yield f"| {' | '.join(cells)} |"


def _cell(row: Row, method: str, best: float) -> str:
    if method not in row.aurocs:
        return ""
    value, low, high = row.aurocs[method]
    text = f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return f"**{text}**" if value == best and method in METHODS[:2] else text


def _epsilons(setting: Setting, row: Row) -> tuple[str, str]:
    if not setting.noise or row.epsilon is None:
        return "none", ""
    return f"{certified(setting):.3g}", f"{row.epsilon:.2f}"


def certified(setting: Setting) -> float:
    """Return the epsilon that the noise of all releases proves; infinity without."""
    if not setting.noise:
        return math.inf
    adding = setting.clients if setting.sent == "sum" else 1
    return gaussian_epsilon((setting.rounds / adding) ** 0.5 / setting.noise, DELTA)


def above_bounds(setting: Setting, row: Row) -> list[str]:
    """Return what was found beyond what noise lets through, of AUROCs by 3 errors."""
    over = [
        f"{method} above {setting.ceiling:.3f}"
        for method, (value, low, high) in row.aurocs.items()
        if value - setting.ceiling > 3 * (high - low) / 3.92
    ]
    if row.epsilon is not None and row.epsilon > certified(setting):
        over.append(f"epsilon {row.epsilon:.3g} above {certified(setting):.3g}")
    return over


def main() -> None:
    """Fill the rows that are missing, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    print(machine())
    for table, settings in TABLES.items():
        for name, setting in settings.items():
            full = f"{table} {name}"
            row = kept_row(given.rows, full, setting)
            if row is None and given.only in full and not given.show:
                row = measured(setting, given.data)
                keep_row(given.rows, full, setting, row)
                print(f"{full}: {dict(row.aurocs)}, {row.seconds:.1f} s", flush=True)
            if row and (over := above_bounds(setting, row)):
                raise SystemExit(f"{full}: {', '.join(over)}.")
        if given.only in table or any(given.only in name for name in settings):
            print(f"\n**{table}**\n", *lines(given.rows, settings, table), sep="\n")


if __name__ == "__main__":
    main()
