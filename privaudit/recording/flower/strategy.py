"""Strategies and workflows of Flower, with a record of the mechanisms and sums they make."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp.mod import LocalDpMod
from flwr.common import parameters_to_ndarrays
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from privaudit.core.errors import ConfigError
from privaudit.privacy.events import Claim
from privaudit.recording.bundle import CLIPPED_BY
from privaudit.recording.flower.grid import RecordingGrid
from privaudit.recording.flower.mechanisms import (
    CLIENT_SIDE,
    SERVER_SIDE,
    ServerNoise,
    weights_of,
)


class RecordedStrategy(Strategy):
    """Another strategy, whose clipping and noise are recorded round by round.

    Needed for the mechanisms of DifferentialPrivacyServerSide... and ...ClientSide...
    strategies, and for what sampling clients adds to a certificate: that FedAvg draws
    them uniformly. The federation goes as without it.

    Args:
        strategy: Any. Its attributes are this one's, too.
        grid: The :class:`~privaudit.recording.flower.RecordingGrid` that it starts
            with.

    Raises:
        ConfigError: It has a ``start`` of its own, which would be passed over.
    """

    def __init__(self, strategy: Strategy, grid: RecordingGrid) -> None:
        if type(strategy).start is not Strategy.start:
            raise ConfigError(
                f"{type(strategy).__name__} has a start() of its own. Call it with the "
                "RecordingGrid, and record what it adds by RecordingGrid.mechanism."
            )
        self._strategy, self._grid = strategy, grid
        self._clip_norm = self._rate = 1.0
        if isinstance(strategy, SERVER_SIDE + CLIENT_SIDE):
            grid.declare(
                mode=type(strategy).__name__,
                clip_norm=strategy.clipping_norm,
                noise_multiplier=strategy.noise_multiplier,
                sampled_clients=strategy.num_sampled_clients,
                **{CLIPPED_BY: "server"} if isinstance(strategy, SERVER_SIDE) else {},
            )

    def __getattr__(self, name: str) -> Any:
        if name == "_strategy":  # not there yet
            raise AttributeError(name)
        return getattr(self._strategy, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages; note clip norm and share of the clients."""
        self._clip_norm = getattr(self._strategy, "clipping_norm", 1.0)
        messages = list(
            self._strategy.configure_train(server_round, arrays, config, grid)
        )
        if messages and _draws_uniformly(self._strategy):
            self._rate = min(1.0, len(messages) / len(list(grid.get_node_ids())))
            self._grid.sampled(self._rate)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's aggregate, and record the noise on it.

        Where the strategy drops a round, its noise is counted all the same: that is
        never too little.
        """
        received = list(replies)
        inner = getattr(self._strategy, "strategy", self._strategy)
        weights = weights_of(inner, received)
        result = self._strategy.aggregate_train(server_round, received)
        if weights and isinstance(self._strategy, SERVER_SIDE + CLIENT_SIDE):
            noise = ServerNoise(self._strategy, self._clip_norm, self._rate)
            for event in noise.events(weights, self._grid.update_notes):
                self._grid.mechanism(event)
        return result

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self._strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the strategy's aggregate."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the strategy's summary."""
        self._strategy.summary()


def _draws_uniformly(strategy: Strategy) -> bool:
    """Say whether a strategy, or what it wraps, samples clients as FedAvg does."""
    inner = getattr(strategy, "strategy", strategy)
    drawn = getattr(type(inner), "configure_train", None)
    return drawn is FedAvg.configure_train


def claim_of(source: "LocalDpMod | Strategy", rounds: int | None = None) -> Claim:
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


class RecordedSecAggPlus(SecAggPlusWorkflow):
    """SecAggPlusWorkflow as it is; what the server unmasks is recorded as a sum.

    The masked vectors are recorded by the grid. The sum is of updates times their
    weights, and of the weights, which clients send in the clear.
    """

    def unmask_stage(self, grid: Grid, context: Context, state: Any) -> bool:
        """Unmask the sum, and record it where the grid records."""
        is_done = super().unmask_stage(grid, context, state)
        if is_done and isinstance(grid, RecordingGrid):
            weights = {p.node_id: r.num_examples for p, r in state.legacy_results}
            total = sum(weights.values())
            mean = parameters_to_ndarrays(state.legacy_results[0][1].parameters)
            tensors = {str(number): array * total for number, array in enumerate(mean)}
            grid.summed(weights, tensors, float(total))
        return is_done
