"""Stacked language models against transformers' own and peft's, and their answers."""

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    PICTURE,
    Dialogue,
    TokenSequences,
)
from privaudit.federation.query import questions
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import LanguageModel, Tuning
from privaudit.models.language.dialogue_tokens import SeparateTokens
from privaudit.models.language.stacked_language import (
    StackedLanguageModel,
    StackedSeq2Seq,
    prompt_groups,
)
from tests.privaudit.models.language.small_language import (
    Factors,
    build_language,
    draw_factors,
    draw_rows,
    lora,
    stacked,
)
from tests.small_transformers import (
    WIDTH,
    draw,
    pair_shapes,
    some_lora,
    text_model,
    text_tokenizer,
    with_lora_of_peft,
)

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
def test_one_client_is_peft_with_the_same_factors(kind: str) -> None:
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
def test_clients_together_are_clients_one_by_one(kind: str) -> None:
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
            gradients, torch.autograd.grad(alone.logsumexp(-1).sum(), own), strict=True
        ):
            assert torch.allclose(all_of_them[which], one[0], rtol=1e-3, atol=1e-4)


def test_no_client_touches_another_and_frozen_weights_take_no_gradients(
    language: StackedLanguageModel,
) -> None:
    factors, (pictures, words) = draw_factors(language, 2), draw_rows(2, 2)
    logits = language.logits(pictures, words, lora(factors))
    leaves = [tensor for pair in factors.values() for tensor in pair]
    for gradient in torch.autograd.grad(logits[0].logsumexp(-1).sum(), leaves):
        assert gradient[0].abs().sum() > 0
        assert gradient[1].abs().sum() == 0
    language.logits(pictures, words, lora(factors)).sum().backward()
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


def test_half_precision_weights_give_float32_logits(tokenizer: Any) -> None:
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


LONGEST = 6


def prompts(lengths: list[list[int]]) -> tuple[Tensor, TokenSequences]:
    """Draw pictures of two parts and prompts of the given lengths."""
    generator = torch.Generator().manual_seed(3)
    k, rows, longest = len(lengths), len(lengths[0]), max(map(max, lengths))
    ids = torch.randint(3, 50, (k, rows, longest), generator=generator)
    kinds = torch.full_like(ids, INSTRUCTION)
    kinds[..., 1:3] = PICTURE
    kinds[torch.arange(longest) >= torch.tensor(lengths)[..., None]] = PADDING
    return torch.randn(k, rows, 2, 32, generator=generator), TokenSequences(ids, kinds)


def naive(
    language: StackedLanguageModel,
    pictures: Tensor,
    words: TokenSequences,
    tuning: Tuning,
) -> list[int]:
    """Continue one prompt of one model, reading all of it anew for every token."""
    length = int((words.kinds != PADDING).sum())
    ids, kinds = words.ids[:length], words.kinds[:length]
    said: list[int] = []
    while len(said) < LONGEST and said[-1:] != [2]:
        row = TokenSequences(ids.view(1, 1, -1), kinds.view(1, 1, -1))
        logits = language.logits(pictures[None, None], row, tuning)
        said.append(int(logits[0, 0, -1].argmax()))
        ids = torch.cat([ids, torch.tensor(said[-1:])])
        kinds = torch.cat([kinds, torch.tensor([INSTRUCTION])])
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_naive_loop_without_cache(kind: str) -> None:
    language = stacked(kind)
    factors = draw_factors(language, 2)
    pictures, words = prompts([[5, 8], [8, 6]])
    found = language.generate_ids(pictures, words, lora(factors), LONGEST)
    for model in range(2):
        own = lora(of_model(factors, model))
        for row in range(2):
            expected = naive(language, pictures[model, row], words[model][row], own)
            assert found[model][row] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_answers_stop_at_an_end_token_and_others_go_on_without_them(kind: str) -> None:
    language, rows = stacked(kind), list[int]()
    tuning = lora(draw_factors(language, 1))
    pictures, words = prompts([[5, 8, 5, 5, 5, 5, 5]])
    free = language.generate_ids(pictures, words, tuning, LONGEST)[0]
    assert max(map(len, free)) == LONGEST
    language.ends = ends = frozenset({free[0][3], free[2][1], free[3][0]})
    language.model.register_forward_hook(lambda *ran: rows.append(len(ran[-1].logits)))
    stopped = language.generate_ids(pictures, words, tuning, LONGEST)[0]
    lasts = [next((n for n, i in enumerate(r) if i in ends), LONGEST) for r in free]
    assert stopped == [row[: n + 1] for row, n in zip(free, lasts, strict=True)]
    assert sum(rows) <= sum(map(len, stopped)) / 0.8


def test_answers_are_text_without_special_tokens(
    language: StackedLanguageModel,
) -> None:
    pictures, words = prompts([[5, 6]])
    ids = language.generate_ids(pictures, words, Tuning(), 4)
    texts = language.generate(pictures, words, Tuning(), 4)
    assert texts[0][0] == " ".join(str(i) for i in ids[0][0] if i > 2)


def test_the_end_of_the_context_ends_an_answer(language: StackedLanguageModel) -> None:
    pictures, words = prompts([[62]])
    language.ends = frozenset()
    assert len(language.generate_ids(pictures, words, Tuning(), 20)[0][0]) == 3


def test_a_row_of_padding_gets_no_words(language: StackedLanguageModel) -> None:
    pictures, words = prompts([[5, 0]])
    assert language.generate(pictures, words, Tuning(), 3)[0][1] == ""


def test_prompts_with_answers_are_refused(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 2)
    with pytest.raises(ConfigError, match="hold answers already"):
        language.generate(pictures, words, Tuning(), 3)
    with pytest.raises(ConfigError, match="at most 0 tokens"):
        language.generate(pictures, words, Tuning(), 0)


@given(
    st.integers(1, 3).flatmap(
        lambda k: st.lists(
            st.lists(st.integers(0, 3), min_size=k, max_size=k),
            min_size=1,
            max_size=200,
        )
    )
)
def test_each_prompt_is_in_one_group_of_its_length(columns: list[list[int]]) -> None:
    lengths = torch.tensor(columns).T
    seen = []
    for group in prompt_groups(lengths):
        assert (lengths.flatten()[group.source] == group.length).all()
        for place, model, row in group.owners(lengths.shape[1]):
            assert place // group.source.shape[1] == model
            seen.append((model, row))
    assert sorted(seen) == [tuple(i) for i in lengths.nonzero().tolist()]


SEQ2SEQ_KINDS = ("t5", "bart")
DIALOGUES = (
    Dialogue("what is the film", ("good",)),
    Dialogue("was it very very dull", ("no it was not",)),
    Dialogue("who", ("the song was long",)),
)
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)


def loaded(kind: str) -> tuple[StackedSeq2Seq, SeparateTokens]:
    tokenizer = text_tokenizer(kind)
    language = StackedSeq2Seq(text_model(kind), tokenizer)
    return language, SeparateTokens(tokenizer, "{question}", 0)


def nothing(k: int, rows: int) -> torch.Tensor:
    return torch.zeros(k, rows, 0, WIDTH)


def assert_own(found: Tensor, words: TokenSequences, model: Any, kind: str) -> Tensor:
    """Compare answers' tokens with what the model expects; return those positions."""
    tokenizer = text_tokenizer(kind)
    ahead = torch.zeros(found.shape[:2], dtype=torch.bool)
    ahead[:, :-1] = words.kinds[:, 1:] == ANSWER
    for row, dialogue in enumerate(DIALOGUES):
        read = tokenizer(dialogue.question, return_tensors="pt")
        labels = tokenizer(dialogue.answers[0], return_tensors="pt")["input_ids"]
        expected = model(**read, labels=labels).logits[0]
        assert torch.allclose(found[row, ahead[row]], expected, atol=1e-4)
    return ahead


@pytest.mark.parametrize("kind", SEQ2SEQ_KINDS)
def test_before_an_answers_token_logits_are_the_models_own(kind: str) -> None:
    language, write = loaded(kind)
    words = write(DIALOGUES)
    assert language.sites
    found = language.logits(nothing(1, 3), words.repeated(1), Tuning())[0]
    assert found.shape == (3, words.length, language.vocabulary)
    assert not found[~assert_own(found, words, text_model(kind), kind)].any()


@pytest.mark.parametrize("kind", SEQ2SEQ_KINDS)
def test_some_positions_are_those_of_all(kind: str) -> None:
    language, write = loaded(kind)
    words = write(DIALOGUES).repeated(1)
    every = language.logits(nothing(1, 3), words, Tuning())
    some = torch.tensor([2, 4, words.length - 1])
    found = language.logits(nothing(1, 3), words, Tuning(), some)
    assert torch.allclose(found, every[:, :, some], atol=1e-6)


def test_an_answer_cannot_see_its_own_later_tokens() -> None:
    language, write = loaded("t5")
    words = write(DIALOGUES).repeated(1)
    last = int((words.kinds[0, 1] == ANSWER).nonzero().max())
    other = words.ids.clone()
    other[0, 1, last] = 9
    one, two = (
        language.logits(nothing(1, 3), TokenSequences(ids, words.kinds), Tuning())
        for ids in (words.ids, other)
    )
    assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("kind", SEQ2SEQ_KINDS)
def test_answers_are_those_that_the_model_itself_generates(kind: str) -> None:
    language, write = loaded(kind)
    assert language.sites
    prompts = questions(write(DIALOGUES)).repeated(1)
    said = language.generate_ids(nothing(1, 3), prompts, Tuning(), 6)[0]
    reference, tokenizer = text_model(kind), text_tokenizer(kind)
    for row, dialogue in enumerate(DIALOGUES):
        read = tokenizer(dialogue.question, return_tensors="pt")
        made = reference.generate(
            **read,
            max_new_tokens=6,
            do_sample=False,
            num_beams=1,
            forced_eos_token_id=None,
        )
        assert said[row] == made[0, 1:].tolist()


@pytest.mark.parametrize("mechanism", ["prompt", "prefix", "lora", "weights"])
def test_each_token_that_is_said_is_the_likeliest_by_logits(mechanism: str) -> None:
    language, write = loaded("t5")
    prompts = questions(write(DIALOGUES)).repeated(2)
    tuning = {
        "prompt": lambda: Tuning(prompt=draw({"p": (2, 3, WIDTH)})["p"]),
        "prefix": lambda: _prefix(language),
        "lora": lambda: some_lora(language, draw(pair_shapes(language, 2))),
        "weights": lambda: Tuning(
            weights={
                name: t + 0.1 * torch.randn(2, *t.shape, generator=_generator())
                for name, t in language.weights.items()
            }
        ),
    }[mechanism]()
    said = language.generate_ids(nothing(2, 3), prompts, tuning, 4)
    for row in range(3):
        for model in range(2):
            asked = prompts.ids[model, row][prompts.kinds[model, row] != PADDING]
            answer = torch.tensor(said[model][row])
            ids = torch.cat([asked, answer]).expand(2, 1, -1)
            kinds = torch.tensor(
                [INSTRUCTION] * len(asked) + [ANSWER] * len(answer)
            ).expand(2, 1, -1)
            logits = language.logits(nothing(2, 1), TokenSequences(ids, kinds), tuning)
            best = logits[model, 0, len(asked) - 1 : -1].argmax(dim=-1)
            assert torch.equal(best, answer)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def _prefix(language: StackedSeq2Seq) -> Tuning:
    pairs = {}
    for number, (name, site) in enumerate(language.sites.items()):
        shape = (2, site.heads, 3, site.width)
        drawn = draw({"keys": shape, "values": shape}, seed=number)
        pairs[name] = (drawn["keys"], drawn["values"])
    return Tuning(prefix=pairs)


@pytest.mark.parametrize("kind", SEQ2SEQ_KINDS)
def test_lora_is_pefts(kind: str) -> None:
    language, write = loaded(kind)
    pairs = draw(pair_shapes(language, 1))
    inner, kind_of_task = text_model(kind), "SEQ_2_SEQ_LM"
    wrapped = with_lora_of_peft(inner, language, pairs, task_type=kind_of_task)
    words = write(DIALOGUES)
    tuning = some_lora(language, pairs)
    found = language.logits(nothing(1, 3), words.repeated(1), tuning)[0]
    assert_own(found, words, wrapped, kind)


def test_soft_prompts_before_the_encoder_are_pefts() -> None:
    language, write = loaded("t5")
    prompt = draw({"prompt": (1, 4, WIDTH)})["prompt"]
    options = import_peft().PromptTuningConfig(
        num_virtual_tokens=4,
        token_dim=WIDTH,
        num_layers=2,
        num_attention_heads=2,
        num_transformer_submodules=1,
        task_type="SEQ_2_SEQ_LM",
    )
    wrapped = import_peft().get_peft_model(text_model("t5"), options).eval()
    with torch.no_grad():
        wrapped.prompt_encoder["default"].embedding.weight.copy_(prompt[0])
    words = write(DIALOGUES)
    tuning = Tuning(prompt=prompt)
    found = language.logits(nothing(1, 3), words.repeated(1), tuning)[0]
    assert_own(found, words, wrapped, "t5")


def test_rows_of_padding_are_finite_and_answer_nothing() -> None:
    language, _ = loaded("t5")
    ids = torch.tensor([[[8, 9, 5, 7, 5], [0, 0, 0, 0, 0]]])
    kinds = torch.tensor([[[2, 2, 2, 3, 3], [0, 0, 0, 0, 0]]])
    prompt = draw({"prompt": (1, 2, WIDTH)})["prompt"]
    tuning = Tuning(prompt=prompt)
    logits = language.logits(nothing(1, 2), TokenSequences(ids, kinds), tuning)
    (gradient,) = torch.autograd.grad(logits.sum(), prompt)
    assert logits.isfinite().all()
    assert gradient.isfinite().all()
    asked = TokenSequences(ids[..., :3], kinds[..., :3])
    said = language.generate_ids(nothing(1, 2), asked, tuning, 3)[0]
    assert said[0]
    assert not said[1]


def test_a_model_that_does_not_say_how_answers_start_is_refused() -> None:
    model = text_model("t5")
    model.config.decoder_start_token_id = None
    with pytest.raises(ConfigError, match="with which token an answer starts"):
        StackedSeq2Seq(model, text_tokenizer("t5"))


def test_words_with_answers_are_not_answered() -> None:
    language, write = loaded("t5")
    with pytest.raises(ConfigError, match="hold answers already"):
        language.generate_ids(nothing(1, 3), write(DIALOGUES).repeated(1), Tuning(), 3)
