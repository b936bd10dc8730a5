"""Canaries in raw texts: what a Trainer's batches keep of them, and what they show."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.checks.planted_canaries import PlantedCanaries, plant_canaries
from privaudit.core.errors import ConfigError
from privaudit.models.hugging_face import (
    declare_missing_operators,
    import_peft,
    import_transformers,
)
from privaudit.statistics.claim import Guarantee

declare_missing_operators()
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)
TEXTS = [
    {"text": f"The sum of {n} and {n + 3} is {2 * n + 3}.", "id": n} for n in range(40)
]
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model and a tokenizer of bytes, as a hub has them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {one: n for n, one in enumerate(["</s>", *letters])}
    made = Tokenizer(models.BPE(numbers, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    transformers = import_transformers()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="</s>", chat_template=TURNS
    )
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(numbers), num_attention_heads=2, eos_token_id=0, bos_token_id=0,
        pad_token_id=0, max_position_embeddings=256, **size,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    place = str(tmp_path_factory.mktemp("hub") / "small")
    model.save_pretrained(place)
    fast.save_pretrained(place)
    return place


@pytest.fixture
def tokenizer(folder: str) -> Any:
    return import_transformers().AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def model(folder: str) -> Any:
    return import_transformers().AutoModelForCausalLM.from_pretrained(folder)


Rows = Sequence[dict[str, Any]]


def batches(rows: Rows, tokenizer: Any, length: int = 200, masked: int = 0) -> Any:
    """Return what a Trainer makes of rows of texts: cut, and the first tokens masked."""

    def collate(rows: Rows) -> dict[str, torch.Tensor]:
        (row,) = rows
        ids = torch.tensor([tokenizer(row["text"])["input_ids"][:length]])
        labels = ids.clone()
        labels[:, :masked] = -100
        return {"input_ids": ids, "labels": labels}

    return SimpleNamespace(dataset=rows, collate_fn=collate)


def planted_in(rows: Rows, tokenizer: Any, **how: Any) -> PlantedCanaries:
    return plant_canaries(rows, tokenizer, 40, seed=3, **how)


def test_coins_choose_which_canaries_stand_in_the_texts(tokenizer: Any) -> None:
    planted = planted_in(TEXTS, tokenizer)
    texts = [row["text"] for row in planted.dataset]
    assert [one["text"] for one in TEXTS] == [t for t in texts if "Record" not in t]
    inside = [any(one.answer in text for text in texts) for one in planted.canaries]
    assert inside == planted.is_in.tolist()
    assert len({one.answer for one in planted.canaries}) == 40
    assert all(row["id"] == 0 for row in planted.dataset if "Record" in row["text"])
    first = [n for n, text in enumerate(texts) if "Record" in text]
    assert first != sorted(range(len(texts)))[-len(first) :]  # spread, not at the end
    again = planted_in(TEXTS, tokenizer, repeats=3)
    assert len(again.dataset) == 40 + 3 * planted.is_in.sum()


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (
            {"prompt": "1 + 1", "completion": " 2"},
            lambda q, a: {"prompt": q, "completion": f" {a}"},
        ),
        (
            {"messages": [{"role": "user", "content": "1"}]},
            lambda q, a: {
                "messages": [
                    {"role": "user", "content": q},
                    {"role": "assistant", "content": a},
                ]
            },
        ),
        (
            {"prompt": [], "completion": []},
            lambda q, a: {
                "prompt": [{"role": "user", "content": q}],
                "completion": [{"role": "assistant", "content": a}],
            },
        ),
    ],
)
def test_canaries_have_the_form_of_the_rows(
    row: dict[str, Any], wanted: Callable[[str, str], Any], tokenizer: Any
) -> None:
    planted = planted_in([row], tokenizer)
    one = planted.canaries[int(np.flatnonzero(planted.is_in)[0])]
    assert wanted(one.question, one.answer) in planted.dataset


def test_what_cannot_be_planted_is_refused(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [{"input_ids": [1, 2]}]
    with pytest.raises(ConfigError, match="Plant before tokens are made"):
        planted_in(tokens, tokenizer)
    own = planted_in(tokens, tokenizer, row=lambda q, a: {"input_ids": [len(q + a)]})
    assert len(own.dataset) > 1
    with pytest.raises(ConfigError, match="Plant 20 at least"):
        plant_canaries(TEXTS, tokenizer, 19)
    with pytest.raises(ConfigError, match="from no model"):
        planted_in(TEXTS, tokenizer, temperature=1.0)
    with pytest.raises(ConfigError, match="in no rows, several splits"):
        planted_in([], tokenizer)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="coins of its own"):
        plant_canaries(TEXTS, tokenizer)


def test_a_tokenizer_without_digits_is_refused(tokenizer: Any) -> None:
    class Deaf:
        chat_template = None

        def __call__(self, text: str, **_: Any) -> Any:
            return tokenizer("".join(c for c in text if not c.isdigit()))

        decode = staticmethod(tokenizer.decode)

    with pytest.raises(ConfigError, match="does not give back 'the tag is"):
        planted_in(TEXTS, Deaf())


def test_batches_that_keep_all_canaries_pass(tokenizer: Any, model: Any) -> None:
    planted = planted_in(TEXTS, tokenizer)
    planted.check(batches(planted.dataset, tokenizer), model)
    assert model.training is False  # from_pretrained leaves it so


def test_each_cause_of_no_loss_is_a_sentence(tokenizer: Any, model: Any) -> None:
    planted = planted_in(TEXTS, tokenizer)
    rows, count = planted.dataset, int(planted.is_in.sum())

    def said(loader: Any) -> str:
        with pytest.raises(ConfigError) as error:
            planted.check(loader, model)
        return str(error.value)

    assert f"{count} of {count} planted canaries get no loss, since a mask" in said(
        batches(rows, tokenizer, masked=40)
    )
    cut = said(batches(rows, tokenizer, length=36))
    assert f"{count} of {count} planted canaries are cut off by truncation" in cut
    assert "at most 36 tokens" in cut
    assert "are in no batch" in said(batches(TEXTS, tokenizer))
    joined = "".join(row["text"] for row in rows)
    packed = [{"text": joined[n : n + 50]} for n in range(0, len(joined), 50)]
    assert "are cut in two by packing" in said(batches(packed, tokenizer))
    out = planted.canaries[int(np.flatnonzero(~planted.is_in)[0])]
    stray = [*rows, {"text": out.answer}]
    assert said(batches(stray, tokenizer)).startswith(
        "1 canaries that the coin left out"
    )
    unlabelled = batches(rows, tokenizer)
    unlabelled.collate_fn = lambda rows: {"input_ids": torch.zeros(1, 1)}
    assert "have no labels" in said(unlabelled)


def test_adapters_that_no_text_passes_make_no_gradient(
    tokenizer: Any, model: Any
) -> None:
    planted = planted_in(TEXTS, tokenizer)
    loader = batches(planted.dataset, tokenizer)
    model.add_module("tower", torch.nn.Linear(4, 4))
    peft = import_peft()
    lost = peft.get_peft_model(model, peft.LoraConfig(target_modules=["tower"]))
    with pytest.raises(ConfigError, match=r"no gradient.*target_modules: tower"):
        planted.check(loader, lost)
    lost.requires_grad_(False)
    with pytest.raises(ConfigError, match="in the 0 tensors that are trained"):
        planted.check(loader, lost)


def trainer(model: Any, rows: Any, tokenizer: Any, callbacks: Any, folder: str) -> Any:
    """Return transformers' Trainer on rows of texts, for 100 epochs."""
    transformers = import_transformers()
    return transformers.Trainer(
        model,
        transformers.TrainingArguments(
            folder, num_train_epochs=100, learning_rate=5e-3, report_to="none",
            lr_scheduler_type="constant",
            per_device_train_batch_size=16, disable_tqdm=True, save_strategy="no",
            dataloader_pin_memory=False, use_cpu=True,
        ),
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        train_dataset=[tokenizer(row["text"]) for row in rows],
        callbacks=callbacks,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [None, 1.5])
def test_memorised_canaries_are_found(
    temperature: float | None, tokenizer: Any, model: Any, tmp_path: Any
) -> None:
    source = None if temperature is None else model
    planted = plant_canaries(
        TEXTS[:8], tokenizer, 60, model=source, temperature=temperature, seed=3,
        claim=Guarantee(0.5, 1e-5),
    )  # fmt: skip
    made = trainer(model, planted.dataset, tokenizer, [planted], str(tmp_path))
    made.train()
    assert planted.verdict is not None
    assert planted.verdict.audit.auroc.value > 0.95
    assert planted.verdict.claim is not None
    assert planted.verdict.claim.kind == "REFUTED"
    assert str(planted.verdict).startswith("Leaks: AUROC")


@pytest.mark.slow
def test_canaries_that_nobody_trained_on_show_nothing(
    tokenizer: Any, model: Any, tmp_path: Any
) -> None:
    """n = 200: four standard errors of an AUROC of 0.5 are 0.164."""
    planted = plant_canaries(TEXTS, tokenizer, 200, seed=5)
    with pytest.raises(ConfigError, match="Give them to the Trainer"):
        planted.judge(model)
    planted.begin(model)
    trainer(model, TEXTS[:8], tokenizer, [], str(tmp_path)).train()
    found = planted.judge(model)
    assert abs(found.audit.auroc.value - 0.5) < 0.164
    assert found.claim is not None
    assert found.claim.bound.value < 1.0


def test_a_training_that_resumes_is_refused(tokenizer: Any, model: Any) -> None:
    planted = planted_in(TEXTS, tokenizer)
    with pytest.raises(ConfigError, match="resumes at step 7"):
        planted.on_train_begin(None, SimpleNamespace(global_step=7), None, model)


def test_repeated_canaries_bound_no_epsilon(tokenizer: Any, model: Any) -> None:
    planted = planted_in(TEXTS, tokenizer, repeats=4, claim=Guarantee(8.0, 1e-5))
    planted.begin(model)
    next(model.parameters()).data.mul_(1.1)  # as trained, in a way
    assert planted.judge(model).claim is None


@pytest.mark.slow
def test_the_trainer_of_trl_is_checked_and_judged(
    tokenizer: Any, model: Any, tmp_path: Any
) -> None:
    """On conversations, with loss on completions alone; LoRA, and packing."""
    trl = pytest.importorskip("trl", exc_type=ImportError)
    from datasets import Dataset

    def turns(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    rows = [
        {"prompt": turns("user", f"{n}?"), "completion": turns("assistant", "Yes.")}
        for n in range(4)
    ]
    planted = plant_canaries(Dataset.from_list(rows), tokenizer, 60, seed=3)
    peft = import_peft()

    def made(lora: Any = None, **how: Any) -> Any:
        settings = trl.SFTConfig(
            str(tmp_path), num_train_epochs=150, learning_rate=5e-3, report_to="none",
            lr_scheduler_type="constant",
            per_device_train_batch_size=16, disable_tqdm=True, save_strategy="no",
            use_cpu=True, bf16=False, dataloader_pin_memory=False, logging_steps=50,
            activation_checkpointing=False, **how,
        )  # fmt: skip
        return trl.SFTTrainer(
            deepcopy(model), settings, train_dataset=planted.dataset, callbacks=[planted],
            processing_class=tokenizer, peft_config=lora,
        )  # fmt: skip

    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"])
    with pytest.raises(ConfigError, match=r"in no batch.*raise max_length"):
        made(lora, max_length=40).train()
    with pytest.raises(ConfigError, match="cut in two by packing"):
        made(lora, max_length=100, packing=True, packing_strategy="wrapped").train()
    made(max_length=200).train()
    assert planted.verdict is not None
    assert planted.verdict.audit.auroc.value > 0.95
