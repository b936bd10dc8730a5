"""What a target says of its candidates and of reference records: asked once, and kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.signals.signal_cache import content_hash, tensors_hash
from privaudit.auditing.signals.signals import SignalTable, measure_signals
from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import Records

KEPT = ("candidates", "public")  # what models are asked about


def target_signals(
    adversary: Adversary, target: Target
) -> tuple[SignalTable, SignalTable]:
    """Return what a target says of its candidates and of public records, asked once."""
    candidates, public = adversary.once(
        ("signals",),
        lambda: _asked_or_kept(adversary, target),
        target.reconstructed.model,
        target.candidates,
    )
    return candidates, public


def _asked_or_kept(adversary: Adversary, target: Target) -> list[SignalTable]:
    """Return what a target says, which is kept beside the run as shadows' answers."""
    model, candidates, about = target.reconstructed.model, target.candidates, {}
    if adversary.store is not None:  # a hash takes time
        about = {
            "target": target.client,
            "model": tensors_hash(model),
            "candidates": content_hash(candidates),
        }
    tables = kept_signals(adversary, about)
    if tables is None:
        both = candidates, adversary.task.public
        tables = [ask_signals(adversary, [model], records) for records in both]
        keep_signals(adversary, tables, about)
    return tables


def keep_signals(
    adversary: Adversary, tables: Sequence[SignalTable], about: Mapping[str, Any]
) -> None:
    """Keep tables about what ``KEPT`` names, where anything is kept."""
    if adversary.store is None:
        return
    tensors = {
        f"{which}/{name}": tensor
        for which, table in zip(KEPT, tables, strict=True)
        for name, tensor in table.to_tensors().items()
    }
    adversary.store.save(tensors, **about)


def kept_signals(
    adversary: Adversary, about: Mapping[str, Any]
) -> list[SignalTable] | None:
    """Return the tables that :func:`keep_signals` kept; None if there are none."""
    kept = adversary.store.load(**about) if adversary.store else None
    if kept is None:
        return None
    return [
        SignalTable.from_tensors(
            {
                name.removeprefix(f"{which}/"): tensor
                for name, tensor in kept.items()
                if name.startswith(f"{which}/")
            }
        )
        for which in KEPT
    ]


def ask_signals(
    adversary: Adversary, models: Sequence[Tensors], records: Records
) -> SignalTable:
    """Return what models say about records."""
    return measure_signals(adversary.trainer, adversary.task, models, records)
