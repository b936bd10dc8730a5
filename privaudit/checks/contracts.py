"""Contracts: what every trainer, attack, scenario and data set keeps to, whoever wrote it.

``pytest --privaudit-contract PACKAGE`` asks them of what another package adds, on digits and the
models that come with privaudit; the project's own tests ask them of its methods, on toys.
Each raises a PluginError that says what is expected, what there is and what to do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool

from privaudit.auditing.attack import ATTACKS, Adversary, Scores, Target
from privaudit.auditing.named_attacks import named_attacks
from privaudit.auditing.played_scenario import fault_of_scores
from privaudit.auditing.scenario import SCENARIOS, grid_cells
from privaudit.core.errors import AttackError, ConfigError, PluginError, ViewError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, digest
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.sources import OnDisk, load_dataset
from privaudit.federation.query import ask
from privaudit.federation.rounds import Federation, RoundRecord, give_away, run_round
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import (
    TRAINERS,
    ClientId,
    Reconstruction,
    Reconstructs,
    Records,
    Task,
    claim_of,
    start_client,
)
from privaudit.federation.transcript import Message
from privaudit.models.interfaces import TaskKind
from privaudit.runs.config import build_trainer, make_config
from privaudit.runs.population import populate
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc

RECORDS = 24  # candidates of each of three clients
REFERENCE = 160  # public records
SURE = 0.9999  # of what chance alone breaks once in ten thousand packages


@dataclass
class Played:
    """A federation, and what its rounds left behind so far."""

    trainer: Any
    task: Task
    federation: Federation
    rounds: list[RoundRecord] = field(default_factory=list)

    def step(self, **options: Any) -> RoundRecord:
        """Run the next round."""
        index, federations = len(self.rounds), [self.federation]
        self.rounds += run_round(self.trainer, self.task, federations, index, **options)
        return self.rounds[-1]

    @property
    def server(self) -> Tensors:
        """The server's state."""
        return self.federation.server

    @property
    def kept(self) -> dict[str, Tensors]:
        """Each client's private state; of who never took part, its start."""
        clients = list(self.federation.shards)
        return self.federation.private_states(self.trainer, self.task, clients)

    @property
    def messages(self) -> list[Message]:
        """All that was sent, the release at the end included."""
        return [*(m for r in self.rounds for m in r.messages), *self.released()[1]]

    def released(self) -> tuple[dict[ClientId, Tensors], tuple[Message, ...]]:
        """Return the personal models, were they released now, and the messages of it."""
        return give_away(self.trainer, self.task, self.federation, len(self.rounds))

    def rebuild(self, threat: str, client: str = "client-0") -> Reconstruction:
        """Return a client's model as a threat model's adversary rebuilds it."""
        view = find_threat(threat)(self.messages)
        return self.trainer.reconstruct(self.task, view, client)

    def watched(
        self,
        threat: str = "server",
        candidates: Mapping[ClientId, Records] | None = None,
        seed: int = 1,
    ) -> tuple[Adversary, list[Target]]:
        """Return who looks on, and what it asks of each client: by default its records."""
        look = find_threat(threat)
        view = look(self.messages)
        seen = Adversary(self.trainer, self.task, look, view, Seeds(seed))
        asked = self.federation.shards if candidates is None else candidates
        return seen, [Target(c, seen.reconstruct(c), some) for c, some in asked.items()]


Play = Callable[..., Any]  # of a trainer: a Played, after the task's rounds


def play_rounds(
    trainer: Any,
    rounds: int | None = None,
    *,
    task: Task,
    shards: Mapping[ClientId, Records],
    seed: int = 0,
    secrets: Seeds | None = None,
    kind: type[Played] = Played,
    **options: Any,
) -> Any:
    """Train a federation for the task's rounds, or for as many as given."""
    begun = Federation.begin(trainer, task, shards, Seeds(seed), secrets=secrets)
    played = kind(trainer, task, begun)
    for _ in range(task.rounds if rounds is None else rounds):
        played.step(**options)
    return played


def _expect(holds: bool, fault: str) -> None:
    if not holds:
        raise PluginError(f"It {fault}")


@dataclass
class TrainerCase:
    """A trainer, the task it trains for, and how a federation is played."""

    trainer: Any
    task: Task
    play: Play
    altered: set[str] = field(default_factory=set)  # inputs that a round changed
    kept: set[str] = field(default_factory=set)  # hashes of what clients kept
    after_one: list[dict[str, Any]] = field(default_factory=list)  # messages by then

    @cached_property
    def played(self) -> Any:
        """The federation after its rounds."""
        played = self.play(self.trainer, rounds=0)
        for _ in range(self.task.rounds):
            held = [played.server, *played.kept.values()]
            before = [{k: t.clone() for k, t in part.items()} for part in held]
            played.step()
            for part, copy in zip(held, before, strict=True):
                self.altered |= {k for k in copy if not torch.equal(part[k], copy[k])}
            states = played.kept.values()
            self.kept |= {digest(t) for part in states for t in part.values()}
            self.after_one = self.after_one or described(played.messages)
        return played


def described(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with hashes in place of their tensors."""
    return [message.describe() for message in messages]


def a_round_changes_none_of_its_inputs(case: TrainerCase) -> None:
    """What was received and kept is recorded, and handed to others."""
    _ = case.played
    _expect(
        not case.altered,
        f"writes into what it is given: {', '.join(sorted(case.altered))}. Clone "
        "tensors before an operation that ends in an underscore.",
    )


def equal_seeds_give_equal_messages(case: TrainerCase) -> None:
    """A run that is resumed or verified gets the same bytes."""
    _expect(
        described(case.played.messages) == described(case.play(case.trainer).messages),
        "sends other messages from the same seed. Draw from Round.stream and "
        "Round.secret, and keep nothing in the trainer between two calls.",
    )


def a_private_start_follows_from_seed_and_client(case: TrainerCase) -> None:
    """It is drawn when a client first takes part, and again by a resumed run."""

    def start(client: ClientId) -> dict[str, str]:
        state = start_client(case.trainer, case.task, client, Seeds(3))
        return {name: digest(tensor) for name, tensor in state.items() if tensor.any()}

    clients = case.task.clients
    first, again = [*map(start, clients)], [*map(start, clients[::-1])][::-1]
    _expect(
        first == again and not first[0].items() & first[1].items(),
        "starts clients alike, or otherwise when others were started before. Draw from "
        "the seeds under the client's name.",
    )


def a_cohort_equals_its_clients_one_by_one(case: TrainerCase) -> None:
    """Federations are trained side by side: none may see another."""
    alone = case.play(case.trainer, cohort_size=1).messages
    # Noised values lie on a grid of steps of 2^-15: rounding may move them one.
    atol = 1e-5 if getattr(case.trainer, "epsilon", None) is None else 4e-5
    for one, other in zip(case.played.messages, alone, strict=True):
        _expect(
            one.tensors.keys() == other.tensors.keys()
            and all(
                t.shape == other.tensors[n].shape
                and torch.allclose(t.double(), other.tensors[n].double(), 1e-4, atol)
                for n, t in one.tensors.items()
            ),
            f"trains {one.sender} otherwise beside other clients than alone (round "
            f"{one.round}, {one.kind}). The first axis is the client: sum over records "
            "by Cohort.mask, and draw under each client's name.",
        )


def every_view_gives_a_model_that_answers(case: TrainerCase) -> None:
    """An attack asks the model that its view shows."""
    _expect(
        isinstance(case.trainer, Reconstructs),
        "has no reconstruct, which attacks ask. Inherit from BaseTrainer.",
    )
    alone, public = case.trainer.aggregation == "individual", case.task.public
    peer = f"peer:{case.task.clients[-1]}"
    threats = ["server", "released", peer, *([] if alone else ["server-aggregate"])]
    for threat in threats:
        model = case.played.rebuild(threat, case.task.clients[1]).model
        models = {name: tensor.unsqueeze(0) for name, tensor in model.items()}
        if case.task.kind == "generation":
            said = case.trainer.query(case.task, models, public, frozenset({"tokens"}))
            shapes = [tuple(part["log likelihood"].shape[:2]) for part in said]
            _expect(
                {one[0] for one in shapes} == {1}
                and sum(one[1] for one in shapes) == len(public),
                f"answers {shapes} of [models, records].",
            )
            continue
        total = ask(case.trainer, case.task, models, public).exp().sum(dim=-1)
        _expect(
            bool((total - 1).abs().max() < 1e-3),
            f"answers with probabilities that sum to {float(total.mean()):.3g}. Give "
            "log_probabilities: logits by log_softmax(dim=-1).",
        )


def a_claim_is_a_budget_or_nothing(case: TrainerCase) -> None:
    """A claim is refuted by numbers: it has one, and says whose it is."""
    claim = claim_of(case.trainer, case.task)
    _expect(
        bool(claim.source) and (claim.epsilon is None or claim.epsilon >= 0),
        f"claims {claim}. Give an epsilon of at least 0 or None, and a source.",
    )


OF_TRAINERS: tuple[Callable[[TrainerCase], None], ...] = (
    a_round_changes_none_of_its_inputs,
    equal_seeds_give_equal_messages,
    a_private_start_follows_from_seed_and_client,
    a_cohort_equals_its_clients_one_by_one,
    every_view_gives_a_model_that_answers,
    a_claim_is_a_budget_or_nothing,
)

_ONCE = {"learning_rate": 1e-3, "epochs": 1, "batch_size": 0, "momentum": 0.0}
_WORLDS: tuple[tuple[str, Mapping[str, Any], str, float], ...] = (
    # Released prompts that memorised noise: an AUROC of about 0.8 to 0.9.
    ("coop", _ONCE | {"learning_rate": 0.2, "epochs": 60, "momentum": 0.9}, "released", 0.6),
    # One step on whole shards: twelve gradients in fifteen dimensions are not
    # distinguished for certain; one is.
    ("promptfl", _ONCE, "server", 0.5),
    ("fedpt-dhapa", {}, "server", 0.6),  # clients send means over their records
    # Low-rank changes of layers: what entered these is in what was sent.
    ("fedpt", {"peft_method": "lora", "epochs": 4}, "server", 0.6),
)  # fmt: skip
"""Trainer, settings, who looks on, and the least AUROC that an attack must find there."""


@dataclass(frozen=True)
class Attacked:
    """Who looked on in the first world that has what an attack needs, and the scores."""

    threat: str
    least: float
    adversary: Adversary
    targets: Sequence[Target]
    scores: Sequence[Scores]


@dataclass
class AttackCase:
    """An attack, and candidates and other records whose labels only memory can know."""

    name: str
    task: Task
    play: Play
    candidates: Mapping[ClientId, Records]
    others: Mapping[ClientId, Records]
    worlds: dict[bool, Attacked] = field(default_factory=dict)  # by: members trained on

    @cached_property
    def coins(self) -> list[Bool[np.ndarray, " candidates"]]:
        """Of each client, which candidates are members."""
        sizes = map(len, self.candidates.values())
        return [np.random.default_rng(n).random(s) < 0.5 for n, s in enumerate(sizes)]

    def on(self, members: bool) -> Attacked:
        """Attack clients that trained on their members, or on no candidate."""
        if members not in self.worlds:
            refused = []
            for trainer, settings, threat, least in _WORLDS:
                try:
                    made = build_trainer(trainer, settings)
                    self.worlds[members] = self._attack(made, threat, least, members)
                    break
                except (AttackError, ConfigError, ViewError) as error:
                    refused.append(str(error))
            _expect(len(refused) < len(_WORLDS), f"needs what no world has: {refused}")
        return self.worlds[members]

    def _attack(
        self, trainer: Any, threat: str, least: float, members: bool
    ) -> Attacked:
        pairs = zip(self.candidates.items(), self.coins, strict=True)
        own = {who: one.pick(torch.from_numpy(coin)) for (who, one), coin in pairs}
        shards = own if members else self.others
        played = self.play(trainer, task=self.task, shards=shards)
        adversary, targets = played.watched(threat, self.candidates)
        scores = self.again(adversary, targets)
        return Attacked(threat, least, adversary, targets, scores)

    def again(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Attack, with nothing remembered."""
        scores: Any = ATTACKS.find(self.name)()(replace(adversary), targets)
        fault = fault_of_scores(scores, targets)
        _expect(not fault, f"gives {fault}.")
        return list(scores)

    def auroc(self, members: bool, confidence: float = 0.95) -> Estimate:
        """Return how well the scores tell members."""
        pairs = zip(self.on(members).scores, self.coins, strict=True)
        groups = [(one.scores[coin], one.scores[~coin]) for one, coin in pairs]
        return pooled_auroc(groups, confidence=confidence)


def scores_are_repeatable(case: AttackCase) -> None:
    """An audit is verified by making it again."""
    found = case.on(True)
    again = case.again(found.adversary, found.targets)
    for one, other in zip(found.scores, again, strict=True):
        _expect(
            np.array_equal(one.scores, other.scores)
            and np.array_equal(one.guesses, other.guesses),
            "gives other scores when it is asked again. Draw from Adversary.seeds.",
        )


def scores_follow_their_candidates(case: AttackCase) -> None:
    """The order of candidates tells nothing."""
    found = case.on(True)
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(len(found.targets[0].candidates), generator=draw)
    shuffled = [replace(t, candidates=t.candidates.pick(order)) for t in found.targets]
    again = case.again(found.adversary, shuffled)
    for one, other in zip(found.scores, again, strict=True):
        _expect(
            np.allclose(other.scores, one.scores[order.numpy()], rtol=1e-7, atol=1e-4),
            "gives a candidate another score in another order. Score each by itself.",
        )


def a_memory_of_noise_is_found(case: AttackCase) -> None:
    """Where clients memorised random labels, members score higher."""
    found, auroc = case.on(True), case.auroc(True)
    uses_labels = getattr(ATTACKS.find(case.name), "uses_labels", True)
    # Where a model is released, labels are all there is to learn.
    wanted = uses_labels or found.threat != "released"
    _expect(
        (auroc.low > found.least) == wanted,
        f"finds an AUROC of {auroc} where clients memorised random labels, which should "
        f"{'' if wanted else 'not '}lie above {found.least}: higher scores mean members. "
        "Set uses_labels = False where no label is looked at.",
    )


def nothing_is_found_where_no_candidate_was_trained_on(case: AttackCase) -> None:
    """Else members are found in models that never saw one."""
    auroc = case.auroc(False, SURE)
    _expect(
        auroc.low < 0.5 < auroc.high,
        f"finds an AUROC of {auroc} where no candidate was trained on: what it scores is "
        "no membership.",
    )


OF_ATTACKS: tuple[Callable[[AttackCase], None], ...] = (
    scores_are_repeatable,
    scores_follow_their_candidates,
    a_memory_of_noise_is_found,
    nothing_is_found_where_no_candidate_was_trained_on,
)


def a_scenario_names_what_exists(name: str) -> None:
    """Who looks on, and attacks that there are."""
    made = SCENARIOS.find(name)(shadows=7)
    find_threat(made.threat)
    unknown = {*made.attacks} - {*ATTACKS.names(), *(c.attack for c in grid_cells())}
    tasks = {attack.task for attack in made.attacks.values()}
    _expect(
        made.name == name, f"calls itself {made.name!r}, and is entered as {name!r}."
    )
    _expect(made.question.endswith("?"), f"asks {made.question!r}: end it with a ?.")
    _expect(not unknown, f"has attacks that there are not: {', '.join(unknown)}.")
    _expect(tasks <= {*get_args(TaskKind), "either"}, f"has attacks for {tasks}.")
    for kind in get_args(TaskKind):
        if tasks & {kind, "either"}:
            made.for_task(kind)


def a_data_set_is_the_same_each_time(name: str) -> None:
    """Its hash stands in every run, and tells which are of the same data."""
    entry = DATASETS.find(name)
    one = load_dataset(name)
    _expect(
        isinstance(entry, OnDisk) or entry().hash == one.hash,
        "gives other records when it is asked again. Draw them from a fixed seed.",
    )


def few_epochs(name: str) -> dict[str, object]:
    """Return settings with which a trainer passes over its records five times at most.

    What holds for five passes in each round holds for the papers' fifty.
    """
    return {"epochs": 5} if getattr(build_trainer(name, {}), "epochs", 0) > 5 else {}


def _trainer_case(name: str) -> TrainerCase:
    task, candidates, _ = _crowd(name)
    half = torch.arange(RECORDS // 2)
    shards = {client: own.pick(half) for client, own in candidates.items()}
    play = partial(play_rounds, task=task, shards=shards)
    return TrainerCase(build_trainer(name, few_epochs(name)), task, play)


def _attack_case(name: str) -> AttackCase | None:
    """Return a case of an attack; None of one on words, which is to be complete."""
    named_attacks([name], 0)  # refuses one that lacks something
    if ATTACKS.find(name).task == "generation":  # type: ignore[attr-defined]
        return None
    task, candidates, others = _crowd("coop")
    task = replace(task, public=_with_noise(task.public, 99))
    own = {c: _with_noise(one, n) for n, (c, one) in enumerate(candidates.items())}
    others = {c: _with_noise(one, n) for n, (c, one) in enumerate(others.items())}
    return AttackCase(name, task, play_rounds, own, others)


def _crowd(name: str) -> tuple[Task, dict[ClientId, Records], dict[ClientId, Records]]:
    """Return a task of three clients, candidates of each, and as many other records."""
    population = populate(make_config(name, seed=0, clients=3, rounds=3))
    task, parts = population.task, torch.arange(2 * RECORDS).split(RECORDS)
    one, other = (
        {client: population.candidates(client).pick(part) for client in task.clients}
        for part in parts
    )
    public = task.public.pick(torch.arange(min(REFERENCE, len(task.public))))
    few = dict.fromkeys(task.clients, RECORDS)
    return replace(task, public=public, candidates=few), one, other


def _with_noise(records: Records, seed: int) -> Records:
    draw, labels = torch.Generator().manual_seed(seed), records.labels
    noise = torch.randint(int(labels.max()) + 1, labels.shape, generator=draw)
    return replace(records, labels=noise)


_KINDS: Mapping[
    str, tuple[Any, Sequence[Callable[[Any], None]], Callable[..., Any]]
] = {
    "trainer": (TRAINERS, OF_TRAINERS, _trainer_case),
    "attack": (ATTACKS, OF_ATTACKS, _attack_case),
    "scenario": (SCENARIOS, (a_scenario_names_what_exists,), str),
    "data set": (DATASETS, (a_data_set_is_the_same_each_time,), str),
}


def contracts_of(package: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each contract of what an installed package adds, by its name.

    Raises:
        PluginError: It adds nothing that has a contract.
    """
    added = [
        (kind, name)
        for kind, (registry, *_) in _KINDS.items()
        for name in registry.names_of(package)
    ]
    if not added:
        raise PluginError(
            f"The contracts of {package} were asked for, and no installed package of "
            f"that name adds a {', '.join(_KINDS)}. Install it: pip install -e FOLDER."
        )
    for kind, name in added:
        _, contracts, make = _KINDS[kind]
        case = cache(partial(make, name))
        for contract in contracts:
            said = contract.__name__.replace("_", " ")
            yield f"{kind} {name}: {said}", partial(_ask, contract, case)


def _ask(contract: Callable[[Any], None], case: Callable[[], Any]) -> None:
    made = case()
    if made is not None:
        contract(made)
