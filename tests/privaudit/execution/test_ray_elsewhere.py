"""A node of Ray that sees nothing of the driver's cache: it has mounts of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.plugins import install

ray = pytest.importorskip("ray", reason="make test-ray installs it")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="mounts, as root"
    ),
]
STORE = """
from fsspec.implementations.local import LocalFileSystem


class SharedDisk(LocalFileSystem):
    protocol = "shared"

    def __init__(self, **options):
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("shared://"))
"""
ISOLATED = 'mount -t tmpfs none "$0" && exec "$@"'


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine: a store that all see, and a cache of its own."""
    points = {"fsspec.specs": {"shared": "shared_disk:SharedDisk"}}
    install(tmp_path / "site", "shared_disk", points, STORE)
    (tmp_path / "driver").mkdir()
    return os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'site'}",
        "PRIVAUDIT_CACHE": str(tmp_path / "driver" / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@pytest.fixture
def address(driver: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """A cluster whose only cores are of a node that has an empty disk there."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command = ["unshare", "-m", "sh", "-c", ISOLATED, str(tmp_path / "driver"), *start]
    command += [f"--address={made.address}", "--num-cpus=1"]
    with subprocess.Popen(command, env=driver, stdout=subprocess.DEVNULL) as node:
        yield made.address
        node.terminate()
    made.shutdown()


def test_a_run_of_a_store_is_attacked_on_a_machine_of_its_own(
    driver: dict[str, str], address: str, tmp_path: Path
) -> None:
    def call(*words: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "privaudit", *words],
            env=driver | more, cwd=tmp_path / "driver", text=True, capture_output=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    store = f"shared://{tmp_path}/store"
    small = "--rounds 1 --clients 2 --trainer promptfl:epochs=1 --name one --quiet"
    call("train", "--runs", store, *small.split())
    asked = ["attack", f"{store}/one", "--shadows", "0", "--quiet"]
    there = call(*asked, "--on", "ray", RAY_ADDRESS=address)
    audit: Any = tmp_path / "store" / "one" / "audits/server-reconstruct/audit.json"
    found = audit.read_text()
    (page,) = (tmp_path / "driver").rglob("report.html")
    assert page.stat().st_size
    assert call(*asked) == there
    assert audit.read_text() == found
