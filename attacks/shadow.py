"""Shadow models: learn from models of one's own how members are answered."""

import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

from jaxtyping import Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.shadow_models import (
    ShadowSignals,
    SignalsWithMembership,
    Source,
    order_of_contents,
    shadow_signals,
)
from privaudit.auditing.signals import SignalTable
from privaudit.core.lazy_torch import Tensor, functional, torch
from privaudit.core.seeds import Stream

LOG_FLOOR = -30.0  # log-probabilities below this say nothing more
CHECK_EVERY, PATIENCE = 5, 25  # steps


@ATTACKS.register("shadow")
@dataclass(frozen=True)
class Shadow:
    """Shokri's attack: an attack model for each class, trained on shadow models.

    The attack model is a two-layer perceptron with a head, on the log-probability
    vector; a pooled one gets the log-probability of the label beside it. Members and
    others weigh the same. A fifth of the shadows trains no attack model: training
    stops, and the threshold lies, where those are guessed best. The target has no part
    in either.

    Source: Shokri et al., "Membership inference attacks against machine learning
    models", IEEE S&P 2017; with 50 shadows and this attack model as in Tran et al.,
    "Privacy-preserving personalized federated prompt learning for multimodal large
    language models", ICLR 2025, appendix A.3. There is no statement there on what the
    attack model sees; log-probabilities here. Both train shadows on records of the
    adversary's own ("offline"); on the candidates ("online") they are those of LiRA and
    RMIA, which need not be trained twice, and what tells members from others is learned
    on the very records that are judged.

    Attributes:
        shadows: Shadow models for each attacked client.
        mode: "online" shadows train on the candidates, "offline" on public records.
        attack_models: One for each class, as published, or one for all, which has more
            records to learn from.
        vector: The whole probability vector in the order of classes, or sorted.
        hidden: Width of the perceptron's two layers.
        steps: Of AdamW at the most, on all records of a class at once.
        learning_rate: Step size of AdamW, above 0.
        weight_decay: Of AdamW, at least 0.
    """

    trains_shadows: ClassVar[bool] = True
    task: ClassVar[AnyTask] = "classification"

    shadows: Annotated[int, Field(ge=5)] = 50
    mode: Literal["online", "offline"] = "online"
    attack_models: Literal["class-wise", "pooled"] = "class-wise"
    vector: Literal["full", "sorted"] = "full"
    hidden: Annotated[int, Field(ge=1)] = 32
    steps: Annotated[int, Field(ge=1)] = 200
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    weight_decay: Annotated[float, Field(ge=0)] = 0.01

    @property
    def threshold(self) -> str:
        """How guesses are made, in words."""
        models = "shadow model" if self._held == 1 else "shadow models"
        return f"best on {self._held} {models} that trained no attack model"

    @property
    def _held(self) -> int:
        """Shadows that train no attack model."""
        return max(1, self.shadows // 5)

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates by the attack model's log-odds."""
        source: Source = "candidates" if self.mode == "online" else "public"
        known = shadow_signals(adversary, targets, self.shadows, source)
        return [
            self._score(adversary, target, of_target)
            for target, of_target in zip(targets, known, strict=True)
        ]

    def _score(
        self, adversary: Adversary, target: Target, known: ShadowSignals
    ) -> Scores:
        held, learned = self._held, known.training_set
        candidates = known.candidates.target
        if self.mode == "online":  # sums round alike in whatever order they are asked
            learned = learned.pick(order_of_contents(target.candidates))
        train = _Examples.of_shadows(self, learned, slice(held, None))
        check = _Examples.of_shadows(self, learned, slice(0, held))
        stream = adversary.seeds.stream("attack model", client=target.client)
        classes = (
            candidates.classes().shape[-1] if self.attack_models == "class-wise" else 1
        )
        attack_model = _fit(self, train, check, classes, stream)
        threshold = _best_threshold(attack_model(check.inputs, check.labels), check)
        scores = attack_model(*self._seen(candidates))
        return Scores(scores.numpy(), (scores > threshold).numpy())

    def _seen(
        self, signals: SignalTable
    ) -> tuple[Float[Tensor, "n inputs"], Int[Tensor, " n"]]:
        """Return what an attack model sees of answers, and which one it is."""
        answers = signals.classes().flatten(0, 1).clamp(min=LOG_FLOOR)
        if self.vector == "sorted":
            answers = answers.sort(dim=-1, descending=True).values
        labels = signals.labels.repeat(len(signals.log_likelihood))
        if self.attack_models == "class-wise":
            return answers, labels
        confidence = (
            signals.log_likelihood.flatten().clamp(min=LOG_FLOOR).to(answers.dtype)
        )
        return torch.cat([answers, confidence.unsqueeze(1)], dim=1), torch.zeros_like(
            labels
        )


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class _Examples:
    """Answers of shadows, with the attack model's number and whether they were in."""

    inputs: Tensor
    labels: Tensor
    is_in: Tensor

    @classmethod
    def of_shadows(
        cls, attack: Shadow, learned: SignalsWithMembership, some: slice
    ) -> "_Examples":
        known = (learned.is_in[some] | learned.is_out[some]).flatten()
        inputs, labels = attack._seen(learned.signals.models(some))
        return cls(inputs[known], labels[known], learned.is_in[some].flatten()[known])


class _AttackModels:
    """One perceptron for each class, all of them stacked."""

    def __init__(
        self, inputs: Tensor, classes: int, hidden: int, stream: Stream
    ) -> None:
        self.mean = inputs.mean(dim=0)
        self.std = inputs.std(dim=0).clamp(min=1e-6)
        sizes = [inputs.shape[1], hidden, hidden, 1]
        self.parameters: list[Tensor] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            weight = stream.normal_tensor((classes, fan_in, fan_out))
            self.parameters += [
                (weight * (2 / fan_in) ** 0.5).requires_grad_(),
                torch.zeros(classes, 1, fan_out, requires_grad=True),
            ]

    def __call__(
        self, inputs: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
    ) -> Float[Tensor, " n"]:
        """Return the log-odds of membership, each record by its class's model."""
        with torch.no_grad():
            packed, where = self.pack(inputs, labels)
            return self.forward(packed)[labels, where]

    def pack(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Group standardised records by class, padded: [classes, longest, d]."""
        classes = len(self.parameters[0])
        hot = torch.nn.functional.one_hot(labels, classes)
        where = (hot.cumsum(dim=0) - 1).gather(1, labels.unsqueeze(1)).squeeze(1)
        packed = torch.zeros(classes, int(hot.sum(dim=0).max()), inputs.shape[1])
        packed[labels, where] = (inputs - self.mean) / self.std
        return packed, where

    def forward(self, packed: Float[Tensor, "c n d"]) -> Float[Tensor, "c n"]:
        first, b1, second, b2, head, b3 = self.parameters
        states = torch.relu(packed @ first + b1)
        states = torch.relu(states @ second + b2)
        return (states @ head + b3).squeeze(-1)


def _fit(
    attack: Shadow, train: _Examples, check: _Examples, classes: int, stream: Stream
) -> _AttackModels:
    """Train until the shadows that train no attack model are guessed no better."""
    model = _AttackModels(train.inputs, classes, attack.hidden, stream)
    learn, held = _Batch.of(model, train), _Batch.of(model, check)
    step_on = _adamw(attack, model.parameters)
    best, lowest, since = model.parameters, float("inf"), 0
    for step in range(attack.steps):
        if step - since > PATIENCE:
            break
        step_on(torch.autograd.grad(learn.loss(model), model.parameters))
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                loss = float(held.loss(model))
            if loss < lowest:
                best = [p.detach().clone() for p in model.parameters]
                lowest, since = loss, step
    model.parameters = best
    return model


def _adamw(
    attack: Shadow, parameters: list[Tensor]
) -> Callable[[Sequence[Tensor]], None]:
    """Return what moves the parameters, given their gradients.

    As ``torch.optim.AdamW``, by the function beneath it: to make one of the class takes
    torch two seconds of importing its compiler.
    """
    from torch.optim.adamw import adamw

    firsts, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = [torch.zeros(()) for _ in parameters]

    @torch.no_grad()
    def step_on(gradients: Sequence[Tensor]) -> None:
        adamw(
            parameters,
            list(gradients),
            firsts,
            squares,
            [],
            steps,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=attack.learning_rate,
            weight_decay=attack.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    return step_on


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class _Batch:
    """Examples grouped by class, in which members and others weigh the same."""

    packed: Tensor
    truth: Tensor
    weight: Tensor

    @classmethod
    def of(cls, model: _AttackModels, examples: _Examples) -> "_Batch":
        packed, where = model.pack(examples.inputs, examples.labels)
        truth, there = torch.zeros(packed.shape[:2]), torch.zeros(packed.shape[:2])
        truth[examples.labels, where] = examples.is_in.float()
        there[examples.labels, where] = 1.0
        return cls(packed, truth, _balanced(truth, there))

    def loss(self, model: _AttackModels) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            model.forward(self.packed), self.truth, weight=self.weight, reduction="sum"
        )


def _balanced(
    truth: Float[Tensor, "c n"], weight: Float[Tensor, "c n"]
) -> Float[Tensor, "c n"]:
    """Let members and others of each class weigh one half each."""
    inside, outside = weight * truth, weight * (1 - truth)
    return inside / inside.sum(dim=1, keepdim=True).clamp(
        min=1
    ) + outside / outside.sum(dim=1, keepdim=True).clamp(min=1)


def _best_threshold(scores: Float[Tensor, " n"], examples: _Examples) -> float:
    """Return the threshold with the best mean of true-positive and -negative rates."""
    order = scores.argsort()
    inside = examples.is_in[order].float()
    below_in = inside.cumsum(0) / inside.sum().clamp(min=1)
    below_out = (1 - inside).cumsum(0) / (1 - inside).sum().clamp(min=1)
    return float(scores[order][(below_out - below_in).argmax()])
