"""Attacks on the server's own model, in place of the clients'.

Where models write, the server has a model of its own: the average of all clients'. The
attacks on it are the yardstick for what reconstructing each client adds.
"""

from collections.abc import Mapping
from dataclasses import replace

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.federation.trainer import Reconstruction

SERVER = "server model/"  # before an attack's name in scores.npz


def _attack(played: PlayedScenario) -> Mapping[str, AttackResult]:
    model = played.run.own_model
    assert model is not None  # where the part applies
    common = Reconstruction(model)
    targets = [replace(target, reconstructed=common) for target in played.targets]
    # Shadows are reconstructed models, and what clients sent is the same as before: both
    # are no measure of the server's own model.
    return played.attack(played.scenario.without_shadows().on_models(), targets)


SERVER_MODEL: AuditPart[Mapping[str, AttackResult]] = AuditPart(
    "server_model",
    Mapping[str, AttackResult],
    applies=lambda p: p.scenario.threat == "server" and p.run.own_model is not None,
    compute=_attack,
    nothing={},
    title="Reconstruction",
    order=2,
    scores=SERVER,
)
