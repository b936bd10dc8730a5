"""Words, texts and memberships off the weights of MiniLM, tuned on real sentences.

make weights first, then: python -m privaudit_tools.benchmarks.bench_words --records 16.
``--attacks joint projection`` asks who was a member, too, ``--no-words`` nothing else.
"""

import argparse
import csv
import time
from typing import Any

import torch

from privaudit.attacks.joint_regression import JointRegression
from privaudit.attacks.projection_residual import (
    ProjectionResidual,
    Residuals,
)
from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.record_gradients import chosen_moves, layers_of
from privaudit.auditing.signals import reference_records
from privaudit.datasets.dataset import Texts
from privaudit.federation.trainer import Records, Task
from privaudit.models.layer_factors import where_reached
from privaudit.models.registry import load_frozen
from privaudit.models.transformers.text_classifier import TextClassifier
from privaudit.statistics.roc import auroc
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.full_fedavg import FullFedAvg
from privaudit_labs.words.span_words import ReadTexts, Text, read_texts
from tests.pretrained import ENCODER, FOLDER, SNIPPETS
from tests.toy_federation import play_toy

CLASSES, PUBLIC, ROUNDS_READ = ("negative", "positive"), 60, 20
ATTACKS = {"projection": ProjectionResidual, "joint": JointRegression}


def main() -> None:
    """Train one client, and print what its moves tell."""
    options = _options()
    model = load_frozen(f"encoder:{FOLDER / ENCODER}")
    assert isinstance(model, TextClassifier)
    model._pooling = options.pooling
    records, count, others = (
        _sentences(model, options.longest),
        options.records,
        options.others,
    )
    first = count + others + PUBLIC if options.unseen else 0
    shard = records.pick(torch.arange(first, first + count))
    candidates = records.pick(torch.arange(count + others))
    task = Task(
        backbone=model.backbone(CLASSES, "{}"),
        public=records.pick(torch.arange(count + others, count + others + PUBLIC)),
        candidates={"one": count + others},
        rounds=options.rounds,
    )  # fmt: skip
    played = play_toy(
        _trainer(options), options.rounds, task=task, shards={"one": shard}
    )
    adversary, _ = played.watched()
    if not options.no_words:
        _print_read(read_texts(adversary, "one", ROUNDS_READ), _texts(shard))
    target = Target("one", adversary.reconstruct("one"), candidates)
    for attack in (ATTACKS[name]() for name in options.attacks):
        begun = time.process_time()
        scores = attack(adversary, [target])[0].scores
        found = auroc(scores[:count], scores[count:])
        print(f"{attack}: AUROC {found}, {time.process_time() - begun:.0f} s")
    if options.by_width:
        _print_widths(adversary, target, count)


def _print_widths(adversary: Adversary, target: Target, members: int) -> None:
    """Print what the projection residual finds by layers of each width alone."""
    attack = ProjectionResidual()
    public = reference_records(adversary, "projection", attack.reference)
    asked, by_width = len(target.candidates), dict[int, Residuals]()
    for move in chosen_moves(adversary, "one", attack.rounds):
        own, others = (
            where_reached(layers_of(adversary, move.received, records, move.deltas))
            for records in (target.candidates, public)
        )
        for width in {one.inputs.shape[2] for one in own.values()}:
            some = {n: o for n, o in own.items() if o.inputs.shape[2] == width}
            by_width.setdefault(width, Residuals()).add(move, some, others, others)
    for width, residuals in sorted(by_width.items()):
        total = residuals.scores()
        assert total is not None
        found = auroc(total[:members], total[members:asked])
        print(f"layers of {width} columns: AUROC {found}")


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (
        ("records", 16),
        ("others", 16),
        ("longest", 12),
        ("rounds", 1),
        ("rank", FedPT().rank),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--pooling", choices=("first", "mean"), default="mean")
    parser.add_argument("--method", choices=("full", "lora"), default="full")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=())
    for name in ("no-words", "by-width", "unseen"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def _trainer(options: Any) -> Any:
    settings = {
        name: getattr(options, name)
        for name in ("optimizer", "learning_rate", "epochs", "batch_size")
    }
    if options.method == "lora":
        return FedPT(**settings, peft_method="lora", rank=options.rank)
    return FullFedAvg(**settings)


def _sentences(model: TextClassifier, longest: int) -> Records:
    """Return sentences of so many tokens at most, in an order of one seed."""
    with (FOLDER / SNIPPETS / "snippets.csv").open(
        newline="", encoding="utf-8"
    ) as file:
        rows = [*csv.reader(file)][1:]
    words = model.words(Texts(tuple((text,) for text, _ in rows)))
    kept = ((words.kinds > 0).sum(dim=1) <= longest).nonzero().flatten()
    kept = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))]
    labels = torch.tensor([CLASSES.index(rows[n][1]) for n in kept.tolist()])
    return Records(torch.zeros(len(kept), 1), labels, words=words[kept].trimmed())


def _texts(records: Records) -> list[Text]:
    assert records.words is not None
    pairs = zip(records.words.ids, records.words.kinds > 0, strict=True)
    return [tuple(ids[real].tolist()) for ids, real in pairs]


def _print_read(read: ReadTexts, texts: list[Text]) -> None:
    usual = set.intersection(*map(set, texts))
    held = {token for text in texts for token in text} - usual
    pairs = {(token, place) for text in texts for place, token in enumerate(text)}
    print(f"{sum(map(len, texts))} tokens, {len(pairs)} pairs of a token and a place")
    spans = None if read.places is None else {token for token, _ in read.places} - usual
    rows = None if read.rows is None else {*read.rows} - usual
    for how, found, true in (
        ("tokens by rows", rows, held),
        ("tokens by the span", spans, held),
        ("pairs by the span", read.places, pairs),
    ):
        if found is not None and true:
            right = len(found & true)
            shares = right / len(true), right / max(1, len(found))
            print(f"{how}: recall {shares[0]:.3f}, precision {shares[1]:.3f}")
    right = len(read.texts & {*texts})
    print(f"texts: {right} of {len({*texts})}, {len(read.texts) - right} wrong")
    print(read.remark or "all was read")


if __name__ == "__main__":
    main()
