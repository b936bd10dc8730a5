"""The owner's side: functions that say how a recorded federation's models are asked.

They stand in one module, which the owner names: ``--owner theirs.py``, or
:func:`use_owner`. Nothing in a recorded folder is ever executed or imported.

==================  =================================================================
``labels``          class of each record, [n]; of generation None
``class_names``     optional, by class
``contents``        optional: bytes of each record, or hashes of them, uint8 [n, bytes]:
                    copies of one record are then known as such
``task``            optional: "classification" (default) or "generation"
``query``           what a model says of some records; needed by every attack
``local_update``    optional: one client's training in one round; for attacks with
                    shadow models, and those on updates
``aggregate``       optional: the server's next model, where it is no weighted mean
``reconstruct``     optional: the best model of a client that a view allows
``base``            optional: tensors by name of the public model that it started from
``utility``         optional: a score of each record, in [0, 1]
==================  =================================================================
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, get_args

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from privaudit.core.context import set_within
from privaudit.core.errors import ConfigError, MissingFileError, shown, without_exits
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.limits import most
from privaudit.core.parameters import as_int
from privaudit.core.tensors import Tensors
from privaudit.execution.jobs import OWNER
from privaudit.federation.threat_models import View
from privaudit.models.interfaces import TaskKind
from privaudit.recording.bundle import BUNDLE
from privaudit.runs.own_files import HEADER

VARIABLE = "PRIVAUDIT_OWNER"
Positions = Int[np.ndarray, " records"]


class Query(Protocol):
    """What one model says of some records.

    Example:
        >>> import torch
        >>> pictures = torch.eye(3)
        >>> def query(tensors, positions):
        ...     return pictures[positions] @ tensors["weight"].T + tensors["bias"]
        >>> model = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
        >>> query(model, np.array([0, 2])).shape
        torch.Size([2, 2])
    """

    def __call__(self, tensors: Tensors, positions: Positions) -> Any:
        """Return logits, or log-probabilities.

        Args:
            tensors: A model, as clients send it: divided by weights, and with what was
                received added to differences.
            positions: Of the records, in the owner's order.

        Returns:
            [records, classes] of classification. Of generation a pair: logits [records,
            length, vocabulary], and labels [records, length] as Hugging Face has them:
            the token at each position, -100 where none is to be predicted.
        """
        ...


class LocalUpdate(Protocol):
    """One client's training in one round, as the federation's own clients do it."""

    def __call__(
        self, received: Tensors, positions: Positions, seed: int
    ) -> Mapping[str, Tensor]:
        """Return what the client sends, in the form in which it is recorded.

        Args:
            received: What the server sent.
            positions: Of the records that the client trains on; any number above 0.
            seed: For its randomness, from 0 to 2^31 - 1.
        """
        ...


class Reconstruct(Protocol):
    """The best model of a client that a view allows, where it is not the last upload."""

    def __call__(self, view: View, client: str) -> Mapping[str, Tensor]:
        """Return the model; uploads in the view are multiplied by their weight."""
        ...


@dataclass(frozen=True)
class Owner:
    """An owner's module, checked; its fields are the names in the table above.

    Its functions are called as :class:`Query`, :class:`LocalUpdate` and
    :class:`Reconstruct` say.

    Attributes:
        code: SHA-256 of its code: what it answered may be kept while that stays the
            same. Empty where it is not known: then nothing is kept.
        contents: A hash of each record; None takes each for another one.
        aggregate: (server's tensors, sum of uploads by name) -> server's tensors.
        utility: (tensors, positions) -> scores [records] in [0, 1].
        base: The public model that the federation started from, as far as there is one.
    """

    name: str
    code: str
    query: Callable[..., Any]
    labels: Int[np.ndarray, " n"] | None = None
    class_names: tuple[str, ...] = ()
    contents: UInt8[np.ndarray, "n bytes"] | None = None
    task: TaskKind = "classification"
    local_update: Callable[..., Any] | None = None
    aggregate: Callable[..., Any] | None = None
    reconstruct: Callable[..., Any] | None = None
    utility: Callable[..., Float[np.ndarray, " records"]] | None = None
    base: Tensors = field(default_factory=dict, repr=False)

    @cached_property
    def classes(self) -> int:
        """How many classes the labels need; at least 1."""
        return 1 if self.labels is None else int(self.labels.max(initial=0)) + 1

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """The owner's names of classes, or their numbers; "-" where there are none."""
        if self.labels is None:
            return ("-",)
        return self.class_names or tuple(map(str, range(self.classes)))

    @classmethod
    def of(cls, given: object, name: str = "") -> "Owner":
        """Return what a module, or any object with its names, gives."""
        if isinstance(given, Owner):
            return given
        name = name or str(getattr(given, "__name__", type(given).__name__))
        task = _task(getattr(given, "task", "classification"), name)
        functions: dict[str, Callable[..., Any]] = {}
        for one in ("query", "local_update", "aggregate", "reconstruct", "utility"):
            function = getattr(given, one, None)
            if function is not None and not callable(function):
                raise ConfigError(f"{one} of {name} is no function. Make it one.")
            if function is not None:
                functions[one] = function
        if "query" not in functions:
            raise ConfigError(
                f"{name} has no function query(tensors, positions), which returns what "
                "a model says of some records: logits [records, classes]. Add one."
            )
        labels = getattr(given, "labels", None)
        return cls(
            name=name,
            code=_code_of(given),
            labels=_labels(labels, name, task),
            class_names=_class_names(getattr(given, "class_names", None), name),
            contents=_contents(getattr(given, "contents", None), name),
            task=task,
            base=_base(getattr(given, "base", None), name),
            **functions,
        )


def _task(given: object, name: str) -> TaskKind:
    for task in get_args(TaskKind):
        if task == given:
            return task
    raise ConfigError(
        f"{name} says that its task is {shown(repr(given))}. Say classification or "
        "generation."
    )


def _labels(given: Any, name: str, task: str) -> Int[np.ndarray, " n"] | None:
    if given is None and task == "generation":
        return None
    labels: Shaped[np.ndarray, ...] = np.asarray(given)
    if given is None or labels.ndim != 1 or labels.dtype.kind not in "iu":
        found = "none" if given is None else f"{labels.dtype} of shape {labels.shape}"
        raise ConfigError(
            f"{name} should have labels: the class of each record, whole numbers in a "
            f"row. There is {found}."
        )
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    if low < 0 or high >= max(len(labels), most("classes")):
        raise ConfigError(
            f"{name} has labels from {low} to {high}, of {len(labels)} records. Number "
            "the classes from 0 on, without gaps."
        )
    return labels.astype(np.int64, copy=False)


def _class_names(given: Any, name: str) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(
            f"class_names of {name} are {shown(given)}. List one text for each class."
        )
    return tuple(map(str, given))


def _base(given: object, name: str) -> Tensors:
    """Return the tensors of a public model, in the precision in which models are held."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(tensor, torch.Tensor) for tensor in given.values()
    ):
        raise ConfigError(
            f"base of {name} is no model. Give tensors by name, such as a state_dict."
        )
    return {str(n): tensor.detach().cpu() for n, tensor in given.items()}


def _contents(given: Any, name: str) -> UInt8[np.ndarray, "n bytes"] | None:
    if given is None:
        return None
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 2:
        return given
    try:
        numbers = (as_int(one) for one in given)
        held: list[Any] = [n if isinstance(n, int) else bytes(n) for n in numbers]
        hashes = [hashlib.sha256(one).digest() for one in held]
    except (TypeError, ValueError) as error:  # of numbers bytes() would make zeros
        raise ConfigError(
            f"contents of {name} are not bytes of each record ({error}). Give a list of "
            "bytes, such as text.encode(), or hashes as uint8 [n, bytes]."
        ) from None
    return np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 32)


def _code_of(given: object) -> str:
    """Return a hash of a module's code, and of what it imports from its own folder.

    Empty for other objects: what they hold besides their code is not known.
    """
    place = getattr(given, "__file__", None)
    if not isinstance(given, ModuleType) or not place:
        return ""
    folder = Path(place).absolute().parent
    names = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    files = {Path(name).absolute() for name in (place, *names) if name}
    own = sorted({Path(place).absolute(), *(f for f in files if _is_own(f, folder))})
    hashes = [hashlib.sha256(file.read_bytes()).digest() for file in own]
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def _is_own(file: Path, folder: Path) -> bool:
    """Say whether a file is code below a folder, and not an installed library's.

    Some libraries' modules name files that are not there.
    """
    below = file.is_relative_to(folder) and "site-packages" not in file.parts
    return below and file.suffix == ".py" and file.is_file()


@without_exits()
def load_owner(place: str) -> Owner:
    """Import the module that an owner names, and check it.

    Args:
        place: A file, ``theirs.py``, or a module, ``package.theirs``. What lies beside
            it can be imported; an installed module of the same name comes first.

    Raises:
        MissingFileError: There is no such file or module.
        ConfigError: It cannot be imported, or lacks something.
        PluginError: It ends the process.
    """
    path = Path(place)
    is_file = place.endswith(".py")
    if is_file and not path.is_file():
        raise MissingFileError(
            f"There is no owner's module {shown(place)}. Name a file, or a module that "
            "can be imported."
        )
    try:
        if not is_file:
            _can_import_from(Path.cwd())
        module = _import_file(path) if is_file else importlib.import_module(place)
    except Exception as error:  # whatever the owner's code raises
        raise ConfigError(
            f"The owner's module {shown(place)} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return Owner.of(module, place)


def _import_file(path: Path) -> ModuleType:
    folder = path.resolve().parent
    for above in (folder, *folder.parents):
        if (above / BUNDLE).exists() or (above / HEADER).exists():
            raise ImportError(
                f"it lies in the run {above}, and nothing of a run is executed: take "
                "your own copy elsewhere"
            )
    _can_import_from(folder)
    name = f"privaudit_owner_{path.stem}"  # no other module's
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that what it defines knows where it is from
    spec.loader.exec_module(module)
    return module


def _can_import_from(folder: Path) -> None:
    """Let modules of a folder be imported, behind all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


_chosen: ContextVar[Owner | None] = ContextVar("owner", default=None)


@contextmanager
def use_owner(owner: object) -> Iterator[None]:
    """Ask the models of recorded federations through an owner's functions, within.

    Args:
        owner: A module, any object with the names above, or where ``load_owner`` finds
            one; None leaves what was chosen.

    Raises:
        ConfigError: ``query`` is missing, or one of the names is no function.
    """
    found = load_owner(owner) if isinstance(owner, str) else owner
    chosen = _chosen.get() if found is None else Owner.of(found)
    place = owner if isinstance(owner, str) else OWNER.get()
    with set_within(_chosen, chosen), set_within(OWNER, place):
        yield


def chosen_owner() -> Owner | None:
    """Return the owner that was chosen, here or by PRIVAUDIT_OWNER, if any.

    In a process that others hand jobs to it is theirs, where it has none by that name.
    """
    named = os.environ.get(VARIABLE) or OWNER.get()
    return _chosen.get() or (load_owner(named) if named else None)
