from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dialogues import (
    ANSWER,
    INSTRUCTION,
    PADDING,
    Dialogue,
    TokenSequences,
)
from privaudit.federated.query import questions
from privaudit.models.hugging_face import import_peft
from privaudit.models.interfaces import Tuning
from privaudit.models.language.separate_tokens import SeparateTokens
from privaudit.models.language.stacked_seq2seq import StackedSeq2Seq
from tests.small_transformers import (
    WIDTH,
    draw,
    pair_shapes,
    some_lora,
    text_model,
    text_tokenizer,
    with_lora_of_peft,
)

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


def plain(model: Any, kind: str, row: int) -> torch.Tensor:
    """Return what the model itself expects of one answer's tokens."""
    tokenizer, dialogue = text_tokenizer(kind), DIALOGUES[row]
    read = tokenizer(dialogue.question, return_tensors="pt")
    labels = tokenizer(dialogue.answers[0], return_tensors="pt")["input_ids"]
    return model(**read, labels=labels).logits[0]


@pytest.mark.parametrize("kind", SEQ2SEQ_KINDS)
def test_before_an_answers_token_logits_are_the_models_own(kind: str) -> None:
    language, write = loaded(kind)
    words = write(DIALOGUES)
    assert language.sites
    found = language.logits(nothing(1, 3), words.repeated(1), Tuning())[0]
    reference = text_model(kind)
    assert found.shape == (3, words.length, language.vocabulary)
    for row in range(3):
        ahead = (words.kinds[row, 1:] == ANSWER).nonzero()[:, 0]
        expected = plain(reference, kind, row)
        assert torch.allclose(found[row, ahead], expected, atol=1e-4)
        others = torch.ones(words.length, dtype=torch.bool)
        others[ahead] = False
        assert not found[row, others].any()


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
    for row in range(3):
        ahead = (words.kinds[row, 1:] == ANSWER).nonzero()[:, 0]
        assert torch.allclose(found[row, ahead], plain(wrapped, kind, row), atol=1e-4)


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
    for row in range(3):
        ahead = (words.kinds[row, 1:] == ANSWER).nonzero()[:, 0]
        assert torch.allclose(found[row, ahead], plain(wrapped, "t5", row), atol=1e-4)


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
