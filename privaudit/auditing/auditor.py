"""The auditor: plays a scenario's adversary on a run, and joins scores and truth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.attacking import Asked, make_attack
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_arguments import USUAL_SHADOWS, check_asked
from privaudit.auditing.external_models import ShadowAttack, SignalScale, shadow_scores
from privaudit.auditing.model_outputs import Array, as_array
from privaudit.auditing.parts.closeness import measure_closeness
from privaudit.auditing.parts.dominated_views import as_weaker, attack_in_place
from privaudit.auditing.parts.leakage_by_round import leak_by_round
from privaudit.auditing.parts.linkage import link_targets, without_suspects
from privaudit.auditing.parts.linkage_gain import measure_linking
from privaudit.auditing.parts.one_run import audit_one_run
from privaudit.auditing.parts.source_inference import infer_sources
from privaudit.auditing.query_access import answering
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.auditing.shadow_models.signal_cache import SignalStore
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.core.seeds import Seeds
from privaudit.federated.participants import trained_clients
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.run_header import refuse_link
from privaudit.federated.runs.runs import Run, load_run
from privaudit.federated.runs.utility import measure_clients
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Reconstruction
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.progress import Event, Phase, Watcher
from privaudit.statistics.roc import auroc as auroc_of

_SIGNALS = "audits/signals"


class Auditor:
    """Attacks a run as a scenario says, and says what came of it.

    Example:
        >>> from privaudit import train
        >>> run = train("promptfl", rounds=2, seed=7)
        >>> audit = Auditor(run).attack("server-reconstruct", clients=1, shadows=5)
        >>> 0 <= audit.auroc.low <= audit.auroc.value <= audit.auroc.high <= 1
        True
    """

    def __init__(self, run: Run | str | None = None) -> None:
        found = run if isinstance(run, Run) else load_run(run)
        if found.config.members == "all":
            raise ConfigError(
                f"{found.name} was trained on all candidates, so there are no "
                "non-members to tell members from. Train it with --members coin."
            )
        for name in ("audits", _SIGNALS):
            refuse_link(found.path / name)
        self.run = found.require_complete()

    def attack(
        self,
        scenario: str | Scenario = "server-reconstruct",
        *,
        clients: int | Literal["all"] = 3,
        shadows: int | None = None,
        seed: int = 0,
        watcher: Watcher | None = None,
    ) -> Audit:
        """Play a scenario on the run.

        Args:
            scenario: Its name, or one of your own.
            clients: How many clients to train shadow models for, in their fixed order,
                or all of them. Attacks without shadow models attack everyone.
            shadows: Shadow models for each of them; 0 leaves those attacks out. By
                default 50, and 0 for generation: a model that writes takes minutes.
            seed: Of the adversary's randomness.
            watcher: Called with a :class:`privaudit.cli.progress.Phase` of what is done next.

        Raises:
            UnknownNameError: No scenario has that name.
            ConfigError: Fewer than one client, fewer than five shadows, or no attack
                of the scenario takes models of the run's task.
            ViewError: The threat model does not fit the trainer.
        """
        check_asked(scenario, clients, shadows, seed)
        task = self.run.population.task
        if shadows is None:
            shadows = USUAL_SHADOWS[task.kind]
        plan = find_scenario(scenario, shadows)
        plan = self._as_seen(plan.for_task(task.kind))
        adversary, targets = self.prepare(plan, seed=seed, watcher=watcher)
        results = self._leaks(plan, adversary, targets, clients)
        linking, alone = None, without_suspects(adversary, targets)
        if alone:
            others = self._leaks(plan, adversary, alone, clients)
            linking = measure_linking(self.run.transcript, targets, results, others)
        aggregate: dict[str, AttackResult] = {}
        common = self._on_server_model(targets)
        if not common:
            results |= self._with_less(plan, adversary, targets)
        elif plan.threat == "server":
            # Shadows are rebuilt clients: no measure of the server's own model.
            plain = plan.without_shadows()
            aggregate = self._leaks(plain, adversary, common, clients)
        audit = self._judge(plan, adversary, targets, results, seed)
        audit = replace(audit, linking=linking, aggregate=aggregate)
        return self._with_more(audit, adversary, targets)

    def _as_seen(self, plan: Scenario) -> Scenario:
        plan = plan.where_masked() if self.run.config.is_masked else plan
        tokens = self.run.population.task.public.tokens
        blind = tokens is not None and tokens.shape[1] == 0
        return plan.without_pictures() if blind else plan

    def _with_less(
        self, plan: Scenario, adversary: Adversary, targets: Sequence[Target]
    ) -> dict[str, AttackResult]:
        """Make the named attacks of those who see less."""
        results: dict[str, AttackResult] = {}
        for weaker, less, theirs in as_weaker(plan, adversary, targets):
            attack, made = next(iter(weaker.attacks.items()))
            name = attack_in_place(attack, weaker.name)
            made_before = len(plan.attacks) + len(results)
            less.tell(Phase("", "attack", name, made_before, made_before + 1))
            results[name] = make_attack(name, made, less, theirs, self._truth(plan))
        return results

    def _with_more(
        self, audit: Audit, adversary: Adversary, targets: Sequence[Target]
    ) -> Audit:
        """Add when it leaked and of whom, or a bound on epsilon, if it is asked."""
        plan = audit.scenario
        if plan.by_round:
            ledger = self.run.ledger
            truth = {
                t.client: ledger.is_member[self._asked(plan, t.client)] for t in targets
            }
            audit = replace(
                audit,
                rounds=leak_by_round(plan.attacks, adversary, targets, truth),
                source=infer_sources(adversary, targets, truth),
            )
        if plan.one_run:
            view, canaries = plan.threat, self.run.population.canaries
            trainer = self.run.trainer
            scored, attack = audit.headline.clients, audit.headline.attack
            found = audit_one_run(
                canaries, targets, scored, attack, self.run.privacy, view, trainer
            )
            audit = replace(audit, one_run=found)
        return audit

    def _asked(self, scenario: Scenario, client: str) -> Int[np.ndarray, " candidates"]:
        asked = self.run.population.asked_about
        return asked(client, canaries=scenario.one_run)

    def _on_server_model(self, targets: Sequence[Target]) -> list[Target]:
        """Return the targets with the server's own model in place of each client's."""
        model = self.run.own_model
        if model is None:
            return []
        return [
            replace(target, reconstructed=Reconstruction(model)) for target in targets
        ]

    def _leaks(
        self,
        scenario: Scenario,
        adversary: Adversary,
        targets: Sequence[Target],
        clients: int | Literal["all"],
    ) -> dict[str, AttackResult]:
        """Make every attack, and set its scores beside the truth."""
        some = _choose(targets, clients)
        results: dict[str, AttackResult] = {}
        for name, attack in scenario.attacks.items():
            adversary.tell(
                Phase("", "attack", name, len(results), len(scenario.attacks))
            )
            whom = some if attack.trains_shadows else targets
            results[name] = make_attack(
                name, attack, adversary, whom, self._truth(scenario)
            )
        return results

    def _truth(self, scenario: Scenario) -> tuple[Asked, Ledger]:
        return partial(self._asked, scenario), self.run.ledger

    def prepare(
        self, scenario: Scenario, *, seed: int = 0, watcher: Watcher | None = None
    ) -> tuple[Adversary, list[Target]]:
        """Return what the adversary has; every client that ever trained is a target.

        Where the view holds models without names, each target has its likeliest one.

        Raises:
            UnknownNameError: No threat model, or no client, has that name.
            ViewError: The threat model does not fit the run.
        """
        run, population = self.run, self.run.population
        scenario = self._as_seen(scenario)
        threat = find_threat(scenario.threat)
        who = scenario.threat.partition(":")[2]  # a peer does not attack itself
        if who and who not in population.task.clients:
            raise UnknownNameError("client", who, population.task.clients)
        adversary = Adversary(
            answering(run.trainer, scenario.answers),
            population.task,
            threat,
            threat(run.transcript),
            Seeds(seed).child("adversary"),
            run.config.participation,
            self._store(scenario, seed),
            watcher and _naming(run.name, watcher),
        )
        trained = trained_clients(run, scenario.threat)
        whom = [client for client in trained if client != who]
        if not whom:
            raise ConfigError(
                f"{run.name} has nobody to attack: no sum that its server got holds "
                "anybody else. Train more rounds, or with a smaller --dropout."
            )
        adversary.tell(Phase("", "rebuild", f"{len(whom)} clients", 0, len(whom)))
        targets = [
            Target(
                client,
                adversary.reconstruct(client),
                population.pick(self._asked(scenario, client)),
            )
            for client in whom
        ]
        return adversary, link_targets(adversary, targets)

    def _store(self, scenario: Scenario, seed: int) -> SignalStore:
        """Return where signals of shadow models are kept: beside the run."""
        header = self.run.header
        return SignalStore(
            self.run.path / _SIGNALS,
            {
                "run": [
                    header["data_hash"],
                    header["model_hash"],
                    repr(self.run.config),
                ],
                "transcript": header["progress"]["head"],
                "threat": [scenario.threat, scenario.answers],
                "seed": seed,
                "versions": [version("privaudit"), version("torch")],
            },
        )

    def _judge(
        self,
        scenario: Scenario,
        adversary: Adversary,
        targets: Sequence[Target],
        results: Mapping[str, AttackResult],
        seed: int,
    ) -> Audit:
        run, population = self.run, self.run.population
        return Audit(
            run=run,
            scenario=scenario,
            results=results,
            utility=measure_clients(
                run.trainer,
                population,
                run.personal_models,
                run.own_model,
            ),
            missing=(
                *dict.fromkeys(
                    part for t in targets for part in t.reconstructed.missing
                ),
                *([scenario.note] if scenario.note else []),
            ),
            staleness=max(target.reconstructed.staleness for target in targets),
            closeness=measure_closeness(run, adversary, targets),
            seed=seed,
        )

    @staticmethod
    def from_scores(
        member_scores: Shaped[Array, "..."] | Sequence[float],
        nonmember_scores: Shaped[Array, "..."] | Sequence[float],
    ) -> Estimate:
        """Return the AUROC of anybody's scores, from any model and framework.

        Args:
            member_scores: Of records that were trained on; higher means more likely a
                member.
            nonmember_scores: Of records that were not, from the same distribution.

        Raises:
            ConfigError: There are none of one kind, or a score is not finite, or not
                one number for each record.

        Example:
            >>> print(Auditor.from_scores([0.9, 0.8, 0.4], [0.7, 0.3, 0.1]))
            0.889 [0.210, 0.995], n = 3 + 3
        """
        return auroc_of(as_array(member_scores), as_array(nonmember_scores))

    @staticmethod
    def from_signal(
        score: Callable[[Any], float], members: Sequence[Any], nonmembers: Sequence[Any]
    ) -> Estimate:
        """Return the AUROC of a function that scores one record.

        Args:
            score: Higher means more likely a member.
            members: Records that were trained on.
            nonmembers: Records that were not, from the same distribution.

        Example:
            >>> print(Auditor.from_signal(abs, [3, -4, 5], [1, -2, 4]))
            0.833 [0.217, 0.987], n = 3 + 3
        """
        return Auditor.from_scores(
            [float(score(record)) for record in members],
            [float(score(record)) for record in nonmembers],
        )

    @staticmethod
    def from_shadows(
        target: Float[Array, " records"],
        shadows: Float[Array, "models columns"],
        is_in: Bool[Array, "rows coins"],
        is_member: Bool[Array, " truth"],
        attack: ShadowAttack = "lira",
        scale: SignalScale = "log-odds",
    ) -> Estimate:
        """Return the AUROC of LiRA or RMIA with shadow models of one's own.

        The truth meets the scores here; :func:`privaudit.auditing.external_models.shadow_scores`,
        which says what the other arguments are, never sees it.

        Args:
            target: What the target says of each record, such as its confidence.
            shadows: What each shadow says, [models, records].
            is_in: Which shadow was trained on which record, [models, records].
            is_member: Which record the target was trained on, by a coin for each.
            attack: "lira", "lira-offline" or "rmia".
            scale: What the signals are, where "rmia" makes probabilities of them.

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
        return Auditor.from_scores(scores[truth], scores[~truth])


def _choose(
    targets: Sequence[Target], wanted: int | Literal["all"]
) -> Sequence[Target]:
    if wanted == "all":
        return targets
    if wanted < 1:
        raise ConfigError(
            f"{wanted} clients were to be attacked. Use at least one, or 'all'."
        )
    return targets[:wanted]


def _naming(run: str, watcher: Watcher) -> Watcher:
    """Return a watcher of phases that says which run they are of."""

    def tell(event: Event) -> None:
        watcher(replace(event, run=run) if isinstance(event, Phase) else event)

    return tell
