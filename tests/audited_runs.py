"""Small runs of two trainers over two seeds, each audited."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privaudit import Auditor, train
from privaudit.auditing.storage.save import save_audit


def audit_two_seeds(folder: Path, settings: Mapping[str, Any] | None = None) -> None:
    """Train PromptFL, with settings, and zero-shot on seeds 0 and 1, and audit them."""
    for seed in (0, 1):
        for trainer, chosen in (("promptfl", settings or {}), ("zero-shot", {})):
            run = train(
                trainer,
                folder=folder,
                name=f"{trainer}-{seed}",
                rounds=1,
                clients=3,
                seed=seed,
                settings=chosen,
            )
            save_audit(Auditor(run).attack(shadows=0))
