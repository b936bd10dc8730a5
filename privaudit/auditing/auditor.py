"""The auditor: plays a scenario's adversary on a run, and joins scores and truth."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Shaped

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_part import audit_parts
from privaudit.auditing.dominated_views import attack_as_weaker
from privaudit.auditing.external_models import ShadowAttack, SignalScale, shadow_scores
from privaudit.auditing.linkage import link_targets
from privaudit.auditing.model_outputs import Array, as_array
from privaudit.auditing.named_attacks import (
    Attacks,
    check_arguments,
    check_played,
    named_attacks,
)
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.auditing.query_access import answering
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.auditing.scores.score_table import Names, ScoreTable
from privaudit.auditing.scores.scored_audit import Declared, audit_scores
from privaudit.auditing.signals.signal_cache import SignalStore
from privaudit.core.errors import AttackError, ConfigError, UnknownNameError
from privaudit.core.seeds import Seeds
from privaudit.federated.participants import trained_clients
from privaudit.federated.runs.config import RunConfig
from privaudit.federated.runs.folder.own_files import refuse_link
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import Utility, measure_clients
from privaudit.federated.trainer import ClientId
from privaudit.federated.transcripts.threat_models import find_threat
from privaudit.models.interfaces import OwnersModel, TaskKind
from privaudit.recording.origins.scores import SCORES
from privaudit.statistics.delong import checked_scores
from privaudit.statistics.progress import Event, Phase, Watcher, watching
from privaudit.statistics.verdict import Sampling

_SIGNALS = "audits/signals"
USUAL_SHADOWS: Mapping[TaskKind, int] = {"classification": 50, "generation": 0}
"""50 are published; each takes minutes of a model that writes."""


def refuse_all_members(config: RunConfig, what: str = "The run is trained") -> None:
    """Refuse a run without non-members, finished or planned."""
    if config.members == "all":
        raise AttackError(
            f"{what} on all candidates, so there are no non-members to tell members "
            'from. Use members = "coin" (--members coin).'
        )


class Auditor:
    """Runs a scenario's attacks on a run, and evaluates their scores.

    Example:
        >>> from privaudit import train
        >>> run = train("promptfl", rounds=2, seed=7)
        >>> audit = Auditor(run).attack("server-reconstruct", clients=1, shadows=5)
        >>> 0 <= audit.auroc.low <= audit.auroc.value <= audit.auroc.high <= 1
        True
    """

    def __init__(self, run: Run | str | None = None) -> None:
        loaded = run if isinstance(run, Run) else load_run(run)
        refuse_all_members(loaded.config, f"{loaded.name} is trained")
        for name in ("audits", _SIGNALS):
            refuse_link(loaded.path / name)
        self.run = loaded.require_complete()

    def attack(
        self,
        scenario: str | Scenario = "server-reconstruct",
        *,
        attacks: Attacks = (),
        clients: int | Literal["all"] = 3,
        shadows: int | None = None,
        seed: int = 0,
        watcher: Watcher | None = None,
    ) -> Audit:
        """Run a scenario's attacks on the run, and return the audit.

        Args:
            scenario: Its name, or one of your own.
            attacks: Made besides the scenario's own, of which the first carries the
                verdict all the same: NAME or NAME:key=value,key=value each, or attacks
                of your own by label.
            clients: How many clients to train shadow models for, in their fixed order,
                or all of them. Attacks without shadow models attack everyone.
            shadows: Shadow models for each of them; 0 leaves those attacks out. By
                default 50, and 0 for generation: a model that writes takes minutes.
            seed: Of the adversary's randomness.
            watcher: Called with a :class:`privaudit.cli.progress.Phase` of what is done next.

        Raises:
            UnknownNameError: No scenario, or no attack, has that name.
            ConfigError: Fewer than one client, fewer than five shadows, or no attack
                of the scenario takes models of the run's task.
            ViewError: The threat model does not fit the trainer.
        """
        check_arguments(scenario, clients, shadows, seed, attacks)
        with watching(self.run.name, watcher):
            plan = self.plan(scenario, attacks, shadows)
        adversary, targets = self.prepare(plan, seed=seed, watcher=watcher)
        played = PlayedScenario(self.run, plan, adversary, targets, clients)
        played = replace(played, results=played.attack(plan, targets))
        weaker = attack_as_weaker(played)
        played = replace(played, results={**played.results, **weaker})
        return Audit(
            run=self.run,
            scenario=plan,
            results=played.results,
            utility=self._utility(),
            seed=seed,
            parts={
                part.name: part.compute(played)
                for part in audit_parts()
                if part.applies(played)
            },
        )

    def plan(
        self,
        scenario: str | Scenario,
        attacks: Attacks = (),
        shadows: int | None = None,
    ) -> Scenario:
        """Return a scenario as it can be played on the run, with further attacks.

        Raises:
            UnknownNameError: As :meth:`attack` does.
            ConfigError: Likewise.
        """
        task = self.run.population.task
        if shadows is None:
            shadows = USUAL_SHADOWS[task.kind] if self.run.trains_shadows else 0
        named = named_attacks(attacks, shadows)
        plan = find_scenario(scenario, shadows).besides(named)
        plan = self._as_seen(plan.for_task(task.kind))
        check_played(named, plan)
        return plan

    def _utility(self) -> Utility | None:
        run = self.run
        if not run.has_utility:
            return None
        models = run.personal_models
        return measure_clients(run.trainer, run.population, models, run.own_model)

    def _as_seen(self, plan: Scenario) -> Scenario:
        plan = plan.where_masked() if self.run.config.is_masked else plan
        plan = plan.leaving_out(self.run.left_out)
        task = self.run.population.task
        if isinstance(task.backbone, OwnersModel):
            return plan.on_answers_alone()
        tokens = task.public.tokens
        blind = tokens is not None and tokens.parts == 0
        return plan.without_pictures() if blind else plan

    def prepare(
        self,
        scenario: Scenario,
        *,
        seed: int = 0,
        watcher: Watcher | None = None,
        only: Collection[ClientId] | None = None,
    ) -> tuple[Adversary, list[Target]]:
        """Return what the adversary has; every client that ever trained is a target.

        Where the view holds models without names, each target has its likeliest one.

        Args:
            scenario: As it is played.
            seed: Of the adversary's randomness.
            watcher: As of :meth:`attack`.
            only: The targets; None for all of them.

        Raises:
            UnknownNameError: No threat model, or no client, has that name.
            ViewError: The threat model does not fit the run.
            AttackError: There is nobody to attack, or a scenario about epsilon meets
                groups of records that share a coin, or members that no coin chose.
        """
        run, population = self.run, self.run.population
        scenario = self._as_seen(scenario)
        if scenario.one_run and run.ledger.group is not None:
            raise AttackError(
                f"{scenario.name} was requested, and {run.name} has groups of records "
                "that share a coin: what they show of epsilon is a group's, and a claim "
                "is about one record. Choose another scenario, or split without groups."
            )
        if scenario.one_run and run.sampling != "coin":
            raise AttackError(
                f"{scenario.name} was requested, and {run.name} declares no coin that "
                "chose its members, which a bound on epsilon rests on. Choose another "
                "scenario, or record a federation whose ledger was tossed."
            )
        threat = find_threat(scenario.threat)
        who = scenario.threat.partition(":")[2]  # a peer does not attack itself
        if who and who not in population.task.clients:
            raise UnknownNameError("client", who, population.task.clients)
        adversary = Adversary(
            answering(run.trainer, scenario.answers, population.task.kind),
            population.task,
            threat,
            threat(run.transcript),
            Seeds(seed).child("adversary"),
            run.config.participation,
            self._store(scenario, seed),
            watcher and _naming(run.name, watcher),
        )
        trained = trained_clients(run, scenario.threat)
        whom = [c for c in trained if c != who and (only is None or c in only)]
        if not whom:
            raise AttackError(
                f"{run.name} has no client to attack: no sum that its server received "
                "includes another. Train more rounds, or with a smaller --dropout."
            )
        adversary.tell(Phase("", "reconstruct", f"{len(whom)} clients", 0, len(whom)))
        targets = [
            Target(
                client,
                adversary.reconstruct(client),
                population.pick(
                    population.asked_about(client, canaries=scenario.one_run)
                ),
            )
            for client in whom
        ]
        return adversary, link_targets(adversary, targets)

    def _store(self, scenario: Scenario, seed: int) -> SignalStore | None:
        """Return where signals of shadow models are kept: beside the run.

        None where nobody knows whether models would still answer the same.
        """
        header = self.run.header
        if self.run.origin and not self.run.fingerprint:
            return None
        return SignalStore(
            self.run.path / _SIGNALS,
            {
                "run": [
                    header["data_hash"],
                    header["model_hash"],
                    repr(self.run.config),
                    *filter(None, [self.run.fingerprint]),
                ],
                "transcript": header["progress"]["head"],
                "threat": [scenario.threat, scenario.answers],
                "seed": seed,
                "versions": [version("privaudit"), version("torch")],
            },
        )

    @staticmethod
    def from_scores(
        member_scores: Shaped[Array, "..."] | Sequence[float],
        nonmember_scores: Shaped[Array, "..."] | Sequence[float],
        *,
        clients: Names | None = None,
        classes: Names | None = None,
        records: Names | None = None,
        groups: Names | None = None,
        sampling: Sampling = "unknown",
        attack: str = SCORES,
    ) -> Audit:
        """Return the audit of anybody's scores, from any model and framework.

        Its ``auroc`` and ``verdict`` are what most ask for. ``write_report`` makes a
        page of it, and ``save_audit(audit, "runs/mine")`` a folder that report, gate,
        compare and export take.

        Args:
            member_scores: Of records that were trained on; higher means more likely a
                member.
            nonmember_scores: Of records that were not.
            clients: Whose each record is, the members' first. Scores are compared
                within a client, and the AUROCs averaged by pairs.
            classes: The class of each record, in that order.
            records: What each record is called, in that order: audits of the same
                records can be compared with one another.
            groups: Which records share a coin, such as those of one patient: their
                scores are averaged, and count once.
            sampling: "coin" if an independent fair coin chose each member, before
                training. Otherwise members and non-members may differ from the start,
                and the audit gives no verdict on membership.
            attack: What the scores are called.

        Raises:
            ConfigError: There are none of one kind, or a score is not finite, or not
                one number for each record; or names are not one for each score.

        Example:
            >>> audit = Auditor.from_scores([0.9, 0.8, 0.4], [0.7, 0.3, 0.1])
            >>> print(audit)
            AUROC 0.889 [0.210, 0.995], n = 3 + 3
            >>> audit.verdict.kind
            'sampling unknown'
        """
        members, others = as_array(member_scores), as_array(nonmember_scores)
        checked_scores(members, others)
        scores = np.concatenate([members, others])
        is_member = np.arange(len(scores)) < len(members)
        table = ScoreTable.of(scores, is_member, clients, classes, records, groups)
        return audit_scores(table, Declared(attack, sampling))

    @staticmethod
    def from_signal(
        score: Callable[[Any], float],
        members: Sequence[Any],
        nonmembers: Sequence[Any],
        **said: Any,
    ) -> Audit:
        """Return the audit of any scoring function of a record.

        Args:
            score: Higher means more likely a member.
            members: Records that were trained on, of any type.
            nonmembers: Records that were not.
            **said: As in :meth:`from_scores`: clients, classes, records, groups, sampling
                and attack.

        Example:
            >>> print(Auditor.from_signal(abs, [3, -4, 5], [1, -2, 4]))
            AUROC 0.833 [0.217, 0.987], n = 3 + 3
        """
        return Auditor.from_scores(
            [float(score(record)) for record in members],
            [float(score(record)) for record in nonmembers],
            **said,
        )

    @staticmethod
    def from_shadows(
        target: Float[Array, " records"],
        shadows: Float[Array, "models columns"],
        is_in: Bool[Array, "rows coins"],
        is_member: Bool[Array, " truth"],
        attack: ShadowAttack = "lira",
        scale: SignalScale = "log-odds",
        *,
        clients: Names | None = None,
        classes: Names | None = None,
        records: Names | None = None,
        groups: Names | None = None,
        sampling: Sampling = "unknown",
    ) -> Audit:
        """Return the audit of LiRA or RMIA with shadow models of one's own.

        The truth meets the scores here; :func:`privaudit.auditing.external_models.shadow_scores`,
        which says what the other arguments are, never sees it.

        Args:
            target: What the target says of each record, such as its confidence.
            shadows: What each shadow says, [models, records].
            is_in: Which shadow was trained on which record, [models, records].
            is_member: Which record the target was trained on.
            attack: "lira", "lira-offline", "rmia" or "rmia-offline".
            scale: What the signals are, where RMIA makes probabilities of them.
            clients: Whose each record is, in the order of the signals.
            classes: The class of each record, in that order.
            records: What each record is called, in that order.
            groups: Which records share a coin, in that order.
            sampling: As in :meth:`from_scores`.

        Raises:
            ConfigError: As there, or the truth is not of the records' number.
        """
        scores = shadow_scores(target, shadows, is_in, attack, scale)
        truth = as_array(is_member).astype(bool)
        if truth.shape != scores.shape:
            raise ConfigError(
                f"There are signals of {len(scores)} records, and the truth is of "
                f"shape {truth.shape}. Say of each record whether it is a member."
            )
        table = ScoreTable.of(scores, truth, clients, classes, records, groups)
        settings = f"shadows={len(shadows)}, scale={scale}"
        return audit_scores(table, Declared(attack, sampling, settings))


def _naming(run: str, watcher: Watcher) -> Watcher:
    """Return a watcher of phases that says which run they are of."""

    def tell(event: Event) -> None:
        watcher(replace(event, run=run) if isinstance(event, Phase) else event)

    return tell
