"""The encoded records of a run, canaries among them, and who owns them.

The truth about members is apart: no attack reaches :mod:`privaudit.runs.ledger`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.datasets.canaries import Canaries
from privaudit.datasets.dataset import Dataset, FeatureBank, PixelImages, Texts
from privaudit.datasets.records import ANSWER, Dialogue
from privaudit.datasets.sources import load_dataset
from privaudit.datasets.split import (
    PUBLIC,
    TEST,
    Split,
    group_records,
    leave_out,
    read_positions,
    refuse_empty,
    split_records,
)
from privaudit.federation.trainer import (
    AcceptsGradientCanaries,
    ClientId,
    Records,
    Task,
    Trainer,
)
from privaudit.models.frozen_model import FrozenModel
from privaudit.models.interfaces import Classifier, LanguageModel, OwnersModel
from privaudit.models.random_views import with_views
from privaudit.models.registry import find_family, load_frozen
from privaudit.runs.config import RunConfig
from privaudit.runs.ledger import Ledger
from privaudit.runs.tasks import RUN_TASKS, RepeatedRows


def split_dataset(
    config: RunConfig, dataset: Dataset, known: Int[np.ndarray, " known"] | None
) -> Split:
    """Split records, or groups of them, into clients' candidates, tests and the public.

    ``known`` are the positions of records that the frozen model has seen: no client
    gets them.

    Where a coin decides for a client, its candidates are one group.
    """
    whole = split_records(
        dataset.labels.numpy(),
        config.split(),
        config.shares(),
        clients=config.clients,
        seeds=config.seeds,
        split=None if dataset.split is None else dataset.split.numpy(),
        domains=None if dataset.domains is None else dataset.domains.numpy(),
        known=known,
        group=None if config.groups is None else group_records(dataset, config.groups),
    )
    remaining = whole
    if config.without is not None:
        remaining = leave_out(whole, read_positions(config.without))
        refuse_empty(remaining.owner, config.clients)
    if config.members != "clients":
        return remaining
    first, coins = (_first_of_client(one, config.clients) for one in (remaining, whole))
    return replace(remaining, group=first, coins=coins)


def _first_of_client(split: Split, clients: int) -> Int[np.ndarray, " n"]:
    """Return for each record the position of its client's first."""
    first = np.arange(len(split.owner))
    for client in range(clients):
        own = split.of(client)
        first[own] = own[0]
    return first


OTHER_SECRETS = 63  # beside a canary's own: six bits at most
FAR_BEYOND = 100.0  # clip norms, times the records in a batch mean


def draw_canaries(
    config: RunConfig, split: Split, backbone: Classifier | LanguageModel
) -> Canaries | None:
    """Choose the canaries that were asked for, of all clients' candidates."""
    if config.canary is None:
        return None
    trainer, writes = config.build_trainer(), not isinstance(backbone, Classifier)
    if writes != (config.canary == "secret"):
        does = "generates text: --canary secret" if writes else "classifies: another"
        raise ConfigError(
            f"Canaries of the kind {config.canary} were requested, and {config.model} "
            f"{does} is for it. Any candidate is a canary without --canary."
        )
    accepts = isinstance(trainer, AcceptsGradientCanaries)
    if config.canary == "gradient" and not accepts:
        raise ConfigError(
            f"Canaries in gradient space were requested, but {config.trainer} does not "
            "take them. Use --canary mislabelled, or promptfl, dp-promptfl or dp-fpl."
        )
    return Canaries.draw(
        config.canary,
        [split.of(number) for number in range(config.clients)],
        config.canaries,
        config.seeds.child("canaries"),
        (config.context_tokens, backbone.prompts.width)
        if isinstance(backbone, Classifier)
        else (0, 0),
        crafted_norm(trainer, max(len(split.of(n)) for n in range(config.clients))),
    )


def crafted_norm(trainer: Trainer, records: int) -> float:
    """Return a gradient's norm that is clipped, also in the mean over so many records.

    1 where nothing is clipped: a larger one would be all that is learned.
    """
    if not getattr(trainer, "clips", False):
        return 1.0
    names = ("clip_norm", "clip_global", "clip_local")
    return FAR_BEYOND * records * max(getattr(trainer, n, None) or 0.0 for n in names)


def encoded(
    dataset: Dataset, canaries: Canaries | None, encode: Callable[[Dataset], Records]
) -> tuple[Records, Int[Tensor, "canaries secrets tokens"] | None]:
    """Return a data set encoded, canaries as they are, and tokens of other secrets.

    Raises:
        ConfigError: The tokenizer writes digits in different numbers of tokens, or
            there are no pictures to draw canaries in place of.
    """
    if canaries is None or canaries.kind != "secret":
        return with_drawings(encode(dataset), dataset, canaries, encode), None
    with_secrets = replace(dataset, dialogues=canaries.tell(dataset.dialogues))
    records = encode(with_secrets)
    own, secrets = answers_of(records), canaries.alternatives(OTHER_SECRETS)
    others = [
        answer
        for first in range(0, len(secrets), len(dataset))
        for answer in _written(secrets[first : first + len(dataset)], dataset, encode)
    ]
    lengths = {len(own[index]) for index in canaries.indices} | set(map(len, others))
    if len(lengths) > 1:
        raise ConfigError(
            f"Secrets of six digits take from {min(lengths)} to {max(lengths)} tokens in "
            "this model, so that they cannot be compared. Use another model."
        )
    of_each = len(canaries.indices), OTHER_SECRETS, -1
    return records, torch.stack(others).view(of_each)


def _written(
    secrets: Sequence[Dialogue], dataset: Dataset, encode: Callable[[Dataset], Records]
) -> list[Int[Tensor, " tokens"]]:
    """Return the tokens of at most as many secrets as there are records."""
    filled = tuple(secrets) + (secrets[0],) * (len(dataset) - len(secrets))
    return answers_of(encode(replace(dataset, dialogues=filled)))[: len(secrets)]


def answers_of(records: Records) -> list[Int[Tensor, " tokens"]]:
    """Return the tokens of each record's answer."""
    assert records.words is not None
    pairs = zip(records.words.ids, records.words.kinds, strict=True)
    return [ids[kinds == ANSWER] for ids, kinds in pairs]


def with_drawings(
    records: Records,
    dataset: Dataset,
    canaries: Canaries | None,
    encode: Callable[[Dataset], Records],
) -> Records:
    """Return records with drawn canaries in their places, if there are such.

    Raises:
        ConfigError: The data set has no pictures.
    """
    if canaries is None or canaries.kind != "drawn":
        return records
    if isinstance(dataset.images, FeatureBank | Texts):
        raise ConfigError(
            "Drawn canaries were requested, and the data set has no pictures. Use "
            "--canary mislabelled."
        )
    places = torch.from_numpy(canaries.indices)
    shape = dataset.images[int(places[0])].shape
    pixels = PixelImages(canaries.pictures(*shape))
    labels, names = dataset.labels[places], dataset.class_names
    drawn = encode(Dataset(pixels, labels, names, dataset.template))
    order = torch.arange(len(records))
    order[places] = len(records) + torch.arange(len(places))
    planted = Records.joined([records, drawn]).pick(order)
    return replace(planted, contents=records.identities)


def canary_texts(population: "Population") -> list[dict[str, Any]]:
    """Return what each canary is and whose, but not whether it is trained on."""
    canaries, records = population.canaries, population.records
    assert canaries is not None
    whose = {
        int(index): client
        for client in population.numbers
        for index in population.indices(client)
    }
    names = population.dataset.class_names
    entries = []
    for number, index in enumerate(canaries.indices.tolist()):
        entry = {"record": index, "kind": canaries.kind, "client": whose[index]}
        if canaries.kind == "secret":
            said = records.dialogues[index]
            entry |= {"question": said.question, "answer": said.answers[0]}
        else:
            entry["class"] = names[int(records.labels[index])]
        if canaries.kind == "drawn":
            patches = canaries.drawings[number].flatten(1).T.tolist()
            entry["patches"] = ["#" + bytes(patch).hex() for patch in patches]
        entries.append(entry)
    return entries


@dataclass(frozen=True)
class Population:
    """Everything a configuration determines before anybody trains.

    Attributes:
        dataset: The data set with all its records.
        records: The same records, encoded by the frozen model.
        tested: So many test records are used at most, drawn once for all runs; None
            uses all.
        canaries: Candidates that are made easy to notice, if there are any.
        tested_clients: Whose models utility is measured of; None is everybody's.
        owners: Whether the data set's domains are the clients themselves: no test
            record need be of a client's own, so that utility goes by classes alone.
        other_secrets: Tokens of secrets that are no canary's, where canaries are such,
            for each canary its own.
    """

    dataset: Dataset
    records: Records
    split: Split
    task: Task
    model_hash: str
    tested: int | None = None
    canaries: Canaries | None = None
    tested_clients: tuple[ClientId, ...] | None = None
    owners: bool = False
    other_secrets: Int[Tensor, "canaries secrets tokens"] | None = None

    def indices(self, client: ClientId) -> Int[np.ndarray, " candidates"]:
        """Return the positions of a client's candidates in the data set."""
        return self.split.of(self.numbers[client])

    @cached_property
    def numbers(self) -> dict[ClientId, int]:
        """Each client's place in their fixed order."""
        return {client: number for number, client in enumerate(self.task.clients)}

    def asked_about(
        self, client: ClientId, *, canaries: bool
    ) -> Int[np.ndarray, " some"]:
        """Return the positions of the candidates that an audit is about.

        Planted canaries are none of the client's real records: without them an audit
        tells of those, and with them of epsilon.
        """
        positions = self.indices(client)
        if self.canaries is None or canaries:
            return positions
        return positions[~np.isin(positions, self.canaries.indices)]

    def candidates(self, client: ClientId) -> Records:
        """Return a client's candidates, members and others alike."""
        return self.pick(self.indices(client))

    def pick(self, indices: Int[np.ndarray, " some"]) -> Records:
        """Return some records, canaries as they are trained on."""
        records = self.records.pick(torch.from_numpy(indices))
        if self.canaries is None:
            return records
        return replace(records, crafted=self.canaries.gradients(indices))

    @cached_property
    def tests(self) -> Records:
        """The records that utility is measured on."""
        return self.records.pick(self._tests)

    @cached_property
    def untrained_scores(self) -> Float[np.ndarray, " tests"] | None:
        """What the model as it comes scores on each test record; None without one."""
        if isinstance(self.task.backbone, OwnersModel):  # only its owner has it
            return None
        return RUN_TASKS[self.task.kind].untrained(self.task, self.tests)

    def own_records(self, client: ClientId) -> Bool[Tensor, " tests"]:
        """Say which test records are of a client's own classes, and its own domains."""
        positions, labels = torch.from_numpy(self.indices(client)), self.dataset.labels
        is_own = torch.isin(labels[self._tests], labels[positions].unique())
        domains = self._domains
        if domains is not None:
            is_own &= torch.isin(domains[self._tests], domains[positions].unique())
        return is_own

    def mix(self, client: ClientId) -> Float[Tensor, " tests"]:
        """Return weights that mix test records as a client's candidates are mixed.

        Each class, in each domain, weighs as much as the client has candidates of it;
        one without test records is left out. So an accuracy with these weights is that
        on test records split in the shares in which the candidates were.
        """
        own, counts = self._kinds[self.indices(client)].unique(return_counts=True)
        kinds, there = self._tested_kinds
        if not len(own):
            return torch.zeros(len(kinds))
        place = torch.searchsorted(own, kinds).clamp(max=len(own) - 1)
        return torch.where(own[place] == kinds, counts[place], 0) / there

    def own_rows(self, clients: Sequence[ClientId]) -> RepeatedRows:
        """Return :meth:`own_records` of several clients."""
        return self._rows("own", clients, np.unique, self.own_records)

    def mix_rows(self, clients: Sequence[ClientId]) -> RepeatedRows:
        """Return :meth:`mix` of several clients."""
        return self._rows("mix", clients, np.sort, self.mix)

    def _rows(
        self,
        what: str,
        clients: Sequence[ClientId],
        shown: Callable[[np.ndarray], np.ndarray],
        row: Callable[[ClientId], Tensor],
    ) -> RepeatedRows:
        """Return rows, one for clients whose kinds of candidates show alike; once."""
        key = what, tuple(clients)
        if key in self._computed:
            return self._computed[key]
        kinds = self._kinds.numpy()
        names = [shown(kinds[self.indices(client)]).tobytes() for client in clients]
        first = dict(zip(reversed(names), reversed(clients), strict=True))
        rows = {name: row(first[name]).numpy() for name in dict.fromkeys(names)}
        return self._computed.setdefault(key, RepeatedRows.named(names, rows))

    @cached_property
    def _computed(self) -> dict[tuple[str, tuple[ClientId, ...]], RepeatedRows]:
        return {}

    @cached_property
    def _tests(self) -> Int[Tensor, " tests"]:
        tests = torch.from_numpy(self.split.of(TEST))
        return tests[some_of(len(tests), self.tested)]

    @cached_property
    def _tested_kinds(self) -> tuple[Int[Tensor, " tests"], Int[Tensor, " tests"]]:
        """Each test record's kind, and how many test records are of it."""
        _, place, counts = self._kinds[self._tests].unique(
            return_inverse=True, return_counts=True
        )
        return self._kinds[self._tests], counts[place]

    @property
    def _domains(self) -> Int[Tensor, " n"] | None:
        return None if self.owners else self.dataset.domains

    @cached_property
    def _kinds(self) -> Int[Tensor, " n"]:
        """A number for each class in each domain."""
        labels, domains = self.dataset.labels, self._domains
        classes = len(self.dataset.class_names)
        return labels if domains is None else labels + classes * domains


def some_of(count: int, most: int | None) -> Int[Tensor, " some"]:
    """Return which of so many records are measured on: the same ones in all runs."""
    order = np.random.default_rng(0).permutation(count)[:most]
    return torch.from_numpy(np.sort(order))


def populate(config: RunConfig) -> Population:
    """Load, encode and split a run's records."""
    dataset = load_own(config)
    refuse_mismatch(config, dataset)
    model = load_model(config)
    known = model.known_records(dataset)
    split = whole = split_dataset(config, dataset, known)
    if config.without is not None and config.canary is not None:
        whole = split_dataset(
            config.model_copy(update={"without": None}), dataset, known
        )
    backbone = model.backbone(
        dataset.class_names, dataset.template, config.context_tokens
    )
    canaries = draw_canaries(config, whole, backbone)
    encode = partial(encode_for, config, model)
    records, others = encoded(dataset, canaries, encode)
    if config.views > 1:
        records = with_views(model, dataset, records, config.views)
    if canaries is not None:
        classes = len(dataset.class_names)
        records = replace(
            records,
            labels=canaries.mislabel(records.labels, classes),
            contents=canaries.mark(records.identities),
        )
        planted = canaries.indices
        canaries = canaries.of([split.of(n) for n in range(config.clients)])
        if others is not None:
            others = others[torch.from_numpy(np.isin(planted, canaries.indices))]
    task = Task(
        backbone=backbone,
        public=records.pick(torch.from_numpy(split.of(PUBLIC))),
        candidates={
            f"client-{number}": len(split.of(number))
            for number in range(config.clients)
        },
        rounds=config.rounds,
        member_share=0.5 if config.members == "coin" else 1.0,
    )
    return Population(
        dataset, records, split, task, model.model_hash, config.tested, canaries,
        _tested_clients(config, task), config.has_owners,
        others,
    )  # fmt: skip


def load_own(config: RunConfig) -> Dataset:
    """Return a run's own data set."""
    return load_dataset(config.dataset, config.data, config.columns, config.classes)


def _tested_clients(config: RunConfig, task: Task) -> tuple[ClientId, ...] | None:
    """Draw whose models utility is measured of; None where it is of all."""
    if config.measured_clients >= config.clients:
        return None
    order = config.seeds.stream("tested clients").permutation(config.clients)
    chosen = sorted(order[: config.measured_clients].tolist())
    return tuple(task.clients[number] for number in chosen)


def load_model(config: RunConfig) -> FrozenModel:
    """Return a run's frozen model."""
    return load_frozen(
        config.model,
        checkpoint=config.checkpoint,
        targets=config.targets,
        precision=config.precision,
        quantise=config.quantise,
        template=config.template,
    )


def encode_for(config: RunConfig, model: FrozenModel, dataset: Dataset) -> Records:
    """Return a data set's records as a run's model reads them."""
    tokens = config.build_trainer().image_tokens
    return model.encode(dataset, image_tokens=tokens)


def refuse_mismatch(config: RunConfig, dataset: Dataset) -> None:
    """Refuse a trainer, a model and a data set that do not go together."""
    task, family = config.build_trainer().task, find_family(config.model)
    if task not in (family.task, "either"):
        other = "tiny-llava" if task == "generation" else "tiny-clip"
        raise ConfigError(
            f"{config.trainer} trains models for {task}, and {config.model} is for "
            f"{family.task}. Use a model such as {other}, or another trainer."
        )
    if task == "classification" and family.tuned and not family.prompted:
        raise ConfigError(
            f"{config.trainer} learns prompts before class names, and {config.model} "
            "has no such prompts. Train it with fedpt, or use a model such as "
            "tiny-clip."
        )
    if task == "classification" and family.tuned and config.precision == "float16":
        raise ConfigError(
            f"{config.trainer} learns prompts before class names in float32 or "
            "bfloat16, and float16 was requested. Use one of these."
        )
    if family.task == "generation" and not dataset.dialogues:
        raise ConfigError(
            f"{config.model} answers questions, and {config.dataset} has none "
            "about its records. Use a data set with captions or questions, such as "
            "scenes."
        )
    has = "texts" if isinstance(dataset.images, Texts) else "pictures"
    if has != family.records:
        other = "one named encoder:" if has == "texts" else "tiny-clip or tiny-llava"
        raise ConfigError(
            f"{config.dataset} has {has}, and {config.model} takes {family.records}. Use a "
            f"model that takes {has}, such as {other}, or another data set."
        )


@dataclass(frozen=True)
class MemberShards(Mapping[ClientId, Records]):
    """Each client's members, picked when it trains: who is absent costs nothing."""

    population: Population
    ledger: Ledger

    def __getitem__(self, client: ClientId) -> Records:
        number = self.population.numbers[client]
        return self.population.pick(self.ledger.members_of(number))

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @cached_property
    def _clients(self) -> Sequence[ClientId]:
        """Who may take part: all, unless a coin decided for each client."""
        everybody = self.population.task.clients
        if self.population.split.members != "clients":
            return everybody
        return [one for one in everybody if len(self.ledger.members_of(one))]
