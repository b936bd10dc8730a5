"""The audit of a run under a scenario: its results, its verdict, and what is proved beside it.

An attack that finds nothing says nothing about the next attack, so "no leak found" is
good news only where a proof covers what no attack has tried: that is the assurance. The
verdict holds for all audits of a run together, not for the best of them.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from importlib import import_module
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from privaudit.auditing.attack_result import AttackResult, with_audits
from privaudit.auditing.audit_log import AuditTally, tally_of
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.auditing.parts.pool import POOL
from privaudit.auditing.played_scenario import AuditPart, R, audit_parts, stored_parts
from privaudit.auditing.scenario import SCENARIOS, Scenario, find_plan
from privaudit.auditing.shadow_budget import ShadowBudget
from privaudit.core.errors import ConfigError, PluginError, UnknownNameError
from privaudit.privacy.certificate import (
    REPEATABLE,
    is_repeatable,
    reconstruction_bounds,
)
from privaudit.runs.run import Run
from privaudit.runs.utility import Utility
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Sampling, Verdict

FORMAT = 3
"""Of audit.json: codes and numbers alone. Verdicts of earlier ones knew an average alone."""
_FRAMES = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}
_ROUNDING = 1e-9  # relative: an accountant's last digits


@dataclass(frozen=True)
class Assurance:
    """What is proved against an adversary, beside what is claimed.

    Attributes:
        kind: "proved": an epsilon, and no larger than the claimed one, if any is.
            "refuted": canaries show more than is claimed, or than is certified.
            "unproved": neither.
        short: What is missing, in two or three words; nothing where it is proved.
        sentence: The same with its numbers; nothing where it is proved.
        sampling: How members were chosen: no sentence says more where no coin did.
    """

    kind: Literal["proved", "unproved", "refuted"]
    short: str = ""
    sentence: str = ""
    sampling: Sampling = "coin"


def assure(
    claimed: float | None, certificate: Mapping[str, Any], *, refuted: bool
) -> Assurance:
    """Return what stands behind a run's verdict in one view, by its certificate there.

    Example:
        >>> assure(8.0, {"epsilon": None}, refuted=False).short
        'claim not proved'
    """
    epsilon = certificate["epsilon"]
    if refuted:
        said = "Canaries show a larger epsilon than is claimed or certified."
        return Assurance("refuted", "claim refuted", said)
    if epsilon is None and claimed is None:
        said = "Nothing is claimed and nothing is proved: another attack may find more."
        return Assurance("unproved", "nothing proved", said)
    declared = certificate.get("declared")
    if claimed is not None and (epsilon is None or epsilon > claimed * (1 + _ROUNDING)):
        proved = "nothing" if epsilon is None else f"{epsilon:.3g}"
        if declared is not None:
            proved += f", declared is {declared:.3g}"
        said = (
            f"The claimed epsilon of {claimed:.3g} is not proved against this "
            f"adversary: proved is {proved}. Another attack may find more."
        )
        return Assurance("unproved", "claim not proved", said)
    if is_repeatable(certificate):
        said = (
            "The noise follows from the run's seed, and whoever guesses that removes "
            f"it: {REPEATABLE}."
        )
        return Assurance("unproved", "not private", said)
    return Assurance("proved")


def covering(
    certificate: dict[str, Any],
    unit: Literal["record", "client"],
    group: Int[np.ndarray, " records"] | None = None,
) -> dict[str, Any]:
    """Return a certificate as far as it covers what is asked about.

    One for a record covers no client, who has many, and no group of several records
    that share a coin; one for a client, its records and their groups too. ``group`` has
    each record's number of its coin; None where each had its own.
    """
    shared = group is not None and len(np.unique(group)) < len(group)
    if certificate["unit"] == "client" or (unit == "record" and not shared):
        return certificate
    whole = "a client" if unit == "client" else "a group that shares a coin"
    said = f"What is proved is for one record, and {whole} has many."
    proved = certificate["epsilon"] is not None
    why = f"{said} {certificate['why']}" if proved else certificate["why"]
    covered = {n: v for n, v in certificate.items() if n != "declared"}
    return {**covered, "epsilon": None, "why": why}


@dataclass(frozen=True, repr=False)
class Audit:
    """What a scenario found out about one run; as a text it is the headline AUROC.

    Attributes:
        scenario: Who looked on, and what was tried.
        results: By attack; the first one carries the verdict.
        utility: Accuracy of the personal models; None where nobody can measure it.
        budget: What a budget for shadow models paid for; None where they were numbered,
            or there were none to train.
        parts: What else was computed, by the name of the part; see :meth:`part`.
        tally: How often the run was audited, which the headline's verdict counts.
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
    tally: AuditTally = field(default_factory=AuditTally)
    computed: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"AUROC {self.auroc}"

    def __repr__(self) -> str:
        return f"<Audit of {self.run.name}, {self.scenario.name}: {self}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the verdict, and each attack's numbers."""
        rows = [
            f"<tr><td>{escape(name)}</td><td>{escape(str(one.auroc))}</td>"
            f"<td>{escape(str(one.tpr))}</td></tr>"
            for name, one in self.results.items()
        ]
        return (
            f"<p><b>{escape(self.run.name)}, {escape(self.scenario.name)}</b>: "
            f"{escape(self.verdict.sentence)}</p><table><tr><th>attack</th>"
            f"<th>AUROC [95 %]</th><th>TPR at 1 % FPR</th></tr>{''.join(rows)}</table>"
        )

    def metrics(self) -> dict[str, float]:
        """Return numbers for an experiment tracker, those that there are.

        ``mlflow.log_metrics(audit.metrics())``, ``wandb.log(audit.metrics())``, and
        ``for name, value in audit.metrics().items(): writer.add_scalar(name, value)``
        take them as they are.
        """
        estimates = {"auroc": self.auroc, "tpr_at_fpr_0.01": self.headline.tpr}
        if self.utility is not None:
            estimates["utility"] = self.utility.local
        found: dict[str, float | None] = {
            "epsilon_claimed": self.claimed_epsilon,
            "epsilon_certified": self.certified_epsilon,
        }
        for name, one in estimates.items():
            found |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
        known = {n: v for n, v in found.items() if v is not None}
        return {n: float(v) for n, v in known.items() if math.isfinite(v)}

    def to_frame(self) -> Any:
        """Return every score beside the truth, as a frame of pandas, polars or pyarrow.

        Of the first of them that is installed. A row for each attack and candidate;
        record is its position in the data set.

        Raises:
            ConfigError: None is installed.
        """
        columns = self._columns()
        for package, kind in _FRAMES.items():
            with suppress(ModuleNotFoundError):
                return getattr(import_module(package), kind)(columns)
        raise ConfigError(
            f"A data frame was requested, and none of {', '.join(_FRAMES)} is installed. "
            "Install one, or read scores.npz."
        )

    def _columns(self) -> dict[str, np.ndarray]:
        """Return the columns of :meth:`to_frame`."""
        parts = [
            (name, c) for name, found in self.results.items() for c in found.clients
        ]
        counts = [len(client.scores) for _, client in parts]
        known = {
            "record": [client.records for _, client in parts],
            "label": [client.labels for _, client in parts],
            "score": [client.scores for _, client in parts],
            "guess": [client.guesses for _, client in parts],
            "member": [client.is_member for _, client in parts],
        }
        return {
            "attack": np.repeat([name for name, _ in parts], counts),
            "client": np.repeat([client.client for _, client in parts], counts),
            **{name: np.concatenate(values) for name, values in known.items()},
        }

    def part(self, part: AuditPart[R]) -> R:
        """Return what a part found; where it does not apply, its nothing."""
        return self.parts.get(part.name, part.nothing)

    @property
    def scored(self) -> dict[str, AttackResult]:
        """All attack results, those in parts too, by their names in scores.npz."""
        results = dict(self.results)
        for part in audit_parts():
            results |= part.scored(self.part(part))
        return results

    @property
    def headline(self) -> AttackResult:
        """The attack's result that the verdict is about."""
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
            "format": FORMAT,
            "run": self.run.name,
            "scenario": self.scenario.name,
            **_own_question(self.scenario),
            "threat": self.scenario.threat,
            **({"notes": dict(self.scenario.notes)} if self.scenario.notes else {}),
            "clients": self.run.config.clients,
            "seed": self.seed,
            **({"budget": vars(self.budget)} if self.budget else {}),
            **({"computed": dict(self.computed)} if self.computed else {}),
            "config": self.run.config.model_dump(),
            "privacy": {
                "claimed": _without_words(self.run.privacy["claimed"]),
                "certified": _without_words(self.certificate),
            },
            "reconstruction": reconstruction_bounds(self.certificate),
            "utility": self.utility
            and {
                **self.utility.to_dict(),
                "local_last_10_rounds": last_rounds(self.run),
            },
            CLOSENESS.entry: parts.pop(CLOSENESS.entry),  # before the attacks
            "attack_results": {n: r.to_dict() for n, r in self.results.items()},
            **parts,
        }


def _own_question(scenario: Scenario) -> dict[str, str]:
    """Return what a scenario asks, where its name does not say it: one of somebody's own."""
    with suppress(UnknownNameError, PluginError):
        known = find_plan(scenario.name).question
        if scenario.question == known and not SCENARIOS.package_of(scenario.name):
            return {}
    return {"question": scenario.question}


def _without_words(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return codes and numbers of a claim or certificate; privacy.json has the words."""
    return {n: v for n, v in entry.items() if n not in ("source", "mechanism", "why")}


def last_rounds(run: Run) -> float | None:
    """Return the mean accuracy of the last ten measured rounds; None without any."""
    all_rounds = [line["local_accuracy"] for line in run.metrics]
    last = [value for value in all_rounds if value is not None][-10:]
    return sum(last) / len(last) if last else None


def recount(audit: Audit) -> Audit:
    """Return an audit with its verdict as the log of its run has it now.

    A pool's counts the audits that its runs had when it was made.
    """
    headline, run = audit.headline, audit.run
    if not run.is_stored or audit.part(POOL):
        return audit
    tally = tally_of(run, headline.attack, headline.auroc)
    first = next(iter(audit.results))
    held = with_audits(headline, run.sampling, tally.different)
    return replace(audit, results={**audit.results, first: held}, tally=tally)
