"""Data usage: how much of its candidates a client trained on, by their signals.

A membership inference attack asks of each record; here its guesses are counted, and the
count freed of their errors. The shadow models are those of the scenario's attacks.

Source: Tong et al., ICLR 2025: see :func:`privaudit_labs.profiles.shares.estimated_usage`.
"""

from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.shadow_models import shadow_signals
from privaudit_labs.profiles.client_profile import NAME
from privaudit_labs.profiles.shares import (
    InferredShare,
    InferredShares,
    estimated_usage,
)

CANDIDATES = "of its candidates"


def infer_usage(played: PlayedScenario) -> InferredShares:
    """Estimate each attacked client's share of candidates that it trained on."""
    signals = shadow_signals(
        played.adversary, played.shadowed, played.shadows, source="candidates"
    )
    shares = {}
    for target, of_target in zip(played.shadowed, signals, strict=True):
        known = of_target.candidates
        estimated = estimated_usage(
            known.target.confidence[0].double().numpy(),
            known.signals.confidence.double().numpy(),
            known.is_in.numpy(),
        )
        is_member = played.run.ledger.is_member[played.records(target.client)]
        actual = float(is_member.mean())  # of records, as estimated, not of groups
        shares[target.client] = {CANDIDATES: InferredShare(estimated, actual)}
    share = played.run.population.task.member_share
    return InferredShares.of(shares, {CANDIDATES: share})


DATA_USAGE = AuditPart(
    "data_usage",
    InferredShares | None,
    applies=lambda played: played.scenario.name == NAME and played.shadows > 1,
    compute=infer_usage,
    nothing=None,
    title="Share of candidates that was trained on",
)
