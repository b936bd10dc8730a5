"""A device that computes on the CPU and refuses what an accelerator would refuse.

Its tensors hold tensors of the CPU. An operation on tensors of both devices raises, as
does reading one as a numpy array: what a GPU would find, on a machine without one.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from privaudit.core.devices import CPU, find_device, moved
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import Task
from privaudit.models.interfaces import Classifier

NAME = "simulated"
_aten = torch.ops.aten
# What CUDA takes with tensors of both devices: copies, and indices that are on the CPU.
_ACROSS = {
    _aten._to_copy.default,
    _aten.copy_.default,
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
}


_READS = {_aten._local_scalar_dense.default, _aten.nonzero.default}
reads: list[Any] = []
"""Operations since it was cleared for which a real device must have finished all before."""


class _Module:
    """What torch asks a device's module for."""

    @staticmethod
    def is_available() -> bool:
        return False  # nobody's device but a test's

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """Leave generators alone: random numbers are drawn on the CPU."""

    @staticmethod
    def device_count() -> int:
        return 0

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


# Before any backward pass: autograd counts devices once. It has room for one kind of
# device, so a real one is not registered beside this.
if "TEST_DEVICE" not in os.environ:
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
DEVICE = torch.device("privateuseone", 0)


class SimulatedTensor(Tensor):
    """A tensor of the simulated device; ``near`` is what it holds."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "SimulatedTensor":
        made: SimulatedTensor = Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=DEVICE,
        )
        made.near = near
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SimulatedTensor({self.near})"

    def tolist(self) -> Any:
        """Return numbers, as of a tensor that is copied to the CPU first."""
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


class _Simulation(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    tensors = list(_tensors((args, *kwargs.values())))
    there = [t for t in tensors if isinstance(t, SimulatedTensor)]
    to = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if not there and (to is None or to.type != NAME):
        return func(*args, **kwargs)
    here = [t for t in tensors if t.ndim and not isinstance(t, SimulatedTensor)]
    if there and here and func not in _ACROSS:
        raise RuntimeError(f"{func} was given tensors of two devices")
    is_there = bool(there)
    if there and (func in _READS or to == CPU):
        reads.append(func)
    if func in (_aten.index.Tensor, _aten.copy_.default):
        is_there = isinstance(args[0], SimulatedTensor)
        if there and not is_there and func is _aten.index.Tensor:
            raise RuntimeError("a tensor on the CPU was given indices of a device")
    if to is not None:
        is_there = to.type == NAME
        kwargs = {**kwargs, "device": "cpu"} if is_there else kwargs
    result = func(
        *_with_each(SimulatedTensor, _near, args),
        **{n: _with_each(SimulatedTensor, _near, a) for n, a in kwargs.items()},
    )
    if func is _aten._local_scalar_dense.default or result is None:
        return result
    if func._schema.name.endswith("_") and func._schema.is_mutable:  # in place
        return args[0]
    return _with_each(Tensor, SimulatedTensor, result) if is_there else result


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments; torch's own trees are slow."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _with_each(kind: type[Tensor], change: Callable[[Any], Any], value: Any) -> Any:
    """Return arguments or results with every tensor of a kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_with_each(kind, change, part) for part in value])
    return value


def _near(tensor: SimulatedTensor) -> Tensor:
    return tensor.near


def task_on(task: Task, device: torch.device) -> Task:
    """Return a toy task whose frozen model is on a device, as a loaded one would be."""
    backbone: Any = task.backbone
    if isinstance(backbone, Classifier):
        tower, prompts = _model_on(backbone.tower, device), backbone.prompts
        backbone = replace(
            backbone,
            prompts=_model_on(prompts, device),
            zero_shot=backbone.zero_shot.to(device),
            load_tower=lambda: tower,
        )
        return replace(task, backbone=backbone)
    return replace(task, backbone=_model_on(backbone, device))


def _model_on(model: Any, device: torch.device) -> Any:
    return replace(
        model, **{f.name: moved(getattr(model, f.name), device) for f in fields(model)}
    )


@contextmanager
def another_device() -> Iterator[torch.device]:
    """Give a simulated device, or the one that TEST_DEVICE names, such as cuda."""
    if "TEST_DEVICE" in os.environ:
        yield find_device(os.environ["TEST_DEVICE"])
        return
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor moves what it made
    try:
        with _Simulation():  # type: ignore[no-untyped-call]
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def assert_agree(here: Tensors, there: Tensors, tolerance: float = 2e-3) -> None:
    """Hold each tensor's difference against its norm.

    Not number by number: an adaptive rate makes steps of one size of gradients that are
    rounding alone.
    """
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        assert there[name].device == CPU
        exact = tensor.double()
        size, apart = exact.norm(), (there[name].double() - exact).norm()
        assert apart <= tolerance * size + 1e-5, name
