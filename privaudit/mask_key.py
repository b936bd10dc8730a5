"""The key that a run's masks follow from: of its seed, or kept with the run."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from privaudit.config import RunConfig
from privaudit.privacy.secure_aggregation.entropy import RunKey
from privaudit.privacy.secure_aggregation.masked_sum import Masking
from privaudit.seeds import Seeds
from privaudit.storage import file_hash, write_bytes

MASK_KEY = "kept/mask.key"
UNLIKE = ("progress", "files", "python")
"""What a header holds that no upload depends on."""


def draw_mask_key(path: Path, config: RunConfig) -> dict[str, str]:
    """Draw a run's key from the system if it wants one, and return the file's hash.

    Args:
        path: The run directory; whoever may read it can remove the masks.
        config: Of the run.

    Raises:
        StorageError: The folder cannot be written.
    """
    if config.mask_secrets == "seed":
        return {}
    write_bytes(path / MASK_KEY, RunKey.drawn().secret)
    return {MASK_KEY: file_hash(path / MASK_KEY)}


def _seeded_key(header: Mapping[str, Any], config: RunConfig) -> RunKey:
    """Return the key of a run that takes it from its seed.

    It depends on everything that says how the run came out, not on the configuration
    alone: a data set that has grown changes uploads, too.
    """
    alike = {name: value for name, value in header.items() if name not in UNLIKE}
    text = json.dumps([config.digest, alike], sort_keys=True)
    run = hashlib.sha256(text.encode()).hexdigest()
    return RunKey.of_seed(Seeds(config.seed), run)


def masking_of(
    config: RunConfig, header: Mapping[str, Any], drawn: Callable[[], bytes]
) -> Masking | None:
    """Return how a run's uploads are masked; None if they are sent in the clear.

    Args:
        config: Of the run.
        header: What its run.json says.
        drawn: Reads the key that was drawn for it, and raises if it was altered.
    """
    if not config.is_masked:
        return None
    system = config.mask_secrets == "system"
    key = RunKey(drawn()) if system else _seeded_key(header, config)
    return Masking(dropout=config.dropout, secrets=key)
