"""What came of playing a scenario on a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privaudit.auditing.assurance import Assurance, assure, covering
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit_part import AuditPart, R, audit_parts, stored_parts
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.auditing.repetition.audit_log import Tried
from privaudit.auditing.scenario import Scenario
from privaudit.auditing.shadow_models.budget import ShadowBudget
from privaudit.core.errors import ConfigError
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import Utility
from privaudit.privacy.reconstruction_robustness import reconstruction_bounds
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Verdict


@dataclass(frozen=True, repr=False)
class Audit:
    """What a scenario found out about one run; as a text it is the headline AUROC.

    Attributes:
        scenario: Who looked on, and what was tried.
        results: By attack; the first one carries the verdict.
        utility: Accuracy of the personal models; None where nobody can measure it.
        seed: Of the adversary's own randomness.
        budget: What a budget for shadow models paid for; None where they were numbered,
            or there were none to train.
        parts: What else was computed, by the name of the part; see :meth:`part`.
        tried: How often the run was audited, which the headline's verdict counts.
        computed: Which bits it has, and of which library builds
            (:func:`privaudit.core.portable_bits.computed_with`); empty: not stated.
    """

    run: Run
    scenario: Scenario
    results: Mapping[str, AttackResult]
    utility: Utility | None
    seed: int
    budget: ShadowBudget | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    tried: Tried = field(default_factory=Tried)
    computed: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"AUROC {self.auroc}"

    def __repr__(self) -> str:
        return f"<Audit of {self.run.name}, {self.scenario.name}: {self}>"

    def part(self, part: AuditPart[R]) -> R:
        """Return what a part found; where it does not apply, its nothing."""
        result: R = self.parts.get(part.name, part.nothing)
        return result

    @property
    def scored(self) -> dict[str, AttackResult]:
        """All attack results, those in parts too, by their names in scores.npz."""
        results = dict(self.results)
        for part in audit_parts():
            results |= part.scored(self.part(part))
        return results

    @property
    def headline(self) -> AttackResult:
        """The leak that the verdict is about."""
        return next(iter(self.results.values()))

    @property
    def measured_utility(self) -> Utility:
        """The utility.

        Raises:
            ConfigError: Nobody measured it.
        """
        if self.utility is None:
            raise ConfigError(
                f"The utility of {self.run.name} was requested, and it was not "
                "measured. Give its models and test records, or leave utility out."
            )
        return self.utility

    @property
    def auroc(self) -> Estimate:
        """The headline attack's AUROC."""
        return self.headline.auroc

    @property
    def verdict(self) -> Verdict:
        """What may be said of a leak, by the headline attack."""
        return self.headline.verdict

    @property
    def claimed_epsilon(self) -> float | None:
        """The epsilon that the method claims by its own formula."""
        return self.run.privacy["claimed"]["epsilon"]

    @property
    def certified_epsilon(self) -> float | None:
        """The epsilon that is proved in this scenario's view; None if nothing is."""
        return self.certificate["epsilon"]

    @property
    def declared_epsilon(self) -> float | None:
        """The epsilon of mechanisms that a run's owner or a plugin declares; no proof."""
        return self.certificate.get("declared")

    @property
    def certificate(self) -> dict[str, Any]:
        """What is proved in this scenario's view: "peer" of "peer:client-3"."""
        view = self.scenario.threat.partition(":")[0]
        proved = self.run.privacy["certified"][view]
        return covering(proved, self.scenario.unit, self.run.truth.group)

    @property
    def assurance(self) -> Assurance:
        """What is proved in this view, beside what the attacks found."""
        one_run = self.part(ONE_RUN)
        refuted = one_run is not None and one_run.refutes
        return assure(self.claimed_epsilon, self.certificate, refuted=refuted)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of audit.json."""
        parts = {
            part.entry: part.to_json(self.part(part))
            for part in stored_parts(self.parts)
        }
        return {
            "run": self.run.name,
            "scenario": self.scenario.name,
            "question": self.scenario.question,
            "threat": self.scenario.threat,
            "clients": self.run.config.clients,
            "seed": self.seed,
            **({"budget": vars(self.budget)} if self.budget else {}),
            **({"computed": dict(self.computed)} if self.computed else {}),
            "config": self.run.config.model_dump(),
            "privacy": {
                "claimed": self.run.privacy["claimed"],
                "certified": self.certificate,
            },
            "reconstruction": reconstruction_bounds(self.certificate),
            "utility": self.utility
            and {
                **self.utility.to_dict(),
                "local_last_10_rounds": last_rounds(self.run),
            },
            CLOSENESS.entry: parts.pop(CLOSENESS.entry),  # before the attacks
            "leaks": {name: leak.to_dict() for name, leak in self.results.items()},
            **parts,
        }


def last_rounds(run: Run) -> float | None:
    """Return the mean accuracy of the last ten measured rounds; None without any."""
    all_rounds = [line["local_accuracy"] for line in run.metrics]
    last = [value for value in all_rounds if value is not None][-10:]
    return sum(last) / len(last) if last else None
