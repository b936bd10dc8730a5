"""Several models in one pass are each of them alone, in every family."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.datasets.dialogues import TokenSequences
from privaudit.models.interfaces import LanguageModel, Tower, Tuning
from privaudit.models.registry import load_frozen
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.objectives import HEAD
from tests.small_records import picture_data, text_data
from tests.small_transformers import NAMES, WITHOUT_PREFIX, save

FAMILIES = (
    "encoder-bert",
    "encoder-roberta",
    "encoder-distilbert",
    "encoder-electra",
    "encoder-modernbert",
    "encoder-deberta-v2",
    "vit-ViT",
    "vit-Dinov2",
    "vit-DeiT",
    "vit-Siglip",
    "vit-Swin",
    "clip-",
    "decoder-gpt2",
    "decoder-llama",
    "seq2seq-t5",
    "seq2seq-bart",
    "blip-opt",
    "blip-t5",
)
K, RECORDS = 2, 3


class Family:
    """A model, and how it is run on some of K models' rows."""

    def __init__(self, folder: Path, name: str) -> None:
        loaded: Any = load_frozen(save(folder, name))
        self.pictures, self.words = None, None
        self.decodes = name.startswith("decoder")
        self.refuses = {"prefix"} if name in WITHOUT_PREFIX else set()
        if name == "vit-Swin":
            self.refuses |= {"soft-prompt", "p-tuning"}
        if name.startswith(("encoder", "vit", "clip")):
            self.model: Any = loaded.tower(NAMES, "a {}")
        else:
            self.model = loaded.language
        if name.startswith(("vit", "clip", "blip")):
            pixels: Any = picture_data().images
            images = torch.stack([pixels[i] for i in range(K * RECORDS)])
            tokens = loaded.encode_tokens(loaded.preprocess_batch(images))
            self.pictures = tokens.unflatten(0, (K, RECORDS))
        if name.startswith("encoder"):
            self.words = _stacked(loaded.words(text_data(K * RECORDS).images))
        elif not name.startswith(("vit", "clip")):
            self.words = _stacked(loaded.words(text_data(K * RECORDS).dialogues))
        if self.pictures is None:
            self.pictures = torch.zeros(K, RECORDS, 0, self.model.width)

    def __call__(self, tuning: Tuning, some: slice = slice(None)) -> Tensor:
        assert self.pictures is not None
        words = None if self.words is None else self.words[some]
        if isinstance(self.model, Tower):
            pictures = self.pictures[some]
            features = torch.zeros(len(pictures), RECORDS, 1)
            return self.model.logits(features, pictures, words, tuning)
        assert words is not None
        return self.model.logits(self.pictures[some], words, tuning)


def _stacked(words: TokenSequences) -> TokenSequences:
    return TokenSequences(
        words.ids.unflatten(0, (K, RECORDS)), words.kinds.unflatten(0, (K, RECORDS))
    )


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Family:
    return Family(tmp_path_factory.mktemp("model"), request.param)


def learned(family: Family, mechanism: str, k: int = K) -> dict[str, Tensor]:
    """Return a mechanism's parameters for k models, moved from where they start."""
    options = MechanismOptions(virtual_tokens=2, rank=2, encoder_width=4)
    stream = Seeds(3).stream("learned")
    start = PEFT_METHODS.find(mechanism)(options).start(family.model, stream)
    moved = {
        name: t + 0.3 * stream.normal_tensor((k, *t.shape)) for name, t in start.items()
    }
    head = getattr(family.model, "head", None)
    if head is not None:  # the same for all: they differ by the mechanism only
        weight = stream.normal_tensor((head.classes, head.width))
        moved["head.weight"] = weight.expand(k, -1, -1).clone()
        moved["head.bias"] = torch.zeros(k, head.classes)
    return moved


def tuning_of(family: Family, mechanism: str, parameters: dict[str, Tensor]) -> Tuning:
    options = MechanismOptions(virtual_tokens=2, rank=2, encoder_width=4)
    head = {n.removeprefix("head."): t for n, t in parameters.items() if n in HEAD}
    rest = {n: t for n, t in parameters.items() if n not in HEAD}
    made = PEFT_METHODS.find(mechanism)(options).tuning(family.model, rest)
    return Tuning(made.changes, made.prompt, made.prefix, made.weights, head)


@pytest.mark.parametrize("mechanism", PEFT_METHODS.names())
def test_models_together_are_each_alone_and_touch_no_other(
    mechanism: str, family: Family
) -> None:
    if mechanism in family.refuses:
        with pytest.raises(ConfigError, match="Use another PEFT method, such as lora"):
            learned(family, mechanism)
        return
    parameters = learned(family, mechanism)
    leaves = {n: t.requires_grad_() for n, t in parameters.items()}
    together = family(tuning_of(family, mechanism, leaves))
    assert together.isfinite().all()
    for number in range(K):
        some = slice(number, number + 1)
        own = {n: t[some] for n, t in parameters.items()}
        alone = family(tuning_of(family, mechanism, own), some)
        assert torch.allclose(together[number], alone[0], atol=1e-4)
    first = together[0].square().sum()
    gradients = torch.autograd.grad(first, list(leaves.values()))
    assert all(not g[1:].any() for g in gradients)
    if mechanism != "full" or family.decodes:  # a bias of keys changes nothing
        assert all(g[0].any() for g in gradients)
    assert any(g[0].any() for g in gradients)


def test_without_gradients_rows_in_parts_are_the_same(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = "lora" if "soft-prompt" in family.refuses else "soft-prompt"
    parameters = learned(family, mechanism)
    whole = family(tuning_of(family, mechanism, parameters))
    monkeypatch.setattr("privaudit.models.transformers.row_tower.POSITIONS_AT_ONCE", 1)
    with torch.no_grad():
        parts = family(tuning_of(family, mechanism, parameters))
    assert torch.allclose(whole, parts, atol=1e-5)


def test_every_family_is_what_trainers_ask_for(family: Family) -> None:
    assert isinstance(family.model, Tower | LanguageModel)
    assert family.model.targets
    takes_prefix = "prefix" not in family.refuses
    assert len(set(family.model.sites.values())) == takes_prefix
    if "soft-prompt" in family.refuses:
        return
    drawn = family.model.start_vectors(5, Seeds(0).stream("vectors"))
    again = family.model.start_vectors(5, Seeds(0).stream("vectors"))
    assert drawn.shape == (5, family.model.width)
    assert torch.equal(drawn, again)
