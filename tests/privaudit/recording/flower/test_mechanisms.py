"""Flower's DP, as what was done to updates; by hand with three clients of two numbers."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import opacus
import pytest
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy
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
from privaudit.recording.flower import claim_of, name_partition
from privaudit.recording.flower.client import _mods_behind
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
    strategy.start(grid=grid, initial_arrays=arrays_of(*[0.0] * values), num_rounds=2)
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
    run = recorded(recording, fed_avg(), ledger, mod, claim=claim_of(mod, rounds=2))
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
    run = recorded(recording, fed_avg(), ledger, mod, claim=claim)
    assert run.privacy["certified"]["server"]["declared"] < 1.0
    assert not found(run, "claim-covers-certificate")
    assert not [one for one in lint(run) if one.severity == "error"]


def test_noise_far_too_small_is_found(recording: Recorded, ledger: Ledger) -> None:
    """As a DP filter's defaults that give epsilon 70,000 a round."""
    mod = LocalDpMod(1.0, sensitivity=0.0011, epsilon=1.0, delta=1e-5)
    run = recorded(recording, fed_avg(), ledger, mod, claim=claim_of(mod, rounds=2))
    (finding,) = found(run, "claim-covers-certificate")
    assert finding.severity == "error"
    assert run.privacy["certified"]["server"]["declared"] > 2 * 65_000


def test_the_mods_behind_are_known_and_others_are_said(
    recording: Recorded, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    def halving(message: Message, context: Context, call_next: Any) -> Message:
        return call_next(message, context)

    strategy = DifferentialPrivacyClientSideFixedClipping(fed_avg(), NOISE, CLIP, NODES)
    run = recorded(recording, strategy, ledger, halving, fixedclipping_mod)
    assert run.config.settings["mods"] == ["fixedclipping_mod", "halving"]
    assert [event.bounded for event in events(run)] == [True]
    assert caplog.text.count("the mods halving do to an update is not known") == 1


def test_a_chain_of_another_form_is_a_mod_that_nobody_knows() -> None:
    def wrapped(message: Message, context: Context) -> Message:
        return message

    assert _mods_behind(wrapped) == []  # the app's own function
    wrapped.__module__ = "flwr.client.mod.utils"
    assert _mods_behind(wrapped) == [wrapped]


@pytest.mark.filterwarnings("ignore:Secure RNG", "ignore:Full backward hook")
def test_opacus_in_the_client_is_noted_by_name_partition(
    recording: Recorded, ledger: Ledger
) -> None:
    """A new engine in each round, as in Flower's own example."""
    app = ClientApp(mods=[name_partition])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        net = torch.nn.Linear(2, 1, bias=False)
        received = message.content["arrays"]["w"].numpy()
        net.weight.data = torch.tensor(received)[None]
        data = torch.utils.data.TensorDataset(torch.ones(32, 2))
        engine = opacus.PrivacyEngine(accountant="rdp")
        model, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for (some,) in loader:
            optimizer.zero_grad()
            model(some).square().mean().backward()
            optimizer.step()
        engine.get_epsilon(1e-5)
        sent = arrays_of(*net.weight.detach()[0].tolist())
        metrics = MetricRecord({"num-examples": 32})
        content = RecordDict({"arrays": sent, "metrics": metrics})
        return Message(content, reply_to=message)

    grid = recording(app, ledger=ledger)
    made = fed_avg(fraction_evaluate=0.0)
    made.start(grid=grid, initial_arrays=arrays_of(0.0, 0.0), num_rounds=2)
    run = ended(grid)
    assert len(Evidence.of(run).engines) == 2 * NODES
    (engine,) = found(run, "privacy-engine")[:1]
    assert "counted 4 of the 8 steps that it took in 2 rounds" in engine.sentence
    claimed = run.privacy["claimed"]["epsilon"]
    assert 0 < claimed < run.privacy["certified"]["server"]["declared"]


def test_clipping_behind_the_noise_bounds_no_more_than_the_clip_before(
    recording: Recorded, ledger: Ledger
) -> None:
    mod = LocalDpMod(CLIP, sensitivity=CLIP, epsilon=0.9, delta=1e-5)
    strategy = DifferentialPrivacyClientSideFixedClipping(fed_avg(), NOISE, 9.0, NODES)
    run = recorded(recording, strategy, ledger, fixedclipping_mod, mod)
    assert {event.clip_norm for event in events(run)} == {CLIP, 9.0}


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
    run = recorded(recording, strategy, ledger, *mods, claim=claim)
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
    mods = [fixedclipping_mod] if clipped_by == "client" else []
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
    counts = {e.noise_multiplier for e in events(run) if e.sensitivity == 1}
    assert counts == {2.0}  # the count of clipped updates has its own


@pytest.mark.parametrize(
    ("side", "how", "mods", "epsilon"),
    [
        ("Server", "Fixed", (), 20.7),
        ("Client", "Fixed", (fixedclipping_mod,), 20.7),
        ("Server", "Adaptive", (), None),
        ("Client", "Adaptive", (adaptiveclipping_mod,), None),
    ],
)
def test_no_wrapper_claims_and_lint_says_what_is_declared(
    recording: Recorded,
    ledger: Ledger,
    side: str,
    how: str,
    mods: tuple[Any, ...],
    epsilon: float | None,
) -> None:
    """As in the table of docs/flower.md; an adaptive norm follows drawn noise."""
    kind = getattr(strategy, f"DifferentialPrivacy{side}Side{how}Clipping")
    given = {"num_sampled_clients": NODES, "noise_multiplier": NOISE}
    if how == "Fixed":
        made = kind(fed_avg(), clipping_norm=CLIP, **given)
    else:
        norms = {"initial_clipping_norm": CLIP, "clipped_count_stddev": 2.0}
        made = kind(fed_avg(), **given, **norms)
    run = recorded(recording, made, ledger, *mods)
    (note,) = found(run, "claim-covers-certificate")
    declared = run.privacy["certified"]["released"]["declared"]
    assert f"released {declared:.3g}" in note.sentence
    assert epsilon is None or declared == pytest.approx(epsilon, abs=0.05)
    assert not [one for one in lint(run) if one.severity == "error"]


def test_a_count_without_noise_is_no_private_one(
    recording: Recorded, ledger: Ledger
) -> None:
    made = strategy.DifferentialPrivacyServerSideAdaptiveClipping(
        fed_avg(), NOISE, NODES, clipped_count_stddev=9.0
    )
    made.clipped_count_stddev = 0.0
    run = recorded(recording, made, ledger)
    assert "declared" not in run.privacy["certified"]["released"]


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


def test_a_strategy_is_left_as_it_was(recording: Recorded, ledger: Ledger) -> None:
    strategy = fed_avg()
    recorded(recording, strategy, ledger)
    assert "aggregate_train" not in vars(strategy)
