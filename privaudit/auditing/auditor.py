"""The auditor: plays a scenario's adversary on a run, and joins scores and truth."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_part import audit_parts
from privaudit.auditing.dominated_views import attack_as_weaker
from privaudit.auditing.linkage import link_targets
from privaudit.auditing.named_attacks import (
    Attacks,
    check_arguments,
    check_played,
    named_attacks,
    refuse_all_members,
)
from privaudit.auditing.parts.one_run import refuse_unbounded
from privaudit.auditing.played_scenario import PlayedScenario, store_beside
from privaudit.auditing.query_access import answering
from privaudit.auditing.repetition.audit_log import check_log, log_audit, logged
from privaudit.auditing.repetition.correction import recount
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.auditing.scores.audits_scores import AuditsScores
from privaudit.auditing.shadow_models.budget import (
    LADDER,
    USUAL_SECONDS,
    ShadowBudget,
    parse_budget,
    plan_shadows,
)
from privaudit.auditing.signals.signal_cache import FOLDER
from privaudit.auditing.units.whole_clients import (
    refuse_unit,
    seen_from_outside,
    target_clients,
)
from privaudit.core.errors import AttackError, UnknownNameError, without_exits
from privaudit.core.portable_bits import computed_with
from privaudit.core.seeds import Seeds
from privaudit.federated.participants import trained_clients
from privaudit.federated.runs.folder.own_files import refuse_link
from privaudit.federated.runs.folder.run_names import load_run
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import Utility, measure_clients
from privaudit.federated.trainer import ClientId
from privaudit.federated.transcripts.threat_models import find_threat
from privaudit.models.interfaces import OwnersModel
from privaudit.statistics.progress import Phase, Watcher, naming, watching


class Auditor(AuditsScores):
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
        for name in ("audits", FOLDER):
            refuse_link(loaded.path / name)
        self.run = loaded.require_complete()

    @without_exits()
    def attack(
        self,
        scenario: str | Scenario = "server-reconstruct",
        *,
        attacks: Attacks = (),
        clients: int | Literal["all"] = "all",
        shadows: int | None = None,
        budget: str | None = None,
        seed: int = 0,
        watcher: Watcher | None = None,
        is_logged: bool = True,
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
                default as many as the budget pays for.
            budget: What those may take, as "90s", "2m" or "1h" of one core of a
                reference machine: work is counted, not timed, so that all machines
                train as many. By default "2m", and nothing for generation: a model
                that writes takes minutes.
            seed: Of the adversary's randomness.
            watcher: Called with a :class:`privaudit.cli.progress.Phase` of what is done next.
            is_logged: Whether the run's log of audits counts it. Only checks of an audit
                that is in the log are not: what nobody logs, nobody may report.

        Raises:
            UnknownNameError: No scenario, or no attack, has that name.
            ConfigError: Fewer than one client, fewer than five shadows, shadows and a
                budget, or no attack of the scenario takes models of the run's task.
            ViewError: The threat model does not fit the trainer.
            MissingFileError: The run's log of audits, or its plan, is gone.
            TranscriptError: It was cut or altered.
            StorageError: The log cannot be written.
        """
        check_arguments(scenario, clients, shadows, budget, seed, attacks)
        if is_logged:
            check_log(self.run)  # before anything is trained
        asked: dict[str, Any] = {
            "attacks": attacks,
            "clients": clients,
            "shadows": shadows,
            "budget": budget,
            "seed": seed,
        }
        audit = self._play(scenario, watcher=watcher, **asked)
        if not is_logged:
            return audit
        asked["attacks"] = sorted(attacks)
        own = ["a scenario"] * isinstance(scenario, Scenario)
        own += ["attacks"] * (isinstance(attacks, Mapping) and bool(attacks))
        found = logged(audit.results)
        log_audit(self.run, audit.scenario.name, seed, found, asked, own)
        return recount(audit)

    def _play(self, scenario: str | Scenario, seed: int, **asked: Any) -> Audit:
        """Return an audit that no log counts."""
        plan, adversary, targets, paid = self.resolve(scenario, seed=seed, **asked)
        clients = asked["clients"]
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
            budget=paid,
            computed=computed_with(),
            parts={
                part.name: part.compute(played)
                for part in audit_parts()
                if part.applies(played)
            },
        )

    def resolve(
        self,
        scenario: str | Scenario,
        attacks: Attacks,
        clients: int | Literal["all"],
        shadows: int | None,
        budget: str | None,
        seed: int,
        watcher: Watcher | None = None,
    ) -> tuple[Scenario, Adversary, list[Target], ShadowBudget | None]:
        """Return what :meth:`attack` will play, with whom, and what a budget paid for.

        No budget is asked where shadows are numbered, or nobody trains any.
        """
        kind = self.run.population.task.kind
        seconds = 0.0
        if shadows is None and isinstance(scenario, str) and self.run.trains_shadows:
            seconds = parse_budget(budget) if budget else USUAL_SECONDS[kind]
        with watching(self.run.name, watcher):
            fewest = (LADDER[0] if seconds else 0) if shadows is None else shadows
            plan = self.plan(scenario, attacks, fewest)
        adversary, targets = self.prepare(plan, seed=seed, watcher=watcher)
        trains = any(attack.trains_shadows for attack in plan.attacks.values())
        if not seconds or not trains:
            return plan, adversary, targets, None
        paid = plan_shadows(adversary, targets, clients, seconds)
        return self.plan(scenario, attacks, paid.shadows), adversary, targets, paid

    def plan(
        self, scenario: str | Scenario, attacks: Attacks, shadows: int
    ) -> Scenario:
        """Return a scenario as it can be played on the run, with further attacks."""
        task = self.run.population.task
        named = named_attacks(attacks, shadows)
        plan = find_scenario(scenario, shadows).besides(named)
        plan = plan.that_apply(self.run.trainer, task)
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

        Raises:
            UnknownNameError: No threat model, or no client, has that name.
            ViewError: The threat model does not fit the run.
            AttackError: There is nobody to attack, or a scenario about epsilon meets
                groups of records that share a coin, or members that no coin chose; or
                one about whole clients, records with coins of their own.
        """
        run, population = self.run, self.run.population
        scenario = self._as_seen(scenario)
        refuse_unit(run, scenario)
        if scenario.one_run:
            refuse_unbounded(run, scenario.name)
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
            store_beside(run, [scenario.threat, scenario.answers], seed),
            watcher and naming(run.name, watcher),
        )
        if scenario.unit == "client":
            adversary = seen_from_outside(adversary, run.name)
            return adversary, target_clients(adversary, run)
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
