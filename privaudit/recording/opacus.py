"""Opacus where it trains: what its engines clip, noise and sample, as they do it.

:func:`engines_in_use` has every ``PrivacyEngine`` of this process watched from then on:
what its ``make_private`` returns, each step of that optimizer, and each epsilon that is
asked of it. Training goes as before. Read in opacus 1.6.
"""

import json
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, wraps
from typing import Annotated, Any

import pydantic.dataclasses
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, nn
from privaudit.core.parameters import readable
from privaudit.privacy.events import MechanismEvent

_log = logging.getLogger("privaudit.recording")
_FIRST = 16
_MOST = 1000  # names of tensors, of which those that follow are not noted
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Positive = Annotated[int, Field(ge=1, le=10**9)]


@pydantic.dataclasses.dataclass(frozen=True, config={"extra": "forbid"})
class EngineNote:
    """What privacy engines did in one client's round.

    Attributes:
        noise_multiplier: Of the gradients' noise, the least of all steps; 0 where it
            is so small that nothing counts it.
        clip_norm: Of each record's gradient, the largest of all steps.
        sampling_rate: That the accountant counts on, the largest of all steps.
        steps: That the optimizer took, of any lot size.
        records: In the data set that is drawn from.
        accounted: Steps that the accountant counts by then, of all rounds.
        poisson: Whether the engine's own loader draws each record by a coin.
        secure: Whether noise comes from the system's randomness.
        count_noise: Standard deviation of the noise on the number of records that
            adaptive clipping left as they were; 0 where none is counted.
        lots: Sizes of the batches that steps were made of, and how often; none where
            Opacus does not show them.
        values: How many numbers got noise, in all steps.
        square: Sum of the squares of that noise, each over its standard deviation.
        first: Some numbers of the first noise, to be held against that of other rounds.
        unprotected: Tensors of the model that moved, and that no noise is added to.
        epsilon: That was asked of the accountant last; None if none was.
        delta: For which it was asked.
    """

    noise_multiplier: Annotated[
        Finite, Field(le=1e9), AfterValidator(lambda one: one if one > 1e-9 else 0.0)
    ]
    clip_norm: Annotated[float, Field(gt=0)]
    sampling_rate: Annotated[float, Field(ge=1e-9, le=1)]
    steps: Positive
    records: Positive
    accounted: Count
    poisson: bool = True
    secure: bool = False
    count_noise: Finite = 0.0
    lots: Annotated[tuple[tuple[Count, Positive], ...], Field(max_length=100_000)] = ()
    values: Count = 0
    square: Finite = 0.0
    first: Annotated[
        tuple[Annotated[float, Field(allow_inf_nan=False)], ...],
        Field(max_length=_FIRST),
    ] = ()
    unprotected: Annotated[
        tuple[Annotated[str, Field(max_length=300)], ...], Field(max_length=_MOST)
    ] = ()
    epsilon: Finite | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None

    def to_json(self) -> str:
        """Return the fields as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "EngineNote":
        """Return the note that :meth:`to_json` wrote: another's word, of any form.

        Raises:
            ConfigError: It is none.
        """
        try:
            return _NOTES.validate_json(text)
        except ValidationError as error:
            said = readable(error, "note")
            raise ConfigError(f"A note of Opacus cannot be read: {said}") from None


_NOTES = TypeAdapter(EngineNote)


def together(notes: Sequence[EngineNote]) -> EngineNote:
    """Return what all notes say: of noise, clip, rate and sampling what protects least."""
    lots = Counter[int]()
    for note in notes:
        lots.update(dict(note.lots))
    return replace(
        notes[-1],
        noise_multiplier=min(note.noise_multiplier for note in notes),
        clip_norm=max(note.clip_norm for note in notes),
        sampling_rate=max(note.sampling_rate for note in notes),
        steps=sum(note.steps for note in notes),
        poisson=all(note.poisson for note in notes),
        secure=all(note.secure for note in notes),
        count_noise=min((n.count_noise for n in notes if n.count_noise), default=0.0),
        lots=tuple(sorted(lots.items())),
        values=sum(note.values for note in notes),
        square=math.fsum(note.square for note in notes),
        first=notes[0].first,
    )


def events_of(notes: Iterable[EngineNote | None]) -> list[MechanismEvent]:
    """Return the mechanisms of a round, as of a client that is least protected in all.

    Each upload has its own noise only. Who noted nothing has none.
    """
    given = list(notes)
    made = [note for note in given if note is not None]
    if not made:
        return []
    least = together(made)
    gradients = MechanismEvent(
        release="upload",
        noise_multiplier=least.noise_multiplier * (len(made) == len(given)),
        sensitivity=1.0,
        clip_norm=least.clip_norm,
        sampling_rate=least.sampling_rate,
        sampling="poisson" if least.poisson else "fixed-batch",
        noise_at="client",
        parties=len(given),
        steps=max(note.steps for note in made),
    )
    counted, noise = [], least.count_noise
    if noise:
        counted = [replace(gradients, noise_multiplier=noise, clip_norm=1.0)]
    return [gradients, *counted]


@dataclass(eq=False)
class _Private:
    """What an engine made private.

    Attributes:
        before: The sum of each tensor that no noise is added to, where a round began.
    """

    engine: Any
    module: nn.Module
    optimizer: Any
    loader: Any
    before: Mapping[str, float] = field(default_factory=dict)

    def unprotected(self) -> dict[str, float]:
        """Return the sum of each tensor of numbers that the optimizer does not step."""
        stepped = {id(parameter) for parameter in self.optimizer.params}
        return {
            name: float(tensor.detach().double().sum())
            for name, tensor in self.module.state_dict(keep_vars=True).items()
            if id(tensor) not in stepped and tensor.is_floating_point()
        }

    def moved(self) -> set[str]:
        """Return the tensors that moved since without noise; a round begins anew."""
        before, self.before = self.before, {}
        after = self.unprotected()
        return {n for n, total in before.items() if after.get(n, total) != total}

    def step(self) -> EngineNote:
        """Return what a step clipped and noised; it did not move anything yet."""
        from opacus.data_loader import DPDataLoader

        optimizer, counted = self.optimizer, self.optimizer.accumulated_iterations
        multiplier = optimizer.noise_multiplier
        count_noise = float(getattr(optimizer, "unclipped_num_std", 0.0))
        if multiplier and count_noise:
            # Andrew et al., "Differentially private learning with adaptive clipping",
            # NeurIPS 2021, theorem 1: a share of the noise goes to the count.
            multiplier = (multiplier**-2 - (2 * count_noise) ** -2) ** -0.5
        is_mean = optimizer.loss_reduction == "mean"
        scale = optimizer.expected_batch_size * counted if is_mean else 1.0
        noise = [p.grad * scale - p.summed_grad.view_as(p) for p in optimizer.params]
        std = float(multiplier * optimizer.max_grad_norm)
        square = sum(float(one.double().square().sum()) for one in noise)
        return EngineNote(
            noise_multiplier=float(multiplier),
            clip_norm=float(optimizer.max_grad_norm),
            sampling_rate=min(1.0, counted / len(self.loader)),
            steps=1,
            records=len(self.loader.dataset),
            accounted=0,
            poisson=isinstance(self.loader, DPDataLoader),
            secure=self.engine.secure_mode,
            count_noise=count_noise,
            lots=_lots(optimizer),
            values=sum(one.numel() for one in noise) if std else 0,
            square=square / std**2 if std else 0.0,
            first=tuple(noise[0].flatten()[:_FIRST].tolist()) if std else (),
        )


def _lots(optimizer: Any) -> tuple[tuple[int, int], ...]:
    """Return of how many records a step is; nothing where gradients are not kept apart."""
    samples = getattr(next(iter(optimizer.params)), "grad_sample", None)
    if isinstance(samples, Tensor):
        return ((len(samples), 1),)
    return ((sum(map(len, samples)), 1),) if samples else ()


class EngineWatch:
    """Watches engines; :meth:`take` gives what they did since it was last called."""

    def __init__(self) -> None:
        self._steps: list[EngineNote] = []
        self._stepped: dict[_Private, None] = {}
        self._asked: tuple[float, float] | None = None
        self._has_failed = False

    def made_private(self, engine: Any, module: nn.Module, made: Any) -> None:
        """Watch what an engine made private of a module."""
        one = _Private(engine, getattr(module, "_module", module), made[1], made[-1])
        count = one.optimizer.step_hook

        def forward(*_: Any) -> None:
            with self.guarded():
                one.before = one.before or one.unprotected()

        def step(optimizer: Any) -> None:
            with self.guarded():
                self._steps.append(one.step())
                self._stepped[one] = None
            count(optimizer)

        one.module.register_forward_pre_hook(forward)
        one.optimizer.attach_step_hook(step)
        self._listen(engine.accountant)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Raise nothing into a training: a round that is not seen whole is not noted."""
        try:
            yield
        except Exception as error:
            if not self._has_failed:
                _log.warning("What Opacus does is not noted: %s", error)
            self._has_failed = True

    def _listen(self, accountant: Any) -> None:
        """Note each epsilon that an accountant is asked for."""
        if "get_epsilon" in vars(accountant):
            return
        get_epsilon: Callable[..., float] = accountant.get_epsilon

        @wraps(get_epsilon)
        def asked(delta: float, *more: Any, **options: Any) -> float:
            epsilon = get_epsilon(delta, *more, **options)
            self._asked = (float(epsilon), float(delta))
            return epsilon

        accountant.get_epsilon = asked

    def take(self) -> EngineNote | None:
        """Return what was done since the last time; None if no step was."""
        steps, asked, stepped = self._steps, self._asked or (None, None), self._stepped
        self._steps, self._asked, self._stepped = [], None, {}
        failed, self._has_failed = self._has_failed, False
        if failed or not steps:
            return None
        with self.guarded():
            history = next(reversed(stepped)).engine.accountant.history
            moved = set[str]().union(*(one.moved() for one in stepped))
            return replace(
                together(steps),
                accounted=sum(count for _, _, count in history),
                unprotected=tuple(name[:300] for name in sorted(moved)[:_MOST]),
                epsilon=asked[0],
                delta=asked[1],
            )
        self._has_failed = False  # it is of this round, not of the next one
        return None


def engines_in_use(*, loading: bool = False) -> EngineWatch | None:
    """Return what watches the engines of this process; None while Opacus is not loaded.

    Engines that made something private before the first call are not watched.
    """
    return _watch() if loading or "opacus" in sys.modules else None


@lru_cache(maxsize=1)
def _watch() -> EngineWatch:
    from opacus import PrivacyEngine

    watch = EngineWatch()
    make_private: Callable[..., Any] = PrivacyEngine.make_private

    @wraps(make_private)
    def watched(engine: Any, *, module: Any, **options: Any) -> Any:
        made = make_private(engine, module=module, **options)
        with watch.guarded():
            watch.made_private(engine, module, made)
        return made

    PrivacyEngine.make_private = watched
    return watch
