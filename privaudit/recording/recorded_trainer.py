"""The trainer of a recorded federation: it asks the owner's functions.

Models that answer otherwise when they are asked again are refused: in training mode
dropout draws anew in each call, and batch normalisation answers by who else is asked
about.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float, Shaped

from privaudit.core.errors import AttackError, ConfigError, PluginError, without_exits
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import (
    Stacked,
    Tensors,
    are_parts,
    as_tensor,
    at_least_float32,
    stack,
    unstack,
)
from privaudit.datasets.records import ANSWER, INSTRUCTION, PADDING, TokenSequences
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    ANSWERS,
    BaseTrainer,
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Reconstruction,
    Records,
    Round,
    Signals,
    Task,
    Want,
)
from privaudit.federation.uploads import UNTRAINED, WEIGHT, apply_mean, role_of
from privaudit.models.interfaces import AnyTask
from privaudit.models.token_table import TOKENS, token_signals
from privaudit.privacy.events import Claim
from privaudit.recording.bundle import Aggregation
from privaudit.recording.owner import Owner

ASKED = 8  # records that are asked about again
SAME, ALIKE = 1e-3, 0.05  # parts of the answers' spread: asked alike, in another batch


def why_not_repeatable(
    ask: Callable[[np.ndarray], Any],
    positions: Shaped[np.ndarray, " records"],
    answer: Any,
) -> str:
    """Return how answers differ from call to call; empty where they do not.

    Kernels of another batch's size round otherwise, in half precision in the second
    digit; a model in training mode differs by more.

    Args:
        ask: Returns what one model says of records: logits, or a pair with labels.
        positions: Of the records, at least one.
        answer: What it said of all of them in one batch.
    """
    few = positions[:ASKED]
    first, again, whole = (_logits(one) for one in (ask(few), ask(few), answer))
    if _differ(first, again, SAME):
        return "answers the same question differently"
    if _differ(first, whole[: len(few)], ALIKE):
        return "answers by which other records are in a batch"
    return ""


def _logits(answer: Any) -> Tensor:
    return as_tensor(answer[0] if isinstance(answer, tuple) else answer).double()


def _differ(one: Tensor, other: Tensor, by: float) -> bool:
    """Say whether answers differ by more than a part of their spread."""
    if one.shape != other.shape:  # texts are padded to the longest of a batch
        return False
    is_finite = torch.isfinite(one) & torch.isfinite(other)
    values, gaps = one[is_finite], (one - other)[is_finite]
    if not values.numel():
        return False
    return bool(gaps.abs().mean() > by * values.std(unbiased=False).clamp(min=1e-12))


OWNERS = "owner's "  # before a tensor's name that would mean something here
ROWS_AT_ONCE = 256  # records that an owner's function is asked about in one call
IGNORED = -100  # a label that is not to be predicted, as Hugging Face has it


def positions_of(features: Float[Tensor, "*n 1"]) -> np.ndarray:
    """Return where records stand in the owner's data: that is all their features say."""
    return features[..., 0].round().long().cpu().numpy()


def escaped(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors under names that mean nothing here: an owner's may be "weight"."""
    return {escaped_name(name): t for name, t in tensors.items()}


def escaped_name(name: str) -> str:
    """Return a name that means nothing here."""
    is_plain = role_of(name) == "model" and not name.startswith(OWNERS)
    return name if is_plain else OWNERS + name


def unescaped(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors under the names that their owner knows."""
    return {name.removeprefix(OWNERS): t for name, t in tensors.items()}


def as_summed(
    sent: Tensors, received: Tensors, declared: Aggregation, records: int = 1
) -> dict[str, Tensor]:
    """Return an upload as sums are made of it: models times their weight, and that.

    Names are escaped.

    Args:
        sent: As it was sent, under its owner's names.
        received: What the client had received in the round, under those.
        declared: How uploads are weighed, and what they are.
        records: The weight, where uploads are weighed by a number that is not there.
    """
    upload = dict(sent)
    weight = torch.tensor(float(records if declared.weight else 1))
    if declared.weight in upload:
        weight = upload.pop(declared.weight).reshape(()).to(torch.float64)
    if declared.uploads == "differences":
        upload = {
            name: tensor + received[name] if name in received else tensor
            for name, tensor in upload.items()
        }
    summed = {name: at_least_float32(t) * weight for name, t in upload.items()}
    return {**escaped(_in_float32(summed)), WEIGHT: weight.float()}


def _in_float32(tensors: Tensors) -> dict[str, Tensor]:
    """Return tensors in float32: weights of float64 would make all of them that."""
    return {n: t.float() if t.is_floating_point() else t for n, t in tensors.items()}


@dataclass(frozen=True)
class RecordedTrainer(BaseTrainer):
    """What a recorded federation did, by its owner's functions.

    Attributes:
        declared: What the recording says of aggregation.
        first: The first broadcast: where federations of the adversary's own begin.
        claimed: The epsilon that the method claims.
        owner: The functions; None refuses what needs them.
        found_repeatable: Holds something once the owner's models were asked twice.
    """

    task: ClassVar[AnyTask] = "either"
    usual_rounds: ClassVar[int] = 1

    declared: Aggregation
    first: Tensors = field(repr=False)
    claimed: Claim
    owner: Owner | None = field(repr=False)
    found_repeatable: list[bool] = field(
        default_factory=list, repr=False, compare=False
    )

    def claim(self, task: Task) -> Claim:
        """Return the epsilon that the method claims."""
        return self.claimed

    def single_step(self) -> "RecordedTrainer":
        """Return itself: how one record moves a client is the owner's to say."""
        return self

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return the first broadcast."""
        return self.first

    @property
    def public_base(self) -> Tensors:
        """What the owner declares: whoever has the last model may not know the first."""
        return escaped(self.owner.base) if self.owner is not None else {}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train each client of a cohort by the owner's function, one by one."""
        update = self._function(
            "local_update", "(received, positions, seed) -> tensors sent"
        )
        sent = []
        for place, client in enumerate(cohort.clients):
            down = {name: tensor[place] for name, tensor in received.items()}
            positions = positions_of(cohort.features[place][cohort.mask[place]])
            sent.append(self._train(update, client, down, positions, at))
        return LocalResult(stack(sent), {}, torch.zeros(len(cohort)))

    def _train(
        self,
        update: Callable[..., Any],
        client: ClientId,
        received: Tensors,
        positions: np.ndarray,
        at: Round,
    ) -> dict[str, Tensor]:
        if not len(positions):  # nothing to train on, and no weight
            nothing = as_summed(unescaped(received), {}, Aggregation())
            return {name: tensor * 0 for name, tensor in nothing.items()}
        self.found_repeatable.clear()  # a model that trains may stay in that mode
        seed = int(at.stream("owner", client).words(1)[0] >> 33)
        received = unescaped(received)
        sent = self._call("local_update", update, received, positions, seed)
        if not isinstance(sent, Mapping) or not sent:
            raise self._fault(
                "local_update", f"returned a {type(sent).__name__}", "tensors by name"
            )
        held = {str(n): torch.as_tensor(t).detach().cpu() for n, t in sent.items()}
        return as_summed(held, received, self.declared, len(positions))

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the weighted mean, or what the owner's function makes of the sum."""
        if self.owner is not None and self.owner.aggregate is not None:
            known = unescaped(server), unescaped(inbox)
            made = self._call("aggregate", self.owner.aggregate, *known)
            return escaped(made), ()
        if self.declared.kind == "mean":
            return apply_mean(server, inbox), ()
        raise self._missing("aggregate", "(server, summed) -> server")

    def reconstruct(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the owner's reconstruction, else the last upload, else the broadcast."""
        if self.owner is not None and self.owner.reconstruct is not None:
            model = self._call("reconstruct", self.owner.reconstruct, view, client)
            return Reconstruction(escaped(unescaped(model)))
        found = super().reconstruct(task, view, client)
        if UNTRAINED not in found.missing:
            return found
        return replace(found, model=self._last_model(view, client))

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return the last upload, and what it lacks as the client last received it."""
        found = super().rebuild(task, view, client)
        if UNTRAINED in found.missing or not view.of_kind("broadcast"):
            return found
        before = view.last_broadcast(client).tensors
        kept = {n: before[n] for n in before if n not in found.model}
        return replace(found, model={**found.model, **kept}) if kept else found

    def _last_model(self, view: View, client: ClientId) -> Tensors:
        """Return the latest model that the server had, as far as the view shows.

        Where it takes means, there is one for all; after the last round its server
        knows the mean of what it summed, whether or not that was broadcast.
        """
        sent = view.last_broadcast(client)
        if self.declared.kind != "mean":
            return sent.tensors
        latest = max(view.of_kind("broadcast"), key=lambda m: m.round)
        summed = view.last_sum
        if summed and summed.index >= latest.round and WEIGHT in summed.total:
            return apply_mean(latest.tensors, summed.total)
        return latest.tensors if latest.round > sent.round else sent.tensors

    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield what the owner's function says of records, some at a time."""
        ask = self._function("query", "(tensors, positions) -> logits")
        positions = positions_of(records.features)
        each = unstack(unescaped(models), len(next(iter(models.values()))))
        for first in range(0, len(positions), ROWS_AT_ONCE):
            rows = positions[first : first + ROWS_AT_ONCE]
            answers = [self._call("query", ask, model, rows) for model in each]
            if task.kind == "generation":
                said = stack([self._tokens(one, len(rows), want) for one in answers])
            else:
                logits = [self._classes(answer, len(rows)) for answer in answers]
                said = {"log_probabilities": torch.stack(logits)}
            self._ask_again(partial(self._call, "query", ask, each[0]), rows, answers)
            yield said

    def _ask_again(
        self, ask: Callable[..., Any], rows: np.ndarray, answers: Sequence[Any]
    ) -> None:
        """Refuse models that answer otherwise then; once, and once after each training."""
        if self.found_repeatable or len(rows) < 2:  # one record shows no mode
            return
        said = _logits(answers[0])
        if bool((said == said.mean()).all()):  # nor does a model that says nothing
            return
        if odd := why_not_repeatable(ask, rows, answers[0]):
            wanted = "the model in evaluation mode: call its .eval() in query"
            raise self._fault("query", odd, wanted)
        if len(rows) > ASKED:  # else no other record was in the batch
            self.found_repeatable.append(True)

    def measure(
        self, models: Sequence[Tensors], records: Records
    ) -> Float[np.ndarray, "models records"] | None:
        """Return the owner's scores of each model on each record; None without them."""
        if self.owner is None or self.owner.utility is None:
            return None
        positions, utility = positions_of(records.features), self.owner.utility
        rows = [
            self._call("utility", utility, unescaped(model), positions)
            for model in models
        ]
        scores = np.asarray(rows, dtype=float)
        wanted = (len(models), len(positions))
        if scores.shape != wanted or not ((scores >= 0) & (scores <= 1)).all():
            raise self._fault(
                "utility", f"gave scores of shape {scores.shape}",
                f"a number from 0 to 1 for each of {wanted[1]} records",
            )  # fmt: skip
        return scores

    def _classes(self, answer: Any, records: int) -> Float[Tensor, "records classes"]:
        logits = self._tensor(answer)
        if logits.ndim != 2 or len(logits) != records or logits.shape[1] < 2:
            raise self._fault(
                "query", f"returned logits of shape {tuple(logits.shape)}",
                f"[{records}, classes], with two classes or more",
            )  # fmt: skip
        if not torch.isfinite(logits).any(dim=1).all() or torch.isnan(logits).any():
            raise self._fault("query", "returned logits that are not finite", "numbers")
        for whole in (1, 100):
            if are_parts(logits, whole):
                what = f"returned rows that sum to {whole}, so they are probabilities"
                raise self._fault("query", what, "logits, or log-probabilities")
        if self.owner is not None and self.owner.classes > logits.shape[1]:
            largest = self.owner.classes - 1
            raise self._fault(
                "query", f"returned {logits.shape[1]} classes, and labels go to {largest}",
                "a number for each class, from 0",
            )  # fmt: skip
        return at_least_float32(logits).log_softmax(dim=-1)

    def _tokens(self, answer: Any, records: int, want: Want) -> dict[str, Tensor]:
        is_pair = isinstance(answer, tuple) and len(answer) == 2
        logits, labels = (
            map(self._tensor, answer) if is_pair else (torch.zeros(0), torch.zeros(0))
        )
        if (
            logits.ndim != 3
            or labels.shape != logits.shape[:2]
            or len(labels) != records
        ):
            raise self._fault(
                "query", "returned something else",
                f"a pair: logits [{records}, length, vocabulary], and labels "
                f"[{records}, length] with {IGNORED} where nothing is predicted",
            )  # fmt: skip
        words = TokenSequences(labels.clamp(min=0), _kinds(labels))
        return token_signals(at_least_float32(logits), words, want | {TOKENS})

    def _tensor(self, answer: Any) -> Tensor:
        try:
            return as_tensor(answer)
        except ConfigError as error:
            raise self._fault(
                "query", f"went wrong: {str(error).rstrip('.')}", "tensors"
            ) from None

    def _function(self, name: str, form: str) -> Callable[..., Any]:
        function = getattr(self.owner, name, None)
        if function is None:
            raise self._missing(name, form)
        return function

    def _missing(self, name: str, form: str) -> AttackError:
        if self.owner is None:
            return AttackError(
                "How a recorded federation's models are asked is its owner's to say, "
                "and nobody did. Name the owner's module: --owner theirs.py, or "
                "privaudit.use_owner(...)."
            )
        return AttackError(
            f"This needs {name}{form}, and {self.owner.name} has no such function. Add "
            "it, or leave out what needs it (docs/recording.md says which attacks do)."
        )

    def _call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call an owner's function; what it raises is reported as its fault."""
        try:
            with without_exits():
                return function(*arguments)
        except PluginError:
            raise
        except Exception as error:
            owner = self.owner.name if self.owner else "the owner's module"
            names = ", ".join(self.first) or "nothing"
            raise AttackError(
                f"{name} of {owner} raised {type(error).__name__}: {error}. A model is "
                f"handed over as tensors by name: {names}."
            ) from error

    def _fault(self, name: str, what: str, wanted: str) -> AttackError:
        owner = self.owner.name if self.owner else "the owner's module"
        return AttackError(f"{name} of {owner} {what}; wanted is {wanted}.")


@dataclass(frozen=True)
class IndividualRecordedTrainer(RecordedTrainer):
    """The same, where the server uses each upload by itself."""

    aggregation: ClassVar[Literal["sum", "individual"]] = "individual"


def _kinds(labels: Tensor) -> Tensor:
    """Return what each token is: answer, or before it, or padding behind it."""
    is_answer = labels != IGNORED
    behind = is_answer.flip(-1).cumsum(dim=-1).flip(-1) == 0
    kinds = torch.full_like(labels, INSTRUCTION)
    kinds[is_answer] = ANSWER
    kinds[behind] = PADDING
    return kinds
