from privaudit import Auditor, train
from privaudit.auditing.parts.closeness import measure_closeness
from privaudit.auditing.scenario import SCENARIOS


def closeness_of(**settings: object) -> tuple[float, float]:
    run = train("dp-fpl", rounds=15, seed=5, settings=settings)
    scenario = SCENARIOS.find("server-reconstruct")(shadows=5)
    found = measure_closeness(run, *Auditor(run).prepare(scenario))
    assert found is not None
    return found.cosine.low, found.cosine_null.high


def test_a_server_rebuilds_what_a_full_rank_client_added() -> None:
    """The upload is the gradient of the private prompt, so integrating it is exact."""
    low, null = closeness_of(rank="full")
    assert low > 0.99
    assert null < 0.9


def test_at_low_rank_the_rebuilt_prompt_is_nearer_to_its_own_client() -> None:
    low, null = closeness_of(rank=4, learning_rate_local=0.02)
    assert low > null
