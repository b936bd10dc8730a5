"""What models say about records: one table [models, records] for each quantity.

A classifier's table holds log-probabilities of all classes, from which every quantity
follows; that of a model that writes holds the mean log-likelihood of the tokens of each
record's answer. Tables are kept, models are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.asking import MODELS_AT_ONCE, ask_each
from privaudit.errors import ConfigError
from privaudit.tensors import Stacked, Tensors, stacks
from privaudit.token_scores import mean_log_likelihood
from privaudit.token_table import TOKENS, TokenTable
from privaudit.trainer import PublicTask, Records, Trainer

HIGHEST = -1e-12  # of another class's log-probability: its complement is not 0


@dataclass(frozen=True)
class SignalTable:
    """What each of several models says about each of several records.

    Attributes:
        labels: The records' classes.
        log_likelihood: Of the label; of a text, the mean over the answer's tokens.
        log_probabilities: Of every class; None for models that write.
    """

    labels: Int[Tensor, " records"]
    log_likelihood: Float[Tensor, "models records"]
    log_probabilities: Float[Tensor, "models records classes"] | None = None

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
        return self.log_likelihood - self._others().logsumexp(dim=-1)

    @property
    def margin(self) -> Float[Tensor, "models records"]:
        """Log-probability of the label less that of the likeliest other class."""
        return self.log_likelihood - self._others().amax(dim=-1)

    @property
    def entropy(self) -> Float[Tensor, "models records"]:
        """Shannon entropy of the predicted distribution, in nats."""
        logs = self._classes()
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
        found = wrong * self.loss - (others.exp() * rest).sum(dim=-1)
        return found.to(self.log_likelihood.dtype)

    def pick(self, records: Tensor) -> "SignalTable":
        """Return the columns that an index or a mask picks."""
        logs = self.log_probabilities
        return SignalTable(
            self.labels[records],
            self.log_likelihood[:, records],
            None if logs is None else logs[:, records],
        )

    def models(self, some: slice) -> "SignalTable":
        """Return some rows."""
        logs = self.log_probabilities
        return SignalTable(
            self.labels,
            self.log_likelihood[some],
            None if logs is None else logs[some],
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the fields that are there, by name."""
        fields = {"labels": self.labels, "log_likelihood": self.log_likelihood}
        if self.log_probabilities is not None:
            fields["log_probabilities"] = self.log_probabilities
        return fields

    @classmethod
    def from_tensors(cls, fields: Mapping[str, Tensor]) -> "SignalTable":
        """Return the table that :meth:`to_tensors` wrote."""
        logs = fields.get("log_probabilities")
        return cls(fields["labels"], fields["log_likelihood"], logs)

    @classmethod
    def join(cls, parts: Sequence["SignalTable"]) -> "SignalTable":
        """Return the models of several tables about the same records, in one."""
        logs = [p.log_probabilities for p in parts if p.log_probabilities is not None]
        return cls(
            parts[0].labels,
            torch.cat([part.log_likelihood for part in parts]),
            torch.cat(logs) if logs else None,
        )

    def _classes(self) -> Float[Tensor, "models records classes"]:
        if self.log_probabilities is None:
            raise ConfigError(
                "Probabilities of classes were asked for, and these models answer in "
                "words. Take an attack on words, such as token-loss."
            )
        return self.log_probabilities

    def _others(self) -> Float[Tensor, "models records classes"]:
        """Return the log-probabilities with the label's own taken out: -inf."""
        logs = self._classes()
        index = self.labels.expand(len(logs), -1).unsqueeze(2)
        return logs.scatter(2, index, -torch.inf)


def measure_signals(
    trainer: Trainer, task: PublicTask, models: Sequence[Tensors], records: Records
) -> SignalTable:
    """Return what models of any shapes say about records."""
    if task.writes:
        told = _log_likelihoods(trainer, task, models, records)
        return SignalTable(records.labels, told)
    logs = ask_each(trainer, task, models, records)
    index = records.labels.expand(len(models), -1).unsqueeze(2)
    return SignalTable(records.labels, logs.gather(2, index).squeeze(2), logs)


def _log_likelihoods(
    trainer: Trainer, task: PublicTask, models: Sequence[Tensors], records: Records
) -> Float[Tensor, "models records"]:
    told = torch.zeros(len(models), len(records))
    for positions, stacked in stacks(models, MODELS_AT_ONCE):
        told[positions] = _of_stack(trainer, task, stacked, len(positions), records)
    return told


def _of_stack(
    trainer: Trainer, task: PublicTask, models: Stacked, count: int, records: Records
) -> Float[Tensor, "models records"]:
    parts = []
    for chunk in trainer.query(task, models, records, want=frozenset({TOKENS})):
        signals = {name: tensor.cpu() for name, tensor in chunk.items()}
        tables = [TokenTable.from_signals([signals], model=k) for k in range(count)]
        told = [mean_log_likelihood(table, "description") for table in tables]
        parts.append(torch.stack(told))
    return torch.cat(parts, dim=1).float()
