"""Flower's DP, as what was done to updates; by hand with three clients of two numbers."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedMedian,
    Strategy,
)
from flwr.supercore.privacy_accounting import (
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from privaudit.checks.lint.evidence import Evidence, Finding
from privaudit.checks.lint.linter import lint
from privaudit.core.errors import ConfigError
from privaudit.privacy.events import Claim, MechanismEvent
from privaudit.recording.flower import RecordedStrategy, claim_of, noted
from privaudit.recording.flower.mechanisms import ServerNoise, UpdateNote, weights_of
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import Run
from tests.privaudit.recording.flower.conftest import Recorded
from tests.privaudit.recording.flower.small_app import (
    NODES,
    WEIGHTS,
    arrays_of,
    client_app,
    ended,
    fed_avg,
)

pytestmark = pytest.mark.flower
SHARE = max(WEIGHTS) / sum(WEIGHTS)  # 1/2: of the heaviest update
CLIP, NOISE = 0.5, 1.2


def recorded(
    recording: Recorded,
    strategy: Strategy,
    ledger: Ledger,
    *mods: object,
    values: int = 2,
    **said: object,
) -> Run:
    grid = recording(client_app(*mods), ledger=ledger, **said)
    wrapped = RecordedStrategy(strategy, grid)
    wrapped.start(grid=grid, initial_arrays=arrays_of(*[0.0] * values), num_rounds=2)
    return ended(grid)


def events(run: Run) -> list[MechanismEvent]:
    return [
        MechanismEvent.from_json({k: v for k, v in group.items() if k != "rounds"})
        for group in run.privacy["mechanisms"]
    ]


def found(run: Run, rule: str) -> list[Finding]:
    return [one for one in lint(run) if one.rule == rule]


def test_local_noise_is_each_uploads_own(recording: Recorded, ledger: Ledger) -> None:
    mod = LocalDpMod(CLIP, sensitivity=CLIP, epsilon=0.9, delta=1e-5)
    run = recorded(
        recording, fed_avg(), ledger, noted(mod), claim=claim_of(mod, rounds=2)
    )
    (event,) = events(run)
    std = CLIP * math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.9
    assert event.noise_multiplier == pytest.approx(std / CLIP)
    assert (event.release, event.noise_at, event.sensitivity) == ("upload", "client", 2)
    assert (event.unit, event.adjacency, event.parties) == (
        "client",
        "replace-one",
        NODES,
    )
    claimed, certified = run.privacy["claimed"], run.privacy["certified"]
    assert claimed["epsilon"] == 2 * 0.9
    assert (
        certified["server"]["declared"] > 2 * 0.9
    )  # two rounds, of twice the clip norm
    (finding,) = found(run, "claim-covers-certificate")
    assert finding.severity == "error"


def test_enough_local_noise_covers_its_claim(
    recording: Recorded, ledger: Ledger
) -> None:
    mod = LocalDpMod(CLIP, sensitivity=2 * CLIP, epsilon=0.5, delta=1e-5)
    claim = Claim(1.0, 2e-5, "two rounds of 0.5, composed")
    run = recorded(recording, fed_avg(), ledger, noted(mod), claim=claim)
    assert run.privacy["certified"]["server"]["declared"] < 1.0
    assert not found(run, "claim-covers-certificate")
    assert not [one for one in lint(run) if one.severity == "error"]


def test_noise_far_too_small_is_found(recording: Recorded, ledger: Ledger) -> None:
    """As a DP filter's defaults that give epsilon 70,000 a round."""
    mod = LocalDpMod(1.0, sensitivity=0.0011, epsilon=1.0, delta=1e-5)
    run = recorded(
        recording, fed_avg(), ledger, noted(mod), claim=claim_of(mod, rounds=2)
    )
    (finding,) = found(run, "claim-covers-certificate")
    assert finding.severity == "error"
    assert run.privacy["certified"]["server"]["declared"] > 2 * 65_000


def test_a_mod_that_is_not_noted_is_not_declared(
    recording: Recorded, ledger: Ledger
) -> None:
    mod = LocalDpMod(CLIP, sensitivity=CLIP, epsilon=0.9, delta=1e-5)
    run = recorded(recording, fed_avg(), ledger, mod)
    assert not events(run)
    assert "declared" not in run.privacy["certified"]["server"]


def test_server_noise_counts_over_what_the_heaviest_update_moves(
    recording: Recorded, ledger: Ledger
) -> None:
    strategy = DifferentialPrivacyServerSideFixedClipping(fed_avg(), NOISE, CLIP, NODES)
    run = recorded(recording, strategy, ledger)
    (event,) = events(run)
    assert event.noise_multiplier == pytest.approx(NOISE / (NODES * SHARE))
    assert event.bounded
    assert event.noise_at == "server"
    certified = run.privacy["certified"]
    assert "declared" not in certified["server"]  # it sees every update in the clear
    assert certified["released"]["declared"] == certified["peer"]["declared"] > 0
    assert {proof["epsilon"] for proof in certified.values()} == {None}


@pytest.mark.parametrize(("mods", "epsilon"), [((), 8.0), ((fixedclipping_mod,), 20.0)])
def test_clipping_that_clients_note_is_declared_and_checked_and_no_other_bounds(
    recording: Recorded, ledger: Ledger, mods: tuple[Any, ...], epsilon: float
) -> None:
    strategy = DifferentialPrivacyClientSideFixedClipping(fed_avg(), NOISE, CLIP, NODES)
    claim = Claim(epsilon, 1e-5, "a paper")
    run = recorded(recording, strategy, ledger, *map(noted, mods), claim=claim)
    assert [event.bounded for event in events(run)] == [bool(mods)]
    if not mods:
        assert "error" in [one.severity for one in found(run, "clip-per-record")]
        return
    assert run.privacy["certified"]["released"]["declared"] > 0
    assert not found(run, "clipped-norms")


@pytest.mark.parametrize("clipped_by", ["server", "client"])
def test_the_noise_that_the_server_really_added_is_found_in_the_transcript(
    recording: Recorded, ledger: Ledger, clipped_by: str
) -> None:
    """Of noise that is half as large as recorded, lint finds it."""
    np.random.seed(1)  # noqa: NPY002 # what Flower draws from
    claim = Claim(50.0, 1e-5, "a paper")
    if clipped_by == "server":
        made = DifferentialPrivacyServerSideFixedClipping(fed_avg(), NOISE, CLIP, NODES)
    else:
        made = DifferentialPrivacyClientSideFixedClipping(fed_avg(), NOISE, CLIP, NODES)
    mods = [noted(fixedclipping_mod)] if clipped_by == "client" else []
    run = recorded(recording, made, ledger, *mods, values=400, claim=claim)
    evidence = Evidence.of(run)
    assert not [f for f in lint(evidence) if f.rule == "noise-as-claimed"]
    rounds = [
        [replace(e, noise_multiplier=2 * e.noise_multiplier) for e in applied]
        for applied in evidence.rounds
    ]
    louder = lint(replace(evidence, rounds=rounds))
    assert ("noise-as-claimed", "error") in [(f.rule, f.severity) for f in louder]


def test_adaptive_noise_is_as_large_as_the_norm_after_the_update_of_the_norm(
    recording: Recorded, ledger: Ledger
) -> None:
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(
        fed_avg(), NOISE, NODES, initial_clipping_norm=CLIP, clipped_count_stddev=2.0
    )
    after: list[float] = []
    moved = strategy._geometric_update

    def note_norm(share: float) -> None:
        moved(share)
        after.append(strategy.clipping_norm)

    strategy._geometric_update = note_norm
    run = recorded(recording, strategy, ledger)
    before, z = CLIP, strategy.noise_multiplier
    sums = [event for event in events(run) if event.sensitivity == 2]
    for norm, event in zip(after, sums, strict=True):
        expected = z * (norm / before) / (NODES * SHARE)
        assert event.noise_multiplier == pytest.approx(expected)
        before = norm
    (count,) = [event for event in events(run) if event.sensitivity == 1]
    assert count.noise_multiplier == 2.0  # the count of clipped updates has its own


def test_noise_on_anything_but_a_mean_is_not_bounded(
    recording: Recorded, ledger: Ledger
) -> None:
    median = FedMedian(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    strategy = DifferentialPrivacyServerSideFixedClipping(median, NOISE, CLIP, NODES)
    assert [
        event.bounded for event in events(recorded(recording, strategy, ledger))
    ] == [False]


def test_sampled_clients_count_where_fed_avg_draws_them(
    recording: Recorded, ledger: Ledger
) -> None:
    inner = fed_avg(fraction_train=0.34)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 8.0, CLIP, 1)
    run = recorded(recording, strategy, ledger)
    assert {event.sampling_rate for event in events(run)} == {1 / 3}
    certified = run.privacy["certified"]
    assert certified["released"]["declared"] < certified["peer"]["declared"]


def test_a_strategys_claim_is_its_accountants() -> None:
    config = PrivacyConfig(
        target_delta=1e-5,
        population_size=NODES,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
        max_epsilon=4.0,
    )
    strategy = DifferentialPrivacyServerSideFixedClipping(
        fed_avg(), NOISE, CLIP, NODES, accountant=RdpAccountant(config)
    )
    assert claim_of(strategy) == Claim(4.0, 1e-5, "Flower's RdpAccountant")
    assert claim_of(fed_avg()).epsilon is None


def test_a_claim_of_one_round_is_none_of_the_training() -> None:
    mod = LocalDpMod(CLIP, sensitivity=CLIP, epsilon=0.9, delta=1e-5)
    claim = claim_of(mod)
    assert claim.epsilon is None
    assert "epsilon 0.9, delta 1e-05 in one round" in claim.source
    composed = claim_of(mod, rounds=3)
    assert (composed.epsilon, composed.delta) == pytest.approx((2.7, 3e-5))
    with pytest.raises(ConfigError, match="1 or more"):
        claim_of(mod, rounds=0)


def reply(weight: float | None) -> Message:
    metrics = MetricRecord(
        {"loss": 1.0} if weight is None else {"num-examples": weight}
    )
    return Message(
        RecordDict({"metrics": metrics}), dst_node_id=1, message_type="train"
    )


@pytest.mark.parametrize(
    ("weights", "share"),
    [
        ([0.05, 0.0, 0.0], 1.0),
        ([1.0, 3.0], 0.75),
        ([None, 3.0], 0.75),
        ([0.0, 0.0], None),
        ([3.0, -1.0], None),
        ([1.0, math.nan], None),
        ([1.0, math.inf], None),
    ],
)
def test_noise_counts_over_the_share_that_weights_of_zero_leave(
    weights: list[float], share: float | None
) -> None:
    """A share that is no weight of a mean bounds nothing."""
    strategy = DifferentialPrivacyServerSideFixedClipping(fed_avg(), NOISE, CLIP, NODES)
    taken = weights_of(strategy.strategy, [reply(weight) for weight in weights])
    (event,) = ServerNoise(strategy, CLIP, 1.0).events(taken, [])
    assert event.bounded == (share is not None)
    if share is not None:
        assert event.noise_multiplier == pytest.approx(NOISE / (NODES * share))


@pytest.mark.parametrize(
    "noted",
    [
        {"evil": 1},
        {"clip_norm": 0.0, "noise_std": 1.0},
        {"clip_norm": -1.0, "noise_std": 1.0},
        {"clip_norm": math.nan, "noise_std": 1.0},
        {"clip_norm": 5e-324, "noise_std": 1.0},
        {"clip_norm": 1.0, "noise_std": math.nan},
        {"clip_norm": 1.0, "noise_std": "big"},
        {"clip_norm": 1.0, "noise_std": [1.0]},
        {"clip_norm": True},
    ],
)
def test_a_note_that_is_none_is_refused(noted: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="a number above 0, and noise_std"):
        UpdateNote.of(noted)


def test_another_mod_cannot_be_noted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"RecordingGrid\.mechanism"):
        noted(lambda message, context, call_next: call_next(message, context))


def test_a_strategy_with_a_start_of_its_own_is_refused(recording: Recorded) -> None:
    class Own(FedMedian):
        def start(self, *args: object, **fields: object) -> None:
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"start\(\) of its own"):
        RecordedStrategy(Own(), recording())
