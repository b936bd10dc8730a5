import sys

import pytest

from privaudit.core.errors import ConfigError
from privaudit.execution.local import Local
from privaudit.execution.on_ray import OnRay
from privaudit.execution.places import find_executor
from tests.privaudit.execution.some_jobs import SQUARES


def test_places_by_name() -> None:
    assert find_executor() == find_executor("local") == Local(None)
    assert find_executor("local:12") == Local(12)
    assert find_executor("ray") == OnRay(None, 0.25)
    assert find_executor("ray,gpus=0.5") == OnRay(None, 0.5)
    assert find_executor("ray://head:10001") == OnRay("ray://head:10001")
    assert find_executor("ray://[::1]:1,gpus=1") == OnRay("ray://[::1]:1", 1.0)


@pytest.mark.parametrize(
    "name",
    ["", "loca", "local:", "local:0", "local:-1", "local:12345", "local,gpus=1",
     "ray:4", "ray://", "ray://a b", "ray,gpus=0", "ray,gpus=2", "ray,gpus=1.1.1"],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="names no place to run jobs"):
        find_executor(name)


def test_without_ray_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'ray\[client\]<"):
        list(OnRay().run(SQUARES))
