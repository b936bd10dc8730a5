"""A scenario as it was played on a run, and the interface of the parts that an audit adds.

Attacks are made, and scores meet the truth: of records, of groups that share a coin, or
of whole clients. Did a client take part at all? A coin for each client decides, before
training, whether it takes part with all of its candidates or not at all, so that both
kinds come from one distribution. The adversary has the model that comes of it, and sample
records of every client, of both kinds. A client's score is the mean of its records'
scores; the client counts once. Who sees single messages, or who gets a model of a
client's own, knows who took part: there is nothing to ask. So the adversary is an
outsider with the one model that all release.

Beside what its attacks found, an audit holds parts: what single rounds tell, what one
run shows about epsilon, and so on. Each is a file in :mod:`privaudit.auditing.parts`,
which registers its part here; none is named anywhere else. The parts are computed after
the attacks, stored in audit.json, read back from there, and shown in the report.

Source: whole clients as in Kandpal et al., "User inference attacks on large language
models", EMNLP 2024, which tests a user's mean statistic on fresh samples of the user;
there log-likelihood ratios against a reference model, here what a scenario's attacks
score.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.auditing.attack import Adversary, Attack, Scores, Target
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.named_attacks import package_of
from privaudit.auditing.scenario import Scenario
from privaudit.auditing.signal_cache import FOLDER, SignalStore
from privaudit.core.errors import AttackError, ConfigError, shown
from privaudit.core.lazy_torch import torch
from privaudit.core.parameters import from_plain, to_plain
from privaudit.core.portable_bits import computed_with
from privaudit.core.registry import Registry
from privaudit.federation.threat_models import EVERYBODY, without_names
from privaudit.federation.trainer import Reconstruction
from privaudit.runs.run import Run
from privaudit.runs.run_files import version
from privaudit.statistics.evidence import LIMITS, Limits
from privaudit.statistics.progress import Phase
from privaudit.statistics.verdict import Sampling

CERTAIN = 0.9  # the AUROC that an attack must expect to carry the verdict


def refuse_unit(run: Run, scenario: Scenario) -> None:
    """Refuse a question about clients or records that no coin was tossed for."""
    by_client = run.config.members == "clients"
    if scenario.unit == "client" and not by_client:
        raise AttackError(
            f"{scenario.name} asks which clients took part, and no coin decided that in "
            f"{run.name}: all of its clients are in. Train with --members clients."
        )
    if scenario.unit == "record" and by_client:
        raise AttackError(
            f"{scenario.name} asks about records, and in {run.name} a coin decided for "
            "whole clients: each has members or non-members, and no record can be "
            "compared with others of its client. Use --scenario client-membership."
        )


def all_candidates(run: Run) -> Int[np.ndarray, " candidates"]:
    """Return the positions of all clients' candidates, whether they took part or not."""
    return np.flatnonzero(run.population.split.owner >= 0)


def seen_from_outside(adversary: Adversary, run: str) -> Adversary:
    """Return an adversary who has the released model, and not from whom.

    Raises:
        AttackError: Nothing was released, or clients released models of their own.
    """
    view = without_names(adversary.view)
    count = len(view.messages)
    if count != 1:
        what = f"{count} models that differ" if count else "no model"
        raise AttackError(
            f"Who took part in {run} was asked, and its clients released {what}: the "
            "question is what one model that all share tells. Train with a method "
            "that averages, such as promptfl, and release it (--publish)."
        )
    return replace(adversary, view=view)


def target_clients(adversary: Adversary, run: Run) -> list[Target]:
    """Return the one target: the released model, and sample records of every client."""
    model = adversary.view.release_of(EVERYBODY).tensors
    candidates = run.population.pick(all_candidates(run))
    return [Target(EVERYBODY, Reconstruction(model), candidates)]


@dataclass(frozen=True)
class PlayedScenario:
    """What the parts of an audit are computed from.

    Attributes:
        run: The run, with the truth about members.
        scenario: As played: with those attacks that can read the run's models.
        targets: All attacked clients, as the adversary reconstructed them.
        clients: How many of them shadow models are trained for.
        limits: What of a leak does not matter to verdicts.
        results: What the attacks found, by name; the first one carries the verdict.
    """

    run: Run
    scenario: Scenario
    adversary: Adversary
    targets: Sequence[Target]
    clients: int | Literal["all"] = "all"
    limits: Limits = LIMITS
    results: Mapping[str, AttackResult] = field(default_factory=dict)

    @property
    def truth(self) -> dict[str, Bool[np.ndarray, " units"]]:
        """By client, which of its units were trained on: candidates, or groups."""
        ledger = self.run.ledger
        records = {t.client: self.records(t.client) for t in self.targets}
        return {
            client: ledger.is_member[of[ledger.units(of).first]]
            for client, of in records.items()
        }

    def by_unit(
        self, client: str, values: Shaped[np.ndarray, "*models candidates"]
    ) -> Shaped[np.ndarray, "*models units"]:
        """Return the means over records that share a coin; without groups, as they are.

        All that is set beside the truth is counted by these units: records of a group
        are members or none together, so that they are one trial and not many.
        """
        return self.run.ledger.units(self.records(client)).mean(values)

    def attack(
        self, scenario: Scenario, targets: Sequence[Target]
    ) -> dict[str, AttackResult]:
        """Return what a scenario's attacks find out about targets, by attack.

        The first carries the verdict: the scenario's first, or the one that expects the
        most of its own scores, if that is at least ``CERTAIN``. No truth is asked.
        """
        results: dict[str, AttackResult] = {}
        expected: dict[str, float] = {}
        for name, attack in scenario.attacks.items():
            self.adversary.tell(
                Phase("", "attack", name, len(results), len(scenario.attacks))
            )
            chosen = targets[: self._most] if attack.trains_shadows else targets
            scores = attack(self.adversary, chosen)
            results[name] = self._joined(name, attack, chosen, scores)
            expected[name] = min((one.expected for one in scores), default=0.0)
        first = max(expected, key=expected.__getitem__, default="")
        if expected.get(first, 0.0) < CERTAIN:
            return results
        return {first: results[first], **results}

    def attack_once(
        self, name: str, attack: Attack, adversary: Adversary, targets: Sequence[Target]
    ) -> AttackResult:
        """Return what one attack finds out.

        Raises:
            AttackError: It did not give each target's candidates finite scores.
        """
        return self._joined(name, attack, targets, attack(adversary, targets))

    def _joined(
        self,
        name: str,
        attack: Attack,
        targets: Sequence[Target],
        scores: Sequence[Any],  # as an attack of another package gave them
    ) -> AttackResult:
        """Return scores beside the truth."""
        if fault := fault_of_scores(scores, targets):
            raise AttackError(
                f"The attack {name!r} gave {fault}. That is a fault of the attack: fix "
                "it, and audit again."
            )
        pairs = list(zip(targets, scores, strict=True))
        joined = [self._beside_truth(target, scored) for target, scored in pairs]
        return evaluate_scores(
            name,
            repr(attack),
            attack.threshold,
            joined,
            package_of(name),
            self.run.sampling,
            self.limits,
        )

    @property
    def shadowed(self) -> Sequence[Target]:
        """Those targets that shadow models are trained for."""
        return self.targets[: self._most]

    @property
    def shadows(self) -> int:
        """How many shadow models the attacks train for each of them; 0 without any."""
        attacks = self.scenario.attacks.values()
        return max((getattr(a, "shadows", 0) for a in attacks), default=0)

    @property
    def _most(self) -> int | None:
        return None if self.clients == "all" else self.clients

    def records(self, client: str) -> Int[np.ndarray, " candidates"]:
        """Return the positions of a client's candidates in the data set."""
        if self.scenario.unit == "client":
            return all_candidates(self.run)
        asked_about = self.run.population.asked_about
        return asked_about(client, canaries=self.scenario.one_run)

    def _beside_truth(self, target: Target, scores: Scores) -> ClientScores:
        records = self.records(target.client)
        units = self.run.ledger.units(records)
        labels = target.candidates.labels.numpy()[units.first]
        return ClientScores(
            client=target.client,
            records=records[units.first],
            labels=0 * labels if self.scenario.unit == "client" else labels,
            scores=units.mean(scores.scores.astype(np.float64)),
            guesses=units.mean(scores.guesses) > 0.5,
            is_member=self.run.ledger.is_member[records[units.first]],
            left_out=None
            if scores.left_out is None
            else units.mean(scores.left_out.astype(np.float64)),
        )


def fault_of_scores(scores: object, targets: Sequence[Target]) -> str:
    """Return what is wrong with what an attack gave; empty if nothing is."""
    if not isinstance(scores, list | tuple) or len(scores) != len(targets):
        count = len(scores) if isinstance(scores, list | tuple) else "no"
        return f"{count} results for {len(targets)} targets"
    for target, scored in zip(targets, scores, strict=True):
        if not isinstance(scored, Scores):
            return f"a {type(scored).__name__} for {target.client}, and not Scores"
        if fault := _fault_of(scored, len(target.candidates)):
            return f"{fault} of {target.client}"
    return ""


def _fault_of(scored: Scores, count: int) -> str:
    """Return what is wrong with scores of so many candidates; empty if nothing is."""
    given: dict[str, Any] = {"scores": scored.scores, "guesses": scored.guesses}
    if scored.left_out is not None:
        given["scores without some shadows"] = scored.left_out
    for name, values in given.items():
        if not isinstance(values, np.ndarray):
            kind = type(values).__name__
            return f"{name} as a {kind}, and not as an array, for candidates"
        shape = values.shape[1:] if "without" in name else values.shape
        if shape != (count,):
            return f"{name} of shape {values.shape} for the {count} candidates"
        if name == "guesses" and values.dtype != bool:
            return "guesses that are not True or False for candidates"
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            return f"{name} that are not finite numbers for candidates"
    return ""


def store_beside(run: Run, threat: Sequence[str], seed: int) -> SignalStore | None:
    """Return where signals of shadow models are kept: beside the run.

    None where nobody knows whether models would still answer the same. ``threat`` has
    the name of the threat model, and of what models answer.
    """
    header = run.header
    if run.origin and not run.fingerprint:
        return None
    return SignalStore(
        run.path / FOLDER,
        {
            "run": [
                header["data_hash"],
                header["model_hash"],
                repr(run.config),
                *filter(None, [run.fingerprint]),
            ],
            "transcript": header["progress"]["head"],
            "threat": list(threat),
            "seed": seed,
            "versions": [version("privaudit"), version("torch")],
            "computed": {**computed_with(), "threads": torch.get_num_threads()},
        },
    )


R = TypeVar("R", covariant=True)
LATER = 100  # parts that came after the first version of audit.json
OWN_KEYS = frozenset(
    {
        "format", "run", "scenario", "question", "threat", "notes", "clients", "seed",
        "budget", "computed", "config", "privacy", "reconstruction", "utility", "attack_results",
    }
)  # fmt: skip
"""What an audit itself writes into audit.json, and no part may."""


@dataclass(frozen=True)
class AuditPart(Generic[R]):
    """One kind of result that an audit may hold beside its attacks.

    Whoever makes one enters it into the list.

    Attributes:
        name: In :attr:`privaudit.auditing.audit.Audit.parts`; that of its module.
        kind: The type of a result: dataclasses, estimates, numbers, texts, and tuples
            and mappings of them. pydantic writes and reads it by its fields.
        applies: Whether a scenario that was played has this part.
        compute: Returns the result where the part applies.
        nothing: The result where it does not.
        title: Heads the part in the report.
        key: In audit.json; by default the name.
        order: Among the parts of the first version of audit.json, which always has
            their keys. Later ones come last, and have a key only where they apply.
        scores: Before the names of attacks in scores.npz, for a part whose result is a
            mapping of attack results: scores are kept, and figures made from them anew.
        of_known: Returns the result of scores that were computed elsewhere, with numbers
            of each record that hold nothing of the trained model; None for a part that
            takes none.
        again: Returns a result that was read as the run, the kept scores of the headline
            and the threat model give it; None where they do not.
        says: Returns what a result says in sentences, which stand in terminal and report
            in place of its numbers; it is given the audit's sampling, too.
        numbers: Returns what of a result a table of the report shows, by name; by default
            all that it holds, or nothing where it says sentences.
        of_records: Returns what pages that show records say of them, or nothing: HTML as
            markupsafe.Markup, and any other text is escaped. It is given what returns a
            record's picture by position, as an address or None.
    """

    name: str
    kind: Any
    applies: Callable[[PlayedScenario], bool]
    compute: Callable[[PlayedScenario], R]
    nothing: R
    title: str
    key: str = ""
    order: int = LATER
    scores: str = ""
    of_known: Callable[[AttackResult, Float[np.ndarray, "_ _"]], Any] | None = None
    again: Callable[[Any, Run, AttackResult, str], Any] | None = None
    says: Callable[[Any, Sampling], list[str]] | None = None
    numbers: Callable[[Any], Mapping[str, Any]] | None = None
    of_records: Callable[[Any, Callable[[int], str | None]], str] | None = None

    def __post_init__(self) -> None:
        if self.entry in OWN_KEYS:
            raise ConfigError(
                f"The audit part {shown(self.name)} writes {shown(self.entry)} of "
                "audit.json, which is the audit's own. Give it a key of its own."
            )
        PARTS.register(self.name)(self)

    @property
    def entry(self) -> str:
        """The key in audit.json."""
        return self.key or self.name

    def scored(self, result: Any) -> dict[str, Any]:
        """Return what a result, or its entry, holds of attacks, as scores.npz names them."""
        return (
            {f"{self.scores}{n}": r for n, r in result.items()} if self.scores else {}
        )

    def to_json(self, result: Any) -> Any:
        """Return a result as audit.json holds it."""
        if self.scores:
            return {name: one.to_dict() for name, one in result.items()}
        return to_plain(self.kind, result)

    def from_json(self, entry: Any, scored: Mapping[str, AttackResult]) -> Any:
        """Return the result that :meth:`to_json` wrote; attacks go by their names in scores.npz.

        Raises:
            ValueError: The entry is damaged, or of another version.
        """
        if self.scores:
            return {name: scored[f"{self.scores}{name}"] for name in entry}
        return from_plain(self.kind, entry)


PARTS: Registry[AuditPart[Any]] = Registry("audit part", "privaudit.auditing.parts")


def audit_parts() -> list[AuditPart[Any]]:
    """Return all parts in their order."""
    return sorted(PARTS.usable().values(), key=lambda p: (p.order, p.name))


def stored_parts(found: Iterable[str]) -> list[AuditPart[Any]]:
    """Return the parts that an audit.json holds, by the names or keys of those found."""
    names = set(found)
    return [p for p in audit_parts() if p.order < LATER or {p.name, p.entry} & names]
