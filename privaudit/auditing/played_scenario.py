"""A scenario as it was played on a run: attacks are made, and scores meet the truth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped

from privaudit.auditing.attack import Adversary, Attack, Scores, Target
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.named_attacks import package_of
from privaudit.auditing.scenario import Scenario
from privaudit.auditing.signals.signal_cache import FOLDER, SignalStore
from privaudit.auditing.units.whole_clients import all_candidates
from privaudit.core.errors import AttackError
from privaudit.core.portable_bits import computed_with
from privaudit.federated.runs.runs import Run
from privaudit.statistics.progress import Phase


@dataclass(frozen=True)
class PlayedScenario:
    """What the parts of an audit are computed from.

    Attributes:
        run: The run, with the truth about members.
        scenario: As played: with those attacks that can read the run's models.
        targets: All attacked clients, as the adversary reconstructed them.
        clients: How many of them shadow models are trained for.
        results: What the attacks found, by name; the first one carries the verdict.
    """

    run: Run
    scenario: Scenario
    adversary: Adversary
    targets: Sequence[Target]
    clients: int | Literal["all"] = "all"
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
        """Return what a scenario's attacks find out about targets, by attack."""
        results: dict[str, AttackResult] = {}
        for name, attack in scenario.attacks.items():
            self.adversary.tell(
                Phase("", "attack", name, len(results), len(scenario.attacks))
            )
            chosen = targets[: self._most] if attack.trains_shadows else targets
            results[name] = self.attack_once(name, attack, self.adversary, chosen)
        return results

    def attack_once(
        self,
        name: str,
        attack: Attack,
        adversary: Adversary,
        targets: Sequence[Target],
    ) -> AttackResult:
        """Return what one attack finds out.

        Raises:
            AttackError: It did not give each target's candidates finite scores.
        """
        scores = attack(adversary, targets)
        if fault := _fault(scores, targets):
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


def _fault(scores: object, targets: Sequence[Target]) -> str:
    """Return what is wrong with what an attack gave; empty if nothing is."""
    if not isinstance(scores, list | tuple) or len(scores) != len(targets):
        count = len(scores) if isinstance(scores, list | tuple) else "no"
        return f"{count} results for {len(targets)} targets"
    for target, scored in zip(targets, scores, strict=True):
        if not isinstance(scored, Scores):
            return f"a {type(scored).__name__} for {target.client}, and not Scores"
        wanted = (len(target.candidates),)
        for name, values in (("scores", scored.scores), ("guesses", scored.guesses)):
            if np.shape(values) != wanted:
                return (
                    f"{name} of shape {np.shape(values)} for the {wanted[0]} candidates "
                    f"of {target.client}"
                )
        left_out = scored.left_out
        if left_out is not None and (
            left_out.shape[1:] != wanted or not np.isfinite(left_out).all()
        ):
            return (
                f"scores without some shadows for {target.client} of no such candidates"
            )
        if not np.isfinite(scored.scores).all():
            return f"scores for {target.client} that are not finite"
        if scored.guesses.dtype != bool:
            return f"guesses for {target.client} that are not True or False"
    return ""


def store_beside(run: Run, threat: Sequence[str], seed: int) -> SignalStore | None:
    """Return where signals of shadow models are kept: beside the run.

    None where nobody knows whether models would still answer the same.
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
