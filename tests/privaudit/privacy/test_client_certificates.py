from dataclasses import replace

import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from privaudit.core.errors import ConfigError
from privaudit.privacy.accountant import SamplingPhase, epsilon_of, tightest_epsilon
from privaudit.privacy.certificate import Certificate, CertifiedView, certify
from privaudit.privacy.events import MechanismEvent
from tests.privaudit.privacy.test_certificate import DELTA, SHARED

CLIENT_EVENT = replace(
    SHARED, noise_multiplier=8.0, sensitivity=2.0, sampling_rate=0.3,
    sampling="without-replacement", noise_at="distributed", parties=3,
    per_record=False, unit="client", adjacency="replace-one",
)  # fmt: skip


def test_drawing_clients_without_replacement_is_dp_accountings() -> None:
    theirs = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    event = SampledWithoutReplacementDpEvent(10, 3, GaussianDpEvent(4.0))
    theirs.compose(event, 20)
    found = certify([[CLIENT_EVENT]] * 20, "released", DELTA)
    assert found.epsilon == pytest.approx(theirs.get_epsilon(DELTA))
    unsampled = epsilon_of([SamplingPhase(4.0, 1.0, 20)], DELTA, "gaussian-exact")
    assert float(found.epsilon or 99) < unsampled


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
