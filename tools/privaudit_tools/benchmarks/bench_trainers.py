"""One round of every trainer, by our path and the way it is published, in one process.

Run by ``make bench``. Ours: ten clients stacked, image features computed before the
training, the prefix shared by all classes. The published way: one client after the
other, every class's text at its 77 tokens, and the image tower on the batch in every
step. Both run the same trainer's code on the same records, and must agree.

One client of the published way is timed beside our round; ten take ten times as long,
as they run one after the other. The image tower is timed once for all trainers, on one
batch. It never fails for being slow, only for being wrong. About ten minutes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, stack, unstack
from privaudit.datasets.records import PictureTokens
from privaudit.federation.rounds import Federation, run_round
from privaudit.federation.trainer import TRAINERS, Cohort, Records, Task, Trainer
from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.interfaces import Classifier
from privaudit.runs.config import build_trainer, parameters_of
from privaudit_tools.benchmarks.measuring import (
    CLASS_NAMES,
    CONTEXT_TOKENS,
    PlainPrompts,
    StandInPrompts,
    Timed,
    machine,
    random_clip,
    spread,
    timed,
)

CLIENTS = tuple(f"client-{number}" for number in range(10))
TIMED_CLIENT = CLIENTS[0]
BATCH = 32
IMAGE_PASSES = 3
TARGET = 20.0
TARGETED = ("promptfl", "dp-fpl", "pfedmoap")  # timed three times; the others once
# So high that a step moves a prompt by 2 to 260 % of its norm: a gradient that is wrong
# by a hundredth then shows in what is compared.
RATE = 1.0
# A round is one step on one batch, but for fine-tuning. The modes as published take one
# gradient a step; no epsilon is no noise there: it would hide a difference, and costs
# nothing to draw.
ONE_STEP: Mapping[str, Any] = {"epochs": 1, "batch_size": BATCH, "tuning_epochs": 1}
STEPS = {"promptfl-ft": 2}  # it takes one more for itself
PUBLISHED: Mapping[str, Any] = {"mode": "published-paper"}
# Beside the defaults: every record's own gradient, clipped, for fewer records.
PROMPT_TRAINERS = [
    name for name in TRAINERS.names() if build_trainer(name, {}).task != "generation"
]
SOUND = "dp-fpl sound"
SOUND_BATCH = 2
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Row:
    """What was measured of one trainer, in seconds."""

    name: str
    ours: tuple[float, ...]
    published: float
    batch: int
    difference: float


@dataclass
class Bench:
    """What all trainers share: the model, the records, and the image tower's time."""

    rows: list[Row] = field(default_factory=list)
    header: str = field(default_factory=machine)

    @cached_property
    def clip(self) -> PromptableCLIP:
        """The model, after a pass each way: the first one sets up memory."""
        clip = random_clip()
        for prompts in (clip.prompts(CLASS_NAMES, CONTEXT_TOKENS), PlainPrompts(clip)):
            context = torch.zeros(1, CONTEXT_TOKENS, clip.width, requires_grad=True)
            torch.autograd.grad(prompts(context).sum(), context)
        return clip

    @cached_property
    def image_passes(self) -> list[Timed]:
        """The image tower on one batch, some times."""
        generator = torch.Generator().manual_seed(1)
        pictures = torch.randn(BATCH, 3, 224, 224, generator=generator)
        encode = partial(self.clip.encode_images, pictures)
        return [timed(encode) for _ in range(IMAGE_PASSES)]

    @property
    def image_seconds(self) -> list[float]:
        return [image_pass.seconds for image_pass in self.image_passes]

    def shards(self, batch: int, image_tokens: bool) -> dict[str, Records]:
        """Return each client's records; only the timed client's were pictures."""
        shards = {}
        for number, client in enumerate(CLIENTS):
            generator = torch.Generator().manual_seed(number)
            features = torch.randn(batch, self.clip.dim, generator=generator)
            if client == TIMED_CLIENT:
                features = self.image_passes[0].result[:batch]
            labels = torch.randint(len(CLASS_NAMES), (batch,), generator=generator)
            parts = torch.randn(batch, 196, self.clip.dim, generator=generator)
            tokens = None
            if image_tokens:
                tokens = PictureTokens.of(normalize(parts, dim=-1))
            shards[client] = Records(normalize(features, dim=-1), labels, tokens)
        return shards

    def task(self, shards: Mapping[str, Records]) -> Task:
        return Task(
            backbone=Classifier(
                self.clip.prompts(CLASS_NAMES, CONTEXT_TOKENS),
                self.clip.logit_scale,
                self.clip.template_features(CLASS_NAMES),
            ),
            public=shards[CLIENTS[-1]],
            candidates={client: 2 * len(shard) for client, shard in shards.items()},
            rounds=2,
        )


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    shared = Bench()
    yield shared
    report(shared)


@pytest.mark.parametrize("name", [*PROMPT_TRAINERS, SOUND])
def test_one_round_by_our_path_and_as_published(name: str, bench: Bench) -> None:
    batch = SOUND_BATCH if name == SOUND else BATCH
    trainer = trainer_of(name)
    task = bench.task(shards := bench.shards(batch, trainer.image_tokens))
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    stand_in = replace(
        task, backbone=replace(task.classifier, prompts=StandInPrompts(bench.clip))
    )
    run_round(trainer, stand_in, [federation], 0)  # pFedMoAP's pool is filled
    ours = partial(our_round, trainer, task, federation)
    before = [ours()] if name in TARGETED else []
    published = published_client(trainer, task, federation, bench)
    rounds = [*before, *(ours() for _ in range(2 if before else 1))]
    seconds = tuple(one.seconds for one in rounds)
    worst = max(difference(one.result, published.result) for one in rounds)
    bench.rows.append(Row(name, seconds, published.seconds, batch, worst))
    print(f"\n{name}: ours {spread(seconds)} s, as published {published.seconds:.3g} s")
    assert worst < TOLERANCE


def trainer_of(name: str) -> Trainer:
    """Return a trainer whose round is one step on the shard."""
    if name == SOUND:
        options = {"mode": "sound", "epsilon": 8.0, "batch_size": SOUND_BATCH}
        return build_trainer("dp-fpl", options)
    known = parameters_of(name)
    rates = {key: RATE for key in known if "rate" in key.split("_")}
    options = {**ONE_STEP, **PUBLISHED, **rates}
    return build_trainer(name, {k: v for k, v in options.items() if k in known})


def our_round(trainer: Trainer, task: Task, federation: Federation) -> Timed:
    """Time a round of all clients; return what the timed client sent and kept."""
    copy = replace(federation, kept=dict(federation.kept), losses={})
    found = timed(partial(run_round, trainer, task, [copy], 1))
    (record,) = found.result
    sent = [m.tensors for m in record.messages if m.sender == TIMED_CLIENT]
    return Timed(found.seconds, {"sent": sent, "kept": [copy.kept[TIMED_CLIENT]]})


def published_client(
    trainer: Trainer, task: Task, federation: Federation, bench: Bench
) -> Timed:
    """Time one client's round as published, but for the image tower."""
    at = federation.at(1, 1.0)
    received = stack([trainer.broadcast(federation.server, TIMED_CLIENT, at)])
    kept = stack(
        [federation.private_states(trainer, task, [TIMED_CLIENT])[TIMED_CLIENT]]
    )
    cohort = Cohort.of([TIMED_CLIENT], [federation.shards[TIMED_CLIENT]])
    plain = PlainPrompts(bench.clip)
    as_published = replace(task, backbone=replace(task.classifier, prompts=plain))
    # The server's part is in our time, and not in this one.
    step = partial(trainer.local_update, as_published, cohort, received, kept, at)
    found = timed(step)
    sent = [part for part in unstack(found.result.sent, 1) if part]
    result = {"sent": sent, "kept": unstack(found.result.kept, 1)}
    return Timed(found.seconds + plain.spared, result)


def difference(
    found: Mapping[str, list[Tensors]], expected: Mapping[str, list[Tensors]]
) -> float:
    """Return the largest norm of a difference, over the norm of what is expected."""
    worst = 0.0
    for kind in ("sent", "kept"):
        for some, others in zip(found[kind], expected[kind], strict=True):
            assert some.keys() == others.keys()
            worst = max([worst, *(_relative(some[key], others[key]) for key in some)])
    return worst


def _relative(found: Tensor, expected: Tensor) -> float:
    if torch.equal(found, expected):
        return 0.0
    found, expected = found.double(), expected.double()  # labels are kept, too
    return float((found - expected).norm() / expected.norm())


def report(bench: Bench) -> None:
    """Print the table."""
    image = bench.image_seconds
    print(
        f"\n{bench.header}\nOne round of {len(CLIENTS)} clients, {len(CLASS_NAMES)} "
        f"classes, ViT-B-16 at random weights, one step on {BATCH} records each "
        f"({SOUND}: {SOUND_BATCH}). Image tower, {BATCH} pictures, measured once for "
        f"all trainers: {spread(image)} s."
    )
    print(
        "\n| trainer | ours, s | published, text of one client, s | times as fast | "
        f"without the image tower | {TARGET:g} | largest difference |\n"
        "|---|---|---|---|---|---|---|"
    )
    for row in bench.rows:
        print(line(row, image))


def line(row: Row, image: list[float]) -> str:
    """Return a row of the table; a trainer that encodes no text in a round has none."""
    steps = STEPS.get(row.name, 1)
    pictures = [steps * seconds * row.batch / BATCH for seconds in image]
    whole = ratios(row, pictures)
    met = "reached" if median(whole) >= TARGET else "not reached"
    if row.published < 0.1:
        return f"| `{row.name}` | nothing is trained | | | | | |"
    return (
        f"| `{row.name}` | {spread(row.ours)} | {row.published:.3g} | {spread(whole)} "
        f"| {spread(ratios(row, [0.0]))} | {met} | {row.difference:.1e} |"
    )


def ratios(row: Row, pictures: list[float]) -> list[float]:
    """Return every pairing of what was measured."""
    return [
        len(CLIENTS) * (row.published + encoding) / ours
        for ours in row.ours
        for encoding in pictures
    ]
