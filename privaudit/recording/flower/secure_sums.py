"""Flower's SecAgg+ workflow, with a record of the sums that it makes."""

from typing import Any

from flwr.app import Context
from flwr.common import parameters_to_ndarrays
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid

from privaudit.recording.flower.grid import RecordingGrid


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
