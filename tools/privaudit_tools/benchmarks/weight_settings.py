"""The rows of docs/weights.md: which federations, and what they send."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privaudit_tools.benchmarks.weight_federations import Features, Sent, Setting

ADAM: dict[str, Any] = {"optimiser": "adamw", "rate": 1e-3}
BATCHES: dict[str, Any] = {"batch": 16, "steps": 20}
HEAD = Setting(candidates=160, draws=2)
LORA = Setting(model="lora", size=8, candidates=80, clients=6, rate=0.05, **BATCHES)
FEDRAND = replace(LORA, rounds=10, steps=5)
PRIVATE = Setting(classes=10, candidates=160, steps=1, clip=1.0, draws=2)
WIDTHS: tuple[Features, ...] = ("clip-512", "drawn-768", "caltech-1024", "drawn-4096")


def _first() -> dict[str, Setting]:
    """Return the settings in which the attacks were tried first."""
    batches = Setting(batch=16, steps=50, rate=0.2)
    ten = Setting(candidates=120, clients=10, sent="sum")
    return {
        "head, 50 batches of 16, SGD": batches,
        "head, 50 batches of 16, AdamW": replace(batches, **ADAM),
        "LoRA r 8, 20 batches, AdamW": replace(LORA, **ADAM),
        "LoRA r 64, 60 batches, AdamW": replace(
            LORA, size=64, candidates=320, steps=60, clients=3, **ADAM
        ),
        **_factors_by_coin(),
        "head, 20 steps, SGD, 1,000 candidates": Setting(candidates=1000, steps=20),
        "sum of 10 clients, 5 steps, SGD": ten,
        "sum of 10 clients, 20 batches, AdamW": replace(ten, **BATCHES, **ADAM),
        "released less base, 10 clients, 5 rounds of 5 steps, SGD": replace(
            ten, sent="released", rounds=5
        ),
        "released less base, 10 clients, 5 rounds of 20 batches, AdamW": replace(
            ten, sent="released", rounds=5, **BATCHES, **ADAM
        ),
    }


def _factors_by_coin() -> dict[str, Setting]:
    found = {}
    sends: dict[str, Sent] = {"both factors": "upload", "FedRand": "factor by coin"}
    for name, sent in sends.items():
        for optimiser in ("SGD", "AdamW"):
            for candidates in (80, 160):
                one = replace(FEDRAND, sent=sent, candidates=candidates)
                if optimiser == "AdamW":
                    one = replace(one, **ADAM)
                key = f"{name}, r 8, 10 rounds of 5 batches, {optimiser}, "
                found[f"{key}{candidates} candidates"] = one
    return found


def _widths() -> dict[str, Setting]:
    found = {}
    for features in WIDTHS:
        for classes in (2, 10, 100, 1000):
            one = replace(HEAD, features=features, classes=classes)
            few = replace(one, candidates=40, draws=6)
            found[f"{features}, {classes:,} classes, few-shot"] = few
            found[f"{features}, {classes:,} classes"] = one
    return dict(sorted(found.items(), key=lambda one: _size(one[1])))


def _size(setting: Setting) -> tuple[int, int]:
    return WIDTHS.index(setting.features), setting.classes


def _training() -> dict[str, Setting]:
    sgd = replace(HEAD, rate=0.2, **BATCHES)
    adam = replace(HEAD, **BATCHES, **ADAM)
    return {
        "SGD, one step of all": replace(HEAD, steps=1),
        "SGD, 4 epochs": sgd,
        "SGD, 40 epochs": replace(sgd, steps=200),
        "SGD, 4 epochs, weight decay 0.05": replace(sgd, decay=0.05),
        "momentum, 4 epochs": replace(sgd, optimiser="momentum", rate=0.02),
        "AdamW, 4 epochs": adam,
        "AdamW, 4 epochs, weight decay 1": replace(adam, decay=1.0),
        "AdamW, 20 epochs": replace(adam, steps=100),
        "AdamW, 4 epochs, 10 classes": replace(adam, classes=10),
        "SGD, 4 epochs, sent as float16": replace(sgd, precision="float16"),
        "SGD, 4 epochs, sent as bfloat16": replace(sgd, precision="bfloat16"),
        "AdamW, 4 epochs, sent as bfloat16": replace(adam, precision="bfloat16"),
        "SGD, half of the members no candidates": replace(sgd, outside=0.5),
        "SGD, 10 classes, half no candidates": replace(sgd, classes=10, outside=0.5),
    }


def _models() -> dict[str, Setting]:
    found = {}
    for size in (16, 64):
        for candidates in (20, 160):
            one = Setting(
                model="adapter", size=size, candidates=candidates, clients=2, rate=0.05
            )
            one = replace(one, draws=1 if candidates == 160 else 6)
            found[f"adapter of {size}, SGD, {candidates} candidates"] = one
    for size in (4, 16, 64):
        for rounds in (1, 5, 10):
            one = replace(FEDRAND, size=size, rounds=rounds, clients=3)
            found[f"LoRA r {size}, {rounds} rounds, SGD"] = one
            found[f"LoRA r {size}, {rounds} rounds, AdamW"] = replace(one, **ADAM)
    mlp = Setting(model="mlp", size=256, candidates=80, draws=3, rate=0.01)
    prompt = Setting(
        features="clip-512", model="prompt", classes=10, candidates=40, draws=6
    )
    return {
        **found,
        "two layers, 256 hidden, 5 steps, SGD": mlp,
        "two layers, 256 hidden, 20 batches, AdamW": replace(mlp, **BATCHES, **ADAM),
        "prompt, one step, SGD": replace(prompt, steps=1),
        "prompt, 5 steps, SGD": prompt,
        "prompt, 20 batches, AdamW": replace(prompt, **BATCHES, **ADAM),
    }


def _sums() -> dict[str, Setting]:
    found = {}
    for clients in (1, 3, 10, 30, 100):
        draws = max(1, 20 // clients)
        one = Setting(
            classes=10, candidates=12, clients=clients, sent="sum", draws=draws
        )
        found[f"{clients} clients, 5 steps, SGD"] = one
        found[f"{clients} clients, 20 batches, AdamW"] = replace(
            one, steps=20, batch=4, **ADAM
        )
    return found


def _noise() -> dict[str, Setting]:
    found = {}
    for rounds in (1, 10):
        for z in (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
            if z < 10 or rounds == 10:
                one = replace(PRIVATE, noise=z, rounds=rounds)
                found[f"z = {z:g}, T = {rounds}"] = one
    summed = replace(PRIVATE, candidates=20, clients=10, sent="sum", draws=4)
    for z in (0.1, 0.3, 1.0):
        one = replace(summed, noise=z)
        found[f"z = {z:g} at each of 10 clients, their sum"] = one
    return found


def _batches() -> dict[str, Setting]:
    """Return rounds of one batch each: a fifth of a client's members is in one."""
    one = replace(PRIVATE, rounds=10, batch=16, draws=20)
    return {
        f"ten batches of 16, z = {z:g}": replace(one, noise=z)
        for z in (0.0, 0.1, 0.3, 1.0)
    }


def _defences() -> dict[str, Setting]:
    two = Setting(features="clip-512", classes=2, candidates=40, sent="sum")
    mlp = Setting(model="mlp", size=256, rate=0.01)
    found = {
        f"sum of {k} clients, {k * 40} candidates, rank of K 512": replace(
            two, clients=k
        )
        for k in (5, 10, 15, 20)
    }
    for candidates in (100, 200, 400, 800):
        one = replace(mlp, candidates=candidates, draws=max(1, 200 // candidates))
        found[f"two layers, 256 hidden, {candidates} candidates"] = one
    for rounds in (2, 5, 20, 40):
        by_coin = replace(FEDRAND, rounds=rounds, clients=3, sent="factor by coin")
        found[f"FedRand, {rounds} rounds, SGD"] = by_coin
        found[f"FedRand, {rounds} rounds, AdamW"] = replace(by_coin, **ADAM)
    for size in (32, 64, 128, 256, 1024):
        one = replace(HEAD, model="projected head", classes=10, size=size, rate=0.01)
        found[f"random projection to {size:,} numbers, 160 candidates"] = one
    return found


TABLES: Mapping[str, Mapping[str, Setting]] = {
    "noise": _noise(),
    "batches": _batches(),
    "training": _training(),
    "models": _models(),
    "defences": _defences(),
    "first": _first(),
    "sums": _sums(),
    "width": _widths(),
}
