"""Fitted models of other libraries, asked about records: one signal each, high for members.

A classifier's signal is the log-odds of the label, a language model's the mean
log-likelihood of the labelled tokens.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from privaudit.auditing.external_models import (
    FEWEST_SHADOWS,
    SignalScale,
    as_array,
    signals_of_logits,
    tokens_of_logits,
)
from privaudit.auditing.signals import mean_log_likelihood
from privaudit.core.devices import in_chunks
from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.tensors import as_tensor

ASKED_AT_ONCE = 128  # records
ASKED_TWICE = 5  # records
_LEAST = 1e-7  # probability: trees say 0, whose logarithm is no score
_INSIDE = ("best_estimator_", "estimator_", "final_estimator_")  # scikit-learn's

Fit = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class LabelledRecords:
    """Records as a model takes them, with their labels.

    Attributes:
        inputs: By name, each [records, ...]; "" where the model takes one argument.
        labels: [records] classes, or [records, positions] tokens, -100 where none is
            scored.
    """

    inputs: Mapping[str, Any]
    labels: Any

    @classmethod
    def of(cls, given: Any) -> "LabelledRecords":
        """Return records from a pair (inputs, labels), or a mapping that has "labels".

        Raises:
            ConfigError: They are neither, or of different numbers.
        """
        if isinstance(given, Mapping) and "labels" in given:
            inputs = {name: given[name] for name in given if name != "labels"}
            found = cls(inputs, given["labels"])
        elif isinstance(given, Sequence) and len(given) == 2:
            inputs, labels = given
            is_named = isinstance(inputs, Mapping)
            found = cls(dict(inputs) if is_named else {"": inputs}, labels)
        else:
            raise ConfigError(
                f"Records were given as a {type(given).__name__}. Give (inputs, labels), "
                'or a mapping with "labels", as a data loader has them.'
            )
        sizes = {_count(one) for one in (*found.inputs.values(), found.labels)}
        if len(sizes) != 1 or 0 in sizes:
            raise ConfigError(
                f"Inputs and labels are of {sorted(sizes)} records. Give as many of "
                "each, and one at least."
            )
        return found

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, positions: Int[np.ndarray, " some"]) -> "LabelledRecords":
        """Return some of the records."""
        chosen = {name: _rows(one, positions) for name, one in self.inputs.items()}
        return LabelledRecords(chosen, _rows(self.labels, positions))

    def and_then(self, others: "LabelledRecords") -> "LabelledRecords":
        """Return these records, and behind them others of the same form.

        Raises:
            ConfigError: Their inputs have other names or shapes.
        """
        if self.inputs.keys() != others.inputs.keys():
            raise ConfigError(
                f"Members have the inputs {sorted(self.inputs)}, and non-members "
                f"{sorted(others.inputs)}. Give the same of both."
            )
        joined = {
            name: _joined(one, others.inputs[name]) for name, one in self.inputs.items()
        }
        return LabelledRecords(joined, _joined(self.labels, others.labels))

    @property
    def alone(self) -> Any:
        """The inputs as a ``fit`` takes them: one, or the mapping."""
        return self.inputs[""] if [*self.inputs] == [""] else dict(self.inputs)


def _count(values: Any) -> int:
    return int(values.shape[0]) if hasattr(values, "tocsr") else len(values)


def _rows(values: Any, positions: Int[np.ndarray, " some"]) -> Any:
    if isinstance(values, Tensor):
        return values[torch.as_tensor(positions, device=values.device)]
    if hasattr(values, "iloc"):  # a data frame keeps its columns' names
        return values.iloc[positions]
    if hasattr(values, "shape"):
        return values[positions]
    return [values[position] for position in positions.tolist()]


def _joined(first: Any, second: Any) -> Any:
    try:
        if isinstance(first, Tensor):
            return torch.cat([first, as_tensor(second).to(first)])
        if hasattr(first, "iloc"):
            return import_module("pandas").concat([first, second])
        if hasattr(first, "tocsr"):  # a sparse matrix, as rows that can be chosen
            return import_module("scipy.sparse").vstack([first, second], format="csr")
        if hasattr(first, "shape"):
            return np.concatenate([first, as_array(second)])
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"Members and non-members cannot be put together: {error}. Give both in the "
            "same form, texts padded to one length."
        ) from None
    return [*first, *second]


def refuse_training(score: Callable[[Any], float], records: Iterable[Any]) -> None:
    """Refuse a scoring function of a model in training mode, whose answers are drawn.

    A module in training mode without such layers answers as it always does; so it is
    asked twice, too.

    Raises:
        ConfigError: The function reaches such a module.
    """
    training = [module for module in _modules(score) if module.training]
    drawn = [name for module in training for name in _drawn(module)]
    if training and not drawn:
        few = list(islice(records, ASKED_TWICE))
        twice = [[score_of(score, one) for one in few] for _ in range(2)]
        drawn = ["its scores"] * (twice[0] != twice[1])
    if drawn:
        kind = type(training[0]).__name__
        raise ConfigError(
            f"The scores are of a model ({kind}) in training mode, in which {drawn[0]} "
            "differ from call to call or with the rest of the batch. Call its .eval() "
            "before the audit."
        )


def score_of(score: Callable[[Any], float], record: Any) -> float:
    """Return the one number that a scoring function gives for a record.

    Raises:
        ConfigError: It gives something else.
    """
    said = score(record)
    try:
        return float(said)
    except (TypeError, ValueError, RuntimeError):  # of tensors of several numbers
        raise ConfigError(
            f"The scoring function returned a {type(said).__name__} for a record. Let "
            "it return one number."
        ) from None


def _drawn(module: torch.nn.Module) -> Iterator[str]:
    """Yield layers that answer otherwise in training, in words."""
    nn = torch.nn.modules
    for layer in module.modules():
        odds = getattr(
            layer, "p" if isinstance(layer, nn.dropout._DropoutNd) else "dropout", 0
        )
        is_normed = isinstance(layer, nn.batchnorm._BatchNorm)
        if layer.training and (is_normed or (isinstance(odds, float) and odds > 0)):
            yield f"the outputs of {type(layer).__name__}"


def _modules(score: Any, depth: int = 3) -> Iterator[torch.nn.Module]:
    """Yield modules that a function or object is, holds or names, not what is in them."""
    if isinstance(score, torch.nn.Module):
        yield score
    elif depth:
        for part in _parts(score):
            yield from _modules(part, depth - 1)


def _parts(score: Any) -> Iterator[Any]:
    if isinstance(score, functools.partial):
        yield from (score.func, *score.args, *score.keywords.values())
    yield getattr(score, "__self__", None)
    yield getattr(score, "__wrapped__", None)
    if not isinstance(score, ModuleType | type):  # a scorer that is an object
        yield from getattr(score, "__dict__", {}).values()
    code = getattr(score, "__code__", None)
    if code is None:
        return
    for cell in score.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet filled
            continue
    yield from (score.__globals__.get(name) for name in code.co_names)


def signal_of(
    model: Any, records: LabelledRecords
) -> tuple[Float[np.ndarray, " records"], SignalScale]:
    """Return what a fitted model says of records, and on which scale.

    Args:
        model: A torch module that returns logits, or an object with ``logits`` as
            transformers' models do: of classes, [records, classes]; of one class,
            [records] or [records, 1]; or of tokens, [records, positions, vocabulary].
            Or an estimator of scikit-learn's form, with ``decision_function`` or
            ``predict_proba``; a pipeline is one.
        records: With labels as the model's loss takes them.

    Raises:
        ConfigError: It is no such model, in training mode, returns something else, or
            has not seen a class.
    """
    is_module = isinstance(model, torch.nn.Module)
    if is_module:
        refuse_training(model, ())
    ask = _asked_module if is_module else _asked_estimator

    def said(some: Tensor) -> tuple[Float[Tensor, " batch"], SignalScale, bool]:
        logits, labels = ask(model, records.at(some.numpy()))
        if logits.ndim == 3:
            tokens = tokens_of_logits(logits, labels)
            return mean_log_likelihood(tokens, "description"), "log-likelihood", False
        both = _with_two_classes(logits)
        is_share = both is not logits and bool((logits == logits.clamp(0, 1)).all())
        return signals_of_logits(both, labels).confidence[0], "log-odds", is_share

    signals, scales, are_shares = zip(
        *in_chunks(len(records), ASKED_AT_ONCE, said), strict=True
    )
    if all(are_shares):  # of all records: a few logits may lie there by chance
        raise ConfigError(
            f"The model's {len(records)} outputs of one number all lie in [0, 1], as "
            "after a sigmoid, and logits are wanted. Give the model without its last "
            "Sigmoid; if they are logits x, return torch.stack([torch.zeros_like(x), x], -1)."
        )
    return torch.cat(signals).numpy(), scales[0]


@torch.no_grad()
def _asked_module(
    module: torch.nn.Module, batch: LabelledRecords
) -> tuple[Float[Tensor, "..."], Any]:
    """Return a module's logits, and labels, on the CPU."""
    weights = next(module.parameters(), torch.zeros(()))
    named = {name: _as_weights(one, weights) for name, one in batch.inputs.items()}
    alone = named.pop("", None)
    answer = module(**named) if alone is None else module(alone, **named)
    logits = getattr(answer, "logits", answer)
    if not isinstance(logits, Tensor):
        raise ConfigError(
            f"The model returned a {type(logits).__name__}. Give one that returns "
            "logits, or an object with logits: wrap it in a module that does."
        )
    return logits.float().cpu(), as_tensor(batch.labels).cpu()


def _as_weights(values: Any, weights: Tensor) -> Tensor:
    tensor = as_tensor(values).to(weights.device)
    return tensor.to(weights.dtype) if tensor.is_floating_point() else tensor


def _asked_estimator(
    estimator: Any, batch: LabelledRecords
) -> tuple[Float[Tensor, "..."], Int[np.ndarray, " records"]]:
    """Return an estimator's logits, and the labels as positions among its classes."""
    inputs, classes = batch.alone, getattr(estimator, "classes_", None)
    decide = getattr(estimator, "decision_function", None)
    if classes is None or not (decide or hasattr(estimator, "predict_proba")):
        raise ConfigError(
            f"A {type(estimator).__name__} was given as a model. Give a torch module "
            "that returns logits, or a fitted classifier with classes_ and "
            "decision_function or predict_proba; score others by from_signal."
        )
    labels = np.asarray(as_array(batch.labels))
    where = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    if (unseen := np.asarray(classes)[where] != labels).any():
        raise ConfigError(
            f"{int(unseen.sum())} records have a label that the model was not fitted on "
            f"({labels[unseen][0]!r}). It has the classes {list(classes)[:10]}."
        )
    said = decide(inputs) if decide else estimator.predict_proba(inputs)
    said = np.asarray(said) if decide else np.log(np.clip(said, _LEAST, None))
    logits = _with_two_classes(torch.as_tensor(said))
    columns = logits.shape[1]
    if columns != len(classes) or (decide and columns > 2 and _is_of_pairs(estimator)):
        raise ConfigError(
            f"The {type(estimator).__name__} has {columns} columns for {len(classes)} "
            "classes, of pairs if it is one-vs-one, and one for each class is wanted. "
            'Set decision_function_shape="ovr", or score its records by from_signal.'
        )
    return logits, where


def _is_of_pairs(estimator: Any) -> bool:
    """Say whether its decisions, or those of the estimator inside, are one-vs-one."""
    inner = [getattr(estimator, name, None) for name in _INSIDE]
    inner += [last for _, last in getattr(estimator, "steps", ())[-1:]]
    is_own = getattr(estimator, "decision_function_shape", "ovr") == "ovo"
    return is_own or any(_is_of_pairs(one) for one in inner if one is not None)


def _with_two_classes(logits: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return logits of classes: one logit is that of the second of two."""
    if logits.shape[1:].numel() != 1:
        return logits
    second = logits.flatten()
    return torch.stack([torch.zeros_like(second), second], -1)


def refitted(
    fit: Fit, records: LabelledRecords, shadows: int, seed: int
) -> tuple[Float[np.ndarray, "models records"], Shaped[np.ndarray, "models records"]]:
    """Return what models that ``fit`` makes of random halves say, and which had which.

    Args:
        fit: From inputs and labels to a fitted model, as the target was fitted.
        records: Of whom each model gets a random half.
        shadows: How many models, at least 5.
        seed: What draws the halves, at least 0: a fair coin for each model and record.

    Raises:
        ConfigError: There are too few models, or all say the same of every record.
    """
    if shadows < FEWEST_SHADOWS or seed < 0:
        raise ConfigError(
            f"shadows={shadows} and seed={seed} were asked for. Let fit make at least "
            f"{FEWEST_SHADOWS} models (16 already help), by a seed of at least 0."
        )
    halves = np.random.default_rng(seed).random((shadows, len(records))) < 0.5
    signals = []
    for half in halves:
        chosen = records.at(np.flatnonzero(half))
        signals.append(signal_of(fit(chosen.alone, chosen.labels), records)[0])
    if not np.ptp(signals, axis=0).any():
        raise ConfigError(
            f"The {shadows} models that fit returned say the same of every record, though "
            "each was given another half of them. Let it train a new model on what it is "
            "given, and return that."
        )
    return np.stack(signals), halves
