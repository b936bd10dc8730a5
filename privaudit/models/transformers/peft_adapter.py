"""One client's LoRA as a folder that peft loads."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.storage import make_private_folder, write_json, write_tensors
from privaudit.models.hugging_face import import_peft
from privaudit.models.language.language_targets import is_transposed
from privaudit.models.language.stacked_language import StackedLanguageModel

Factors = Mapping[
    str, tuple[Float[Tensor, "rank inputs"], Float[Tensor, "outputs rank"]]
]


def save_adapter(
    folder: Path,
    language: StackedLanguageModel,
    factors: Factors,
    scaling: float,
    base: str | None = None,
) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``.

    ``peft.PeftModel.from_pretrained(model, folder)`` adds it to the model that
    ``language`` wraps.

    Args:
        folder: Made if missing, for its owner only: an adapter tells of its records.
        language: Whose layers are changed.
        factors: (A, B) by target; a layer then gives scaling * B A x more.
        scaling: peft's alpha / rank.
        base: Folder or hub name of the model, for others to find it.

    Raises:
        ConfigError: A name is no target, or shapes do not fit it or one another.
        StorageError: The folder cannot be written.
    """
    rank = _rank(language, factors)
    modules = [language.model.get_submodule(name) for name in factors]
    config = import_peft().LoraConfig(
        r=rank,
        lora_alpha=scaling * rank,
        target_modules=list(factors),
        fan_in_fan_out=any(map(is_transposed, modules)),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    tensors: dict[str, Tensor] = {}
    for name, (first, second) in factors.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = first
        tensors[f"base_model.model.{name}.lora_B.weight"] = second
    make_private_folder(folder)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    write_json(folder / "adapter_config.json", _plain(config.to_dict()))


def _rank(language: StackedLanguageModel, factors: Factors) -> int:
    ranks = set()
    for name, (first, second) in factors.items():
        if name not in language.targets:
            raise ConfigError(
                f"{name!r} is no target of the language model. Targets are: "
                f"{', '.join(language.targets)}."
            )
        target, rank = language.targets[name], len(first)
        wanted = (rank, target.inputs), (target.outputs, rank)
        if (found := (tuple(first.shape), tuple(second.shape))) != wanted:
            raise ConfigError(
                f"The factors of {name!r} have the shapes {found}, and its layer takes "
                f"{wanted}. Give A [rank, inputs] and B [outputs, rank]."
            )
        ranks.add(rank)
    if len(ranks) != 1:
        raise ConfigError(
            f"An adapter has one rank, and these factors have {sorted(ranks)}. Give "
            "factors of one rank, and at least one pair."
        )
    return int(ranks.pop())


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what JSON takes: no sets and no enumerations."""
    plain = {
        key: sorted(value) if isinstance(value, set) else getattr(value, "value", value)
        for key, value in content.items()
    }
    return plain | {"lora_alpha": content["lora_alpha"]}
