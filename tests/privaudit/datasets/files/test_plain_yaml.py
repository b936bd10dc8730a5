import pytest

from privaudit.core.errors import DatasetError
from privaudit.datasets.files.checked_json import parse_yaml


def test_plain_yaml_is_read() -> None:
    said = parse_yaml("a: &unused [1, x]\nb: {c: '0'}\n", "It")
    assert said == {"a": [1, "x"], "b": {"c": "0"}}


def test_what_makes_much_of_a_little_is_refused() -> None:
    """Ten levels, to be read in no time where nothing refuses them."""
    merged = ["a0: &a0 {k: v}"]
    listed = ["a0: &a0 [x]"]
    for n in range(10):
        merged.append(f"a{n + 1}: &a{n + 1}\n  <<: [*a{n}, *a{n}]")
        listed.append(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]")
    for lines in (merged, listed):
        with pytest.raises(DatasetError, match=r"The head is broken .*an alias"):
            parse_yaml("\n".join(lines), "The head")
    with pytest.raises(DatasetError, match="merge key"):
        parse_yaml("a:\n  <<: {b: 1}", "The head")


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: !!int ''", "a: !!bool x", "a: !!timestamp x", "a: !!python/name:os.x"],
)
def test_broken_yaml_is_one_clear_line(text: str) -> None:
    with pytest.raises(DatasetError, match="The head is broken"):
        parse_yaml(text, "The head")
