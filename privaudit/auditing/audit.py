"""What came of playing a scenario on a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privaudit.auditing.assurance import Assurance, assure
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.parts.closeness import Closeness
from privaudit.auditing.parts.leakage_by_round import RoundLeak
from privaudit.auditing.parts.linkage_gain import Linking
from privaudit.auditing.parts.one_run import OneRunAudit
from privaudit.auditing.parts.source_inference import SourceInference
from privaudit.auditing.scenario import Scenario
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import Utility
from privaudit.statistics.estimate import Estimate


@dataclass(frozen=True)
class Audit:
    """What a scenario found out about one run.

    Attributes:
        run: The run.
        scenario: Who looked on, and what was tried.
        results: By attack; the first one carries the verdict.
        utility: Accuracy of the personal models.
        missing: What of a client's model the view did not show.
        staleness: Rounds by which the oldest rebuilt model lags its client.
        closeness: How close the rebuilt models are to the true ones, where the view
            does not simply hold them.
        seed: Of the adversary's own randomness.
        linking: What models without names told beyond the rest of the view, where the
            adversary had any.
        aggregate: The same attacks on the server's own model in place of the clients',
            where the adversary rebuilt those; empty otherwise.
        rounds: What single rounds tell, where the scenario asks when it leaked.
        source: How often the right client is named, where the scenario asks whose a
            record is.
        one_run: What canaries show about epsilon, where the scenario asks.
    """

    run: Run
    scenario: Scenario
    results: Mapping[str, AttackResult]
    utility: Utility
    missing: tuple[str, ...]
    staleness: int
    closeness: Closeness | None
    seed: int
    linking: Linking | None = None
    aggregate: Mapping[str, AttackResult] = field(default_factory=dict)
    rounds: tuple[RoundLeak, ...] = ()
    source: SourceInference | None = None
    one_run: OneRunAudit | None = None

    @property
    def headline(self) -> AttackResult:
        """The leak that the verdict is about."""
        return next(iter(self.results.values()))

    @property
    def guesses(self) -> AttackResult:
        """The leak that success rates are told of: of guesses learned on shadows.

        Without shadow models it is the headline.
        """
        attacks = self.scenario.attacks.items()
        shadowed = {name for name, attack in attacks if attack.trains_shadows}
        learned = [leak for name, leak in self.results.items() if name in shadowed]
        return learned[0] if learned else self.headline

    @property
    def auroc(self) -> Estimate:
        """The headline attack's AUROC."""
        return self.headline.auroc

    @property
    def claimed_epsilon(self) -> float | None:
        """The epsilon that the method claims by its own formula."""
        return self.run.privacy["claimed"]["epsilon"]

    @property
    def certified_epsilon(self) -> float | None:
        """The epsilon that is proved in this scenario's view; None if nothing is."""
        return self.certificate["epsilon"]

    @property
    def certificate(self) -> dict[str, Any]:
        """What is proved in this scenario's view: "peer" of "peer:client-3"."""
        return self.run.privacy["certified"][self.scenario.threat.partition(":")[0]]

    @property
    def assurance(self) -> Assurance:
        """What is proved in this view, beside what the attacks found."""
        refuted = self.one_run is not None and self.one_run.refutes
        return assure(self.claimed_epsilon, self.certificate, refuted=refuted)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of audit.json."""
        utility = self.utility
        return {
            "run": self.run.name,
            "scenario": self.scenario.name,
            "question": self.scenario.question,
            "threat": self.scenario.threat,
            "clients": self.run.config.clients,
            "seed": self.seed,
            "config": self.run.config.model_dump(),
            "privacy": {
                "claimed": self.run.privacy["claimed"],
                "certified": self.certificate,
            },
            "utility": {
                "local": utility.local.to_dict(),
                "neighbour": utility.neighbour and utility.neighbour.to_dict(),
                "mix": utility.mix.to_dict(),
                "gain_over_zero_shot": utility.gain.to_dict(),
                "zero_shot": utility.zero_shot.to_dict(),
                "metric": utility.metric,
                "server": utility.server and utility.server.to_dict(),
                "everywhere": utility.everywhere and utility.everywhere.to_dict(),
                "captions": {
                    who: {name: e.to_dict() for name, e in metrics.items()}
                    for who, metrics in utility.captions.items()
                },
                "macro_f1": utility.macro_f1 and utility.macro_f1.to_dict(),
                "local_last_10_rounds": _last_rounds(self.run),
            },
            "rebuilt": {
                "missing": list(self.missing),
                "staleness": self.staleness,
                "closeness": self.closeness and self.closeness.to_dict(),
            },
            "leaks": {name: leak.to_dict() for name, leak in self.results.items()},
            "server_model": {n: leak.to_dict() for n, leak in self.aggregate.items()},
            "linking": self.linking and self.linking.to_dict(),
            "rounds": [one.to_dict() for one in self.rounds],
            "source": self.source and self.source.to_dict(),
            "one_run": self.one_run and self.one_run.to_dict(),
        }


def _last_rounds(run: Run) -> float:
    """Return the mean accuracy of the last ten rounds that were measured."""
    all_rounds = [line["local_accuracy"] for line in run.metrics]
    last = [value for value in all_rounds if value is not None][-10:]
    return sum(last) / len(last)
