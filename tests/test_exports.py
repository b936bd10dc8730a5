"""What the package exports: on first use, and whoever imported what before."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

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


def test_no_function_bears_the_path_of_a_module() -> None:
    import privaudit.checks.gate.gate as gate
    import privaudit.checks.lint.linter as linter

    assert isinstance(gate, ModuleType)
    assert isinstance(linter, ModuleType)
    package = Path(str(privaudit.__file__)).parent
    modules = {path.stem for path in package.iterdir()}
    assert not modules & set(privaudit.__all__)


@pytest.mark.parametrize("name", ["shift", "blind_baseline"])
def test_what_moved_to_labs_says_where_it_is(name: str) -> None:
    with pytest.raises(AttributeError, match=r"privaudit_labs\.shift\..*pip install"):
        getattr(privaudit, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'audit_all'"):
        privaudit.audit_all  # noqa: B018
