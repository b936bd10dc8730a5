import pytest

from privaudit.core.phrases import is_phrase, phrase

SIZE = phrase("test", "{size} records of {kind}", kind=("cats", "dogs"))
NOTE = phrase("test", "(as {who} said)", who=("published",))


@pytest.mark.parametrize(
    "text",
    [
        SIZE.format(size=3, kind="dogs"),
        SIZE.format(size="1.5e-05", kind="cats"),
        f"{SIZE.format(size=3, kind='cats')}; {NOTE.format(who='published')}",
    ],
)
def test_what_code_composes_is_known(text: str) -> None:
    assert is_phrase("test", text)
    assert not is_phrase("another", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "; ",
        SIZE.format(size="ann", kind="dogs"),
        SIZE.format(size=3, kind="/home/ann"),
        "3 records of cats; and of Ann",
        "3 records of cats\n",
        "Ann: 3 records of cats",
        "3 records of cats; " * 200 + "3 records of cats",
    ],
)
def test_what_somebody_else_wrote_is_not(text: str) -> None:
    assert not is_phrase("test", text)
