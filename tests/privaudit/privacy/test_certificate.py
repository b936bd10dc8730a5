import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from privaudit.core.errors import ConfigError
from privaudit.federation.trainer import TRAINERS
from privaudit.privacy.accountant import (
    SamplingPhase,
    epsilon_of,
    gaussian_epsilon,
    noise_multiplier_for,
    tightest_epsilon,
)
from privaudit.privacy.certificate import (
    Certificate,
    CertifiedView,
    certify,
    declared_only,
    effective_noise,
    is_repeatable,
    privacy_record,
    reconstruction_bound,
    reconstruction_bounds,
)
from privaudit.privacy.events import Claim, MechanismEvent, NoiseAt, sensitivity
from privaudit.trainers.dp_promptfl import DPPromptFL

DELTA = 1e-5
VIEWS: tuple[CertifiedView, ...] = get_args(CertifiedView)
NOISE_AT: tuple[NoiseAt, ...] = get_args(NoiseAt)

SHARED = MechanismEvent(
    release="global",
    noise_multiplier=20.0,
    sensitivity=1.0,
    clip_norm=1.0,
    sampling_rate=1.0,
    sampling="poisson",
    noise_at="client",
    parties=4,
)
LOCAL = replace(SHARED, release="local")


def certified(events: Sequence[MechanismEvent], view: CertifiedView) -> float:
    epsilon = certify([events] * 10, view, DELTA).epsilon
    return math.inf if epsilon is None else epsilon


@pytest.mark.parametrize(
    ("noise_at", "server", "aggregate", "peer", "released"),
    [
        ("server", 0.0, 0.0, 20.0, 20.0),
        ("client", 20.0, 40.0, 20.0 * math.sqrt(3), 40.0),
        ("distributed", 10.0, 20.0, 10.0 * math.sqrt(3), 20.0),
        ("none", 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_who_sees_how_much_noise_of_four_clients(
    noise_at: NoiseAt, server: float, aggregate: float, peer: float, released: float
) -> None:
    event = replace(SHARED, noise_at=noise_at)
    got = [effective_noise(event, view) for view in VIEWS]
    assert got == pytest.approx([server, aggregate, peer, released])


def test_noise_of_one_client_alone_hides_it_from_peers() -> None:
    for noise_at in ("client", "distributed"):
        event = replace(SHARED, noise_at=noise_at, parties=1)
        assert effective_noise(event, "peer") == pytest.approx(20.0)


def test_an_upload_has_no_noise_but_its_own() -> None:
    event = replace(SHARED, release="upload")
    assert {effective_noise(event, view) for view in VIEWS} == {20.0}


def test_a_server_that_adds_the_noise_is_certified_nothing() -> None:
    events = [[replace(SHARED, noise_at="server"), LOCAL]]
    for view in ("server", "server-aggregate"):
        certificate = certify(events, view, DELTA)
        assert certificate.epsilon is None
        assert str(certificate) == "none"
        assert certificate.to_json()["epsilon"] == "none"
        assert "server adds the noise itself" in certificate.why
    assert certify(events, "peer", DELTA).epsilon is not None
    assert certify(events, "released", DELTA).epsilon is not None


def test_no_events_or_a_round_without_any_certify_nothing() -> None:
    assert certify([], "server", DELTA).epsilon is None
    gap = certify([[SHARED], [], [SHARED]], "server", DELTA)
    assert gap.epsilon is None
    assert "round 1" in gap.why


def test_a_release_without_noise_certifies_nothing_to_those_who_see_it() -> None:
    events = [[SHARED, replace(LOCAL, noise_at="none", per_record=False)]]
    assert certify(events, "server", DELTA).epsilon is not None
    assert certify(events, "released", DELTA).epsilon is None
    silent = [[replace(SHARED, noise_multiplier=0.0)]]
    assert certify(silent, "server", DELTA).epsilon is None


def test_both_releases_of_a_sample_show_in_the_released_prompt() -> None:
    """Two multipliers of 20 and 40 sqrt(2 clients) compose to one."""
    events = [LOCAL, replace(SHARED, noise_at="distributed", noise_multiplier=15.0)]
    one = 1 / math.sqrt(1 / 20**2 + 1 / 15**2)
    expected = gaussian_epsilon(math.sqrt(10) / one, DELTA)
    assert certified(events, "released") == pytest.approx(expected)


def test_a_private_prompt_counts_where_nobody_sees_it_if_records_are_clipped() -> None:
    """Global gradients are taken at it: a record moves all others' by moving it."""
    shared = replace(SHARED, noise_at="distributed", noise_multiplier=15.0)
    one = 1 / math.sqrt(1 / 20**2 + 1 / 15**2)
    both, alone = (gaussian_epsilon(math.sqrt(10) / z, DELTA) for z in (one, 15))
    means = replace(LOCAL, per_record=False)
    assert certified([LOCAL, shared], "server-aggregate") == pytest.approx(both)
    assert certified([means, shared], "server-aggregate") == pytest.approx(alone)
    silent = replace(LOCAL, noise_at="none")
    assert certify([[silent, shared]], "server-aggregate", DELTA).epsilon is None


def test_sensitivity_divides_the_noise() -> None:
    doubled = replace(SHARED, sensitivity=2.0, noise_multiplier=40.0)
    assert certified([doubled], "server") == certified([SHARED], "server")


def test_fixed_batches_gain_nothing_from_sampling() -> None:
    fixed = replace(SHARED, sampling="fixed-batch", sampling_rate=0.1)
    assert certified([fixed], "server") == certified([SHARED], "server")


def test_poisson_sampling_is_accounted_for() -> None:
    sampled = replace(SHARED, noise_multiplier=2.0, sampling_rate=0.1)
    certificate = certify([[sampled]] * 10, "server", DELTA)
    oracle = epsilon_of([SamplingPhase(2.0, 0.1, 10)], DELTA, "dpa-pld")
    assert certificate.accountant == "opacus-prv"
    assert certificate.epsilon == pytest.approx(oracle, rel=0.02)
    assert "10 steps" in certificate.mechanism
    assert "rate 0.1" in certificate.mechanism


def test_releases_at_different_rates_gain_nothing_from_sampling() -> None:
    events = [replace(LOCAL, sampling_rate=0.1), replace(SHARED, sampling_rate=0.2)]
    assert certified(events, "released") == pytest.approx(
        certified([LOCAL, SHARED], "released")
    )


def test_local_steps_compose() -> None:
    five = replace(SHARED, release="upload", steps=5)
    assert certify([[five]], "server", DELTA) == certify(
        [[SHARED]] * 5, "server", DELTA
    )


def test_rounds_with_unlike_noise_compose() -> None:
    rounds = [[SHARED], [replace(SHARED, parties=9)], [SHARED]]
    mu = math.sqrt(2 / 40**2 + 1 / 60**2)
    got = certify(rounds, "server-aggregate", DELTA)
    assert got.epsilon == pytest.approx(gaussian_epsilon(mu, DELTA))


@given(
    noise=st.floats(5, 100),
    parties=st.integers(1, 50),
    noise_at=st.sampled_from(NOISE_AT),
    with_local=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_view_that_is_a_function_of_another_is_certified_no_more(
    noise: float, parties: int, noise_at: NoiseAt, with_local: bool
) -> None:
    """The sum is a function of the uploads; broadcasts are one of the sum."""
    shared = replace(SHARED, noise_multiplier=noise, parties=parties, noise_at=noise_at)
    events = [shared, LOCAL] if with_local else [shared]
    aggregate = certified(events, "server-aggregate")
    assert aggregate <= certified(events, "server")
    assert certified([shared], "released") <= certified(events, "released")
    assert certified([shared], "released") <= aggregate
    assert certified([shared], "released") <= certified(events, "peer")


def test_budget_split_over_both_releases_is_certified_as_asked() -> None:
    total = noise_multiplier_for(4.0, DELTA, 0.3, 20)
    each = total * 2**0.5  # two releases, each of half the budget
    both = [
        replace(LOCAL, noise_multiplier=each, sampling_rate=0.3),
        replace(SHARED, noise_multiplier=each, sampling_rate=0.3, noise_at="server"),
    ]
    epsilon = certify([both] * 20, "released", DELTA).epsilon
    assert epsilon == pytest.approx(4.0, rel=0.01)


def test_events_and_certificates_survive_json() -> None:
    event = MechanismEvent.from_json(json.loads(json.dumps(SHARED.to_json())))
    assert event == SHARED
    for rounds in ([[SHARED]], []):
        certificate = certify(rounds, "server", DELTA)
        written = json.loads(json.dumps(certificate.to_json()))
        assert Certificate.from_json(written) == certificate


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.inf),
        ("sensitivity", 0.0),
        ("clip_norm", 0.0),
        ("sampling_rate", 0.0),
        ("sampling_rate", 1.5),
        ("parties", 0),
        ("steps", 0),
        ("steps", 2.5),
        ("bounded", "no"),
        *((n, "x") for n in ("release", "sampling", "noise_at", "kind", "unit")),
        *((n, "x") for n in ("adjacency", "rounding")),
    ],
)
def test_an_event_outside_its_range_is_refused(field: str, value: object) -> None:
    event = MechanismEvent.from_json(SHARED.to_json())
    object.__setattr__(event, field, value)  # as without the types that tests check
    with pytest.raises(ConfigError, match=f"{field} = {value}"):
        event.__post_init__()


def test_a_local_release_with_others_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local release .* noise_at = server"):
        replace(LOCAL, noise_at="server")


def test_an_event_with_an_unknown_or_a_missing_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        MechanismEvent.from_json(SHARED.to_json() | {"colour": "red"})
    with pytest.raises(ConfigError, match="cannot be read"):
        MechanismEvent.from_json({"release": "global"})


def test_at_least_one_tensor_is_clipped() -> None:
    with pytest.raises(ConfigError, match="not 0"):
        sensitivity(tensors=0, per_record=True)


CLIENT_EVENT = replace(
    SHARED, noise_multiplier=8.0, sensitivity=2.0, sampling_rate=0.3,
    sampling="without-replacement", noise_at="distributed", parties=3,
    per_record=False, unit="client", adjacency="replace-one",
)  # fmt: skip


@pytest.mark.parametrize(("of", "drawn", "noise"), [(10, 3, 4.0), (3_000_000, 1, 0.5)])
def test_drawing_clients_without_replacement_is_dp_accountings(
    of: int, drawn: int, noise: float
) -> None:
    theirs = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = SampledWithoutReplacementDpEvent(of, drawn, GaussianDpEvent(noise))
    theirs.compose(event, 20)
    ours = replace(CLIENT_EVENT, sampling_rate=drawn / of, noise_multiplier=2 * noise)
    found = certify([[ours]] * 20, "released", DELTA)
    assert found.epsilon == pytest.approx(theirs.get_epsilon(DELTA))
    unsampled = epsilon_of([SamplingPhase(noise, 1.0, 20)], DELTA, "gaussian-exact")
    assert float(found.epsilon or 99) < unsampled
    bare = SamplingPhase(0.01, drawn / of, 1000, "without-replacement")
    assert tightest_epsilon([bare], 1e-12)[0] > 0


@pytest.mark.parametrize("view", ["server", "server-aggregate", "peer"])
def test_who_knows_the_participants_gets_no_benefit_of_the_draw(
    view: CertifiedView,
) -> None:
    drawn, all_of_them = (
        certify([[replace(CLIENT_EVENT, sampling_rate=rate)]] * 20, view, DELTA)
        for rate in (0.3, 1.0)
    )
    assert drawn.epsilon == all_of_them.epsilon


def test_a_client_that_is_left_out_is_not_one_that_is_replaced() -> None:
    """Another would have been drawn in its place: the draw then proves nothing."""
    left_out = replace(CLIENT_EVENT, adjacency="add/remove-one", sensitivity=1.0)
    found = certify([[left_out]] * 20, "released", DELTA)
    assert found.accountant == "gaussian-exact"
    assert found.adjacency == "add/remove-one"


def test_the_draw_never_costs_anything() -> None:
    phase = SamplingPhase(0.5, 0.9, 1, "without-replacement")
    assert tightest_epsilon([phase], DELTA)[0] <= epsilon_of(
        [SamplingPhase(0.5, 1.0, 1)], DELTA, "gaussian-exact"
    )


def test_other_accountants_do_not_know_such_a_draw() -> None:
    phase = SamplingPhase(4.0, 0.3, 20, "without-replacement")
    with pytest.raises(ConfigError, match="dpa-rdp"):
        epsilon_of([phase], DELTA, "opacus-prv")
    with pytest.raises(ConfigError, match="unlike adjacencies"):
        epsilon_of([phase, SamplingPhase(4.0, 0.3, 20)], DELTA, "dpa-rdp")


def test_noise_on_what_nothing_bounds_proves_nothing() -> None:
    found = certify([[replace(CLIENT_EVENT, bounded=False)]], "released", DELTA)
    assert found.epsilon is None
    assert "not clipped" in found.why


def test_units_do_not_mix() -> None:
    with pytest.raises(ConfigError, match="do not add up"):
        certify(
            [[CLIENT_EVENT, replace(CLIENT_EVENT, unit="record")]], "released", DELTA
        )


def test_a_certificate_keeps_unit_and_adjacency_in_json() -> None:
    found = certify([[CLIENT_EVENT]], "server", DELTA)
    again = Certificate.from_json(found.to_json())
    assert (again.unit, again.adjacency) == ("client", "replace-one")
    assert MechanismEvent.from_json(CLIENT_EVENT.to_json()) == CLIENT_EVENT


EVENT = replace(
    SHARED, release="upload", noise_multiplier=2.0, sampling="fixed-batch", parties=3
)
CLAIM = Claim(8.0, 1e-5, "a formula")


def test_the_number_stays_and_is_no_epsilon() -> None:
    proved = certify([[EVENT]], "server", 1e-5)
    word = proved.as_declared()
    assert (word.epsilon, word.declared, word.stated) == (
        None, proved.epsilon, proved.stated,
    )  # fmt: skip
    assert str(word) == f"declared {proved}"
    assert word.accountant == ""
    assert Certificate.from_json(json.loads(json.dumps(word.to_json()))) == word
    assert word.as_declared() == word


def test_nothing_that_reads_epsilon_takes_it_for_a_proof() -> None:
    fields = replace(certify([[EVENT]], "server", 1e-5), randomness="seed")
    word = fields.as_declared().fields()
    assert not is_repeatable(word)
    assert reconstruction_bounds(word) is None


def test_a_certificate_of_our_own_has_no_new_field() -> None:
    proved = certify([[EVENT]], "server", 1e-5)
    assert "declared" not in proved.fields()
    assert "declared" not in proved.to_json()


def test_no_record_used_is_a_word_too_but_what_was_not_sent_is_none() -> None:
    nothing = Claim(0.0, 1e-5, "no record is used")
    for sends, server in ((True, None), (False, 0.0)):
        record = privacy_record(nothing, [[]], sends_updates=sends, declared=True)
        assert record["certified"]["server"]["epsilon"] == server
        assert record["certified"]["released"]["epsilon"] is None
        assert record["certified"]["released"]["declared"] == 0.0


def test_an_earlier_versions_record_is_read_as_declared() -> None:
    before = privacy_record(CLAIM, [[EVENT.to_json()]], sends_updates=True)
    now = privacy_record(CLAIM, [[EVENT.to_json()]], sends_updates=True, declared=True)
    assert declared_only(before) == now == declared_only(now)


class Theirs(DPPromptFL):
    """Inherits all, and stands elsewhere."""


@pytest.mark.parametrize(("made", "own"), [(DPPromptFL(), True), (Theirs(), False)])
def test_a_class_is_our_own_where_its_code_stands(made: object, own: bool) -> None:
    assert TRAINERS.is_own(made) == own


def test_every_built_in_trainer_is_our_own() -> None:
    for name in TRAINERS.names():
        if not TRAINERS.package_of(name):
            assert TRAINERS.is_own(TRAINERS.find(name)())


@pytest.mark.parametrize("candidates", [10, 1000])
def test_the_best_guess_under_a_gaussian_mechanism_stays_below(candidates: int) -> None:
    """One of so many records is in; the adversary names the likeliest: exact leakage."""
    rng = np.random.default_rng(0)
    mu, trials = 1.0, 4000
    answers = rng.normal(size=(trials, candidates))
    answers[:, 0] += mu  # a direction of its own for each candidate
    guessed = (answers.argmax(1) == 0).mean()
    # a candidate's presence moves one coordinate by mu: add/remove-one is mu-GDP
    bound = min(
        reconstruction_bound(gaussian_epsilon(mu, delta), delta, 1 / candidates)
        for delta in np.logspace(-6, -1, 40).tolist()
    )
    assert 1 / candidates < guessed
    assert guessed - 3 * np.sqrt(guessed / trials) <= bound
    # the trade-off function's own bound, of which (epsilon, delta) pairs are tangents
    exact = ndtr(mu + ndtri(1 / candidates))
    assert exact <= bound <= 1.1 * exact


def test_nothing_is_said_where_epsilon_is_large() -> None:
    assert reconstruction_bound(18.6, 1e-5, 1e-6) == 1
    assert reconstruction_bound(1e6, 1e-5, 1e-6) == 1  # no overflow


def test_without_noise_hidden_records_are_as_likely_as_before() -> None:
    assert reconstruction_bound(0.0, 0.0, 0.01) == 0.01
