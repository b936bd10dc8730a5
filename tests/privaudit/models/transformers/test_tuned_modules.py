"""Several models in one pass are each of them alone, in every family; layers run again.

That gives the same gradients, with less memory.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.core.devices import use_checkpointing
from privaudit.core.errors import ConfigError
from privaudit.core.operations import PeakMemory
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.datasets.records import INSTRUCTION, TokenSequences
from privaudit.models.interfaces import LanguageModel, Tower, Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.registry import load_frozen
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from privaudit.tuning.transformers.objectives import HEAD
from tests.privaudit.models.language.small_language import (
    WIDTH,
    NumberTokenizer,
    build_language,
)
from tests.small_records import picture_data, text_data
from tests.small_transformers import (
    NAMES,
    WITHOUT_PREFIX,
    draw,
    pair_shapes,
    save,
    some_lora,
)

MODELS, ROWS, LENGTH = 3, 2, 40


def language(kind: str, dtype: torch.dtype = torch.float32) -> StackedLanguageModel:
    return StackedLanguageModel(build_language(kind).to(dtype), NumberTokenizer())


def gradients(
    model: StackedLanguageModel,
    parameters: Stacked,
    tuning: Callable[[Stacked], Tuning],
) -> tuple[tuple[Tensor, ...], int]:
    """Return gradients, and what is kept for them."""
    leaves = {n: t.detach().requires_grad_() for n, t in parameters.items()}
    rows = draw({"rows": (MODELS * ROWS, LENGTH, WIDTH)})["rows"]
    with (
        PeakMemory() as memory,
        model.tuned(tuning(leaves), MODELS, len(rows) * LENGTH),
    ):
        embedded = rows.to(next(model.model.parameters()).dtype)
        output = model._run(0, inputs_embeds=embedded, use_cache=False).logits
    kept, loss = memory.now, output.float().square().mean()
    return torch.autograd.grad(loss, list(leaves.values())), kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gradients_are_the_same_to_the_bit(kind: str, dtype: torch.dtype) -> None:
    model = language(kind, dtype)
    parameters = draw(pair_shapes(model, MODELS))
    tuning = partial(some_lora, model)
    plain, kept = gradients(model, parameters, tuning)
    with use_checkpointing():
        again, less = gradients(model, parameters, tuning)
    assert less < 0.45 * kept  # of two layers
    assert any(bool(gradient.any()) for gradient in plain)
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)
    for module in model.model.modules():
        assert "forward" not in vars(module)


def test_prefixes_are_there_when_a_layer_runs_again() -> None:
    model = language("llama")
    shapes = {
        f"{site}.{half}": (MODELS, found.heads, 2, found.width)
        for site, found in model.sites.items()
        for half in ("keys", "values")
    }

    def tuning(leaves: Stacked) -> Tuning:
        names = model.sites
        return Tuning(
            prefix={n: (leaves[f"{n}.keys"], leaves[f"{n}.values"]) for n in names}
        )

    parameters = draw(shapes)
    plain, _ = gradients(model, parameters, tuning)
    with use_checkpointing():
        again, _ = gradients(model, parameters, tuning)
    assert all(bool(gradient.any()) for gradient in plain)
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_copies_in_float32_are_not_kept() -> None:
    """Of a model in bfloat16, whose changes are computed in float32."""
    kept = []
    for dtype in (torch.float32, torch.bfloat16):
        model = language("llama", dtype)
        parameters = draw(pair_shapes(model, MODELS))
        kept.append(gradients(model, parameters, partial(some_lora, model))[1])
    assert kept[1] < 0.65 * kept[0]


def test_a_model_without_such_layers_is_refused() -> None:
    model = language("openelm")
    parameters = draw(pair_shapes(model, MODELS))
    with (
        use_checkpointing(),
        pytest.raises(ConfigError, match="no layers that can run again"),
    ):
        gradients(model, parameters, partial(some_lora, model))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_weights_of_ones_own_are_there_when_a_layer_runs_again(kind: str) -> None:
    """Each of several models', where all weights are trained."""
    model = language(kind)
    weights = draw({n: (MODELS, *t.shape) for n, t in model.weights.items()})
    words = TokenSequences(
        torch.arange(MODELS * ROWS * LENGTH).view(MODELS, ROWS, LENGTH) % 40,
        torch.full((MODELS, ROWS, LENGTH), INSTRUCTION),
    )
    nothing = torch.zeros(MODELS, ROWS, 0, WIDTH)
    found, kept = [], []
    for again in (False, True):
        leaves = {n: t.detach().requires_grad_() for n, t in weights.items()}
        with use_checkpointing(again), PeakMemory() as memory:
            logits = model.logits(nothing, words, Tuning(weights=leaves))
            kept.append(memory.now)
            loss = logits.square().mean()
            found.append(torch.autograd.grad(loss, list(leaves.values())))
    assert kept[1] < 0.7 * kept[0]
    assert all(bool(gradient.any()) for gradient in found[0])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


FAMILIES = (
    *(f"encoder-{kind}" for kind in ("bert", "roberta", "distilbert", "electra")),
    *("encoder-modernbert", "encoder-deberta-v2"),
    *(f"vit-{kind}" for kind in ("ViT", "Dinov2", "DeiT", "Siglip", "Swin")),
    *("clip-", "decoder-gpt2", "decoder-llama"),
    *("seq2seq-t5", "seq2seq-bart", "blip-opt", "blip-t5"),
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
    monkeypatch.setattr("privaudit.models.transformers.towers.POSITIONS_AT_ONCE", 1)
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
