"""Signals: what models say about records, one table [models, records] for each quantity.

A classifier's table holds log-probabilities of all classes, from which every quantity
follows; that of a model that writes holds statistics of the tokens of each record's
answer. Tables are kept, models are not. A float32 log-probability of a label that the model
is sure of is rounded to 0: 13 to 15 of 100 records of CIFAR would tie there, and no threshold
tells them apart. The other classes' are not rounded so, and the label's is computed of them,
in float64.

Scores of token statistics take a :class:`~privaudit.models.token_table.TokenTable` and a
slice of it, see there for the positions it is scored at, and return one score for each record
in float64; higher is more likely a member. ``share`` is K in percent: of n positions,
max(1, floor(K n / 100)) count, so that 0 takes the largest alone and 100 the mean of all.
``all_positions`` says, for scores of words, whether the slice's first token counts, too; for
entropies and gaps, whether the next token may lie outside of the slice.

A target is asked once about its candidates and about public records, whose medians are
thresholds for guesses that need no truth. Some attacks ask models from before training, or
about records whose features were moved a little.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.auditing.attack import Adversary, Scores, Target
from privaudit.auditing.signal_cache import content_hash, tensors_hash
from privaudit.core.errors import AttackError
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.core.tensors import Tensors, below, stacks
from privaudit.federation.query import MODELS_AT_ONCE, ask_each
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.models.token_table import TOKENS, Slice, TokenTable, WordSlice

RecordScores = Float[Tensor, " n"]


def max_renyi(
    table: TokenTable,
    part: Slice,
    alpha: float,
    share: float = 10.0,
    *,
    all_positions: bool = False,
) -> RecordScores:
    """Return MaxRenyi-K%: minus the mean of the largest entropies of an order."""
    mask = table.scored(part, all_positions)
    return -_mean_of_largest(table.entropy(alpha), mask, share)


def mod_renyi(
    table: TokenTable, part: WordSlice, alpha: float, *, all_positions: bool = True
) -> RecordScores:
    """Return minus the mean modified entropy, of a finite order."""
    mask = table.scored(part, all_positions, needs_target=True)
    return -_mean(table.modified(alpha), mask)


def mean_log_likelihood(
    table: TokenTable, part: WordSlice, *, all_positions: bool = True
) -> RecordScores:
    """Return the mean log-probability of the tokens that came: minus the loss."""
    mask = table.scored(part, all_positions, needs_target=True)
    return _mean(table.statistics.log_likelihood, mask)


def perplexity_zlib(
    table: TokenTable,
    part: WordSlice,
    texts: Sequence[str],
    *,
    all_positions: bool = True,
) -> RecordScores:
    """Return minus the log-perplexity over the zlib size in bytes of each slice's text.

    Raises:
        AttackError: There is not one text for each record.
    """
    if len(texts) != len(table):
        raise AttackError(
            f"There are {len(table)} records and {len(texts)} texts, and perplexity by "
            "zlib needs the text of each. Give the records their dialogues."
        )
    sizes = torch.tensor([len(zlib.compress(text.encode())) for text in texts])
    return mean_log_likelihood(table, part, all_positions=all_positions) / sizes


def min_k(
    table: TokenTable,
    part: WordSlice,
    share: float = 20.0,
    *,
    all_positions: bool = True,
) -> RecordScores:
    """Return Min-K%: the mean of the smallest log-probabilities of what came."""
    mask = table.scored(part, all_positions, needs_target=True)
    return -_mean_of_largest(-table.statistics.log_likelihood, mask, share)


def min_k_plus_plus(
    table: TokenTable,
    part: WordSlice,
    share: float = 20.0,
    *,
    all_positions: bool = True,
) -> RecordScores:
    """Return Min-K%++: the same, each as deviations from the mean under p.

    A position whose distribution is uniform on what it allows counts 0.
    """
    mask = table.scored(part, all_positions, needs_target=True)
    statistics = table.statistics
    ratio = (statistics.log_likelihood - statistics.mean) / statistics.deviation
    ratio = ratio.masked_fill(statistics.deviation == 0, 0.0)
    return -_mean_of_largest(-ratio, mask, share)


def max_prob_gap(
    table: TokenTable,
    part: Slice,
    *,
    of_logarithms: bool = False,
    all_positions: bool = False,
) -> RecordScores:
    """Return the mean gap between the two largest probabilities, or their logarithms."""
    statistics = table.statistics
    gap = statistics.log_gap if of_logarithms else statistics.gap
    return _mean(gap, table.scored(part, all_positions))


def _mean(
    values: Float[Tensor, "n positions"], mask: Bool[Tensor, "n positions"]
) -> RecordScores:
    return values.double().masked_fill(~mask, 0).sum(1) / mask.sum(1)


def _mean_of_largest(
    values: Float[Tensor, "n positions"],
    mask: Bool[Tensor, "n positions"],
    share: float,
) -> RecordScores:
    count = (mask.sum(1).double() * share / 100).floor().clamp(min=1)
    ordered = values.double().masked_fill(~mask, -torch.inf)
    ordered = ordered.sort(dim=1, descending=True).values
    chosen = torch.arange(values.shape[1]) < count[:, None]
    return ordered.masked_fill(~chosen, 0).sum(1) / count


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
        return getattr(self, name)

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
        return self.classes().gather(2, self._index()).squeeze(2).double() - best

    @property
    def entropy(self) -> Float[Tensor, "models records"]:
        """Shannon entropy of the predicted distribution, in nats."""
        logs = self.classes().double().log_softmax(dim=-1)
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
        tokens = below(TOKENS_OF, fields)
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

    def classes(self) -> Float[Tensor, "models records classes"]:
        """Return the log-probabilities; those of models that write are an AttackError."""
        if self.log_probabilities is None:
            raise AttackError(
                "Probabilities of classes were requested, but these models generate "
                "text. Use an attack on words, such as token-loss."
            )
        return self.log_probabilities

    def _others(self) -> Float[Tensor, "models records classes"]:
        """Return the log-probabilities with the label's own taken out: -inf."""
        return _without(self.classes(), self._index())

    def _index(self) -> Int[Tensor, "models records 1"]:
        return self.labels.expand(len(self.classes()), -1).unsqueeze(2)


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
    return SignalTable(labels, functional.logsigmoid(log_odds(logs, labels)), logs)


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
    order = records.by_length
    asked = records.pick(order)
    for positions, stacked in stacks(models, MODELS_AT_ONCE):
        first = 0
        for chunk in trainer.query(task, stacked, asked, want=frozenset({TOKENS})):
            for row, position in enumerate(positions):
                table = TokenTable.from_signals([chunk], model=row)
                columns = order[first : first + len(table)]
                for name, score in OF_TOKENS.items():
                    scores[name][position, columns] = score(
                        table, "description"
                    ).float()
            first += len(table)
    return scores


KEPT = ("candidates", "public")  # what models are asked about


def target_signals(adversary: Adversary, target: Target) -> list[SignalTable]:
    """Return what a target says of its candidates and of public records, asked once."""
    return adversary.once(
        ("signals",),
        lambda: _asked_or_kept(adversary, target),
        target.reconstructed.model,
        target.candidates,
    )


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
        public = adversary.once(
            ("public signals",),
            lambda: ask_signals(adversary, [model], adversary.task.public),
            model,
        )
        tables = [ask_signals(adversary, [model], candidates), public]
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
    tables: dict[str, dict[str, Tensor]] = {which: {} for which in KEPT}
    for name, tensor in kept.items():
        which, _, field_name = name.partition("/")
        tables[which][field_name] = tensor
    return [SignalTable.from_tensors(fields) for fields in tables.values()]


def ask_signals(
    adversary: Adversary, models: Sequence[Tensors], records: Records
) -> SignalTable:
    """Return what models say about records."""
    return measure_signals(adversary.trainer, adversary.task, models, records)


PUBLIC_MEDIAN = "median of public records, classes weighted as among the candidates"
CLASS_MEDIANS = "median of public records of each class"
FARTHEST = 1e30  # a text or token that cannot come, as a finite score


def reference_records(adversary: Adversary, stream: str, most: int) -> Records:
    """Draw public records: the same ones for all clients and rounds."""
    public = adversary.task.public
    order = adversary.seeds.stream(stream).permutation(len(public))
    return public.pick(torch.from_numpy(np.sort(order[:most])))


def score_beside_public(
    adversary: Adversary,
    targets: Sequence[Target],
    score: Callable[[Target, Records], Float[np.ndarray, " records"]],
) -> list[Scores]:
    """Score each target's candidates; above the median public record is a member."""
    public, scored = adversary.task.public, []
    for target in targets:
        scores, others = (score(target, some) for some in (target.candidates, public))
        labels = public.labels, target.candidates.labels
        scored.append(Scores(scores, scores > public_threshold(others, *labels)))
    return scored


def public_threshold(
    scores: Float[np.ndarray, " public"],
    labels: Int[Tensor, " public"],
    candidates: Int[Tensor, " candidates"],
) -> float:
    """Return a score that half of those who are no members exceed.

    Public records' scores are weighted so that classes have the candidates' shares.
    """
    classes = int(max(candidates.max(), labels.max())) + 1
    share = torch.bincount(candidates, minlength=classes) / len(candidates)
    there = torch.bincount(labels, minlength=classes).clamp(min=1)
    weights = (share / there)[labels].numpy()
    order = np.argsort(scores)
    passed = np.cumsum(weights[order])
    return float(scores[order][np.searchsorted(passed, passed[-1] / 2)])


def class_medians(
    scores: Float[np.ndarray, " public"],
    labels: Int[np.ndarray, " public"],
    wanted: Int[np.ndarray, " candidates"],
) -> Float[np.ndarray, " candidates"]:
    """Return the median score of each candidate's class, or of all if it has none."""
    medians = np.full(int(max(labels.max(), wanted.max())) + 1, np.median(scores))
    for label in np.unique(labels):
        medians[label] = np.median(scores[labels == label])
    return medians[wanted]
