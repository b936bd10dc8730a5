"""Weights packed into few bits: adapters learn beside them, as peft's do."""

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import train
from privaudit.core.devices import CPU
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.records import ANSWER, INSTRUCTION, TokenSequences
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.language.language_targets import linear_targets
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.precisions import Bits, keep_differentiable, packing
from privaudit.models.registry import load_frozen
from privaudit.tuning.peft_methods.full import Full
from privaudit.tuning.peft_methods.registry import MechanismOptions
from tests.audited_runs import attack_one_client
from tests.conftest import Cli
from tests.packed_layers import with_packed_layers, with_unpacked_weights
from tests.privaudit.models.language.small_language import (
    NumberTokenizer,
    build_language,
)
from tests.small_records import SMALL_RUN, ragged_data, text_data
from tests.small_transformers import (
    VOCABULARY,
    draw,
    pair_shapes,
    save,
    some_lora,
    with_lora_of_peft,
)
from tests.small_vlms import save_vlm

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)
by_bitsandbytes = pytest.mark.skipif(
    find_spec("bitsandbytes") is None,
    reason="bitsandbytes is not here: make test-quantised",
)
TINY = SMALL_RUN | {"tested": 4, "test_share": 0.2, "public_share": 0.4}
BITS: tuple[Bits, ...] = ("4bit", "8bit")
ROWS, LENGTH = 3, 7


@pytest.fixture(autouse=True)
def data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._entries, "some-texts", text_data)
    monkeypatch.setitem(DATASETS._entries, "ragged-pictures", lambda: ragged_data(24))


def some_words(models: int, vocabulary: int) -> TokenSequences:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, vocabulary, (models, ROWS, LENGTH), generator=generator)
    kinds = torch.full_like(ids, INSTRUCTION)
    kinds[..., 4:] = ANSWER
    return TokenSequences(ids, kinds)


def logits_of(
    model: StackedLanguageModel, words: TokenSequences, tuning: Tuning
) -> Tensor:
    nothing = torch.zeros(len(words.ids), ROWS, 0, model.width)
    return model.logits(nothing, words, tuning)


def gradients(
    model: StackedLanguageModel, pairs: Stacked, words: TokenSequences
) -> Any:
    leaves = {n: t.detach().requires_grad_() for n, t in pairs.items()}
    found = logits_of(model, words, some_lora(model, leaves)).logsumexp(-1).sum()
    return torch.autograd.grad(found, list(leaves.values()))


def test_adapters_beside_packed_weights_are_those_beside_the_same_unpacked() -> None:
    """And peft's: sizes of adapters come from the layer, not from the packed weight."""
    packed = with_packed_layers(build_language("llama"))
    same = with_unpacked_weights(build_language("llama"), packed)
    plain = linear_targets(build_language("llama"), "all-linear")
    assert linear_targets(packed, "all-linear") == plain
    assert packed.is_loaded_in_8bit
    ours, other = (StackedLanguageModel(m, NumberTokenizer()) for m in (packed, same))
    pairs, words = draw(pair_shapes(ours, 2)), some_words(2, 50)
    found = logits_of(ours, words, some_lora(ours, pairs))
    torch.testing.assert_close(found, logits_of(other, words, some_lora(other, pairs)))
    for one, two in zip(
        gradients(ours, pairs, words), gradients(other, pairs, words), strict=True
    ):
        assert one.any()
        torch.testing.assert_close(one, two)
    packed.is_loaded_in_8bit = False  # or peft would ask for bitsandbytes' own layers
    peft = with_lora_of_peft(packed, ours, pairs, task_type="CAUSAL_LM")
    torch.testing.assert_close(found[0], peft(input_ids=words.ids[0]).logits)


def test_packed_weights_cannot_all_be_trained() -> None:
    packed = with_packed_layers(build_language("llama"))
    model = StackedLanguageModel(packed, NumberTokenizer())
    with pytest.raises(ConfigError, match="Leave out --quantise, or train adapters"):
        Full(MechanismOptions()).start(model, Seeds(0).stream("start"))


def test_without_bitsandbytes_the_extra_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    model = save(tmp_path / "model", "decoder-llama")
    words = ("train", "--trainer", "fedpt", "--model", model, "--dataset", "some-texts")
    code, out, err = cli(*words, "--quantise", "4bit", "--runs", tmp_path / "runs")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Install it: pip install 'bitsandbytes<" in err
    assert not (tmp_path / "runs").exists()


def test_models_that_cannot_be_packed_are_refused() -> None:
    with pytest.raises(ConfigError, match="those of tiny-clip cannot be packed"):
        load_frozen("tiny-clip", quantise="4bit")


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_vlm(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module", params=BITS)
def bits(request: Any) -> Bits:
    found: Bits = request.param
    return found


@by_bitsandbytes
@pytest.mark.parametrize("trainer", ["lora-fedavg", "fedrand"])
def test_a_packed_model_is_trained_and_attacked(
    trainer: str, bits: Bits, llava: str, tmp_path: Path
) -> None:
    some = {
        "model": llava,
        "dataset": "ragged-pictures",
        "settings": {"rank": 2},
        **TINY,
    }
    run = train(trainer, folder=tmp_path, quantise=bits, **some)
    plain = train(trainer, folder=tmp_path, **some)
    assert run.config.short_hash != plain.config.short_hash
    assert run.header["model_hash"] != plain.header["model_hash"]
    losses = [each.metrics[0]["training_loss"] for each in (run, plain)]
    assert 0 < abs(losses[0] - losses[1]) < 0.05 * losses[1]
    for one, two in zip(run.transcript, plain.transcript, strict=True):
        assert {n: t.shape for n, t in one.tensors.items()} == {
            n: t.shape for n, t in two.tensors.items()
        }
    attack_one_client(run, "server-reconstruct", "token-loss", "max-renyi")


@by_bitsandbytes
@pytest.mark.parametrize("family", ["encoder-bert", "decoder-gpt2", "seq2seq-t5"])
def test_other_families_are_packed(family: str, bits: Bits, tmp_path: Path) -> None:
    model = save(tmp_path / "model", family)
    settings = {"peft_method": "lora", "rank": 2, "epochs": 1}
    some = {"model": model, "dataset": "some-texts", "settings": settings, **TINY}
    run = train("fedpt", folder=tmp_path, quantise=bits, **some)
    assert run.is_complete
    with pytest.raises(ConfigError, match="Leave out --quantise"):
        train("fedpt", folder=tmp_path, quantise=bits, peft_method="full", **some)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("decoder"), "decoder-llama")


@by_bitsandbytes
def test_logits_are_those_of_peft_around_the_same_packed_model(
    bits: Bits, decoder: str
) -> None:
    loaded: Any = load_frozen(decoder, quantise=bits)
    ours = loaded.language
    pairs, words = draw(pair_shapes(ours, 2)), some_words(2, VOCABULARY)
    found = logits_of(ours, words, some_lora(ours, pairs))
    kind, folder = import_transformers().AutoModelForCausalLM, decoder.partition(":")[2]
    options = packing(bits, torch.float32, CPU)
    theirs = kind.from_pretrained(folder, dtype=torch.float32, **options)
    keep_differentiable(theirs)
    peft = with_lora_of_peft(theirs, ours, pairs, task_type="CAUSAL_LM")
    expected = peft(input_ids=words.ids[0]).logits
    torch.testing.assert_close(found[0], expected.float(), atol=1e-4, rtol=1e-4)
    plain: Any = load_frozen(decoder)
    exact = logits_of(plain.language, words, some_lora(plain.language, pairs))
    assert 1e-4 * exact.norm() < (exact - found).norm() < 0.3 * exact.norm()


@by_bitsandbytes
def test_no_row_depends_on_another_ones_numbers(bits: Bits, decoder: str) -> None:
    """Not even on a client whose activations are far out."""
    loaded: Any = load_frozen(decoder, quantise=bits)
    model, words = loaded.language, some_words(2, VOCABULARY)
    pairs = {n: t.detach() for n, t in draw(pair_shapes(model, 2)).items()}
    for pair in pairs.values():
        pair[1] *= 10
    together = logits_of(model, words, some_lora(model, pairs))
    of_one = {name: pair[:1] for name, pair in pairs.items()}
    alone = logits_of(model, words[slice(0, 1)], some_lora(model, of_one))
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=1e-5)


@by_bitsandbytes
def test_gradients_stay_when_the_model_was_asked_before(
    bits: Bits, decoder: str
) -> None:
    found = []
    for asked in (False, True):
        loaded: Any = load_frozen(decoder, quantise=bits)
        model, words = loaded.language, some_words(1, VOCABULARY)
        pairs = draw(pair_shapes(model, 1))
        ask = partial(logits_of, model, words, Tuning())
        with torch.no_grad():
            before = ask() if asked else None
        found.append(gradients(model, pairs, words))
        if before is not None:
            torch.testing.assert_close(ask(), before)
    for one, two in zip(*found, strict=True):
        assert one.any()
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
