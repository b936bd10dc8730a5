"""YAML of others without what makes much of a little."""

from importlib import import_module
from typing import Any

from privaudit.core.errors import DatasetError


def parse_yaml(text: str, where: str) -> Any:
    """Return what YAML says; aliases and merge keys are refused.

    A few lines in which each names the one before twice would be endlessly many.
    """
    yaml = import_module("yaml")  # comes with huggingface_hub

    class Plain(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has an alias, such as *name")
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise yaml.YAMLError("it has a merge key, <<")
            super().flatten_mapping(node)

    broken = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
    try:
        return yaml.load(text, Plain)  # a SafeLoader
    except (*broken, ArithmeticError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise DatasetError(
            f"{where} is broken ({reason}). Fix it, writing out what is meant, or take "
            "it out."
        ) from None
