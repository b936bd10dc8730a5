"""``privaudit doctor``: packages, devices, folders and data sets on this machine."""

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from privaudit.cli.list import find_place
from privaudit.core.devices import device_name, find_device
from privaudit.core.errors import PrivauditError
from privaudit.core.formatting import install_line
from privaudit.core.signing import key_place
from privaudit.core.storage import cache_folder
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.named_places import search_path
from privaudit.datasets.sources import OnDisk
from privaudit.federated.runs.folder.run_names import runs_folder, shared_place

Finding = tuple[str, str]
"""What is asked, and what was found."""

_SHOWN = ("torch", "open-clip-torch", "transformers", "peft", "opacus", "dp-accounting")
_DEVELOPERS = ("dev", "docs")
_OF_AN_EXTRA = re.compile(r"(?P<name>[\w.-]+).*extra == [\"'](?P<extra>[\w-]+)[\"'].*")
_HUB = "~/.cache/huggingface/hub"


def findings() -> Iterator[Finding]:
    """Yield what a question about this installation would need, line by line."""
    yield "privaudit", version("privaudit")
    yield "Python", f"{platform.python_version()}, {platform.platform()}"
    for name in _SHOWN:
        yield name, _version(name)
    yield from _extras()
    yield from _devices()
    yield from _places()
    yield from _data()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _extras() -> Iterator[Finding]:
    """Yield each extra for users, and which of its packages are missing."""
    packages: dict[str, list[str]] = {}
    for line in requires("privaudit") or ():
        found = _OF_AN_EXTRA.fullmatch(line)
        if found and found["extra"] not in _DEVELOPERS:
            packages.setdefault(found["extra"], []).append(found["name"])
    for extra, names in packages.items():
        missing = [name for name in names if _version(name) == "not installed"]
        said = f"not installed: {install_line(extra)}"
        yield f"extra [{extra}]", said if missing else "installed"


def _devices() -> Iterator[Finding]:
    yield "processor", f"{os.cpu_count()} cores"
    try:
        yield "--device cuda", device_name(find_device("cuda"))
    except PrivauditError:
        yield "--device cuda", "not available here"


def _named(place: Path) -> str:
    return f"{shared_place(place.absolute())} ({_state(place)})"


def _places() -> Iterator[Finding]:
    try:
        yield "runs", _named(runs_folder(None))
    except PrivauditError as error:
        yield "runs", str(error).partition(". ")[0]
    yield "cache", _named(cache_folder())
    yield "signing key", key_place()
    hub = Path(os.environ.get("HF_HUB_CACHE", _HUB)).expanduser()
    models = sorted(hub.glob("models--*")) if hub.is_dir() else []
    said = f"{hub} ({_state(hub)}), {len(models)} models"
    if os.environ.get("HF_HUB_OFFLINE"):
        said += "; HF_HUB_OFFLINE is set, so nothing is downloaded"
    yield "hub's cache", said
    for folder in models:
        yield "", folder.name.removeprefix("models--").replace("--", "/")


def _state(place: Path) -> str:
    above = next(one for one in (place, *place.absolute().parents) if one.exists())
    if not os.access(above, os.W_OK):
        return "cannot be written"
    return "there" if above == place else "made when needed"


def _data() -> Iterator[Finding]:
    roots = ", ".join(map(str, search_path()))
    yield "data are sought in", f"{roots} (PRIVAUDIT_DATA names others)"
    missing = []
    for name, entry in DATASETS.usable().items():
        if isinstance(entry, OnDisk):
            place = find_place(name, entry)
            if place is None:
                missing.append(name)
            else:
                yield name, str(place)
    yield "not found", ", ".join(missing)
    yield "", "`privaudit list NAME` says what each needs, and where it is from."
    yield "downloads", "only what --model or --data names on a hub, such as clip:NAME"
