from time import monotonic
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.models.language import chat_rendering
from privaudit.models.language.dialogue_tokens import chat_template
from tests.small_transformers import text_tokenizer

CHAT = "{{ bos_token }}who {{ messages[0]['content'] }} is"
GROW = (
    "{% set n = namespace(x='a') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}"
)
COUNT = "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return text_tokenizer("llama")


def test_it_writes_what_transformers_does(tokenizer: Any) -> None:
    message = [{"role": "user", "content": "{question}"}]
    expected = tokenizer.apply_chat_template(
        message, chat_template=CHAT, add_generation_prompt=True, tokenize=False
    )
    assert chat_template(tokenizer, template=CHAT) == expected == "<s>who {question} is"


@pytest.mark.parametrize(
    "more",
    [
        "{% set x = 'a' * 3000000000 %}",
        "{{ 'a' * 200000 }}",
        "{{ '%3000000000d' % 1 }}",
        "{{ 'a' | center(3000000000) }}",
        GROW,
        COUNT,
    ],
)
def test_what_multiplies_is_ended(
    more: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = monotonic()
    with pytest.raises(ConfigError, match="more than 5 seconds, 2 GiB or 100,000"):
        chat_template(tokenizer, template=CHAT + more)
    assert monotonic() - begun < chat_rendering._ANSWER_SECONDS


@pytest.mark.parametrize("place", ["{question}", "{image}"])
def test_a_literal_place_is_refused(place: str, tokenizer: Any) -> None:
    literal = CHAT + f" {place}"
    with pytest.raises(ConfigError, match="itself, "):
        chat_template(tokenizer, template=literal)
    tokenizer.chat_template = literal
    try:
        with pytest.raises(ConfigError, match="Take it out"):
            chat_template(tokenizer)
    finally:
        tokenizer.chat_template = None
