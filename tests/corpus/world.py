"""The small world that cases spoil: a run, its audit, what is made of them, data."""

import json
import os
import pickle
from pathlib import Path
from unittest.mock import patch

import numpy as np

from privaudit.cli import main as cli
from tests.privaudit.datasets.conftest import picture, write_archive, write_folder

CLASSES = ("cat", "dog")
TRAIN = ("--rounds", "1", "--clients", "2")


def make_world(place: Path) -> Path:
    """Make everything once, if it is not there, and return the folder."""
    home = Path.cwd()
    os.environ["PRIVAUDIT_RUNS"] = str(place / "runs")
    os.environ.setdefault("PRIVAUDIT_CACHE", str(place.parent / "cache"))
    os.environ["PRIVAUDIT_KEYS"] = str(place.parent / "keys")
    if place.exists():
        return place
    place.mkdir(parents=True)
    os.chdir(place)
    try:
        _make_run(place)
    finally:
        os.chdir(home)
    make_data(place / "data")
    return place


def _make_run(place: Path) -> None:
    """Make two runs, audits, a baseline, a card and a sweep, by the commands."""
    for name, seed in (("one", "0"), ("two", "1")):
        command("train", *TRAIN, "--name", name, "--seed", seed, "--quiet")
        write = "privaudit.report.page.write_report"  # takes long, and nobody reads it
        with patch(write, lambda _, page, **how: page.write_text("")):
            command("attack", name, "--shadows", "0", "--quiet")
    command("gate", "one", "--write-baseline", str(place / "baseline.json"))
    command("export", "one", "--public", str(place / "public"))
    rows = [f"{n % 7},{n % 2},client-{n % 3},r{n}" for n in range(60)]
    (place / "scores.csv").write_text(
        "\n".join(["score,member,client,record", *rows, ""])
    )
    score, member = np.arange(60.0), np.arange(60) % 2 == 0
    np.savez(place / "scores.npz", score=score, member=member)
    (place / "plan.toml").write_text(PLAN)
    (place / "sweep.toml").write_text(SWEEP)


PLAN = """title = "small"
seeds = [1]
[fields]
rounds = 1
clients = 2
[[rows]]
label = "a"
trainer = "zero-shot"
"""
SWEEP = """trainers = ["zero-shot"]
seeds = [1]
shadows = 0
scenario = "server-reconstruct"
[fields]
rounds = 1
clients = 2
"""


def command(*argv: str) -> None:
    """Run the command line in this process."""
    try:
        cli.app(list(argv), prog_name="privaudit")
    except SystemExit as ending:
        if ending.code:
            raise RuntimeError(f"privaudit {' '.join(argv)}: {ending.code}") from None


def make_data(place: Path) -> None:
    """Write a small data set of each kind, each as good as it can be."""
    pictures = {
        f"{name}/{n}.png": picture(9 * n + 100 * c, (8, 8))
        for c, name in enumerate(CLASSES)
        for n in range(12)
    }
    write_folder(place / "folder", pictures)
    for ending in ("zip", "tar", "tar.gz"):
        write_archive(place / f"pictures.{ending}", pictures)
    labels = [c for c in range(2) for _ in range(12)]
    vectors = np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32)
    place.joinpath("bank").mkdir()
    np.savez(
        place / "bank" / "bank.npz",
        embeddings=vectors,
        labels=np.array(labels),
        class_names=np.array(CLASSES),
    )
    rows = [(name, CLASSES[c]) for name, c in zip(pictures, labels, strict=True)]
    table = "image,label\n" + "".join(f"{a},{b}\n" for a, b in rows)
    write_folder(place / "table", {**pictures, "all.csv": table.encode()})
    texts = "text,label\n" + "".join(
        f"this is {n},{b}\n" for n, (_, b) in enumerate(rows)
    )
    write_folder(place / "texts", {"all.csv": texts.encode()})
    split = [[name, c, CLASSES[c]] for name, c in zip(pictures, labels, strict=True)]
    parts = {"train": split[::2], "val": split[1::4], "test": split[3::4]}
    write_folder(
        place / "coop", {**pictures, "split_zhou_x.json": json.dumps(parts).encode()}
    )
    lines = [{"image": a, "captions": [f"a {b}."], "label": b} for a, b in rows]
    jsonl = "\n".join(map(json.dumps, lines))
    write_folder(place / "captions", {**pictures, "metadata.jsonl": jsonl.encode()})
    captions = json.dumps([f"a {b} {n}" for n, (_, b) in enumerate(rows)]).encode()
    write_folder(place / "vectors", {"captions.json": captions})
    np.save(place / "vectors" / "x.npy", vectors)
    asked = [
        {"id": str(n), "question": f"What is {n}?", "answers": [{"text": "a"}]}
        for n in range(20)
    ]
    article = {"title": "t", "paragraphs": [{"context": "a b", "qas": asked}]}
    squad = json.dumps({"data": [article]}).encode()
    write_folder(place / "squad", {"train-v1.1.json": squad, "dev-v1.1.json": squad})
    batch = b"".join(bytes([n % 10]) + bytes([n % 251]) * 3072 for n in range(40))
    files = {f"data_batch_{i}.bin": batch for i in range(1, 6)}
    names = "\n".join(f"class{n}" for n in range(10)).encode()
    files |= {"test_batch.bin": batch, "batches.meta.txt": names}
    write_folder(place / "cifar10", files)
    rows_of = np.frombuffer(batch, dtype=np.uint8).reshape(40, 3073)
    part = {"data": rows_of[:, 1:], "labels": rows_of[:, 0].tolist()}
    files = {f"data_batch_{i}": pickle.dumps(part, 2) for i in range(1, 6)}
    meta = {"label_names": [f"class{n}" for n in range(10)]}
    files |= {"test_batch": pickle.dumps(part, 2), "batches.meta": pickle.dumps(meta)}
    write_folder(place / "cifar10-python", files)
