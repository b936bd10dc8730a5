"""What a participating client costs as clients grow, and what those who sit out hold.

Run by ``make bench``: digits and the embedded model, one thread, every measurement in a
process of its own. Shards are of equal size, drawn with replacement. It never fails for
being slow, only where the rounds' own memory grows with the clients who sit out. (What
stands there before any round grows with them: names, and objects that hold states.)
"""

import json
from dataclasses import asdict
from statistics import median
from typing import Any

import pytest

from privaudit_tools.benchmarks.measuring import in_own_process, machine, spread
from privaudit_tools.benchmarks.one_round import Asked, Measured

METHODS: dict[str, dict[str, Any]] = {
    "promptfl": {},
    "dp-fpl": {"epsilon": 8.0},
    "pfedmoap": {},
}
TIMED_CLIENTS = (10, 100, 1_000)
SITTING_OUT = (100, 1_000, 10_000)
PARTICIPANTS = 10
MIB_OF_CHANCE = 24  # a process is never twice of the same size


def measured(asked: Asked) -> Measured:
    """Measure in a process of its own."""
    printed = in_own_process("one_round", json.dumps(asdict(asked)))
    return Measured(**json.loads(printed.splitlines()[-1]))


@pytest.mark.parametrize("name", METHODS)
def test_cost_of_a_participant_as_clients_grow(name: str) -> None:
    print(
        f"\n{machine()}\n{name}: every tenth of the clients takes part in a round\n\n"
        "| clients | ms a participant | times that of 10 clients |\n|---|---|---|"
    )
    base = 0.0
    for clients in TIMED_CLIENTS:
        share = clients // 10
        found = measured(Asked(name, METHODS[name], clients, share, all_at_first=True))
        base = base or median(found.seconds)
        spent = spread([1e3 * seconds for seconds in found.seconds])
        print(f"| {clients:,} | {spent} | {median(found.seconds) / base:.3g} |")


@pytest.mark.parametrize("name", METHODS)
def test_memory_is_flat_in_clients_who_sit_out(name: str) -> None:
    print(
        f"\n{name}: {PARTICIPANTS} clients take part in a round, the others sit out; "
        "MiB\n\n| clients | process at most | private states | at most without them | "
        "what the rounds added |\n|---|---|---|---|---|"
    )
    added = []
    for clients in SITTING_OUT:
        found = measured(Asked(name, METHODS[name], clients, PARTICIPANTS))
        added.append(found.peak - found.before)
        print(
            f"| {clients:,} | {found.peak:.0f} | {found.held:.1f} | "
            f"{found.peak - found.held:.0f} | {added[-1]:.0f} |"
        )
    assert max(added) < added[0] + MIB_OF_CHANCE
