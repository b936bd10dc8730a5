"""What models say about records: one table [models, records] for each quantity.

A classifier's table holds log-probabilities of all classes, from which every quantity
follows; that of a model that writes holds statistics of the tokens of each record's
answer. Tables are kept, models are not.

A float32 log-probability of a label that the model is sure of is rounded to 0: 13 to 15
of 100 records of CIFAR would tie there, and no threshold tells them apart. The other
classes' are not rounded so, and the label's is computed of them, in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from privaudit.auditing.signals.token_scores import (
    mean_log_likelihood,
    min_k,
    min_k_plus_plus,
)
from privaudit.core.errors import AttackError
from privaudit.core.tensors import Tensors, stacks
from privaudit.federated.query import MODELS_AT_ONCE, ask_each
from privaudit.federated.trainer import Records, Task, Trainer
from privaudit.models.token_table import TOKENS, TokenTable

QUANTITIES = ("confidence", "loss", "margin", "entropy", "modified_entropy")
OF_TOKENS = {
    "log_likelihood": mean_log_likelihood,
    "min-k": min_k,
    "min-k-plus-plus": min_k_plus_plus,
}
TOKENS_OF = "tokens/"  # in front of a token statistic's name, where it is kept
HIGHEST = -1e-12  # of another class's log-probability: its complement is not 0


@dataclass(frozen=True)
class SignalTable:
    """What each of several models says about each of several records.

    Attributes:
        log_likelihood: Of the label, in float64; of a text, the mean over the answer's
            tokens.
        log_probabilities: Of every class; None for models that write.
        tokens: Of an answer's tokens, by name: "min-k", "min-k-plus-plus" (both at
            20 %); higher means better known. None for classifiers.
    """

    labels: Int[Tensor, " records"]
    log_likelihood: Float[Tensor, "models records"]
    log_probabilities: Float[Tensor, "models records classes"] | None = None
    tokens: Mapping[str, Float[Tensor, "models records"]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Float[Tensor, "models records"]:
        """Return a quantity by name, such as "margin" or, of texts, "min-k".

        Raises:
            AttackError: These models have none of that name.
        """
        if name in self.tokens:
            return self.tokens[name]
        if name not in QUANTITIES:
            known = ", ".join([*QUANTITIES, *self.tokens])
            raise AttackError(
                f"The signal {name!r} was requested, but these models have {known}. "
                "Use one of them."
            )
        quantity: Float[Tensor, "models records"] = getattr(self, name)
        return quantity

    @property
    def loss(self) -> Float[Tensor, "models records"]:
        """Cross-entropy, at least 0."""
        return -self.log_likelihood

    @property
    def likelihood(self) -> Float[Tensor, "models records"]:
        """Probability of the label, in [0, 1]; of a text, the geometric mean."""
        return self.log_likelihood.exp()

    @property
    def confidence(self) -> Float[Tensor, "models records"]:
        """Logit-scaled confidence, log p_y - log(1 - p_y), about normal over models.

        Of a text, its mean log-likelihood: see Carlini et al. 2022, section VI for the
        scaling, which is made for classes.
        """
        if self.log_probabilities is None:
            return self.log_likelihood
        return log_odds(self.log_probabilities, self.labels)

    @property
    def margin(self) -> Float[Tensor, "models records"]:
        """Log-probability of the label less that of the likeliest other class."""
        best = self._others().amax(dim=-1).double()
        return self._classes().gather(2, self._index()).squeeze(2).double() - best

    @property
    def entropy(self) -> Float[Tensor, "models records"]:
        """Shannon entropy of the predicted distribution, in nats."""
        logs = self._classes().double().log_softmax(dim=-1)
        return -(logs.exp() * logs).nan_to_num(0.0).sum(dim=-1)

    @property
    def modified_entropy(self) -> Float[Tensor, "models records"]:
        """-(1 - p_y) log p_y - sum over other classes of p_j log(1 - p_j).

        0 for a certain right answer, unbounded for a certain wrong one.

        Source: Song and Mittal, "Systematic evaluation of privacy risks of machine
        learning models", USENIX Security 2021, equation 8.
        """
        others = self._others().double()
        rest = torch.log(-torch.expm1(others.clamp(max=HIGHEST)))
        wrong = others.logsumexp(dim=-1).exp()
        return wrong * self.loss - (others.exp() * rest).sum(dim=-1)

    def pick(self, records: Tensor) -> "SignalTable":
        """Return the columns that an index or a mask picks."""
        return self._each(self.labels[records], lambda values: values[:, records])

    def models(self, some: slice) -> "SignalTable":
        """Return some rows."""
        return self._each(self.labels, lambda values: values[some])

    def _each(
        self, labels: Int[Tensor, " records"], change: Callable[[Tensor], Tensor]
    ) -> "SignalTable":
        logs = self.log_probabilities
        return SignalTable(
            labels,
            change(self.log_likelihood),
            None if logs is None else change(logs),
            {name: change(values) for name, values in self.tokens.items()},
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the fields that are there, by name."""
        fields = {"labels": self.labels, "log_likelihood": self.log_likelihood}
        if self.log_probabilities is not None:
            fields["log_probabilities"] = self.log_probabilities
        return fields | {
            TOKENS_OF + name: values for name, values in self.tokens.items()
        }

    @classmethod
    def from_tensors(cls, fields: Mapping[str, Tensor]) -> "SignalTable":
        """Return the table that :meth:`to_tensors` wrote."""
        logs = fields.get("log_probabilities")
        tokens = {
            name.removeprefix(TOKENS_OF): values
            for name, values in fields.items()
            if name.startswith(TOKENS_OF)
        }
        return cls(fields["labels"], fields["log_likelihood"], logs, tokens)

    @classmethod
    def join(cls, parts: Sequence["SignalTable"]) -> "SignalTable":
        """Return the models of several tables about the same records, in one."""
        logs = [p.log_probabilities for p in parts if p.log_probabilities is not None]
        return cls(
            parts[0].labels,
            torch.cat([part.log_likelihood for part in parts]),
            torch.cat(logs) if logs else None,
            {n: torch.cat([p.tokens[n] for p in parts]) for n in parts[0].tokens},
        )

    def _classes(self) -> Float[Tensor, "models records classes"]:
        if self.log_probabilities is None:
            raise AttackError(
                "Probabilities of classes were requested, but these models generate "
                "text. Use an attack on words, such as token-loss."
            )
        return self.log_probabilities

    def _others(self) -> Float[Tensor, "models records classes"]:
        """Return the log-probabilities with the label's own taken out: -inf."""
        return _without(self._classes(), self._index())

    def _index(self) -> Int[Tensor, "models records 1"]:
        return self.labels.expand(len(self._classes()), -1).unsqueeze(2)


def log_odds(
    logs: Float[Tensor, "models records classes"], labels: Int[Tensor, " records"]
) -> Float[Tensor, "models records"]:
    """Return log p_y - log(1 - p_y) in float64, with 1 - p_y summed over the others.

    Exact to the precision of ``logs`` where p_y itself is 1 to rounding; a constant per
    record cancels. One model at a time, so that float64 is not held of all.
    """
    index = labels[:, None]

    def of_one(rows: Float[Tensor, "records classes"]) -> Float[Tensor, " records"]:
        exact = rows.double()
        rest = _without(exact, index).logsumexp(dim=-1)
        return exact.gather(1, index).squeeze(1) - rest

    return torch.stack([of_one(model_logs) for model_logs in logs])


def class_signals(
    labels: Int[Tensor, " records"], logs: Float[Tensor, "models records classes"]
) -> SignalTable:
    """Return the table of classifiers that gave these log-probabilities."""
    return SignalTable(labels, logsigmoid(log_odds(logs, labels)), logs)


def _without(logs: Tensor, index: Tensor) -> Tensor:
    return logs.scatter(-1, index, -torch.inf)


def measure_signals(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> SignalTable:
    """Return what models of any shapes say about records."""
    if task.kind == "generation":
        token_scores = _of_tokens(trainer, task, models, records)
        return SignalTable(
            records.labels, token_scores.pop("log_likelihood"), None, token_scores
        )
    return class_signals(records.labels, ask_each(trainer, task, models, records))


def _of_tokens(
    trainer: Trainer, task: Task, models: Sequence[Tensors], records: Records
) -> dict[str, Float[Tensor, "models records"]]:
    scores = {name: torch.zeros(len(models), len(records)) for name in OF_TOKENS}
    for positions, stacked in stacks(models, MODELS_AT_ONCE):
        first = 0
        for chunk in trainer.query(task, stacked, records, want=frozenset({TOKENS})):
            for row, position in enumerate(positions):
                table = TokenTable.from_signals([chunk], model=row)
                columns = slice(first, first + len(table))
                for name, score in OF_TOKENS.items():
                    scores[name][position, columns] = score(
                        table, "description"
                    ).float()
            first += len(table)
    return scores
