"""Each mechanism in our stacked pass, and in peft's own model: the same logits."""

from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, stack
from privaudit.datasets.records import ANSWER, INSTRUCTION, TokenSequences
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Tunable, Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from tests.privaudit.models.language.small_language import (
    VOCABULARY,
    build_language,
    stacked,
)

OPTIONS = MechanismOptions(virtual_tokens=5, rank=3, lora_alpha=6.0, encoder_width=12)
PROMPTS = ["soft-prompt", "p-tuning", "prefix"]
ALL = [*PROMPTS, "lora", "full"]
OF_PEFT = {"soft-prompt": "PROMPT_TUNING", "p-tuning": "P_TUNING"}


@pytest.fixture(params=["llama", "gpt2"])
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def language(kind: str) -> StackedLanguageModel:
    return stacked(kind)


def seven_tokens() -> TokenSequences:
    """Seven tokens for each of three rows of two models, the last three answers."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, VOCABULARY, (2, 3, 7), generator=generator)
    kinds = torch.full_like(ids, INSTRUCTION)
    kinds[..., 4:] = ANSWER
    return TokenSequences(ids, kinds)


WORDS, NOTHING = seven_tokens(), torch.zeros(2, 3, 0, 32)


def drawn(name: str, model: Tunable, options: MechanismOptions = OPTIONS) -> Stacked:
    """Return two models' parameters, all of them moved away from their start."""
    stream = Seeds(4).stream("starts")
    starts = [PEFT_METHODS.find(name)(options).start(model, stream) for _ in range(2)]
    return {
        n: t + 0.2 * stream.normal_tensor(t.shape) for n, t in stack(starts).items()
    }


def tuning(
    name: str, model: Tunable, parameters: Stacked, options: MechanismOptions = OPTIONS
) -> Tuning:
    return PEFT_METHODS.find(name)(options).tuning(model, parameters)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:Position ids are not supported")
@pytest.mark.parametrize(
    ("name", "projected"), [(n, False) for n in PROMPTS] + [("prefix", True)]
)
def test_logits_are_those_of_pefts_own_model(
    name: str, projected: bool, kind: str, language: StackedLanguageModel
) -> None:
    options = MechanismOptions(5, 3, 6.0, 12, projected)
    parameters = drawn(name, language, options)
    added = tuning(name, language, parameters, options)
    ours = language.logits(NOTHING, WORDS, added)
    config = PEFT_METHODS.find(name)(options).config(language)
    config.task_type = import_peft().TaskType.CAUSAL_LM
    peft = import_peft().get_peft_model(build_language(kind), config).eval()
    encoder = peft.prompt_encoder["default"]
    for number in range(2):
        encoder.load_state_dict({n: t[number] for n, t in parameters.items()})
        with torch.no_grad():
            theirs = peft(input_ids=WORDS.ids[number]).logits
        behind = theirs[:, -WORDS.length :]
        assert torch.allclose(ours[number], behind, atol=2e-5)
    assert not torch.allclose(ours[0], ours[1], atol=0.01)


@pytest.mark.parametrize("name", ALL)
def test_some_positions_are_those_of_all(
    name: str, language: StackedLanguageModel
) -> None:
    added = tuning(name, language, drawn(name, language))
    some = torch.tensor([3, 5])
    whole = language.logits(NOTHING, WORDS, added)
    found = language.logits(NOTHING, WORDS, added, some)
    assert torch.allclose(found, whole[:, :, some], atol=2e-5)


@pytest.mark.parametrize("name", ALL)
def test_answers_with_a_cache_are_those_without(
    name: str, language: StackedLanguageModel
) -> None:
    added = tuning(name, language, drawn(name, language))
    asked = TokenSequences(
        WORDS.ids[..., :4], torch.full_like(WORDS.ids[..., :4], INSTRUCTION)
    )
    found = language.generate_ids(NOTHING, asked, added, 4)
    for number in range(2):
        for row in range(3):
            said = _without_cache(
                language,
                TokenSequences(asked.ids[number, row], asked.kinds[number, row]),
                number,
                added,
            )
            assert found[number][row] == said


def _without_cache(
    language: StackedLanguageModel, row: TokenSequences, number: int, added: Tuning
) -> list[int]:
    ids, said = row.ids.expand(2, 1, -1), list[int]()
    empty = torch.zeros(2, 1, 0, language.width)
    for _ in range(4):
        kinds = torch.full_like(ids, INSTRUCTION)
        logits = language.logits(empty, TokenSequences(ids, kinds), added)
        said.append(int(logits[number, 0, -1].argmax()))
        if said[-1] == 2:
            break
        ids = torch.cat([ids, torch.full((2, 1, 1), said[-1])], dim=2)
    return said


def test_a_start_is_the_same_for_equal_streams(language: StackedLanguageModel) -> None:
    for name in ALL:
        first, second, other = (
            PEFT_METHODS.find(name)(OPTIONS).start(
                language, Seeds(seed).stream("start")
            )
            for seed in (1, 1, 2)
        )
        assert all(torch.equal(first[n], second[n]) for n in first)
        if name != "full":
            assert any(not torch.equal(first[n], other[n]) for n in first)


@pytest.mark.parametrize("name", ["lora", "full"])
def test_nothing_is_changed_before_training(
    name: str, language: StackedLanguageModel
) -> None:
    stream = Seeds(0).stream("start")
    start = stack([PEFT_METHODS.find(name)(OPTIONS).start(language, stream)] * 2)
    found = language.logits(NOTHING, WORDS, tuning(name, language, start))
    assert torch.allclose(found, language.logits(NOTHING, WORDS, Tuning()), atol=1e-6)


def test_a_prompt_that_leaves_no_room_is_refused(
    language: StackedLanguageModel,
) -> None:
    long = MechanismOptions(virtual_tokens=60)
    for name in PROMPTS:
        added = tuning(name, language, drawn(name, language, long), long)
        with pytest.raises(ConfigError, match="7 tokens behind 60 of a prompt"):
            language.logits(NOTHING, WORDS, added)


def test_a_prefix_for_no_such_layer_is_refused(language: StackedLanguageModel) -> None:
    pair = next(
        iter(tuning("prefix", language, drawn("prefix", language)).prefix.values())
    )
    with pytest.raises(ConfigError, match="'nowhere', which is no layer"):
        language.logits(NOTHING, WORDS, Tuning(prefix={"nowhere": pair}))


def test_a_narrow_prompt_encoder_has_as_many_numbers_as_are_said() -> None:
    """The model's width is 32; of peft's own encoder only the LSTM's input differs."""
    for m, h, narrow in ((8, 2, 4), (5, 12, 3), (20, 1, 6)):
        language = stacked("gpt2")
        options = MechanismOptions(m, encoder_width=h, embedding_width=narrow)
        parameters = drawn("p-tuning", language, options)
        count = sum(t[0].numel() for t in parameters.values())
        lstm, last = 8 * h * (narrow + h + 2), (2 * h + 1) * language.width
        assert count == m * narrow + lstm + 2 * h * (2 * h + 1) + last
        prompt = tuning("p-tuning", language, parameters, options).prompt
        assert prompt is not None
        assert prompt.shape == (2, m, language.width)
    as_wide = MechanismOptions(5, encoder_width=12, embedding_width=language.width)
    parameters = drawn("p-tuning", language)
    ours, pefts = (
        tuning("p-tuning", language, parameters, options).prompt
        for options in (as_wide, OPTIONS)
    )
    assert ours is not None
    assert pefts is not None
    assert torch.equal(ours, pefts)


def test_a_prompt_encoder_narrow_enough_is_smaller_than_a_soft_prompt() -> None:
    language, stream = stacked("gpt2"), Seeds(1).stream("start")
    soft, wide, narrow = (
        sum(
            t.numel()
            for t in PEFT_METHODS.find(name)(options).start(language, stream).values()
        )
        for name, options in (
            ("soft-prompt", OPTIONS),
            ("p-tuning", MechanismOptions(5, encoder_width=1)),
            ("p-tuning", MechanismOptions(5, encoder_width=1, embedding_width=2)),
        )
    )
    assert narrow < soft < wide
