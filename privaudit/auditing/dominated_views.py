"""What an adversary can do in the place of one that sees less.

Whoever can compute a weaker adversary's view from its own can make that adversary's
attacks too, and so is never worse off than it. A rebuilt client is mostly the better
target, but not always: what all clients sum up to may tell more than a bad guess at one
of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.linkage import link_targets
from privaudit.auditing.named_attacks import attack_in_place
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.auditing.query_access import Answers, answering
from privaudit.auditing.scenario import SCENARIOS, Scenario
from privaudit.core.errors import ViewError
from privaudit.core.tensors import equal
from privaudit.federated.transcripts.threat_models import find_threat
from privaudit.statistics.progress import Phase

Place = tuple[Scenario, Adversary, list[Target]]


def attack_as_weaker(played: PlayedScenario) -> dict[str, AttackResult]:
    """Make the named attack of each adversary that sees less, by its name.

    None is made where the server has a model of its own: attacks on that one show what
    all clients sum up to.
    """
    results: dict[str, AttackResult] = {}
    if played.run.own_model is not None:
        return results
    for weaker, less, weaker_targets in as_weaker(
        played.scenario, played.adversary, played.targets
    ):
        attack, made = next(iter(weaker.attacks.items()))
        name = attack_in_place(attack, weaker.name)
        made_before = len(played.results) + len(results)
        less.tell(Phase("", "attack", name, made_before, made_before + 1))
        results[name] = played.attack_once(name, made, less, weaker_targets)
    return results


def as_weaker(
    scenario: Scenario, adversary: Adversary, targets: Sequence[Target]
) -> Iterator[Place]:
    """Yield each weaker scenario, with what this adversary then is and attacks.

    Its views are computed from ``adversary.view`` alone. Left out is what shows the
    same models again, answering alike, and views that a run's trainer does not allow.
    The targets stay the same clients, asked about the same candidates.
    """
    seen: list[tuple[Answers, Sequence[Target]]] = [(scenario.answers, targets)]
    kind = adversary.task.kind
    for name in scenario.dominates:
        weaker = SCENARIOS.find(name)().without_shadows().for_task(kind)
        if weaker.answers == "labels" and kind == "generation":
            continue
        try:
            less, weaker_targets = _in_place_of(weaker, adversary, targets)
        except ViewError:
            continue
        if not any(weaker.answers == a and _alike(weaker_targets, t) for a, t in seen):
            seen.append((weaker.answers, weaker_targets))
            yield weaker, less, weaker_targets


def _in_place_of(
    weaker: Scenario, adversary: Adversary, targets: Sequence[Target]
) -> tuple[Adversary, list[Target]]:
    threat = find_threat(weaker.threat)
    less = replace(
        adversary,
        trainer=answering(adversary.trainer, weaker.answers, adversary.task.kind),
        threat=threat,
        view=threat(adversary.view.messages),
        store=None,  # no shadow model is trained here
    )
    reconstructed = [
        replace(t, reconstructed=less.reconstruct(t.client)) for t in targets
    ]
    return less, link_targets(less, reconstructed)


def _alike(some: Sequence[Target], others: Sequence[Target]) -> bool:
    """Say whether the same was rebuilt of every client."""
    pairs = zip(some, others, strict=True)
    return all(equal(a.reconstructed.model, b.reconstructed.model) for a, b in pairs)
