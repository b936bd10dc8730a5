import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import PADDING, TokenSequences
from privaudit.models.interfaces import LanguageModel, Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.privaudit.models.language.small_language import (
    Factors,
    build_language,
    draw_factors,
    draw_rows,
    lora,
    stacked,
)
from tests.small_transformers import with_lora_of_peft

KINDS = ("llama", "qwen", "gpt2", "openelm")


def of_model(factors: Factors, which: int) -> Factors:
    return {
        name: (first[which : which + 1], second[which : which + 1])
        for name, (first, second) in factors.items()
    }


def spliced(model: Any, pictures: Tensor, words: TokenSequences) -> Tensor:
    """Embed a row as the naive way would: words, then pictures written over them."""
    embedded = model.get_input_embeddings()(words.ids).clone()
    embedded[words.kinds == 1] = pictures.flatten(0, -2)
    return embedded


@pytest.mark.parametrize("kind", KINDS)
def test_without_changes_logits_are_those_of_the_model_itself(
    kind: str, tokenizer: Any
) -> None:
    model = build_language(kind)
    language = StackedLanguageModel(model, tokenizer)
    pictures, words = draw_rows(1, 3)
    found = language.logits(pictures, words, Tuning())
    expected = model(inputs_embeds=spliced(model, pictures[0], words[0])).logits
    assert isinstance(language, LanguageModel)
    assert torch.allclose(found[0], expected, atol=1e-6)
    assert found.dtype == torch.float32
    assert found.shape == (1, 3, words.length, language.vocabulary)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", ["llama", "qwen", "gpt2"])
def test_one_client_is_peft_with_the_same_factors(
    kind: str,
) -> None:
    language = stacked(kind)
    factors, (pictures, words) = draw_factors(language, 1), draw_rows(1, 3)
    found = language.logits(pictures, words, lora(factors, scaling=0.5))
    pairs = {
        f"{n} {which}": t
        for n, p in factors.items()
        for which, t in zip("AB", p, strict=True)
    }
    options = {"task_type": "CAUSAL_LM", "fan_in_fan_out": kind == "gpt2"}
    wrapped = with_lora_of_peft(build_language(kind), language, pairs, **options)
    embedded = spliced(wrapped.get_base_model(), pictures[0], words[0])
    expected = wrapped(inputs_embeds=embedded).logits
    assert torch.allclose(found[0], expected, atol=1e-5)
    assert not torch.allclose(
        found, language.logits(pictures, words, Tuning()), atol=0.1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_clients_together_are_clients_one_by_one(
    kind: str,
) -> None:
    language = stacked(kind)
    factors, (pictures, words) = draw_factors(language, 3), draw_rows(3, 2)
    leaves = [tensor for pair in factors.values() for tensor in pair]
    together = language.logits(pictures, words, lora(factors))
    gradients = torch.autograd.grad(together.logsumexp(-1).sum(), leaves)
    for which in range(3):
        mine = of_model(factors, which)
        part = slice(which, which + 1)
        alone = language.logits(pictures[part], words[part], lora(mine))
        assert torch.allclose(together[which], alone[0], atol=1e-5)
        own = [tensor for pair in mine.values() for tensor in pair]
        for all_of_them, one in zip(
            gradients,
            torch.autograd.grad(alone.logsumexp(-1).sum(), own),
            strict=True,
        ):
            assert torch.allclose(all_of_them[which], one[0], rtol=1e-3, atol=1e-4)


def test_no_client_touches_another(
    language: StackedLanguageModel,
) -> None:
    factors, (pictures, words) = draw_factors(language, 2), draw_rows(2, 2)
    logits = language.logits(pictures, words, lora(factors))
    leaves = [tensor for pair in factors.values() for tensor in pair]
    for gradient in torch.autograd.grad(logits[0].logsumexp(-1).sum(), leaves):
        assert gradient[0].abs().sum() > 0
        assert gradient[1].abs().sum() == 0


def test_frozen_weights_take_no_gradients(
    language: StackedLanguageModel,
) -> None:
    pictures, words = draw_rows(1, 2)
    changes = lora(draw_factors(language, 1))
    language.logits(pictures, words, changes).sum().backward()
    assert all(p.grad is None for p in language.model.parameters())
    assert not any(p.requires_grad for p in language.model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_asked_positions_are_those_of_all(kind: str) -> None:
    language = stacked(kind)
    pictures, words = draw_rows(2, 2)
    some = torch.tensor([0, 6, 5])
    everywhere = language.logits(pictures, words, Tuning())
    found = language.logits(pictures, words, Tuning(), some)
    assert torch.allclose(found, everywhere[:, :, some], atol=1e-5)
    assert language.logits(pictures, words, Tuning(), some[:0]).shape[2] == 0


def test_padding_at_the_right_changes_nothing(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 3)
    ids = torch.cat([words.ids, torch.full((1, 3, 4), 7)], dim=-1)
    kinds = torch.cat([words.kinds, torch.full((1, 3, 4), PADDING)], dim=-1)
    padded = language.logits(pictures, TokenSequences(ids, kinds), Tuning())
    plain = language.logits(pictures, words, Tuning())
    assert torch.allclose(padded[:, :, : words.length], plain, atol=1e-5)


def test_numbers_at_a_pictures_places_say_nothing(
    language: StackedLanguageModel,
) -> None:
    pictures, words = draw_rows(1, 2)
    other = words.ids.masked_fill(words.kinds == 1, 99_999)  # beyond the table
    found = language.logits(pictures, TokenSequences(other, words.kinds), Tuning())
    assert torch.equal(found, language.logits(pictures, words, Tuning()))


def test_a_row_of_padding_may_stand_beside_others(
    language: StackedLanguageModel,
) -> None:
    pictures, words = draw_rows(1, 2)
    kinds = words.kinds.clone()
    kinds[0, 1] = PADDING
    found = language.logits(pictures, TokenSequences(words.ids, kinds), Tuning())
    expected = language.logits(pictures, words, Tuning())
    assert torch.allclose(found[0, 0], expected[0, 0], atol=1e-5)


def test_half_precision_weights_give_float32_logits(
    tokenizer: Any,
) -> None:
    model = build_language("llama").to(torch.bfloat16)
    language = StackedLanguageModel(model, tokenizer)
    pictures, words = draw_rows(1, 2)
    changes = lora(draw_factors(language, 1))
    assert language.logits(pictures, words, changes).dtype == torch.float32


def test_hooks_are_gone_after_an_error(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2)
    plain = language.logits(pictures, words, Tuning())

    def broken(rows: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        language.logits(pictures, words, Tuning({next(iter(language.targets)): broken}))
    hooks = [module._forward_hooks for module in language.model.modules()]
    assert not any(hooks)
    assert torch.equal(language.logits(pictures, words, Tuning()), plain)


def test_a_pass_inside_a_pass_is_another(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2)
    plain = language.logits(pictures, words, Tuning())
    inner: list[Tensor] = []
    name = list(language.targets)[3]

    def change(rows: Tensor) -> Tensor:
        inner.append(language.logits(pictures, words, Tuning()))
        return rows.new_ones(*rows.shape[:2], language.targets[name].outputs)

    outer = language.logits(pictures, words, Tuning({name: change}))
    assert torch.equal(inner[0], plain)
    assert not torch.allclose(outer, plain)


def test_passes_in_two_threads_do_not_meet(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2)
    plain = language.logits(pictures, words, Tuning())
    name = next(iter(language.targets))
    entered, left = threading.Event(), threading.Event()

    def waiting(rows: Tensor) -> Tensor:
        entered.set()
        assert left.wait(10)
        return rows.new_ones(*rows.shape[:2], language.targets[name].outputs)

    other = threading.Thread(
        target=lambda: language.logits(pictures, words, Tuning({name: waiting}))
    )
    other.start()
    assert entered.wait(10)
    meanwhile = language.logits(pictures, words, Tuning())
    left.set()
    other.join()
    assert torch.equal(meanwhile, plain)


def test_a_record_without_its_picture_is_refused(
    language: StackedLanguageModel,
) -> None:
    pictures, words = draw_rows(1, 2)
    kinds = words.kinds.clone()
    kinds[0, 1, 1:4] = 2
    with pytest.raises(ConfigError, match="Row 1 of model 0 has 0 places"):
        language.logits(pictures, TokenSequences(words.ids, kinds), Tuning())


def test_rows_beyond_the_context_are_refused(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2, answers=60)
    with pytest.raises(ConfigError, match=r"69 tokens .* made for 64"):
        language.logits(pictures, words, Tuning())


def test_a_change_of_no_target_is_refused(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2)
    with pytest.raises(ConfigError, match="'lm_head', which is no target"):
        language.logits(pictures, words, Tuning({"lm_head": lambda rows: rows}))
