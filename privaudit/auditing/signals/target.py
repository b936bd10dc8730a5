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
    if adversary.store is None:
        return _ask_target(adversary, target)
    about = {
        "target": target.client,
        "model": tensors_hash(target.reconstructed.model),
        "candidates": content_hash(target.candidates),
    }
    tables = kept_signals(adversary, about)
    if tables is None:
        tables = _ask_target(adversary, target)
        keep_signals(adversary, tables, about)
    return tables


def _ask_target(adversary: Adversary, target: Target) -> list[SignalTable]:
    return [
        ask_signals(adversary, [target.reconstructed.model], records)
        for records in (target.candidates, adversary.task.public)
    ]


def keep_signals(
    adversary: Adversary, tables: Sequence[SignalTable], about: Mapping[str, Any]
) -> None:
    """Keep tables about candidates and reference records, where anything is kept.

    Args:
        adversary: Who has the store.
        tables: In the order of ``KEPT``.
        about: What they depend on, beside the adversary.
    """
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
