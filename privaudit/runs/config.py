"""The complete, validated record of how a run was made."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator

from privaudit.core.errors import ConfigError, shown
from privaudit.core.limits import reason_of
from privaudit.core.parameters import (
    build,
    complete_settings,
    field_names,
    readable,
    refuse_incomplete,
    refuse_truths,
)
from privaudit.core.seeds import Seeds
from privaudit.core.storage import read_bytes
from privaudit.datasets.named_places import by_content, is_named, with_hash
from privaudit.datasets.partition import (
    FLOWER,
    ByDomain,
    ByShards,
    BySizes,
    Dirichlet,
    FlowerPartition,
    Natural,
    Partition,
    Pathological,
)
from privaudit.datasets.sources import (
    TableColumns,
    is_hub_name,
    name_and_place,
    named_classes,
)
from privaudit.datasets.split import (
    CONTENTS,
    NEAR,
    SplitSizes,
    read_positions,
    refuse_no_public,
    write_positions,
)
from privaudit.federation.rounds import count_participants
from privaudit.federation.trainer import TRAINERS, Trainer
from privaudit.models.interfaces import AnyTask, TaskKind
from privaudit.models.registry import FOLDER, FOLDER_OR_HUB, find_family
from privaudit.runs.fields import RunFields
from privaudit.runs.tasks import RUN_TASKS

_SIZES = re.compile(r"power:\d{1,2}(\.\d{1,6})?|\d{1,9}(,\d{1,9})*")
MANY_CLIENTS, SAMPLED_CLIENTS = 300, 100  # of more, so many models' utility is measured
FEWEST_CLIENTS = 10  # with a coin each: fewer are in, or out, together too often
_PARTITIONS: Mapping[str, Callable[[RunFields], Partition]] = {
    "dirichlet": lambda run: Dirichlet(run.alpha),
    "pathological": lambda run: Pathological(),
    "domains": lambda run: ByDomain(run.alpha),
    "natural": lambda run: Natural(),
    "shards": lambda run: ByShards(run.shards),
    "sizes": lambda run: BySizes(run.sizes),
}


class RunConfig(RunFields):
    """The fields of one run, complete and checked."""

    @field_validator("*")
    @classmethod
    def _refuse_nul(cls, value: Any) -> Any:
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a text holds a NUL")
        return value

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, value: str) -> str:
        if value.startswith(FLOWER):
            try:
                return str(FlowerPartition.of(value))
            except ConfigError as error:
                raise ValueError(str(error)) from None
        if value not in _PARTITIONS:
            raise ValueError(f"use {', '.join(_PARTITIONS)}, or {FLOWER}NAME")
        return value

    @field_validator("without")
    @classmethod
    def _positions(cls, value: str | None) -> str | None:
        return None if value is None else write_positions(read_positions(value))

    def measures(self, index: int) -> bool:
        """Say whether utility is measured after a round."""
        last = self.measured_rounds
        return last is None or index >= self.rounds - last

    @property
    def measured_clients(self) -> int:
        """How many clients' models utility is measured of: of many clients, a sample."""
        usual = SAMPLED_CLIENTS if self.clients > MANY_CLIENTS else self.clients
        return self.tested_clients or usual

    @property
    def columns(self) -> TableColumns:
        """What the columns of the data set's table are."""
        group = None if self.groups in (CONTENTS, NEAR) else self.groups
        return TableColumns(
            self.image_column,
            self.label_column,
            self.text_column,
            self.owner_column,
            group,
        )

    @property
    def task(self) -> TaskKind:
        """What the model does."""
        return find_family(self.model).task

    @property
    def is_masked(self) -> bool:
        """Whether uploads are masked, and not sent in the clear."""
        return self.secure_aggregation == "masked"

    @property
    def seeds(self) -> Seeds:
        """Where all comes from that nobody hides; coins do where a seed was asked for."""
        return Seeds(self.seed or 0)

    @property
    def coin_seed(self) -> int | None:
        """The seed that the membership coins follow from; None for a secret key's."""
        return None if self.members == "all" else self.seed

    def split(self) -> Partition:
        """Return the partition with its parameters."""
        if self.partition.startswith(FLOWER):
            return FlowerPartition.of(self.partition)
        return _PARTITIONS[self.partition](self)

    @property
    def has_owners(self) -> bool:
        """Whether clients are owners of records, or groups of them."""
        return self.partition == "natural" or "NaturalId" in self.partition

    def shares(self) -> SplitSizes:
        """Return how many records are set apart, and how many are used."""
        return SplitSizes(self.test_share, self.public_share, self.shots, self.members)

    @property
    def applies_mechanisms(self) -> bool:
        """Whether the code that clips and adds noise is this package's own."""
        return TRAINERS.is_own(self.build_trainer())

    def build_trainer(self) -> Trainer:
        """Return the trainer with its parameters."""
        return build_trainer(self.trainer, self.settings)

    def described(self) -> dict[str, Any]:
        """Return the fields for people: how many records are left out, and not which.

        Lists of one length are distinguished by four digits of their SHA-256, by which
        whoever guesses a short list can check the guess: exports leave it out.
        """
        fields = self.model_dump()
        if self.without is not None:
            which = hashlib.sha256(self.without.encode()).hexdigest()[:4]
            count = len(read_positions(self.without))
            fields["without"] = f"{count:,} records ({which})"
        return fields

    @property
    def short_hash(self) -> str:
        """The first eight characters of the identity's hash, which name its runs."""
        return self.identity_hash[:8]

    @property
    def identity_hash(self) -> str:
        """SHA-256 of the identity, which tells configurations apart on every machine."""
        text = json.dumps(self.identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def identity(self) -> dict[str, Any]:
        """What differs from the defaults; of data and models their content, no path.

        A field that a later version adds does not rename the runs of an earlier one.
        """
        fields = self.model_dump(exclude_defaults=True)
        for name in fields.keys() & {"data", "checkpoint"}:
            fields[name] = by_content(fields[name])
        kind, colon, source = self.model.partition(":")
        if colon:
            fields["model"] = f"{kind}:{by_content(source)}"
        return fields


def make_config(
    trainer: str, settings: Mapping[str, Any] | None = None, **fields: Any
) -> RunConfig:
    """Return a complete configuration: parameters stand in it with their defaults.

    Args:
        trainer: A name from ``privaudit list trainers``.
        settings: The trainer's parameters that differ from their defaults.
        **fields: Fields of :class:`RunConfig`. Without ``randomness``, or with "auto",
            it is "system" unless a seed is named, which asks for a run that repeats.

    Raises:
        UnknownNameError: No trainer has that name.
        ConfigError: A field is unknown or out of range; the text names it.
    """
    built = build_trainer(trainer, settings or {})
    complete = complete_settings(built)
    if ":" in str(fields.get("dataset")):
        fields["dataset"], fields["data"] = name_and_place(
            fields["dataset"], fields.get("data")
        )
    for place in ("checkpoint", "data"):  # a run is read again from other folders
        if fields.get(place) is not None and not _on_the_hub(place, fields):
            named = str(fields[place])  # with its hash, or as a full path
            fields[place] = with_hash(named) if is_named(named) else _full(named)
    if fields.get("template") is not None:
        fields["template"] = _template_text(str(fields["template"]))
    if fields.get("classes") is not None:
        fields["classes"] = named_classes(str(fields["classes"]))
    if fields.get("owner_column") is not None:
        fields.setdefault("partition", "domains")
    task: AnyTask = built.task
    if "model" in fields:
        fields["model"], task = _known_model(str(fields["model"]))
    if task != "either":
        fields = {**RUN_TASKS[task].defaults, **fields}
    fields.setdefault("rounds", built.usual_rounds)
    fields.setdefault("seed", None)
    if fields.get("randomness", "auto") == "auto":
        fields["randomness"] = "system" if fields["seed"] is None else "seed"
    try:
        config = RunConfig(trainer=trainer, settings=complete, **fields)
    except ValidationError as error:
        raise ConfigError(readable(error, "run")) from None
    refuse_truths("run", fields, config)
    refuse_no_public(config.public_share, config.members)
    _check_randomness(config)
    _check_partition(config)
    _check_groups(config)
    _check_masking(config, built)
    return config


def _known_model(name: str) -> tuple[str, TaskKind]:
    """Return a model's name, a folder in it as a full path, and what the model does."""
    family, (kind, _, source) = find_family(name), name.partition(":")
    if is_named(source):
        return f"{kind}:{with_hash(source)}", family.task
    there = family.sources == FOLDER_OR_HUB and Path(_full(source)).exists()
    if family.sources == FOLDER or there:  # else it is a name on the hub, maybe
        name = f"{kind}:{_full(source)}"
    return name, family.task


def _template_text(given: str) -> str:
    """Return a chat template itself, of its text or of the file that has it."""
    if "{%" in given or "{{" in given:
        return given
    try:
        text = read_bytes(Path(_full(given))).decode()
    except UnicodeDecodeError:
        text = ""
    if "{%" in text or "{{" in text:
        return text
    raise ConfigError(
        f"The chat template {shown(given)} is no Jinja template: neither it nor what "
        "stands in the file of that name writes anything between {{ and }}."
    )


def _on_the_hub(place: str, fields: Mapping[str, Any]) -> bool:
    """Say whether data that are no place here are perhaps a name on the hub."""
    named = str(fields[place])
    is_hub = place == "data" and fields.get("dataset") == "hf" and is_hub_name(named)
    return is_hub and not Path(_full(named)).exists()


def _full(place: str | Path) -> str:
    """Return a path that means the same from every folder."""
    try:
        if not str(place):
            raise ValueError("it is empty")
        resolved = Path(place).expanduser().resolve()
        _ = resolved.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise ConfigError(
            f"{shown(str(place))} is no place of data or weights: {reason}. Name one."
        ) from None
    return str(resolved)


def _check_randomness(config: RunConfig) -> None:
    """Refuse noise of a seed that nobody named: it would be 0, and everybody's."""
    if config.seed is None and config.randomness == "seed":
        raise ConfigError(
            "Randomness from the seed was requested (--randomness seed), and no seed. Add "
            "--seed to train a run that repeats, or leave --randomness out."
        )


def _check_partition(config: RunConfig) -> None:
    """Refuse parameters of a partition that is not the one."""
    for name in ("shards", "sizes"):
        usual = RunConfig.model_fields[name].default
        if config.partition != name and getattr(config, name) != usual:
            raise ConfigError(
                f"{name} = {getattr(config, name)} was requested, and the partition is "
                f"{config.partition}. Add --partition {name}, or leave --{name} out."
            )
    if not _SIZES.fullmatch(config.sizes):
        raise ConfigError(
            f"sizes = {shown(config.sizes)} was given. Use power:EXPONENT, such as "
            "power:1, or a number of candidates for each client, such as 20,5,5."
        )
    tested = config.tested_clients
    if tested is not None and tested > config.clients:
        raise ConfigError(
            f"{tested} tested clients were requested, and there are {config.clients}. "
            "Use at most so many."
        )


def _check_groups(config: RunConfig) -> None:
    """Refuse what does not go with canaries, or with a coin for whole clients."""
    if config.groups is not None and config.canary is not None:
        raise ConfigError(
            f"Groups ({shown(config.groups)}) and canaries were requested. A canary "
            "needs a coin of its own, and a group has one: leave one of the two out."
        )
    if config.views > 1 and config.canary == "drawn":
        raise ConfigError(
            f"Drawn canaries were requested with {config.views} random crops of each "
            "picture, which are of real ones. Leave --views out, or --canary drawn."
        )
    if config.members != "clients":
        return
    odd = config.canary or ("masked" if config.is_masked else None)
    if config.clients < FEWEST_CLIENTS or odd:
        what = f"with {odd}" if odd else f"for {config.clients} clients"
        raise ConfigError(
            f"A coin for each client (--members clients) was requested {what}. It takes "
            f"{FEWEST_CLIENTS} clients at least, some hundred to show anything, and "
            "neither canaries nor masked sums."
        )
    if config.participation < 1 or config.dropout > 0:
        raise ConfigError(
            "A coin for each client (--members clients) was requested with "
            f"participation {config.participation:g} and dropout {config.dropout:g}. "
            "Then a client whose coin was heads may be in no round, and counts as a "
            "member all the same. Set --participation 1, and leave --dropout out."
        )


def _check_masking(config: RunConfig, trainer: Trainer) -> None:
    """Refuse masks where no sum could be made of what is sent."""
    if not config.is_masked:
        if config.masking_graph != "all":
            raise ConfigError(
                f"The masking graph {config.masking_graph!r} was requested, but no "
                "upload is masked. Add --secure-aggregation masked, or leave "
                "--masking-graph out."
            )
        return
    if trainer.aggregation != "sum":
        raise ConfigError(
            f"Masked uploads were requested, but {config.trainer}'s server uses each "
            "of them by itself, not their sum. Use a trainer that sums, such as "
            "promptfl, or leave --secure-aggregation out."
        )
    count = count_participants(config.clients, config.participation)
    if count < 2:
        raise ConfigError(
            f"Masked uploads were requested, but {count} of {config.clients} clients "
            "takes part in a round: a sum over one is its update. Raise --clients or "
            "--participation."
        )


def build_trainer(name: str, settings: Mapping[str, Any]) -> Trainer:
    """Return a trainer by name, with its parameters."""
    what = f"trainer {name!r}"
    built = build(what, TRAINERS.find(name), settings)
    advice = "Inherit from BaseTrainer, and define start, local_update and query."
    refuse_incomplete(what, built, Trainer, advice)
    return built


def parameters_of(trainer: str) -> frozenset[str]:
    """Return the names of a trainer's parameters."""
    return field_names(TRAINERS.find(trainer))
