"""All cases, each with a name of its own."""

import gc
import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.corpus import calls, data, files, flags
from tests.corpus.case import Case


def prepare() -> None:
    """Import what commands import when they are called, so that forks need not.

    What is there is left out of garbage collection, which would copy it for each fork.
    """
    import torch

    import privaudit
    from privaudit.models.hugging_face import import_open_clip, import_peft

    torch.set_num_threads(1)
    for found in pkgutil.walk_packages(privaudit.__path__, "privaudit."):
        if found.name.rpartition(".")[2] != "__main__":
            with suppress(ModuleNotFoundError):  # of an extra, such as Flower
                importlib.import_module(found.name)
    import_open_clip()
    import_peft()
    gc.freeze()


def all_cases(world: Path) -> list[Case]:
    """Return every case; of two of one name the first.

    Args:
        world: The small world, whose files say what can be wrong in them.
    """
    named: dict[str, Case] = {}
    for case in _each(world):
        named.setdefault(case.name, case)
    return list(named.values())


def _each(world: Path) -> Iterator[Case]:
    yield from itertools.chain(
        flags.flag_cases(), flags.argument_cases(), flags.output_cases(),
        flags.setting_cases(), flags.name_cases(), files.file_cases(), files.value_cases(world),
        files.tensor_cases(), data.data_cases(), data.picture_cases(),
        data.archive_cases(), data.array_cases(), data.pickle_cases(), data.line_cases(), calls.toml_cases(),
        calls.weight_cases(), calls.call_cases(),
    )  # fmt: skip
