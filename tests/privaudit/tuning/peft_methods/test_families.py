"""Every mechanism with every family of models: a round is trained, and attacked."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.scenario import find_scenario
from privaudit.core.devices import use_checkpointing, use_device, use_memory
from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import DATASETS
from privaudit.models.registry import find_family, load_frozen
from privaudit.runs.config import make_config
from privaudit.runs.population import encode_for, load_model
from privaudit.runs.run import Run
from privaudit.tuning.peft_methods.registry import PEFT_METHODS
from tests.simulated_device import another_device, assert_agree
from tests.small_records import SMALL_RUN, picture_data, text_data
from tests.small_transformers import WITHOUT_PREFIX, save

FAMILIES = (
    "encoder-bert",
    "vit-ViT",
    "clip-",
    "decoder-gpt2",
    "seq2seq-t5",
    "blip-opt",
)
RELATIVES = (
    "encoder-roberta",
    "encoder-distilbert",
    "encoder-electra",
    "encoder-albert",
    "encoder-xlm-roberta",
    "encoder-modernbert",
    "encoder-deberta",
    "encoder-deberta-v2",
    "vit-Dinov2",
    "vit-Siglip",
    "vit-Swin",
    "decoder-llama",
    "seq2seq-bart",
    "blip-t5",
)
WRITE = ("decoder", "seq2seq", "blip")
TINY = SMALL_RUN | {"tested": 6, "test_share": 0.3, "public_share": 0.3}
PREFIX = {"settings": {"peft_method": "prefix"}}
P_TUNING = {"settings": {"peft_method": "p-tuning"}}
SETTINGS = {"virtual_tokens": 2, "rank": 2, "encoder_width": 4, "epochs": 1}


@pytest.fixture(scope="module", autouse=True)
def data_sets() -> Iterator[None]:
    """Register data sets of these tests, and load each frozen model once."""
    DATASETS.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS._entries, "some-texts", text_data)
        bare = replace(text_data(), dialogues=())
        patch.setitem(DATASETS._entries, "bare-texts", lambda: bare)
        patch.setitem(DATASETS._entries, "some-pictures", picture_data)
        patch.setattr("privaudit.runs.population.load_frozen", loaded_once())
        yield


def loaded_once() -> Callable[..., Any]:
    @cache
    def load(model: str) -> Any:
        return load_frozen(model)

    return lambda model, **_: load(model)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    every = (*FAMILIES, *RELATIVES)
    return {family: save(folder / family, family) for family in every}


@pytest.fixture(scope="module")
def usual(
    models: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Run]:
    """Train a family with a method in the usual way, once for all tests."""
    folder = tmp_path_factory.mktemp("usual")
    return cache(lambda family, method: tried(models[family], method, folder))


def tried(
    model: str, peft_method: str, folder: Path, trainer: str = "fedpt", **others: Any
) -> Run:
    settings = {**SETTINGS, "peft_method": peft_method} if trainer == "fedpt" else {}
    if trainer == "fedpt" and not peft_method:
        settings = {}
    dataset = f"some-{find_family(model).records}"
    options = {"model": model, "dataset": dataset, **TINY, "settings": settings}
    return train(trainer, folder=folder, **{**options, **others})


LONGER = ("full", "p-tuning")
MARKED = [
    pytest.param(name, marks=pytest.mark.slow if name in LONGER else ())
    for name in PEFT_METHODS.names()
]


@pytest.mark.parametrize("peft_method", MARKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_mechanism_of_every_family_is_trained_and_attacked(
    family: str, peft_method: str, usual: Callable[[str, str], Run]
) -> None:
    check_round_and_attack(family, usual(family, peft_method))


@pytest.mark.parametrize(
    ("family", "method"),
    [*((family, "lora") for family in FAMILIES), ("encoder-bert", "full")],
)
def test_every_family_computes_in_bfloat16(
    family: str,
    method: str,
    models: dict[str, str],
    usual: Callable[[str, str], Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Coarser, and so near the numbers of float32; what is sent stays float32."""
    fine = usual(family, method)
    load = "privaudit.runs.population.load_frozen"
    monkeypatch.setattr(load, load_frozen)  # in that precision, not once for all
    coarse = tried(models[family], method, tmp_path, precision="bfloat16")
    check_round_and_attack(family, coarse)
    assert coarse.name != fine.name
    assert coarse.header["model_hash"] != fine.header["model_hash"]
    for message in coarse.transcript:
        assert {t.dtype for t in message.tensors.values()} == {torch.float32}
    losses = [run.metrics[0]["training_loss"] for run in (fine, coarse)]
    assert 0 < abs(losses[0] - losses[1]) < 0.02 * losses[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_the_same_in_little_memory(
    family: str,
    models: dict[str, str],
    usual: Callable[[str, str], Run],
    tmp_path: Path,
) -> None:
    with use_memory("20kB"), use_checkpointing():
        tight = tried(models[family], "lora", tmp_path)
        check_round_and_attack(family, tight)
    assert tight.header["stacked_clients"] == tight.header["records_at_once"] == 1
    for one, other in zip(
        usual(family, "lora").transcript, tight.transcript, strict=True
    ):
        assert_agree(one.tensors, other.tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_on_another_device(
    family: str,
    models: dict[str, str],
    usual: Callable[[str, str], Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = usual(family, "lora")
    load = "privaudit.runs.population.load_frozen"
    monkeypatch.setattr(load, load_frozen)  # to that device, not once for all
    with another_device() as device, use_device(device):
        there = tried(models[family], "lora", tmp_path)
        check_round_and_attack(family, there)
    for one, other in zip(here.transcript, there.transcript, strict=True):
        assert_agree(one.tensors, other.tensors)


@pytest.mark.slow
@pytest.mark.parametrize("family", RELATIVES)
def test_relatives_of_the_families_are_trained_and_attacked(
    family: str, models: dict[str, str], tmp_path: Path
) -> None:
    peft_method = "lora" if family in WITHOUT_PREFIX else "prefix"
    check_round_and_attack(family, tried(models[family], peft_method, tmp_path))


def check_round_and_attack(family: str, run: Run) -> None:
    assert run.is_complete
    sent = [m for m in run.transcript if m.is_update]
    assert len(sent) == 2
    heads = {name for name in sent[0].tensors if name.startswith("head.")}
    assert bool(heads) == family.startswith(("encoder", "vit"))
    before = next(m for m in run.transcript if m.sender == "server").tensors
    moved = sent[0].tensors
    assert any(
        not torch.equal(moved[name] / moved["weight"], tensor)
        for name, tensor in before.items()
    )
    writes = family.startswith(WRITE)
    attack = "token-loss" if writes else "loss-threshold"
    whole = find_scenario("server-reconstruct", 0)
    short = replace(whole, attacks={attack: whole.attacks[attack]}, dominates=())
    audit = Auditor(run).attack(short, clients=1)
    assert 0 <= audit.auroc.value <= 1
    assert run.population.task.kind == ("generation" if writes else "classification")


def test_a_finished_run_is_asked_about_other_texts(
    models: dict[str, str], tmp_path: Path
) -> None:
    run = tried(models["encoder-bert"], "soft-prompt", tmp_path)
    found = Auditor(run).attack("server-reconstruct", clients=1, shadows=0)
    assert set(found.results) >= {"loss-threshold", "confidence"}
    config = run.config
    elsewhere = encode_for(config, load_model(config), text_data(30))
    assert elsewhere.words is not None
    assert len(elsewhere.words.ids) == len(elsewhere) == 30
    assert torch.allclose(elsewhere.features.norm(dim=1), torch.ones(30), atol=1e-5)


@pytest.mark.parametrize("family", ["encoder-bert", "clip-", "decoder-gpt2"])
def test_the_model_as_it_comes_is_measured(
    family: str, models: dict[str, str], tmp_path: Path
) -> None:
    run = tried(models[family], "", tmp_path, trainer="zero-shot")
    population = run.population
    if family == "encoder-bert":
        assert not population.task.zero_shot.any()
    if family == "clip-":
        features = population.tests.features @ population.task.zero_shot.T
        text = {"text": population.task.zero_shot[None]}
        models_say = next(run.trainer.query(population.task, text, population.tests))
        predicted = models_say["log_probabilities"][0].argmax(dim=-1)
        assert torch.equal(predicted, features.argmax(dim=-1))
    assert run.is_complete


@pytest.mark.parametrize(
    ("model", "trainer", "others", "says"),
    [
        ("encoder-bert", "promptfl", {}, "learns prompts before class names"),
        ("vit-ViT", "dp-fpl", {}, "Train it with fedpt"),
        ("decoder-gpt2", "promptfl", {}, "is for generation"),
        ("encoder-bert", "lora-fedavg", {}, "is for classification"),
        ("vit-ViT", "fedpt", {"dataset": "some-texts"}, "has texts, and"),
        ("encoder-bert", "fedpt", {"dataset": "digits"}, "has pictures, and"),
        ("decoder-gpt2", "fedpt", {"dataset": "some-pictures"}, "has pictures, and"),
        ("blip-opt", "fedpt", {"dataset": "some-texts"}, "has texts, and"),
        ("seq2seq-t5", "fedpt", {"dataset": "bare-texts"}, "has none about its"),
        ("encoder-deberta-v2", "fedpt", PREFIX, "and this model has 0 of 0 sizes"),
        ("vit-Swin", "fedpt", P_TUNING, "this model's layers see windows of them"),
    ],
)
def test_what_does_not_go_together_is_refused(
    model: str,
    trainer: str,
    others: dict[str, Any],
    says: str,
    models: dict[str, str],
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=says):
        tried(models[model], "", tmp_path, trainer=trainer, **others)
    assert not list(tmp_path.glob("*/run.json"))


def test_a_checkpoint_beside_a_models_own_weights_is_refused() -> None:
    config = make_config("fedpt", model="encoder:mine", checkpoint="other.pt")
    with pytest.raises(ConfigError, match="has its own weights"):
        load_frozen(config.model, checkpoint=config.checkpoint)
