import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.privacy.accountant import SamplingPhase, epsilon_of, noise_multiplier_for
from privaudit.privacy.certificate import (
    Certificate,
    CertifiedView,
    certify,
    effective_noise,
)
from privaudit.privacy.events import MechanismEvent, NoiseAt, sensitivity
from privaudit.statistics.epsilon.gaussian_mechanism import gaussian_epsilon

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
    ],
)
def test_an_event_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} = {value}"):
        MechanismEvent.from_json(SHARED.to_json() | {field: value})


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
