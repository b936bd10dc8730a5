"""Portable bits: library settings under which x86-64 processors compute equal bytes.

Libraries choose kernels by processor, and kernels round differently. Told to take the
oldest ones, torch, MKL, oneDNN, OpenBLAS, NumPy and glibc give the same bytes on any
x86-64 processor. They read that when they are loaded, glibc when the process starts,
so a process that lacks the settings starts itself anew: on one thread, as several sum
in another order, unless OMP_NUM_THREADS says how many. On another device than the CPU no
bits are portable. What a run was computed with is its provenance: bits, library builds,
processor.

Imports neither torch nor numpy before :func:`differing_operations` is called.
"""

import hashlib
import os
import platform
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from privaudit.core.errors import ConfigError, PrivauditWarning, shown

NOT_STATED = "bits that are not stated"


def in_words(computed: Mapping[str, Any]) -> str:
    """Return what :func:`computed_with` said, as a phrase.

    Example:
        >>> in_words({"bits": "portable", "builds": {"torch": "2.13.0", "numpy": "2.4"}})
        'portable bits of torch 2.13.0, numpy 2.4'
        >>> in_words({})
        'bits that are not stated'
    """
    if "bits" not in computed:
        return NOT_STATED
    builds = computed.get("builds", {}).items()
    said = f"{computed['bits']} bits of {', '.join(f'{n} {b}' for n, b in builds)}"
    differing = ", ".join(computed.get("differing", ()))
    return f"{said}, but for {differing}" if differing else said


@dataclass(frozen=True)
class Provenance:
    """What a run was computed with, as results that are made of it keep it.

    Attributes:
        bits: Which, of which library builds, in words; empty where it is not stated.
        processor: By its maker's name; several where the run went on elsewhere.
    """

    bits: str = ""
    processor: str = ""

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> "Provenance":
        """Return what a run's header says; nothing of a training elsewhere."""
        if "computed" not in header or header.get("origin"):
            return cls()
        parts = [*header.get("earlier", ()), header]
        bits = dict.fromkeys(in_words(one.get("computed", {})) for one in parts)
        processors = dict.fromkeys(str(one.get("processor", "?")) for one in parts)
        return cls(", then ".join(bits), ", then ".join(processors))

    def __str__(self) -> str:
        if not self.bits:
            return NOT_STATED
        return f"{self.bits} on {self.processor}"


def counted(found: Iterable[Provenance]) -> str:
    """Return what runs were computed with, and how many where they differ; empty for none.

    Example:
        >>> counted([Provenance("native bits of torch 2", "Xeon"), Provenance()])
        'bits that are not stated (1 run); native bits of torch 2 on Xeon (1 run)'
    """
    counts = sorted(Counter(map(str, found)).items(), key=lambda one: (-one[1], one[0]))
    if len(counts) == 1:
        return counts[0][0]
    return "; ".join(f"{said} ({n} run{'s' * (n > 1)})" for said, n in counts)


Bits = Literal["portable", "native"]
CHOICE = "PRIVAUDIT_BITS"
BUILDS = "torch 2.13.0 and numpy 2.4.6"  # that OPERATIONS were computed with

_NUMPY_SINCE_2_4 = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
_NUMPY_BEFORE = (
    "SSSE3 SSE41 POPCNT SSE42 AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX "
    "AVX512_CLX AVX512_CNL AVX512_ICL"
)
_TUNABLES = "GLIBC_TUNABLES"
_THREADS = "OMP_NUM_THREADS"
_ALSO_THREADS = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # they come before it
# Which process was started anew, and in which bits.
_STARTED = "PRIVAUDIT_STARTED"
_TAKE_BACK = ("NPY_ENABLE_CPU_FEATURES", "ONEDNN_MAX_CPU_ISA")

OPERATIONS: Mapping[str, str] = {
    "matrix product": "152e6675ba",
    "batched product": "8708baf4af",
    "float64 product": "a52dfa1889",
    "exp": "a31e4205fd",
    "tanh": "6d9e5c0efb",
    "GELU": "3e90aec24f",
    "softmax": "3df800444b",
    "logsumexp": "3fe4a0dded",
    "layer norm": "9cda1cf0da",
    "attention": "813268e07b",
    "convolution": "f30fb0a622",
    "sum": "2dba321806",
    "mean": "d3547228d5",
    "norm": "d1f2e7d13a",
    "QR": "0fd8e90cd9",
    "eigenvectors": "8185f5108b",
    "singular values": "96cdf1f5b3",
    "inverse": "b47f5e6b61",
    "linear equations": "a19947e7e5",
    "square root": "72890b429a",
    "float64 log": "0742a382dd",
    "numpy exp": "35fc8a8e73",
    "numpy product": "97fa67fa2a",
    "numpy sum": "198c77e854",
}
"""First digits of the SHA-256 of each operation's result on fixed inputs.

Equal on emulated Nehalem, Haswell and EPYC, on an AMX Xeon and on an AMD EPYC.
"""


def settings() -> dict[str, str]:
    """Return the environment variables of portable bits, by the installed versions."""
    numpy = tuple(map(int, version("numpy").split(".")[:2]))
    return {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "DNNL_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": _NUMPY_SINCE_2_4
        if numpy >= (2, 4)
        else _NUMPY_BEFORE,
        _TUNABLES: "glibc.cpu.hwcaps=-AVX2,-AVX,-FMA,-AVX512F,-AVX512VL,-FMA4",
    }


def portable_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with what portable bits take.

    On one thread, unless OMP_NUM_THREADS says how many: of all libraries alike.
    """
    threads = _whole(given.get(_THREADS)) or "1"
    return {
        **{name: value for name, value in given.items() if name not in _TAKE_BACK},
        **settings(),
        **dict.fromkeys((_THREADS, *_ALSO_THREADS), threads),
        CHOICE: "portable",
    }


def _whole(threads: str | None) -> str:
    """Return a number of threads as it was given; empty for what is none."""
    return threads if threads and threads.isdecimal() and int(threads) else ""


def bits_here() -> Bits:
    """Return which bits this process was started for."""
    begun = _environment_at_start()
    threads = _whole(begun.get(_THREADS))
    held = (
        bool(threads)
        and all(begun.get(name) == value for name, value in settings().items())
        and all(begun.get(name, threads) == threads for name in _ALSO_THREADS)
        and not any(name in begun for name in _TAKE_BACK)
    )
    return "portable" if held else "native"


@cache
def _environment_at_start() -> Mapping[str, str]:
    """Return what stood in the environment before this process could change it.

    On Linux; a process that gives itself a title, as Ray's workers do, writes over it,
    and is asked what stands there now, as elsewhere.
    """
    try:
        parts = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        parts = []
    found = [os.fsdecode(part).partition("=") for part in parts if part]
    if not found or not all(equals for _, equals, _ in found):
        return os.environ
    return {name: value for name, _, value in found}


def start_anew(bits: Bits | None, threads: int | None = None) -> None:
    """Put this same command in this process's place, with the bits it should have.

    Returns where it has them already, as it does of None; ``threads`` are those that
    portable bits take, None for any number. Nothing may have been printed or written yet.
    """
    wanted = str(threads) if threads and bits == "portable" else None
    if wanted and _environment_at_start().get(_THREADS) != wanted:
        os.environ[_THREADS] = wanted
        _replace_process("portable")
    if bits is not None and bits != bits_here():
        _replace_process(bits)


def _replace_process(bits: Bits) -> NoReturn:
    if bits == "portable":
        environment = portable_environment(os.environ)
    else:
        given = {n: v for n, v in os.environ.items() if n not in settings()}
        environment = {**given, CHOICE: bits}
    mark = f"{os.getpid()} {bits}"  # a process that is replaced keeps its number
    if os.environ.get(_STARTED) == mark:
        raise ConfigError(
            f"This process was started anew for {bits} bits, and has others: something "
            "sets variables of theirs, such as a sitecustomize.py. Take that out."
        )
    environment[_STARTED] = mark
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def use_portable_bits() -> None:
    """Compute the same bytes on every x86-64 processor: the first line of a script.

    Starts the script anew if it lacks the settings, which libraries read once.

    Raises:
        ConfigError: torch or numpy is loaded already, or there is no script to start.
    """
    if bits_here() == "portable":
        return
    loaded = [name for name in ("torch", "numpy") if name in sys.modules]
    script = Path(*sys.argv[:1])
    is_there = (
        sys.argv[:1] == ["-c"] or script.is_file() or (script / "__main__.py").is_file()
    )
    if loaded or not is_there or hasattr(sys, "ps1"):
        why = (
            f"{' and '.join(loaded)} {'is' if len(loaded) == 1 else 'are'} loaded, and "
            "cannot be told any more"
            if loaded
            else "there is no script that could be started anew"
        )
        lines = " ".join(
            f'{name}="{value}"' for name, value in portable_environment({}).items()
        )
        raise ConfigError(
            f"Portable bits were requested, and {why}. Call use_portable_bits() before "
            f"the first import of either, or start Python with {lines}."
        )
    _replace_process("portable")


def chosen_bits(
    argv: Sequence[str], by_default: Bits | None = None, by_run: Bits | None = None
) -> Bits | None:
    """Return the bits that a command line asks for, or else the environment.

    Args:
        argv: The arguments, with ``--bits NAME`` or ``--bits=NAME``.
        by_default: Without either; None for those that the process has.
        by_run: Of a run that is computed again, where the arguments say nothing.

    Example:
        >>> chosen_bits(["train", "--bits", "portable"])
        'portable'
    """
    said = option_on(argv, "--bits")
    if said is None:
        said = by_run or os.environ.get(CHOICE) or by_default
    return _known_bits(said)


def option_on(argv: Sequence[str], name: str) -> str | None:
    """Return the last value that a command line gives an option; None for none.

    Example:
        >>> option_on(["table", "--device=cuda", "--", "--device=cpu"], "--device")
        'cuda'
    """
    said = None
    before = argv[: argv.index("--")] if "--" in argv else argv
    for place, one in enumerate(before):
        if one == name and place + 1 < len(before):
            said = before[place + 1]
        elif one.startswith(f"{name}="):
            said = one.partition("=")[2]
    return said


def _known_bits(asked: str | None) -> Bits | None:
    for bits in (None, *get_args(Bits)):
        if asked == bits:
            return bits
    raise ConfigError(
        f"There are no bits {shown(asked)}. Use --bits portable, for equal bytes on every "
        "x86-64 processor, or native, for the fastest kernels of this one."
    )


def warn_unless_held(asked: str | None = None) -> None:
    """Warn where portable bits were requested, and what is computed here is other.

    ``asked`` are the bits that were requested, refused where there are none such; None
    for those of the process.
    """
    bits = bits_here()
    asked = _known_bits(asked)
    if asked == "portable" and bits == "native":
        why = "libraries were loaded without their settings"
    elif bits == "portable" and (device := _other_device()):
        why = f"{device} computes, by kernels of its own"
    elif bits == "portable" and (differing := differing_operations()):
        why = f"of {len(OPERATIONS)} operations these differ: {', '.join(differing)}"
    else:
        return
    warnings.warn(
        f"The bits are not the portable ones: {why}. They are those of {BUILDS} on "
        "x86-64 with OMP_NUM_THREADS=1. Numbers hold here, and may have other last "
        "digits elsewhere.",
        PrivauditWarning,
        stacklevel=2,
    )


def computed_with() -> dict[str, Any]:
    """Return what decides about the last bits of what this process computes.

    ``bits`` it was started for, ``differing`` operations where these are portable, and
    ``builds`` of the libraries: for a run or an audit to keep. On another device than
    the CPU bits are native.
    """
    bits = bits_here()
    if bits == "portable" and _other_device():
        bits = "native"
    differing = differing_operations() if bits == "portable" else ()
    return {
        "bits": bits,
        **({"differing": list(differing)} if differing else {}),
        "builds": _builds(),
    }


def _other_device() -> str:
    """Return the device that is computed on; empty for the CPU."""
    from privaudit.core.devices import chosen_device

    device = chosen_device()
    return "" if device.type == "cpu" else str(device)


def _builds() -> dict[str, str]:
    import numpy as np

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        **_torch_build(),
        "numpy": f"{np.__version__} with {blas['name']} {blas['version']}",
    }


def _torch_build() -> dict[str, str]:
    """Return nothing where torch was not loaded, and so computed nothing."""
    if "torch" not in sys.modules:
        return {}
    import torch

    lapack = re.search(r"Math Kernel Library Version (\S+)", torch.__config__.show())
    with_mkl = f" with MKL {lapack[1]}" if lapack else ""
    return {"torch": f"{torch.__version__}{with_mkl}"}


def processor_name() -> str:
    """Return what this machine's processor is called by who made it."""
    try:
        content = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        content = ""
    named = re.search(r"^model name\s*:\s*(.+)$", content, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


@cache
def differing_operations() -> tuple[str, ...]:
    """Return the operations whose bytes are not the portable ones; none if all are.

    Another build of a library gives others, and so does another kind of processor.
    """
    return tuple(
        name
        for name, result in _results().items()
        if _digest(result) != OPERATIONS[name]
    )


def _results() -> dict[str, Any]:
    import numpy as np
    import torch
    from torch.nn import functional

    from privaudit.core.tensors import replace_kernels

    replace_kernels()
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(65, 33, generator=generator)
    b = torch.randn(33, 47, generator=generator)
    query = a[None, None]
    doubles = a.double().numpy()
    square = a.double().T @ a.double() + torch.eye(33, dtype=torch.float64)
    return {
        "matrix product": a @ b,
        "batched product": torch.bmm(a.expand(3, 65, 33), b.expand(3, 33, 47)),
        "float64 product": a.double() @ b.double(),
        "exp": a.exp(),
        "tanh": a.tanh(),
        "GELU": functional.gelu(a),
        "softmax": a.softmax(1),
        "logsumexp": a.logsumexp(1),
        "layer norm": functional.layer_norm(a, (33,)),
        "attention": functional.scaled_dot_product_attention(query, query, query),
        "convolution": functional.conv2d(
            a[:64, :32].reshape(1, 2, 32, 32), b[:2, :45].reshape(5, 2, 3, 3)
        ),
        "sum": a.sum(),
        "mean": a.mean(0),
        "norm": a.norm(dim=1),
        "QR": torch.linalg.qr(a.double())[0],
        "eigenvectors": torch.linalg.eigh(a.double() @ a.double().T)[1],
        "singular values": torch.linalg.svd(a.double())[1],
        "inverse": torch.linalg.inv(square),
        "linear equations": torch.linalg.solve(square, b.double()),
        "square root": a.abs().sqrt(),
        "float64 log": a.double().abs().log(),
        "numpy exp": np.exp(doubles),
        "numpy product": doubles @ doubles.T,
        "numpy sum": doubles.sum(0),
    }


def _digest(result: Any) -> str:
    import numpy as np

    content = np.ascontiguousarray(np.asarray(result)).tobytes()
    return hashlib.sha256(content).hexdigest()[:10]


def _main(command: list[str]) -> None:
    """Put a command in this process's place, in portable bits: ``... -m pytest``."""
    if not command:
        raise SystemExit("usage: python -m privaudit.core.portable_bits COMMAND ...")
    os.execvpe(command[0], command, portable_environment(os.environ))


if __name__ == "__main__":
    _main(sys.argv[1:])
