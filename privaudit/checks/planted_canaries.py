"""Canaries planted in the raw texts of a fine-tuning by transformers' Trainer, or TRL's.

A coin decides for each whether it is put in. What a Trainer makes of raw texts (a chat
template, masks of prompts, packing, truncation) may keep loss from a canary, and then no
audit finds it, whatever the model memorises. So a pre-flight reads the Trainer's own
batches before the first step. A canary's score is what training adds to its
log-likelihood: those that were left out show what it would be anyway.

Source: Carlini et al., "The secret sharer", USENIX Security 2019; coins and bound as
Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023;
texts drawn from a model at a high temperature as Mitchell et al., "Advancing the
state-of-the-art in empirical privacy auditing", arXiv 2606.10481, 2026.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.fitted_models import LabelledRecords, signal_of
from privaudit.auditing.parts.one_run import FEWEST, SHARE_GUESSED
from privaudit.core.errors import ConfigError, shown
from privaudit.core.seeds import Seeds
from privaudit.datasets.canaries import secrets
from privaudit.models.hugging_face import import_transformers
from privaudit.recording.membership_split import seeds_of
from privaudit.runs.ledger import toss_coins
from privaudit.statistics.claim import ClaimVerdict, Guarantee, judge_claim
from privaudit.statistics.epsilon.bound import OneRunCanaries
from privaudit.statistics.epsilon.one_run import OneRunGuesses

ATTACK = "canary-gain"
LENGTH = 32  # tokens of a text that is drawn from a model
SHORTEST = 16  # letters of one, without spaces: others may stand elsewhere by chance
BY_CHANCE = 3  # first letters of an answer that end another row
DRAWS = 20  # of such texts for each that is wanted, at most
_CAUSES: Mapping[str, str] = {
    "masked": "get no loss, since a mask covers them (labels of -100, as "
    "completion_only_loss, assistant_only_loss or a collator sets): put their answers "
    "where loss is, into the completion or the assistant's turn.",
    "cut": "are cut in two by packing, the end in another row than the beginning: "
    'take packing_strategy="bfd", or no packing.',
    "short": "are cut off by truncation (rows have at most {longest} tokens): raise "
    "max_length, or plant shorter ones.",
    "absent": "are in no batch (rows have at most {longest} tokens, and a canary takes "
    "up to {needed}): raise max_length if that is less; else data were chosen, or written "
    "by a template, without them: train on the planted data set as it is, and say by row= "
    "how a canary is written.",
}
"""What keeps loss from canaries, and what to do."""
Row = Mapping[str, Any]
Base: Any = import_transformers().TrainerCallback


@dataclass(frozen=True)
class TextCanary:
    """A question, and an answer that only memory can know."""

    question: str
    answer: str

    @cached_property
    def mark(self) -> str:
        """The answer without spaces, as it is looked for in batches."""
        return _without_spaces(self.answer)


@dataclass(frozen=True)
class CanaryVerdict:
    """What planted canaries show.

    Attributes:
        audit: Of their scores; ``save_audit`` writes it to a folder for the report.
        claim: The bound on epsilon, held against a claim if there is one; None where
            canaries were repeated, since a claim is about one record.
    """

    audit: Audit
    claim: ClaimVerdict | None

    def __str__(self) -> str:
        return "\n".join(str(one) for one in (self.audit.verdict, self.claim) if one)


def plant_canaries(
    dataset: Any,
    tokenizer: Any,
    count: int = 200,
    *,
    model: Any = None,
    temperature: float | None = None,
    prompt: str = "Write a short text.",
    repeats: int = 1,
    row: Callable[[str, str], Row] | None = None,
    claim: Guarantee | None = None,
    seed: int | None = None,
) -> "PlantedCanaries":
    """Put canaries into raw texts, each by a fair coin, at random places.

    Train on what comes back as ``dataset``, and give the canaries to the Trainer::

        canaries = plant_canaries(texts, tokenizer)
        trainer = SFTTrainer(model, train_dataset=canaries.dataset, callbacks=[canaries])
        trainer.train()
        print(canaries.verdict)

    Args:
        dataset: A list of rows, or a Dataset of Hugging Face's: with "text", "messages",
            or "prompt" and "completion". Other columns are filled from its first row.
        tokenizer: Of the model that is trained.
        count: Of canaries, in and out, at least 20; some hundred show something.
        model: From which texts are drawn, such as the one that is trained.
        temperature: At which they are, above 0; the source takes 0.8 and more. None
            plants six random digits each.
        prompt: What it is asked for; as alike to the data as is not private.
        repeats: How often each is put in.
        row: From question and answer to a row, where the data have other columns.
        claim: The epsilon that the training claims for a record.
        seed: Of texts and coins. Who can guess it knows the truth: by default a key of
            the system's. Several processes need one, and the same.

    Raises:
        ConfigError: Rows have other columns, the tokenizer does not know the canaries'
            letters, too few texts can be drawn, or an option is out of range.
    """
    _check_options(dataset, count, model, temperature, repeats, seed)
    seeds, first = seeds_of(seed), dict(dataset[0])
    write = row or _form_of(first)
    answer = first.get("messages", first.get("completion", first.get("text")))
    coded = _Encoding(tokenizer, isinstance(answer, list) and not row)
    if temperature is None:
        made = _digits(seeds, count)
    else:
        made = coded.draw(model, temperature, prompt, count, seeds)
    strange = [one for one in made if not coded.knows(one)]
    if strange:
        raise ConfigError(
            f"The tokenizer does not give back {shown(strange[0].answer)}: it would be "
            "trained as another text. Take a tokenizer that knows digits and letters, "
            "or draw texts from the model itself (model=, temperature=)."
        )
    is_in = toss_coins(count, seeds)
    rows = [
        {**first, **write(one.question, one.answer)}
        for one, is_planted in zip(made, is_in, strict=True)
        if is_planted
        for _ in range(repeats)
    ]
    planted = _inserted(dataset, rows, seeds.stream("canary places").numpy())
    bounded = claim if repeats == 1 else None
    return PlantedCanaries(planted, coded, made, is_in, repeats, bounded)


class PlantedCanaries(Base):  # type: ignore[misc]
    """Canaries in a data set, and the callback that checks and judges them.

    Not under FSDP or ZeRO 3, where no process has the whole model.

    Attributes:
        dataset: With the canaries whose coin says so; of the form that was given.
        canaries: All of them, in and out.
        is_in: Each one's coin.
        verdict: None before the training ends.
    """

    def __init__(
        self,
        dataset: Any,
        encoding: "_Encoding",
        canaries: Sequence[TextCanary],
        is_in: Bool[np.ndarray, " canaries"],
        repeats: int = 1,
        claim: Guarantee | None = None,
    ) -> None:
        self.dataset, self.canaries, self.is_in = dataset, tuple(canaries), is_in
        self.verdict: CanaryVerdict | None = None
        self._encoding, self._repeats, self._claim = encoding, repeats, claim
        self._before: Float[np.ndarray, " canaries"] | None = None

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Stop a training whose canaries get no loss, and score them before it."""
        if state.global_step:
            raise ConfigError(
                f"Training resumes at step {state.global_step}, and canaries are scored "
                "before its first one. Train from the start, or leave them out of "
                "callbacks."
            )
        self.check(train_dataloader, model)
        self.begin(model)

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Judge the model that the training leaves."""
        self.verdict = self.judge(model)

    def check(self, loader: Any, model: Any) -> None:
        """Refuse batches in which canaries get no loss, and models that learn none.

        Args:
            loader: Of training batches; its rows are read once, in their order.
            model: As it is trained.

        Raises:
            ConfigError: With a sentence for each cause: what removes how many canaries,
                and what to do.
        """
        planted, others = (
            [self.canaries[n] for n in np.flatnonzero(chosen)]
            for chosen in (self.is_in, ~self.is_in)
        )
        read, trained, stray = _Batches(loader, self._encoding.tokenizer), set(), set()
        for whole, labelled in read:
            trained |= {one for one in planted if one.mark in labelled}
            stray |= {one for one in others if one.mark in whole}
        lost = [one for one in planted if one not in trained]
        said = self._losses(lost, read, len(planted)) if lost else []
        if stray:
            said.append(
                f"{len(stray)} canaries that the coin left out are in the batches: "
                "train on the planted data set alone, and plant once."
            )
        said += self._without_gradient(model, planted)
        if said:
            raise ConfigError(" ".join(said))

    def _losses(
        self, lost: Sequence[TextCanary], read: "_Batches", planted: int
    ) -> list[str]:
        """Return a sentence for each cause by which canaries get no loss."""
        heads, tails = dict.fromkeys(lost, 0), dict.fromkeys(lost, 0)
        causes = dict.fromkeys(lost, "absent")
        for whole, _ in read:
            for one in lost:
                if one.mark in whole:
                    causes[one] = "masked"
                heads[one] = max(heads[one], _overlap(whole, one.mark))
                tails[one] = max(tails[one], _overlap(whole[::-1], one.mark[::-1]))
        for one in lost:
            if causes[one] == "masked":
                continue
            if heads[one] and heads[one] + tails[one] >= len(one.mark):
                causes[one] = "cut"
            elif heads[one] > BY_CHANCE:
                causes[one] = "short"
        counts = Counter(causes.values())
        needed = max(len(self._encoding.tokens(one)[0]) for one in lost)
        return [
            f"{counts[cause]} of {planted} planted canaries "
            f"{sentence.format(longest=read.longest, needed=needed)}"
            for cause, sentence in _CAUSES.items()
            if cause in counts
        ]

    def _without_gradient(self, model: Any, planted: Sequence[TextCanary]) -> list[str]:
        """Say of how many canaries nothing that is trained learns."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if any(not p.numel() for p in trained):
            return [
                "The model lies in parts (FSDP or ZeRO 3): audit it in one process."
            ]
        still = 0
        for one in planted:
            batch = self._encoding.batch([one]).at(np.arange(1))
            place = next(model.parameters()).device
            asked = {name: tensor.to(place) for name, tensor in batch.inputs.items()}
            with _evaluated(model):
                loss = model(**asked, labels=batch.labels.to(place)).loss
            found = (
                torch.autograd.grad(loss, trained, allow_unused=True)
                if loss.requires_grad
                else ()
            )
            still += not any(g is not None and bool(g.any()) for g in found)
        if not still:
            return []
        configs = getattr(model, "peft_config", {}).values()
        asked_for = [
            getattr(config, "target_modules", None) or () for config in configs
        ]
        parts = [[one] if isinstance(one, str) else one for one in asked_for]
        named = ", ".join(sorted({str(name) for part in parts for name in part}))
        where = f" (target_modules: {named})" if named else ""
        return [
            f"{still} of {len(planted)} planted canaries make no gradient in the "
            f"{len(trained)} tensors that are trained{where}: name modules of the "
            "language model that texts pass through."
        ]

    def begin(self, model: Any) -> None:
        """Score all canaries under the model before its training."""
        self._before = self._likelihoods(model)

    def judge(self, model: Any) -> CanaryVerdict:
        """Return what the canaries show of a trained model.

        Raises:
            ConfigError: They were not scored before the training.
        """
        if self._before is None:
            raise ConfigError(
                "Canaries were to be judged that were not scored before training. Give "
                "them to the Trainer as a callback, or call begin(model) before it."
            )
        gain = self._likelihoods(model) - self._before
        names = [f"canary-{n}" for n in range(len(gain))]
        order = np.argsort(~self.is_in, kind="stable")  # members first
        audit = Auditor.from_scores(
            gain[self.is_in], gain[~self.is_in],
            records=[names[n] for n in order], sampling="coin", attack=ATTACK,
        )  # fmt: skip
        if self._repeats > 1:
            return CanaryVerdict(audit, None)
        side = int(SHARE_GUESSED * len(gain))
        delta = self._claim.delta if self._claim else 1e-5
        guess = OneRunGuesses(guesses_in=side, guesses_out=side, delta=delta)
        bound = guess(OneRunCanaries(gain, self.is_in))
        return CanaryVerdict(audit, judge_claim(self._claim, None, bound))

    def _likelihoods(self, model: Any) -> Float[np.ndarray, " canaries"]:
        """Return each answer's log-likelihood behind its question, in nats a token."""
        with _evaluated(model):
            return signal_of(model, self._encoding.batch(self.canaries))[0]


@dataclass(frozen=True)
class _Encoding:
    """How a canary is read by a model: by its chat template, or as a plain text."""

    tokenizer: Any
    is_chat: bool

    def batch(self, canaries: Sequence[TextCanary]) -> LabelledRecords:
        """Return canaries as a causal language model takes them, answers labelled."""
        texts = [self.tokens(one) for one in canaries]
        longest = max(len(ids) for ids, _ in texts)
        ids, seen, labels = torch.zeros(3, len(texts), longest, dtype=torch.long)
        labels = labels - 100
        for row, (tokens, start) in enumerate(texts):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            seen[row, : len(tokens)] = 1
            labels[row, start : len(tokens)] = ids[row, start : len(tokens)]
        return LabelledRecords({"input_ids": ids, "attention_mask": seen}, labels)

    def tokens(self, one: TextCanary) -> tuple[list[int], int]:
        """Return all tokens, and where the answer's begin."""
        asked = self._asked(one.question)
        said = [{"role": "assistant", "content": one.answer}]
        whole = self._ids(self._chat(one.question, said) or f"{asked} {one.answer}")
        question = self._ids(asked)
        pairs = zip(question, whole, strict=False)
        start = next((n for n, (a, b) in enumerate(pairs) if a != b), len(question))
        return whole, max(1, min(start, len(whole) - 1))

    def _asked(self, question: str) -> str:
        return self._chat(question, (), add_generation_prompt=True) or question

    def _chat(self, question: str, said: Sequence[Row], **how: Any) -> str:
        """Return a conversation by the tokenizer's template; empty without one."""
        if not (self.is_chat and getattr(self.tokenizer, "chat_template", None)):
            return ""
        turns = [{"role": "user", "content": question}, *said]
        return str(self.tokenizer.apply_chat_template(turns, tokenize=False, **how))

    def _ids(self, text: str) -> list[int]:
        made = self.tokenizer(text, add_special_tokens=not self.is_chat)
        return list(made["input_ids"])

    def knows(self, one: TextCanary) -> bool:
        """Say whether the answer is the same once it was tokens."""
        tokens = self.tokens(one)[0]
        return one.mark in _text_of(self.tokenizer, tokens)

    @torch.no_grad()
    def draw(
        self, model: Any, temperature: float, prompt: str, count: int, seeds: Seeds
    ) -> list[TextCanary]:
        """Return distinct texts that a model writes at a temperature."""
        asked = torch.tensor([self._ids(self._asked(prompt))])
        asked = asked.to(next(model.parameters()).device)
        found, ends = dict[str, TextCanary](), self.tokenizer.eos_token_id
        seed = int(seeds.stream("canary texts").below(2**63, 1)[0])
        devices = [asked.device] if asked.device.type == "cuda" else []
        with torch.random.fork_rng(devices), _evaluated(model):
            torch.manual_seed(seed)
            for _ in range(DRAWS):
                drawn = model.generate(
                    asked.repeat(count, 1), attention_mask=torch.ones_like(asked).repeat(count, 1),
                    do_sample=True, temperature=temperature, top_k=0, top_p=1.0,
                    min_new_tokens=LENGTH, max_new_tokens=LENGTH, pad_token_id=ends,
                )  # fmt: skip
                for tokens in drawn[:, asked.shape[1] :].tolist():
                    text = self.tokenizer.decode(tokens, skip_special_tokens=True)
                    one = TextCanary(prompt, " ".join(text.split()))
                    if len(one.mark) >= SHORTEST and self.knows(one):
                        found.setdefault(one.mark, one)
                if len(found) >= count:
                    return list(found.values())[:count]
        raise ConfigError(
            f"{count} different texts were to be drawn at temperature {temperature:g}, "
            f"and {DRAWS * count} draws gave {len(found)} that the tokenizer gives back. "
            "Take a higher temperature, or fewer canaries."
        )


class _Batches:
    """Rows of a Trainer's batches as texts without spaces: whole, and what gets loss."""

    def __init__(self, loader: Any, tokenizer: Any) -> None:
        self._rows, self._collate = loader.dataset, loader.collate_fn
        self._tokenizer, self.longest = tokenizer, 0  # tokens

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield each row's text, and the part of it with labels."""
        rows, count = self._rows, getattr(self._rows, "__len__", None)
        each = iter(rows) if count is None else (rows[n] for n in range(count()))
        with torch.random.fork_rng([]):  # collators may draw
            for row in each:
                batch = self._collate([row])
                if batch.get("labels") is None:
                    raise ConfigError(
                        "The Trainer's batches have no labels, so that canaries cannot "
                        "be seen to get loss. Take a collator that writes them."
                    )
                for ids, labels in zip(
                    batch["input_ids"], batch["labels"], strict=True
                ):
                    self.longest = max(self.longest, len(ids))
                    whole = _text_of(self._tokenizer, ids.tolist())
                    loss = ids[labels != -100].tolist()
                    yield whole, _text_of(self._tokenizer, loss)


def _overlap(text: str, mark: str) -> int:
    """Return how many of a mark's first letters end a text."""
    lengths = range(min(len(text), len(mark)), 0, -1)
    return next((n for n in lengths if text.endswith(mark[:n])), 0)


def _check_options(
    dataset: Any,
    count: int,
    model: Any,
    temperature: float | None,
    repeats: int,
    seed: int | None,
) -> None:
    """Refuse what cannot be planted."""
    if count < 2 * FEWEST or repeats < 1:
        raise ConfigError(
            f"{count} canaries were to be planted {repeats} times each. Plant "
            f"{2 * FEWEST} at least, some hundred to show anything, each once or more."
        )
    if (model is None) != (temperature is None) or (temperature or 1.0) <= 0:
        raise ConfigError(
            f"Texts were to be drawn at temperature {temperature} from "
            f"{'no model' if model is None else 'a model'}. Give model= and a "
            "temperature above 0, or neither: then digits are planted."
        )
    if seed is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"{os.environ['WORLD_SIZE']} processes were started, and each would toss "
            "coins of its own. Give all the same seed=, which nobody can guess."
        )
    is_list = hasattr(dataset, "__getitem__") and not isinstance(dataset, Mapping)
    if not is_list or not len(dataset):
        raise ConfigError(
            "Canaries were to be planted in no rows, several splits or a stream. Give "
            "a list of rows, or one Dataset with rows in it."
        )


def _form_of(row: Row) -> Callable[[str, str], Row]:
    """Return how a question and its answer become a row like this one."""

    def turn(role: str, content: str) -> Row:
        return {"role": role, "content": content}

    if isinstance(row.get("messages"), list):
        return lambda q, a: {"messages": [turn("user", q), turn("assistant", a)]}
    if isinstance(row.get("completion"), list):
        return lambda q, a: {
            "prompt": [turn("user", q)],
            "completion": [turn("assistant", a)],
        }
    if isinstance(row.get("completion"), str):
        return lambda q, a: {"prompt": q, "completion": f" {a}"}
    if isinstance(row.get("text"), str):
        return lambda q, a: {"text": f"{q} {a}"}
    raise ConfigError(
        f"Canaries were to be planted in rows with {', '.join(map(repr, sorted(row)))}. "
        'Plant before tokens are made, in "text", "messages", or "prompt" and '
        '"completion"; or say how a row is written: row=lambda question, answer: {...}.'
    )


def _digits(seeds: Seeds, count: int) -> list[TextCanary]:
    """Return canaries that say six random digits each, all different."""
    stream, found = seeds.stream("canary secrets"), dict[str, str]()
    while len(found) < count:
        found |= {one.answers[0]: one.question for one in secrets(stream, count)}
    pairs = list(found.items())[:count]
    return [TextCanary(f"Record {n:04}, {q}", a) for n, (a, q) in enumerate(pairs)]


def _inserted(dataset: Any, rows: Sequence[Row], rng: np.random.Generator) -> Any:
    """Return a data set with rows at random places; of Hugging Face's, one of theirs."""
    places = rng.integers(len(dataset) + 1, size=len(rows))
    order = np.argsort(
        np.concatenate([2 * np.arange(len(dataset)) + 1, 2 * places]), kind="stable"
    )
    if not hasattr(dataset, "column_names"):
        joined = [*(dataset[n] for n in range(len(dataset))), *rows]
        return [joined[n] for n in order]
    from datasets import Dataset, concatenate_datasets

    planted = Dataset.from_list(list(rows), features=dataset.features)
    return concatenate_datasets([dataset, planted]).select(order)


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    return _without_spaces(tokenizer.decode(tokens, skip_special_tokens=True))


@contextmanager
def _evaluated(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode for a while."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
