"""Look-ups in a folder of toys, and in packages of other people."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError, PluginError, UnknownNameError
from privaudit.core.registry import Registry
from tests.plugins import install

TOY = "from toys import TOYS\n\n@TOYS.register({name!r})\ndef toy(): pass\n"
FOLDER = "from privaudit.core.registry import Registry\nTOYS = Registry('toy', 'toys')"


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[object]]:
    """A folder with two toys, one of them in a folder in it, and an oddly named one."""
    for place, name in (
        ("red_ball.py", "red-ball"),
        ("wooden/top.py", "top"),
        ("others.py", "kite"),
    ):
        (tmp_path / "toys" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toys" / place).write_text(TOY.format(name=name))
    (tmp_path / "toys" / "__init__.py").write_text(FOLDER)
    (tmp_path / "toys" / "wooden" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("toys").TOYS
    for module in [*imported("toys"), *imported("shop")]:
        del sys.modules[module]


def imported(package: str) -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == package]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a package that sells toys."""

    def build(code: str, **points: str) -> None:
        install(tmp_path / "shop", "shop", {"toys": points}, code)
        monkeypatch.syspath_prepend(tmp_path / "shop")

    return build


def test_looking_up_a_name_imports_the_module_of_that_name(
    toys: Registry[object],
) -> None:
    assert toys.find("red-ball").__name__ == "toy"  # type: ignore[attr-defined]
    assert imported("toys") == ["toys", "toys.red_ball"]
    toys.find("top")
    assert "toys.others" not in sys.modules


def test_a_name_in_a_module_of_another_name_is_found_too(
    toys: Registry[object],
) -> None:
    assert toys.find("kite").__module__ == "toys.others"
    assert toys.names() == ["kite", "red-ball", "top"]


def test_a_folder_may_say_which_module_holds_a_name(toys: Registry[object]) -> None:
    vars(sys.modules["toys"])["MODULES"] = {"kite": "others"}
    assert toys.find("kite").__module__ == "toys.others"
    assert imported("toys") == ["toys", "toys.others"]


def test_a_name_that_stands_in_labs_or_tools_says_what_to_install(
    toys: Registry[object],
) -> None:
    vars(sys.modules["toys"])["IN_LABS"] = ("robot",)
    vars(sys.modules["toys"])["IN_TOOLS"] = ("crane",)
    with pytest.raises(UnknownNameError, match=r"pip install \./labs"):
        toys.find("robot")
    with pytest.raises(UnknownNameError, match=r"pip install \./tools"):
        toys.find("crane")
    with pytest.raises(UnknownNameError) as other:
        toys.find("doll")
    assert "pip install" not in str(other.value)


@pytest.mark.parametrize("wrong", ["red_ball", "nothing"])
def test_a_name_is_found_where_it_is_also_when_the_folder_errs(
    toys: Registry[object], wrong: str
) -> None:
    vars(sys.modules["toys"])["MODULES"] = {"kite": wrong}
    assert toys.find("kite").__module__ == "toys.others"


def test_what_is_there_is_said_without_importing_it(
    toys: Registry[object], shop: Callable[..., None]
) -> None:
    shop("1 / 0", doll="shop:doll")
    assert [toys.has(name) for name in ("red-ball", "top", "doll", "ball")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert not toys.has("kite")  # its module has another name
    vars(sys.modules["toys"])["MODULES"] = {"kite": "others"}
    assert toys.has("kite")
    assert imported("toys") == ["toys"]


def test_an_unknown_name_is_answered_with_what_there_is(
    toys: Registry[object], shop: Callable[..., None]
) -> None:
    shop("1 / 0", train="shop:train")
    with pytest.raises(
        UnknownNameError, match=r"'red-ball'.*kite, red-ball, top, trai"
    ):
        toys.find("redball")


@pytest.mark.parametrize("name", ["", "Red", "a b", "../x", "a" * 49, "-x", "ä"])
def test_a_name_that_is_none_is_refused(toys: Registry[object], name: str) -> None:
    with pytest.raises(ConfigError, match="small letters and digits"):
        toys.register(name)


def test_another_packages_toy_is_found_and_need_not_register_itself(
    toys: Registry[object], shop: Callable[..., None]
) -> None:
    both = f"{TOY.format(name='train')}\ndef doll(): pass"
    shop(both, train="shop:toy", doll="shop:doll")
    assert toys.names() == ["doll", "kite", "red-ball", "top", "train"]
    assert "shop" not in sys.modules
    assert [toys.find(name).__module__ for name in ("train", "doll", "doll")] == [
        "shop"
    ] * 3


def test_a_group_may_have_another_name_than_the_folder(
    toys: Registry[object], shop: Callable[..., None]
) -> None:
    shop("def doll(): pass", doll="shop:doll")
    assert Registry[object]("toy", "toys.wooden", "toys").find("doll")


@pytest.mark.parametrize(
    ("code", "value", "why"),
    [
        ("import nothing_of_that_name", "shop:toy", "No module named"),
        ("1 / 0", "shop:toy", "ZeroDivisionError"),
        ("raise SystemExit(0)", "shop:toy", r"shop.py ended the process \(sys.exit\)"),
        ("", "shop:toy", "AttributeError"),
        ("", "shop", "MODULE:OBJECT"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_and_breaks_nothing_else(
    toys: Registry[object], shop: Callable[..., None], code: str, value: str, why: str
) -> None:
    shop(code, broken=value)
    assert "broken" in toys.names()
    assert list(toys.usable()) == ["kite", "red-ball", "top"]
    with pytest.raises(PluginError, match=rf"'broken' of the package shop 1\.2.*{why}"):
        toys.find("broken")


@pytest.mark.parametrize("name", ["red-ball", "kite"])
@pytest.mark.parametrize("code", ["def toy(): pass", TOY])
def test_another_packages_toy_takes_no_built_in_ones_place(
    toys: Registry[object], shop: Callable[..., None], name: str, code: str
) -> None:
    shop(code.format(name=name), **{name: "shop:toy"})
    origins = r"toys\.(red_ball|others)\.toy and shop\.toy"
    with pytest.raises(PluginError, match=origins) as refused:
        toys.find(name)
    assert "the package shop 1.2" in str(refused.value)
    assert "another version" not in str(refused.value)
    assert toys.find("top")


def test_a_toy_that_slips_in_under_a_built_in_name_is_refused(
    toys: Registry[object], shop: Callable[..., None]
) -> None:
    """It registers more than its package says, before the built-in one is imported."""
    shop(TOY.format(name="red-ball"), train="shop:toy")
    with pytest.raises(PluginError, match=r"toys.red_ball.toy and shop.toy"):
        toys.find("train")
