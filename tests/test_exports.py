"""What the package exports: on first use, and whoever imported what before."""

import subprocess
import sys
from types import FunctionType, ModuleType

import pytest

import privaudit


def test_importing_the_package_takes_no_torch() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'sklearn', 'pydantic', 'transformers'}"
    script = f"import sys, privaudit; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", privaudit.__all__)
def test_every_exported_name_is_there_and_is_no_module(name: str) -> None:
    found = getattr(privaudit, name)
    assert callable(found)
    assert not isinstance(found, ModuleType)
    assert found.__doc__


@pytest.mark.parametrize("name", ["compare", "gate", "lint", "shift", "tradeoff"])
def test_a_function_hides_its_module_whatever_was_imported_first(name: str) -> None:
    __import__(f"privaudit.{name}")
    assert isinstance(sys.modules[f"privaudit.{name}"], ModuleType)
    assert isinstance(getattr(privaudit, name), FunctionType)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'audit_all'"):
        privaudit.audit_all  # noqa: B018
