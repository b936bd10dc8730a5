"""Encoders of texts against transformers' own and peft's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Texts
from privaudit.datasets.records import INSTRUCTION, PADDING, TokenSequences
from privaudit.models.hugging_face import import_peft, import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.transformers.text_classifier import TextClassifier, TextTokens
from privaudit.models.transformers.towers import TextEncoderTower
from privaudit.tuning.peft_methods.prefix import PrefixTuning
from privaudit.tuning.peft_methods.registry import MechanismOptions
from tests.small_records import text_data
from tests.small_transformers import (
    ENCODERS,
    draw,
    pair_shapes,
    random_model,
    some_lora,
    text_config,
    text_model,
    text_tokenizer,
    with_lora_of_peft,
)

COUNT = 6
SIZES = {
    "token_dim": 16,
    "num_layers": 2,
    "num_attention_heads": 2,
    "num_transformer_submodules": 1,
    "task_type": "SEQ_CLS",
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)


def loaded(kind: str) -> TextClassifier:
    return TextClassifier(kind, text_model(kind), text_tokenizer(kind), "all-linear")


def tower_of(model: TextClassifier) -> TextEncoderTower:
    tower = model.tower(("a", "b", "c"), "{}")
    assert isinstance(tower, TextEncoderTower)
    return tower


def some_texts() -> Texts:
    found = text_data(COUNT).images
    assert isinstance(found, Texts)
    return found


def plain_inputs(kind: str) -> Any:
    """Write the same texts as people do with transformers alone."""
    tokenizer = text_tokenizer(kind)
    rows = [tokenizer(*parts) for parts in some_texts().texts]
    return tokenizer.pad(rows, return_tensors="pt")


@pytest.mark.parametrize("kind", ENCODERS)
def test_untuned_states_are_those_of_the_model_itself(kind: str) -> None:
    model = loaded(kind)
    words = model.words(some_texts())
    inputs = plain_inputs(kind)
    assert torch.equal(words.ids * inputs["attention_mask"], inputs["input_ids"])
    reference = random_model(
        lambda: import_transformers().AutoModel.from_config(text_config(kind))
    )
    reference.pooler = None
    expected = reference(**inputs).last_hidden_state
    tower = tower_of(model)
    # Asking changes how attention is called, not what it gives.
    assert bool(tower.sites) == (not kind.startswith("deberta"))
    found = tower.states(words.repeated(1), Tuning())[0]
    real = words.kinds != PADDING
    assert torch.allclose(found[real], expected[real], atol=1e-5)
    vectors = torch.nn.functional.normalize(expected[:, 0], dim=-1)
    assert torch.allclose(model.features(words), vectors, atol=1e-5)
    assert not tower.logits(
        torch.zeros(1, COUNT, 1), None, words.repeated(1), Tuning()
    )[0].any()


def test_the_head_reads_the_texts_first_token_behind_a_prompt() -> None:
    tower = TextEncoderTower(text_model("bert"), 3)
    words = loaded("bert").words(some_texts()).repeated(2)
    parts = draw({"prompt": (2, 4, 16), "weight": (2, 3, 16), "bias": (2, 3)})
    head = {"weight": parts["weight"], "bias": parts["bias"]}
    tuning = Tuning(prompt=parts["prompt"], head=head)
    states = tower.states(words, tuning)
    assert states.shape == (2, COUNT, 4 + words.length, 16)
    by_hand = states[:, :, 4] @ parts["weight"].mT + parts["bias"][:, None]
    found = tower.logits(torch.zeros(2, COUNT, 1), None, words, tuning)
    assert torch.allclose(found, by_hand, atol=1e-5)


def test_where_no_token_begins_a_text_the_mean_stands_for_it() -> None:
    tower = TextEncoderTower(text_model("bert"), 3, pooling="mean")
    words = loaded("bert").words(some_texts()).repeated(1)
    states = tower.states(words, Tuning())[0]
    for row in range(COUNT):
        real = words.kinds[0, row] != PADDING
        found = tower.pooled(words, Tuning())[0, row]
        assert torch.allclose(found, states[row][real].mean(dim=0), atol=1e-5)


def test_a_row_of_padding_is_finite_and_so_are_its_gradients() -> None:
    tower = TextEncoderTower(text_model("roberta"), 3)
    ids = torch.tensor([[[1, 7, 8, 2], [0, 0, 0, 0]]])
    words = TokenSequences(ids, torch.where(ids > 0, INSTRUCTION, PADDING))
    prompt = draw({"prompt": (1, 2, 16)})["prompt"]
    for pooling in ("first", "mean"):
        tower._pooling = pooling
        vectors = tower.pooled(words, Tuning(prompt=prompt))
        (gradient,) = torch.autograd.grad(vectors.sum(), prompt)
        assert vectors.isfinite().all()
        assert gradient.isfinite().all()


def test_what_padding_holds_changes_nothing() -> None:
    tower = TextEncoderTower(text_model("bert"), 3, separator=2)
    words = loaded("bert").words(some_texts())
    other = torch.where(words.kinds == PADDING, 9, words.ids)
    one, two = (
        tower.pooled(TokenSequences(ids, words.kinds).repeated(1), Tuning())
        for ids in (words.ids, other)
    )
    assert torch.allclose(one, two, atol=1e-6)


def in_peft(kind: str, options: Any, head: str) -> Any:
    """Return peft's own model with a head around the same weights."""
    config = text_config(kind)
    config.num_labels = 3
    inner = random_model(lambda: getattr(import_transformers(), head)(config))
    inner.base_model.load_state_dict(text_model(kind).state_dict(), strict=False)
    return import_peft().get_peft_model(inner, options).eval()


@pytest.mark.parametrize("kind", ENCODERS)
def test_lora_is_pefts(kind: str) -> None:
    model = loaded(kind)
    tower = tower_of(model)
    pairs = draw(pair_shapes(tower, 1))
    wrapped = with_lora_of_peft(text_model(kind), tower, pairs)
    words = model.words(some_texts())
    found = tower.states(words.repeated(1), some_lora(tower, pairs))[0]
    expected = wrapped(**plain_inputs(kind)).last_hidden_state
    real = words.kinds != PADDING
    assert torch.allclose(found[real], expected[real], atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_soft_prompts_are_pefts_but_for_what_a_classifier_reads(kind: str) -> None:
    model = loaded(kind)
    tower = tower_of(model)
    prompt = draw({"prompt": (1, 4, 16)})["prompt"]
    head = {
        "bert": "BertForSequenceClassification",
        "roberta": "RobertaForSequenceClassification",
        "distilbert": "DistilBertForSequenceClassification",
    }[kind]
    options = import_peft().PromptTuningConfig(num_virtual_tokens=4, **SIZES)
    wrapped = in_peft(kind, options, head)
    with torch.no_grad():
        wrapped.prompt_encoder["default"].embedding.weight.copy_(prompt[0])
    words = model.words(some_texts())
    states = tower.states(words.repeated(1), Tuning(prompt=prompt))[0]
    inner = wrapped.base_model
    if kind == "bert":
        expected = inner.classifier(torch.tanh(inner.bert.pooler.dense(states[:, 0])))
    elif kind == "roberta":
        expected = inner.classifier(states)
    else:
        hidden = torch.relu(inner.pre_classifier(states[:, 0]))
        expected = inner.classifier(hidden)
    assert torch.allclose(wrapped(**plain_inputs(kind)).logits, expected, atol=1e-4)


def test_prefixes_are_pefts() -> None:
    model = loaded("bert")
    tower = tower_of(model)
    flat = draw({"embedding.weight": (1, 3, 2 * 2 * 16)})
    tuning = PrefixTuning(MechanismOptions(virtual_tokens=3)).tuning(tower, flat)
    options = import_peft().PrefixTuningConfig(num_virtual_tokens=3, **SIZES)
    wrapped = in_peft("bert", options, "BertForSequenceClassification")
    with torch.no_grad():
        encoder = wrapped.prompt_encoder["default"]
        encoder.embedding.weight.copy_(flat["embedding.weight"][0])
    states = tower.states(model.words(some_texts()).repeated(1), tuning)[0]
    inner = wrapped.base_model
    expected = inner.classifier(torch.tanh(inner.bert.pooler.dense(states[:, 0])))
    assert torch.allclose(wrapped(**plain_inputs("bert")).logits, expected, atol=1e-4)


def test_a_second_text_is_distinguished_from_the_first() -> None:
    tokenizer = text_tokenizer("bert")
    model = text_model("bert")
    words = TextTokens(tokenizer, separator=2)(some_texts())
    typed = TextEncoderTower(model, 2, separator=2)
    untyped = TextEncoderTower(model, 2)
    one, two = (t.pooled(words.repeated(1), Tuning())[0] for t in (typed, untyped))
    pairs = torch.tensor([len(parts) == 2 for parts in some_texts().texts])
    assert torch.allclose(one[~pairs], two[~pairs], atol=1e-6)
    assert (one[pairs] - two[pairs]).abs().amax(dim=1).min() > 1e-3


def test_texts_that_cannot_be_read_are_refused() -> None:
    tokens = TextTokens(text_tokenizer("bert"), context=6, separator=2)
    with pytest.raises(ConfigError, match="Record 1 takes 7 tokens, and the encoder"):
        tokens(Texts((("a film",), ("the film was very very",))))
    with pytest.raises(ConfigError, match=r"Record 0 holds '\[SEP\]'"):
        tokens(Texts((("a [SEP] film",),)))


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    tower = TextEncoderTower(text_model("roberta"), 2)
    assert tower.context == 39  # RoBERTa's table leaves some positions out
    words = loaded("roberta").words(some_texts()).repeated(1)
    prompt = torch.zeros(1, 40 - words.length, 16)
    with pytest.raises(ConfigError, match=r"made for 39\. Shorten the texts"):
        tower.pooled(words, Tuning(prompt=prompt))
    assert tower.pooled(words, Tuning(prompt=prompt[:, 1:])).shape == (1, COUNT, 16)


def test_records_without_texts_are_refused() -> None:
    tower = TextEncoderTower(text_model("bert"), 2)
    nothing: Tensor = torch.zeros(1, 2, 3)
    with pytest.raises(ConfigError, match="reads texts was given records without"):
        tower.logits(nothing, None, None, Tuning())
