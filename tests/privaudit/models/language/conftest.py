from typing import Any

import pytest

from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.privaudit.models.language.small_language import NumberTokenizer, stacked


@pytest.fixture
def language() -> StackedLanguageModel:
    return stacked()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return NumberTokenizer()
