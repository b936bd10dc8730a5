"""Audits of models that were trained elsewhere: from outputs to signals and scores.

What is needed of a model is what it says of records of which some, by a fair coin, were
trained on. :meth:`privaudit.auditing.auditor.Auditor.from_scores` does the rest.
"""

from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import expit

from privaudit.auditing.signals import SignalTable, class_signals
from privaudit.core.errors import AttackError, ConfigError, UnknownNameError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import are_parts, as_tensor
from privaudit.datasets.records import ANSWER, INSTRUCTION, PADDING, TokenSequences
from privaudit.models.token_table import TokenTable, token_signals
from privaudit.statistics.shadow_comparison import (
    USUAL_A,
    dominated_shares,
    masked_mean,
    offline_mean,
    offline_scores,
    online_scores,
)

Array = np.ndarray | Tensor
Outputs = Literal["logits", "probabilities"]


def as_array(values: Any) -> Shaped[np.ndarray, "..."]:
    """Return a tensor on any device and of any type, or a list, as an array.

    Raises:
        ConfigError: Its rows are of different lengths.
    """
    if not isinstance(values, Tensor):
        try:
            return np.asarray(values)
        except ValueError as error:
            raise ConfigError(
                f"A {type(values).__name__} was given that makes no array ({error}). "
                "Give entries of one shape."
            ) from None
    tensor = values.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_truths(name: str, values: Any) -> Bool[np.ndarray, "..."]:
    """Return truths: they, or 0 and 1.

    Raises:
        ConfigError: They are other numbers, such as signals or positions.
    """
    found = as_array(values)
    if not np.isin(found, (0, 1)).all():
        raise ConfigError(
            f"{name} holds other values than True and False. Say of each record whether "
            "it was trained on; positions p are np.isin(np.arange(records), p)."
        )
    return found.astype(bool)


def as_logits(values: Any, outputs: Outputs) -> Float[Tensor, "..."]:
    """Return logits: as they are, or the logarithms of probabilities.

    Raises:
        UnknownNameError: ``outputs`` is neither.
        ConfigError: They are not finite, or not what ``outputs`` says: the softmax of
            probabilities would be taken, and hardly tells members from others.
    """
    if outputs not in get_args(Outputs):
        raise UnknownNameError("kind of outputs", outputs, get_args(Outputs))
    tensor = as_tensor(values)
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    if bool(tensor.isnan().any()) or bool((tensor == torch.inf).any()):
        raise ConfigError(
            "The model's outputs hold NaN or infinity. Look for an overflow, and "
            "compute them in float32."
        )
    if are_parts(tensor, 100):
        raise ConfigError(
            f"Percentages were given as {outputs}: every row sums to 100. Divide them by "
            '100, and set outputs="probabilities".'
        )
    likely = are_parts(tensor)
    if outputs == "logits" and likely:
        raise ConfigError(
            "Logits were expected, but these look like probabilities: every row is in "
            "[0, 1] and sums to 1. Give the values before the softmax, or set "
            'outputs="probabilities". If they are logits, add 1 to all of them, which '
            "changes no probability."
        )
    if outputs == "probabilities" and not likely:
        raise ConfigError(
            'outputs="probabilities" was said, and there are rows that do not lie in '
            '[0, 1] or do not sum to 1. Leave it out for logits, or say "logits".'
        )
    return tensor.double().log() if outputs == "probabilities" else tensor


def as_classes(labels: Any) -> Int[Tensor, "..."]:
    """Return labels as whole numbers.

    Raises:
        ConfigError: They are floating-point numbers, which may be scores.
    """
    known = as_tensor(labels)
    if known.is_floating_point():
        raise ConfigError(
            f"The labels are of type {known.dtype}, and classes are whole numbers. Give "
            "labels.long(), if they are the labels."
        )
    return known.long()


ShadowAttack = Literal["lira", "lira-offline", "rmia", "rmia-offline"]
SignalScale = Literal["log-odds", "log-likelihood"]

OFFLINE: tuple[ShadowAttack, ...] = ("lira-offline", "rmia-offline")
FEWEST_SHADOWS = 5  # as for our own: fewer fix no variance
NOT_SCORED = -100  # the label where a language model's loss does not look


@torch.no_grad()
def signals_of_logits(
    logits: Float[Array, "*models records classes"],
    labels: Int[Array, " labels"],
    outputs: Outputs = "logits",
) -> SignalTable:
    """Return what a classifier, or several, say of records, one row for each model.

    The table has ``confidence``, ``loss``, ``margin``, ``entropy`` and
    ``modified_entropy``, each [models, records], in float64. Members tend to have a
    *high* confidence and margin and a *low* loss and entropy: turn the sign of the
    latter.

    Args:
        logits: Of every class, or log-probabilities; of one model, or stacked.
        labels: The records' classes, counted from 0.
        outputs: "probabilities" where that is what they are. Those were rounded: where
            the model is sure, records tie that logits would tell apart.

    Raises:
        ConfigError: Numbers of records differ, a label is no class, or the outputs are
            not what ``outputs`` says.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
        >>> signals_of_logits(logits, torch.tensor([0, 1])).confidence
        tensor([[2., 0.]], dtype=torch.float64)
    """
    logs = as_logits(logits, outputs).double().log_softmax(dim=-1)
    if logs.ndim < 2 or logs.shape[-1] < 2:
        raise ConfigError(
            f"Logits of shape {tuple(logs.shape)} were given. Give [records, classes], "
            "or [models, records, classes], with two classes or more. Of a model with one "
            "logit x these are torch.stack([torch.zeros_like(x), x], -1)."
        )
    logs = logs.reshape(-1, *logs.shape[-2:])
    known = as_classes(labels)
    records, classes = logs.shape[1:]
    if known.shape != (records,) or not ((known >= 0) & (known < classes)).all():
        span = f"{int(known.min())} to {int(known.max())}" if known.numel() else "none"
        raise ConfigError(
            f"There are logits of {records} records and {classes} classes, and labels "
            f"of shape {tuple(known.shape)} from {span}. Give one class for "
            "each record, counted from 0."
        )
    return class_signals(known, logs)


@torch.no_grad()
def tokens_of_logits(
    logits: Float[Array, "records length vocabulary"],
    labels: Int[Array, "texts positions"],
    outputs: Outputs = "logits",
) -> TokenTable:
    """Return what a causal language model says of texts, token by token.

    :mod:`privaudit.auditing.signals` makes one score per text of it, with
    "description" for the part that labels name. The mean log-likelihood is minus the loss that
    transformers gives for the same labels.

    Args:
        logits: As the model returns them: those at position i are about i + 1.
        labels: As the model's loss takes them: the input, with -100 for prompt and
            padding. What stands before the first token with a label is a prompt.
        outputs: "probabilities" where that is what ``logits`` are.

    Raises:
        ConfigError: Shapes differ, a text has no token with a label, or only its
            first, which nothing foresees, or the outputs are not what ``outputs`` says.

    Example:
        >>> from privaudit.auditing.signals import mean_log_likelihood
        >>> table = tokens_of_logits(torch.zeros(1, 3, 4), torch.tensor([[0, 2, 3]]))
        >>> mean_log_likelihood(table, "description").exp()
        tensor([0.2500], dtype=torch.float64)
    """
    known, checked_logits = as_classes(labels), as_logits(logits, outputs)
    if checked_logits.ndim != 3 or checked_logits.shape[:2] != known.shape:
        raise ConfigError(
            f"Logits are of shape {tuple(checked_logits.shape)} and labels of shape "
            f"{tuple(known.shape)}. Give one label for each position, -100 where there "
            "is none, in the input's order."
        )
    scored = known != NOT_SCORED
    if not scored[:, 1:].any(dim=1).all():
        raise ConfigError(
            f"Of {len(known)} texts, {int((~scored[:, 1:].any(dim=1)).sum())} have no "
            "label behind their first token, so there is nothing to score. Leave them "
            "out."
        )
    before = scored.flip(1).cummax(dim=1).values.flip(1)  # a label is still to come
    kinds = torch.where(scored, ANSWER, torch.where(before, INSTRUCTION, PADDING))
    signals = token_signals(checked_logits, TokenSequences(known, kinds))
    return TokenTable.from_signals([{n: values[None] for n, values in signals.items()}])


def shadow_scores(
    target: Float[Array, " records"],
    shadows: Float[Array, "models columns"],
    is_in: Bool[Array, "rows coins"],
    attack: ShadowAttack = "lira",
    scale: SignalScale = "log-odds",
) -> Float[np.ndarray, " records"]:
    """Return membership scores of records by shadow models of one's own.

    Shadows are trained as the target was, on other coins over the same records; they
    must not know which records the target has. See ``privaudit list attacks``:

    - "lira": log-likelihood ratio of shadows with a record to those without. A record
      that all shadows have, or none, scores 0.
    - "lira-offline": how improbably high the target's signal is for shadows without
      the record. For shadows that never saw any of these records.
    - "rmia": the ratio of the probability under the target to its mean under shadows
      with and without the record; the score is the share of records with a lower one.
    - "rmia-offline": the same, with the mean guessed from shadows without the record
      (a = 0.3, the source's usual value). One reference model is enough.

    Args:
        target: The target's signal, such as a row of ``confidence``.
        shadows: The same of each shadow, [models, records]; at least 5 models, or one
            for "rmia-offline".
        is_in: Which shadow was trained on which record, [models, records].
        attack: Of the four.
        scale: What the signals are, for "rmia": log-odds of the label (``confidence``
            of a classifier), or log-likelihoods (mean log-likelihoods of texts).

    Raises:
        ConfigError: Shapes differ, a signal is not finite, there are too few shadows,
            or no record has shadows both with and without it.
        UnknownNameError: There is no such attack, or no such scale.

    Example:
        >>> shadows, is_in = np.zeros((6, 1)), np.arange(6)[:, None] < 3
        >>> shadows[is_in] = [1, 2, 3]
        >>> shadow_scores(np.array([2.0]), shadows, is_in) > 0
        array([ True])
    """
    if attack not in get_args(ShadowAttack):
        raise UnknownNameError("attack by shadows", attack, get_args(ShadowAttack))
    if scale not in get_args(SignalScale):
        raise UnknownNameError("scale of signals", scale, get_args(SignalScale))
    observed, others = _numbers("target", target), _numbers("shadows", shadows)
    inside = as_truths("is_in", is_in)
    _check(observed, others, inside, attack)
    if attack == "lira":
        return online_scores(observed, others, inside, ~inside, "auto")
    if attack == "lira-offline":
        return offline_scores(observed, others, ~inside, "auto")
    to_probability = expit if scale == "log-odds" else np.exp
    probability, known = to_probability(observed), to_probability(others)
    outside = masked_mean(known, ~inside)
    if attack == "rmia":
        return _rmia(probability, (masked_mean(known, inside) + outside) / 2)
    return _rmia(probability, offline_mean(outside, USUAL_A))


def _numbers(name: str, values: Shaped[Array, "..."]) -> Float[np.ndarray, "..."]:
    signals = as_array(values).astype(np.float64)
    broken = int((~np.isfinite(signals)).sum())
    if broken:
        raise ConfigError(
            f"Of the {name}'s {signals.size} signals {broken} are not finite. Take "
            "log-odds from logits, not from rounded probabilities."
        )
    return signals


def _check(
    target: Float[np.ndarray, "..."],
    shadows: Float[np.ndarray, "..."],
    is_in: Bool[np.ndarray, "..."],
    attack: str,
) -> None:
    shapes_differ = shadows.shape != is_in.shape or shadows.shape[1:] != target.shape
    if shapes_differ or target.ndim != 1:
        raise ConfigError(
            f"The target's signals are of shape {target.shape}, the shadows' of "
            f"{shadows.shape} and is_in of {is_in.shape}. Give [records], "
            "[models, records] and the same again."
        )
    fewest = 1 if attack == "rmia-offline" else FEWEST_SHADOWS
    if len(shadows) < fewest:
        raise ConfigError(
            f"There are {len(shadows)} shadow models, and {fewest} are the least for "
            f"{attack}. Train more: 16 already help, 64 and more are usual; "
            "rmia-offline takes one to four."
        )
    offline = attack in OFFLINE
    both = is_in.any(axis=0) & ~is_in.all(axis=0)
    if not offline and not both.any():
        raise AttackError(
            f"{attack} compares shadows with a record and without it, and none of "
            f"{len(target)} records has both. Give records to shadows by coins, or "
            "take lira-offline or rmia-offline if no shadow has any."
        )
    if offline and is_in.all():
        raise AttackError(
            f"{attack} compares with shadows that were not trained on a record, and "
            "all were trained on all. Train them on others."
        )


def _rmia(
    target: Float[np.ndarray, " records"], expected: Float[np.ndarray, " records"]
) -> Float[np.ndarray, " records"]:
    """Return the shares; the population is the records themselves, truth unknown.

    A record's share rises with its ratio whatever the population, so the choice of one
    moves thresholds and makes ties, and orders nothing anew.
    """
    ratio = target / np.maximum(expected, np.finfo(np.float64).tiny)
    return dominated_shares(ratio, ratio, 1.0)
