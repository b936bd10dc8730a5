"""The auditor: plays a scenario's adversary on a run, and joins scores and truth.

Whoever can compute a weaker adversary's view from its own can make that adversary's
attacks too, and so is never worse off than it. A rebuilt client is mostly the better
target, but not always: what all clients sum up to may tell more than a bad guess at one
of them. So the named attacks of dominated views are made, too.

What shadow models of a client say depends on no other client where they are replayed on
what that client received. So clients can be shared out: each job keeps its clients'
answers where the attack that follows finds them, and the attack's numbers are those of
one process. Shadows of one client are not cut: they train stacked, and a stack of
another size may round otherwise.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit, recount
from privaudit.auditing.audit_log import check_log, log_audit, logged
from privaudit.auditing.linkage import link_targets
from privaudit.auditing.named_attacks import (
    Attacks,
    attack_in_place,
    check_arguments,
    check_played,
    named_attacks,
    refuse_all_members,
    restore_attack,
    shadows_of,
)
from privaudit.auditing.parts.one_run import refuse_unbounded
from privaudit.auditing.played_scenario import (
    PlayedScenario,
    audit_parts,
    refuse_unit,
    seen_from_outside,
    store_beside,
    target_clients,
)
from privaudit.auditing.pooled_audit import pool_audits, pool_name, refuse_pool
from privaudit.auditing.scenario import (
    SCENARIOS,
    Answers,
    Scenario,
    answering,
    find_scenario,
)
from privaudit.auditing.scored_audit import AuditsScores
from privaudit.auditing.shadow_budget import (
    LADDER,
    USUAL_SECONDS,
    ShadowBudget,
    budget_text,
    parse_budget,
    plan_shadows,
)
from privaudit.auditing.shadow_models import are_linked, needs_federations
from privaudit.auditing.signal_cache import FOLDER
from privaudit.auditing.signals import measure_signals
from privaudit.auditing.stored_audit import StoredAudit
from privaudit.core.errors import (
    AttackError,
    ConfigError,
    UnknownNameError,
    ViewError,
    without_exits,
)
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.parameters import as_int
from privaudit.core.portable_bits import computed_with
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import equal, stack
from privaudit.execution.jobs import Job
from privaudit.federation.query import ask
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import TRAINERS, ClientId, Task, Trainer
from privaudit.models.interfaces import OwnersModel
from privaudit.privacy.certificate import batch_share
from privaudit.recording.recorded_trainer import (
    ASKED,
    RecordedTrainer,
    why_not_repeatable,
)
from privaudit.runs.own_files import refuse_link
from privaudit.runs.run import Run, load_run, trained_clients
from privaudit.runs.run_folder import refresh
from privaudit.runs.training import train_another
from privaudit.runs.utility import Utility, measure_clients
from privaudit.statistics.evidence import LIMITS, Limits
from privaudit.statistics.progress import Phase, Watcher, naming, watching
from privaudit.statistics.verdict import LOOKS

PlayedAs = tuple[Scenario, Adversary, list[Target]]


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
) -> Iterator[PlayedAs]:
    """Yield each weaker scenario, with what this adversary then is and attacks.

    Its views are computed from ``adversary.view`` alone. Left out is what shows the
    same models again, answering alike, and views that a run's trainer does not allow.
    The targets stay the same clients, asked about the same candidates, but for a peer,
    who does not attack itself.
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
    threat, who = find_threat(weaker.threat), onlooker(weaker)
    less = replace(
        adversary,
        trainer=answering(adversary.trainer, weaker.answers, adversary.task.kind),
        threat=threat,
        view=threat(adversary.view.messages),
        store=None,  # no shadow model is trained here
    )
    reconstructed = [
        replace(t, reconstructed=less.reconstruct(t.client))
        for t in targets
        if t.client != who
    ]
    return less, link_targets(less, reconstructed)


def _alike(some: Sequence[Target], others: Sequence[Target]) -> bool:
    """Say whether of every client of the first the others have the same model."""
    models = {target.client: target.reconstructed.model for target in others}
    return all(
        t.client in models and equal(t.reconstructed.model, models[t.client])
        for t in some
    )


def onlooker(scenario: Scenario) -> ClientId:
    """Return the client that looks on, and does not attack itself; "" if none does."""
    return scenario.threat.partition(":")[2]


class Auditor(AuditsScores):
    """Runs a scenario's attacks on a run, and evaluates their scores.

    Several runs of one method, with fresh coins each, are one audit
    (:mod:`privaudit.auditing.pooled_audit`).

    Example:
        >>> from privaudit import train
        >>> run = train("promptfl", rounds=2, seed=7)
        >>> audit = Auditor(run).attack("server-reconstruct", clients=1, shadows=5)
        >>> 0 <= audit.auroc.low <= audit.auroc.value <= audit.auroc.high <= 1
        True
    """

    def __init__(self, run: Run | str | Sequence[Run | str] | None = None) -> None:
        several = run if isinstance(run, list | tuple) else [run]
        if not several:
            raise ConfigError("No run was given. Name one, or several of one method.")
        self.runs = [
            one if isinstance(one, Run) else load_run(one)  # type: ignore[arg-type]
            for one in several
        ]
        for loaded in self.runs:
            refuse_all_members(loaded.config, f"{loaded.name} is trained")
            for name in ("audits", FOLDER):
                refuse_link(loaded.path / name)
            loaded.require_complete()
        self.run = self.runs[0]

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
        limits: Limits = LIMITS,
        watcher: Watcher | None = None,
        is_logged: bool = True,
        pool: str = "",
    ) -> Audit:
        """Run a scenario's attacks on the run, and return the audit; of several, one.

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
            limits: What of a leak does not matter to the verdict.
            watcher: Called with a :class:`privaudit.cli.progress.Phase` of what is done next.
            is_logged: Whether the run's log of audits counts it. Only checks of an audit
                that is in the log are not: what nobody logs, nobody may report.
            pool: Under which name the log has it, where the verdict is on a pool.

        Raises:
            UnknownNameError: No scenario, or no attack, has that name.
            ConfigError: Fewer than one client, fewer than five shadows, shadows and a
                budget, no attack of the scenario takes models of the run's task, or an
                attack of your own has a label of the scenario's.
            ViewError: The threat model does not fit the trainer.
            MissingFileError: The run's log of audits, or its plan, is gone.
            TranscriptError: It was cut or altered.
            StorageError: The log cannot be written.
        """
        seed, clients, shadows = map(as_int, (seed, clients, shadows))
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
        if len(self.runs) > 1:
            asked |= {"limits": limits, "watcher": watcher, "is_logged": is_logged}
            return self.pool(scenario, **asked)
        audit = self._play(scenario, limits=limits, watcher=watcher, **asked)
        if not is_logged:
            return audit
        asked["attacks"] = sorted(attacks)
        own = ["a scenario"] * isinstance(scenario, Scenario)
        own += ["attacks"] * (isinstance(attacks, Mapping) and bool(attacks))
        own += ["limits"] * (limits != LIMITS)
        found = logged(audit.results)
        log_audit(self.run, audit.scenario.name, seed, found, asked, own, pool)
        return audit if pool else recount(audit)

    def pool(self, scenario: str | Scenario, **asked: Any) -> Audit:
        """Return one audit of all runs, as :meth:`attack` is asked for each."""
        refuse_pool(self.runs)
        name = pool_name(self.runs)
        found = [_attack_timed(run, scenario, asked, name) for run in self.runs]
        audits, seconds = zip(*found, strict=True)
        return pool_audits(audits, asked.get("attacks", ()), max(seconds))

    def looks(
        self, scenario: str | Scenario = "server-reconstruct", **asked: Any
    ) -> Iterator[Audit]:
        """Yield the audit of one training, of two and so on, until it decides.

        Further ones are trained as the first was, up to six. Whoever stops before that
        errs no more often.
        """
        refuse_pool(self.runs, is_sequential=True)
        runs, found = list(self.runs), list[tuple[Audit, float]]()
        name = pool_name(runs, is_sequential=True)
        while len(found) < LOOKS:
            if len(found) == len(runs):
                runs.append(
                    train_another(runs[0], len(runs), watcher=asked.get("watcher"))
                )
            found.append(_attack_timed(runs[len(found)], scenario, asked, name))
            audits, seconds = zip(*found, strict=True)
            named = asked.get("attacks", ())
            audit = pool_audits(audits, named, max(seconds), looks=name)
            yield audit
            if audit.verdict.kind != "underpowered":
                return

    def _play(
        self, scenario: str | Scenario, seed: int, limits: Limits, **asked: Any
    ) -> Audit:
        """Return an audit that no log counts."""
        plan, adversary, targets, paid = self.resolve(scenario, seed=seed, **asked)
        clients = asked["clients"]
        played = PlayedScenario(self.run, plan, adversary, targets, clients, limits)
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
        plan = plan.that_see(adversary, targets, attacks)
        trains = any(attack.trains_shadows for attack in plan.attacks.values())
        if not seconds or not trains:
            return plan, adversary, targets, None
        paid = plan_shadows(adversary, targets, clients, seconds)
        plan = self.plan(scenario, attacks, paid.shadows)
        return plan.that_see(adversary, targets, attacks), adversary, targets, paid

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
        who = onlooker(scenario)
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
            batch_share(run.privacy["mechanisms"]),
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
        refuse_unsteady(run.trainer, population.task, targets[0])
        return adversary, link_targets(adversary, targets)


def _attack_timed(
    run: Run, scenario: str | Scenario, asked: Mapping[str, Any], pool: str
) -> tuple[Audit, float]:
    """Return the audit of one training of a pool, and what both took."""
    began = time.monotonic()
    audit = Auditor(run).attack(scenario, **asked, pool=pool)
    return audit, run.training_seconds + time.monotonic() - began


def refuse_unsteady(trainer: Trainer, task: Task, target: Target) -> None:
    """Refuse another package's trainer whose models no attack can ask.

    As an owner's functions are refused: for answers of another form, and for others when
    the models are asked again, or in another batch.

    Raises:
        AttackError: They are such.
    """
    if isinstance(trainer, RecordedTrainer) or TRAINERS.is_own(trainer):
        return
    rows = np.arange(min(len(target.candidates), 2 * ASKED))
    models = [target.reconstructed.model]

    def likelihood(rows: Int[np.ndarray, " rows"]) -> Float[Tensor, " rows"]:
        records = target.candidates.pick(torch.from_numpy(rows))
        return measure_signals(trainer, task, models, records).log_likelihood[0]

    fault, wanted = "", "the model in evaluation mode: call its .eval() in query"
    if task.kind != "generation":
        some = target.candidates.pick(torch.from_numpy(rows))
        logs = ask(trainer, task, stack(models), some)
        sums = logs.double().logsumexp(-1)
        if sums.shape != (1, len(rows)) or not sums.abs().max() < 0.01:
            fault = f"returned no log-probabilities, but {tuple(logs.shape)}"
            wanted = "their logarithms [models, records, classes], after a softmax"
    fault = fault or why_not_repeatable(likelihood, rows, likelihood(rows))
    if fault:
        raise AttackError(
            f"query of {type(trainer).__name__} {fault}; wanted is {wanted}."
        )


def attack_again(
    stored: StoredAudit, run: Run, watcher: Watcher | None = None
) -> Audit:
    """Attack a run as a stored audit was made, which no log counts."""
    asked = asked_again(stored)
    return Auditor(run).attack(
        stored.scenario, **asked, watcher=watcher, is_logged=False
    )


def asked_again(stored: StoredAudit) -> dict[str, Any]:
    """Return the arguments that give the same audit again.

    Raises:
        UnknownNameError: The scenario or an attack is not installed.
        PluginError: It is another package's, and cannot be imported.
        ConfigError: An attack was an object of somebody's own.
    """
    own_attacks = SCENARIOS.find(stored.scenario)().attacks
    settings = {name: stored.attack_result(name)["settings"] for name in stored.attacks}
    counts = [
        shadows_of(text) for name, text in settings.items() if name in own_attacks
    ]
    shadows = next((count for count in counts if count is not None), 0)
    named = {
        name: restore_attack(name, settings[name])
        for name in stored.contents["attack_results"]
        if name not in own_attacks and " as " not in name
    }
    budget = stored.contents.get("budget")
    return {
        "attacks": named,
        "clients": _attacked(stored),
        "shadows": None if budget else shadows,
        "budget": budget_text(float(budget["seconds"])) if budget else None,
        "seed": stored.contents.get("seed", 0),
        "limits": stored.verdict().limits,
    }


def _attacked(stored: StoredAudit) -> int | Literal["all"]:
    """Return how many clients shadow models were trained for: the fewest attacked."""
    counts = [len(stored.clients(attack)) for attack in stored.attacks]
    threat = stored.contents.get("threat", "server")
    everyone = trained_clients(stored.run, threat)
    return "all" if min(counts) == len(everyone) else min(counts)


CLIENTS = 8  # of a job at most, and of a run that needs none
LEAST_JOBS = 5  # of a run: the first may run alone, and two processes share the others
MOST_JOBS = 1000  # of a run: with more clients, jobs have more of them


def shadow_jobs(
    run: Run, scenario: str, asked: Mapping[str, Any], *, keep: bool = False
) -> list[Job[None]]:
    """Return jobs that train the shadow models of an attack; none where nothing is won.

    That is where one job would do, or where whole federations are trained, in which all
    targets are together. ``keep``: What is read of the run stays with it, for its attack.
    """
    most = run.config.clients if asked["clients"] == "all" else asked["clients"]
    if most <= CLIENTS or asked["shadows"] == 0:
        return []
    check_log(run)  # before anything is trained
    read = run if keep else load_run(run.path)
    clients, shadows = _clients(read, scenario, asked)
    asked = {**asked, "shadows": shadows, "budget": None}
    size = max(1, min(CLIENTS, ceil(len(clients) / LEAST_JOBS)))
    size = max(size, ceil(len(clients) / MOST_JOBS))
    parts = [clients[n : n + size] for n in range(0, len(clients), size)]
    if len(parts) < 2:
        return []
    return [
        Job(
            f"shadow models {number} of {len(parts)}, {scenario}, {run.name}",
            train_shadows,
            (run, scenario, asked, part),
            run.name,
        )
        for number, part in enumerate(parts, start=1)
    ]


def _clients(
    run: Run, scenario: str, asked: Mapping[str, Any]
) -> tuple[list[ClientId], int]:
    """Return whom shadow models can be trained for apart from each other, and how many."""
    plan, adversary, targets, paid = Auditor(run).resolve(scenario, **asked)
    if not any(attack.trains_shadows for attack in plan.attacks.values()):
        return [], 0
    shadows = paid.shadows if paid else asked["shadows"] or 0
    names = [target.client for target in targets]
    is_kept = bool(adversary.view.messages) and adversary.store is not None
    if not is_kept or needs_federations(adversary, targets) or are_linked(targets):
        return [], shadows
    return (names if asked["clients"] == "all" else names[: asked["clients"]]), shadows


def train_shadows(
    run: Run,
    scenario: str,
    asked: Mapping[str, Any],
    clients: Sequence[ClientId],
    watcher: Watcher | None = None,
) -> None:
    """Train some clients' shadow models, and keep what they say beside the run."""
    refresh(run.path)  # on another machine it was never read
    auditor = Auditor(run)
    plan = auditor.plan(scenario, asked["attacks"], asked["shadows"])
    adversary, targets = auditor.prepare(
        plan, seed=asked["seed"], watcher=watcher, only=clients
    )
    for attack in plan.attacks.values():
        if attack.trains_shadows:
            attack(adversary, targets)
