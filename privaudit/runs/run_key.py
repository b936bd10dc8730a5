"""A run's secret key: drawn by the system and kept with the run, or of its seed.

Noise, secret samples and masks follow from it, and the coins that choose members unless
a seed was asked for. Whoever has it subtracts the noise, removes the masks and knows
every member, so that nothing is hidden from who can guess it.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from privaudit.core.errors import PluginError
from privaudit.core.seeds import KEY, Seeds, derive, name_of
from privaudit.core.storage import file_hash, write_bytes
from privaudit.federation.masked_sum import SECURE_SUMS, Masks
from privaudit.runs.config import RunConfig

RUN_KEY = "kept/run.key"
UNLIKE = ("progress", "files", "python", "processor", "counts_audits")
"""What a header holds that no upload depends on."""


def draw_run_key(path: Path, config: RunConfig) -> dict[str, str]:
    """Draw a run's key from the system if it wants one, and return the file's hash."""
    if config.randomness == "seed":
        return {}
    write_bytes(path / RUN_KEY, system_key(path, config))
    return {RUN_KEY: file_hash(path / RUN_KEY)}


def system_key(path: Path, config: RunConfig) -> bytes:
    """Return a key that the system draws, whatever the run: tests put another here."""
    return os.urandom(KEY)


def secrets_of(config: RunConfig, drawn: Callable[[], bytes]) -> Seeds:
    """Return where a run's noise and secret samples come from.

    Of a seed, they are the same in runs that differ otherwise, which can so be paired.

    ``drawn`` reads the key that was drawn for it, and raises if it was altered.
    """
    if config.randomness == "system":
        return Seeds.of_key(drawn())
    return config.seeds


def coins_of(config: RunConfig, drawn: Callable[[], bytes]) -> Seeds:
    """Return where the membership coins come from: the run's key, or an asked-for seed."""
    return Seeds.of_key(drawn()) if config.seed is None else config.seeds


def masking_of(
    config: RunConfig, header: Mapping[str, Any], drawn: Callable[[], bytes]
) -> Masks | None:
    """Return how a run's uploads are masked; None if they are sent in the clear."""
    if not config.is_masked:
        return None
    system = config.randomness == "system"
    key = drawn() if system else _seeded_key(header, config)
    make = SECURE_SUMS.find(config.secure_aggregation)
    masks = make(key, config.dropout, config.masking_graph)
    if not isinstance(masks, Masks):
        package = SECURE_SUMS.package_of(config.secure_aggregation)
        raise PluginError(
            f"The secure-sum protocol of {package} made a {type(masks).__name__}, which "
            "has no step and sum_of, as Masks has. Install another version of it."
        )
    return masks


def _seeded_key(header: Mapping[str, Any], config: RunConfig) -> bytes:
    """Return the key of the masks of a run that takes it from its seed.

    It depends on everything that says how the run came out, not on the configuration
    alone: a data set that has grown changes uploads, too, and masks serve once.
    """
    alike = {name: value for name, value in header.items() if name not in UNLIKE}
    text = json.dumps([config.short_hash, alike], sort_keys=True)
    run = hashlib.sha256(text.encode()).hexdigest()
    return key_of_seed(config.seeds, run)


def key_of_seed(seeds: Seeds, run: str) -> bytes:
    """Return the 32 bytes that the masks of a run follow from which can be repeated.

    Args:
        seeds: The run's random streams. A seed that can be guessed is as good as the key.
        run: Tells runs of one seed apart: all that their uploads depend on.
    """
    return derive(seeds.key, name_of("key of a run", 0, run), KEY)
