"""Canaries as they are planted among a run's candidates, before any coin is tossed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.canaries import Canaries
from privaudit.datasets.dataset import Dataset, FeatureBank, PixelImages, Texts
from privaudit.datasets.dialogues import ANSWER, Dialogue
from privaudit.datasets.split import Split
from privaudit.federated.runs.config import RunConfig
from privaudit.federated.trainer import Records, Trainer
from privaudit.federated.trainer_abilities import AcceptsGradientCanaries
from privaudit.models.interfaces import Classifier, LanguageModel

if TYPE_CHECKING:
    from privaudit.federated.runs.population import Population

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
