"""Class shares: which classes a client holds, and how much of each, read off its model.

Nothing of the client's records is known to this adversary. It trains shadow clients on
reference records with shares of the classes drawn at random, and regresses these shares
on what the shadows' models say of other reference records: models lean to the classes
that they were trained on.

Source: Ganju et al., "Property inference attacks on fully connected neural networks using
permutation invariant representations", CCS 2018, and Melis et al., "Exploiting
unintended feature leakage in collaborative learning", IEEE S&P 2019, section 4. Their
classifier of parameters or gradients is a regression of outputs here, so that any
model can be asked.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.shadow_models import ShadowSplit, shadow_models
from privaudit.core.tensors import Tensors
from privaudit.federation.query import ask_each
from privaudit.federation.trainer import Records
from privaudit.statistics.estimate import Estimate
from privaudit_labs.profiles.client_profile import NAME
from privaudit_labs.profiles.shares import (
    InferredShare,
    InferredShares,
    calibrated_share,
)

SKEW = 2  # power of exponential draws: some classes much, others hardly
PENALTIES = tuple(10.0**power for power in range(-2, 5))
FOLDS = 5


def infer_class_shares(
    adversary: Adversary, targets: Sequence[Target], shadows: int, classes: int
) -> list[list[Estimate]]:
    """Return the estimated share of each class among each client's members."""
    asked, trained = _halves(adversary)
    splits = [_split(adversary, t, shadows, classes, trained) for t in targets]
    models = shadow_models(adversary, targets, splits)
    found = []
    for target, split, alike in zip(targets, splits, models, strict=True):
        shares = np.stack([_shares(split.shard(n), classes) for n in range(shadows)])
        known = _leanings(adversary, alike, asked)
        answers = _leanings(adversary, [target.reconstructed.model], asked)
        found.append(_regress(known, shares, answers))
    return found


def _halves(adversary: Adversary) -> tuple[Records, Tensor]:
    """Return reference records to ask about, and which others shadows train on."""
    public = adversary.task.public
    order = adversary.seeds.stream("class shares").permutation(len(public))
    half = torch.zeros(len(public), dtype=torch.bool)
    half[torch.from_numpy(order[: len(public) // 2])] = True
    return public.pick(~half), half


def _split(
    adversary: Adversary, target: Target, shadows: int, classes: int, allowed: Tensor
) -> ShadowSplit:
    """Draw shadows as large as the client probably is, or as there are records for."""
    public = adversary.task.public
    stream = adversary.seeds.stream("class shares", client=target.client)
    counts = torch.bincount(public.labels[allowed], minlength=classes)
    draws = stream.uniform_tensor((shadows, classes)).clamp(min=1e-12)
    weights = torch.log(draws) ** SKEW * (counts > 0) + 1e-12
    wanted = weights / weights.sum(dim=1, keepdim=True)
    size = adversary.task.member_share * len(target.candidates)
    chance = (size * wanted / counts.clamp(min=1)).clamp(max=1)[:, public.labels]
    drawn = stream.uniform_tensor((shadows, len(public)))
    is_in = (drawn < chance) & allowed
    is_in[~is_in.any(dim=1)] = allowed  # nobody trains on nothing
    return ShadowSplit("public", public, is_in, is_in, ~is_in)


def _shares(records: Records, classes: int) -> Float[np.ndarray, " classes"]:
    counts = torch.bincount(records.labels, minlength=classes)
    return (counts / max(len(records), 1)).double().numpy()


def _leanings(
    adversary: Adversary, models: Sequence[Tensors], records: Records
) -> Float[np.ndarray, "models inputs"]:
    """Return each class's mean probability over all records."""
    said = ask_each(adversary.trainer, adversary.task, models, records)
    return said.double().exp().mean(dim=1).numpy()


def _regress(
    known: Float[np.ndarray, "shadows inputs"],
    shares: Float[np.ndarray, "shadows classes"],
    answers: Float[np.ndarray, "one inputs"],
) -> list[Estimate]:
    scale = np.maximum(known.std(axis=0), 1e-9)
    inputs, asked = (
        (known - known.mean(axis=0)) / scale,
        (answers - known.mean(axis=0)) / scale,
    )
    from sklearn.linear_model import RidgeCV  # takes half a second, and reports none
    from sklearn.model_selection import KFold, cross_val_predict

    ridge = RidgeCV(PENALTIES)
    held_out = cross_val_predict(ridge, inputs, shares, cv=KFold(FOLDS))
    found = ridge.fit(inputs, shares).predict(asked)[0]
    return [
        calibrated_share(float(value), *columns)
        for value, *columns in zip(found, held_out.T, shares.T, strict=True)
    ]


def _measure(played: PlayedScenario) -> InferredShares:
    adversary, targets, run = played.adversary, played.shadowed, played.run
    classes = len(run.population.dataset.class_names)
    found = infer_class_shares(adversary, targets, played.shadows, classes)
    by_client = {}
    for target, estimates in zip(targets, found, strict=True):
        positions = run.population.asked_about(target.client, canaries=False)
        is_member = torch.from_numpy(run.ledger.is_member[positions])
        actual = _shares(target.candidates.pick(is_member), classes).tolist()
        pairs = enumerate(zip(estimates, actual, strict=True))
        by_client[target.client] = {
            f"class {number}": InferredShare(*pair) for number, pair in pairs
        }
    prior = _shares(adversary.task.public, classes).tolist()
    return InferredShares.of(
        by_client, {f"class {number}": share for number, share in enumerate(prior)}
    )


CLASS_SHARES = AuditPart(
    "class_shares",
    InferredShares | None,
    applies=lambda played: (
        played.scenario.name == NAME
        and played.shadows > FOLDS
        and played.adversary.task.kind == "classification"
    ),
    compute=_measure,
    nothing=None,
    title="Share of each class",
)
