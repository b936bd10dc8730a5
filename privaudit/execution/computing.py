"""Computing context of this process, in a form to send to another one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from privaudit.core.devices import chosen_device, use_device
from privaudit.core.memory import as_chosen, chosen
from privaudit.models.remote_code import remote_code_is_trusted, trust_remote_code


def computing_here(parts: int = 1) -> str:
    """Return device, memory, checkpointing, trust in models' own code, and threads.

    A line of JSON, for :func:`computing_as` in so many processes, which share the memory.
    """
    limit, checkpointing = chosen(parts)
    device, trusted = str(chosen_device()), remote_code_is_trusted()
    threads = torch.get_num_threads()
    return json.dumps([device, limit, checkpointing, trusted, threads])


@contextmanager
def computing_as(computing: str) -> Iterator[None]:
    """Compute within as the process that :func:`computing_here` was called in."""
    device, limit, checkpointing, trusted, threads = json.loads(computing)
    with (
        use_device(torch.device(device)),
        as_chosen(limit, checkpointing),
        trust_remote_code(trusted),
        use_threads(threads),
    ):
        yield


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute on so many threads, and afterwards on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
