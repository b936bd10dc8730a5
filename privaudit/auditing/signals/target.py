"""What a target says of its candidates and of reference records: asked once, and kept."""

from collections.abc import Mapping, Sequence

from torch import Tensor

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
    store, model = adversary.store, target.reconstructed.model
    if store is None:
        return _ask_target(adversary, target)
    about = {
        "target": target.client,
        "model": tensors_hash(model),
        "candidates": content_hash(target.candidates),
    }
    stored = store.load(**about)
    if stored is not None:
        return unfolded(stored)
    tables = _ask_target(adversary, target)
    store.save(folded(tables), **about)
    return tables


def _ask_target(adversary: Adversary, target: Target) -> list[SignalTable]:
    return [
        ask_signals(adversary, [target.reconstructed.model], records)
        for records in (target.candidates, adversary.task.public)
    ]


def folded(tables: Sequence[SignalTable]) -> dict[str, Tensor]:
    """Return the tables about candidates and reference records, by name."""
    return {
        f"{which}/{name}": tensor
        for which, table in zip(KEPT, tables, strict=True)
        for name, tensor in table.to_tensors().items()
    }


def unfolded(kept: Mapping[str, Tensor]) -> list[SignalTable]:
    """Return the tables that :func:`folded` took apart."""
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
