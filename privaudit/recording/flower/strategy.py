"""Strategies of Flower as they are seen at work: what they clip, noise and sum."""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import signature
from types import FrameType
from typing import TYPE_CHECKING, Any

from flwr.clientapp.mod import LocalDpMod
from flwr.common import parameters_to_ndarrays
from flwr.server import LegacyContext
from flwr.server.strategy import Strategy as OlderStrategy
from flwr.serverapp.strategy import Strategy

from privaudit.core.errors import ConfigError
from privaudit.privacy.events import Claim
from privaudit.recording.bundle import CLIPPED_BY
from privaudit.recording.flower.mechanisms import (
    CLIENT_SIDE,
    SERVER_SIDE,
    ServerNoise,
    acts_as_fed_avg,
    weights_of,
)

if TYPE_CHECKING:
    from privaudit.recording.flower.grid import RecordingGrid


def strategy_at_work() -> Any:
    """Return the strategy on whose behalf this is called; None where none is.

    A Grid is not told of it, but it is ``self`` in the start() that calls it, and in the
    ``context`` of a workflow of the older API.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own, context = map(frame.f_locals.get, ("self", "context"))
        if isinstance(own, Strategy):
            return own
        if isinstance(context, LegacyContext):
            return context.strategy
        frame = frame.f_back
    return None


class WatchedStrategy:
    """A strategy whose clipping and noise are recorded as it aggregates.

    Its aggregation is called, and returns, as before; :meth:`leave` takes the watch away.

    Attributes:
        adds_noise: Whether it is one of Flower's DP wrappers.
        awaits_clipping: Whether its clients are to clip.
        draws_uniformly: Whether it, or what it wraps, samples clients as FedAvg does.
    """

    def __init__(self, strategy: Any, grid: "RecordingGrid") -> None:
        self._strategy, self._grid = strategy, grid
        self._inner = getattr(strategy, "strategy", strategy)
        self.adds_noise = isinstance(strategy, SERVER_SIDE + CLIENT_SIDE)
        self.awaits_clipping = isinstance(strategy, CLIENT_SIDE)
        self.draws_uniformly = acts_as_fed_avg(
            self._inner, "configure_train", "configure_fit"
        )
        self._is_older = isinstance(strategy, OlderStrategy)
        self._name = "aggregate_fit" if self._is_older else "aggregate_train"
        aggregate = getattr(strategy, self._name)

        @wraps(aggregate)
        def watched(*given: Any, **named: Any) -> Any:
            bound = signature(aggregate).bind(*given, **named)
            name = list(bound.arguments)[1]  # round, what came, and failures
            received = bound.arguments[name] = list(bound.arguments[name])
            notes: list[Callable[[], None]] = []
            grid.guarded(lambda: notes.append(self._seen(received)))
            made = aggregate(*bound.args, **bound.kwargs)
            for note in notes:
                grid.guarded(note)
            return made

        setattr(strategy, self._name, watched)

    def leave(self) -> None:
        """Let the strategy aggregate unwatched."""
        vars(self._strategy).pop(self._name, None)

    @property
    def settings(self) -> dict[str, Any]:
        """What a reader of the report should know of it."""
        made = self._strategy
        if not self.adds_noise:
            return {"strategy": type(made).__name__}
        return {
            "mode": type(made).__name__,
            "clip_norm": made.clipping_norm,
            "noise_multiplier": made.noise_multiplier,
            "sampled_clients": made.num_sampled_clients,
            **({} if self.awaits_clipping else {CLIPPED_BY: "server"}),
        }

    def _seen(self, received: list[Any]) -> Callable[[], None]:
        """Return what is to be noted once the aggregate is there.

        The clip norm is the one before, which an adaptive strategy changes. Where the
        strategy drops a round, its noise is counted all the same: never too little.
        """
        if self._is_older:
            weights = [float(fit.num_examples) for _, fit in received]
            self._unmasked(received, weights)
        else:
            weights = weights_of(self._inner, received)
        clip_norm = getattr(self._strategy, "clipping_norm", 1.0)

        def note() -> None:
            if weights and self.adds_noise:
                seen = self._grid.seen
                noise = ServerNoise(self._strategy, clip_norm, seen.rate, seen.masked)
                for event in noise.events(weights, self._grid.update_notes):
                    self._grid.mechanism(event)

        return note

    def _unmasked(self, received: list[Any], weights: list[float]) -> None:
        """Record the sum of masked updates, of which each client's result holds the mean."""
        if self._grid.seen.masked and received:
            total = sum(weights)
            mean = parameters_to_ndarrays(received[0][1].parameters)
            tensors = {str(number): array * total for number, array in enumerate(mean)}
            self._grid.summed((proxy.node_id for proxy, _ in received), tensors, total)


def claim_of(source: LocalDpMod | Strategy, rounds: int | None = None) -> Claim:
    """Return the epsilon that one of Flower's mechanisms claims, by its own formula.

    LocalDpMod's is of one round: of the training it claims the sum over its rounds, and
    nothing where their number is not given. A strategy claims what its accountant allows,
    or, where that has no bound, has spent; without an accountant it claims nothing.

    Args:
        source: The mod, or the strategy.
        rounds: In how many each client takes part at most; of a LocalDpMod only.

    Raises:
        ConfigError: There are fewer than 1.
    """
    if rounds is not None and rounds < 1:
        raise ConfigError(f"A claim of {rounds} rounds was asked for. Give 1 or more.")
    if isinstance(source, LocalDpMod):
        once = f"epsilon {source.epsilon:g}, delta {source.delta:g} in one round"
        if rounds is None:
            return Claim(source=f"Flower's LocalDpMod: {once}, nothing of all rounds")
        words = f"Flower's LocalDpMod: {once}, added up over {rounds}"
        return Claim(rounds * source.epsilon, rounds * source.delta, words)
    accountant = getattr(source, "accountant", None)
    if accountant is None:
        return Claim()
    allowed, delta = accountant.config.max_epsilon, accountant.config.target_delta
    if allowed is None:
        allowed = accountant.get_privacy_spent().epsilon
    return Claim(allowed, delta, f"Flower's {type(accountant).__name__}")
