import os
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError, LimitError, MissingFileError
from privaudit.datasets.records import ANSWER, INSTRUCTION, PADDING, PICTURE, Dialogue
from privaudit.federation.query import questions
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.language.captioning_vlm import CaptioningVLM
from privaudit.models.language.dialogue_tokens import DialogueTokens, chat_template
from privaudit.models.registry import load_frozen
from privaudit.models.transformers.text_classifier import TextClassifier
from privaudit.models.transformers.text_writer import TextWriter
from privaudit.runs.config import make_config
from tests.small_records import text_data
from tests.small_transformers import (
    alter,
    blip_model,
    random_model,
    save,
    text_config,
    text_model,
    text_tokenizer,
)

ASKED = (Dialogue("what is the film", ("good",)), Dialogue("who", ("it was bad",)))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "llava", "vlm", "clip", "blip"])
def test_a_folder_that_is_not_there_is_missing(kind: str, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="cannot be loaded"):
        load_frozen(f"{kind}:{tmp_path / 'nowhere'}")


def test_a_folders_name_is_made_whole_and_a_hubs_is_left(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "x").mkdir()
    here = make_config("fedpt", model=f"encoder:{tmp_path / 'x' / '..' / 'mine'}")
    assert here.model == f"encoder:{tmp_path.resolve() / 'mine'}"
    assert make_config("fedpt", model="vit:google/vit").model == "vit:google/vit"


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    model = text_model("bert")
    model.config.save_pretrained(tmp_path)
    text_tokenizer("bert").save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises((ConfigError, MissingFileError), match="safetensors"):
        load_frozen(f"encoder:{tmp_path}")


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    save(tmp_path, "encoder-bert")
    code = {"AutoConfig": "own.C", "AutoModel": "own.M"}
    alter("config.json", model_type="own", auto_map=code)(tmp_path)
    (tmp_path / "own.py").write_text("raise AssertionError('run')\n")
    with pytest.raises(ConfigError, match="runs no such code"):
        load_frozen(f"encoder:{tmp_path}")


@pytest.mark.parametrize(
    ("family", "kind", "says"),
    [
        ("seq2seq-t5", "encoder", "Name it decoder: or seq2seq:"),
        ("encoder-bert", "clip", "clip: takes those of type 'clip'"),
        ("encoder-bert", "vit", "only those built as ViT"),
        ("vit-ViT", "blip", "blip: takes those of type 'blip-2'"),
    ],
)
def test_a_model_of_another_kind_is_refused(
    family: str, kind: str, says: str, tmp_path: Path
) -> None:
    save(tmp_path, family)
    text_tokenizer("bert").save_pretrained(tmp_path)
    if kind == "vit":
        save_processor(tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_frozen(f"{kind}:{tmp_path}")


@pytest.mark.parametrize(
    ("family", "entries", "says"),
    [
        (
            "encoder-bert",
            {"hidden_size": 10**6, "vocab_size": 10**8},
            "parameters, and",
        ),
        (
            "encoder-bert",
            {"num_hidden_layers": 10**9},
            "1,000,000,000, and the weights",
        ),
        ("decoder-gpt2", {"n_positions": 10**12}, "parameters, and the weights are"),
        ("seq2seq-t5", {"num_layers": 10**9}, "num_layers = 1,000,000,000"),
        ("clip-", {"projection_dim": 10**9}, "parameters, and the weights are"),
        ("vit-ViT", {"intermediate_size": 10**10}, "parameters, and the weights are"),
        ("blip-opt", {"num_query_tokens": 10**10}, "parameters, and the weights are"),
    ],
)
def test_what_a_configuration_announces_is_held_against_the_weights(
    family: str, entries: dict[str, int], says: str, tmp_path: Path
) -> None:
    """Qwen2 has max_window_layers, 28 by default, however few its layers are."""
    name = save(tmp_path, family)
    alter("config.json", **{"max_window_layers": 1000, **entries})(tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_frozen(name)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_in_a_models_folder_is_refused(file: str, tmp_path: Path) -> None:
    name = save(tmp_path, "encoder-bert")
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    with pytest.raises(MissingFileError, match="is a pipe, and not a plain file"):
        load_frozen(name)


def test_a_tokenizer_without_end_is_refused_by_its_size(tmp_path: Path) -> None:
    name = save(tmp_path, "encoder-bert")
    os.truncate(tmp_path / "tokenizer.json", 2**40)
    with pytest.raises(LimitError, match="1,099,511,627,776 bytes"):
        load_frozen(name)


def save_processor(folder: Path) -> None:
    import_transformers().CLIPImageProcessor().save_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("Blip", "attention of its own"), ("InstructBlip", "depend on the question")],
)
def test_other_blips_are_refused_with_the_reason(
    kind: str, why: str, tmp_path: Path
) -> None:
    getattr(import_transformers(), f"{kind}Config")().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=why):
        load_frozen(f"blip:{tmp_path}")


def test_targets_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    name = save(tmp_path, "encoder-distilbert")
    some: Any = load_frozen(name, targets=["q_lin"])
    assert all(n.endswith("q_lin") for n in some.tower(("a",), "{}").targets)
    with pytest.raises(ConfigError, match="No linear layer"):
        load_frozen(name, targets=["q_proj"])


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_decoder_reads_and_writes_what_transformers_does(
    kind: str, tmp_path: Path
) -> None:
    model = load_frozen(save(tmp_path, f"decoder-{kind}"))
    assert isinstance(model, TextWriter)
    words = model.words(ASKED)
    tokenizer = text_tokenizer(kind)
    for row, dialogue in enumerate(ASKED):
        whole = tokenizer(f"{dialogue.question} {dialogue.answers[0]}")["input_ids"]
        used = words.kinds[row] != PADDING
        assert words.ids[row][used].tolist() == [*whole, 5]
        answer = words.ids[row][words.kinds[row] == ANSWER].tolist()
        assert model.language.decode(answer) == dialogue.answers[0]
    ids = words.ids[1][words.kinds[1] != PADDING]
    expected = text_model(kind)(input_ids=ids[None]).logits[0]
    nothing = torch.zeros(1, 2, 0, model.language.width)
    found = model.language.logits(nothing, words.repeated(1), Tuning())[0, 1]
    assert torch.allclose(found[: len(ids)], expected, atol=1e-5)
    prompts = questions(words)
    said = model.language.generate_ids(nothing, prompts.repeated(1), Tuning(), 5)[0]
    for row, dialogue in enumerate(ASKED):
        asked = tokenizer(dialogue.question, return_tensors="pt")
        made = text_model(kind).generate(**asked, max_new_tokens=5, do_sample=False)
        assert said[row] == made[0, asked["input_ids"].shape[1] :].tolist()


def test_a_chat_template_goes_around_the_question() -> None:
    tokenizer = text_tokenizer("llama")
    assert chat_template(tokenizer) == "{question}"
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}who {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} is{% endif %}"
    )
    assert chat_template(tokenizer) == "<s>who {question} is"
    words = DialogueTokens(tokenizer, chat_template(tokenizer), 0)(ASKED[1:])
    written = tokenizer("who who is it was bad")["input_ids"]
    assert words.ids[0].tolist() == [*written, 5]


def test_a_template_without_a_place_for_the_question_is_refused() -> None:
    for template in ("what is it", "{image}{question}"):
        with pytest.raises(ConfigError, match="without pictures has"):
            DialogueTokens(text_tokenizer("llama"), template, 0)


def test_features_of_dialogues_are_mean_embeddings(tmp_path: Path) -> None:
    model = load_frozen(save(tmp_path, "decoder-llama"))
    assert isinstance(model, TextWriter)
    words = model.words(ASKED)
    table = text_model("llama").get_input_embeddings().weight
    used = words.ids[1][words.kinds[1] != PADDING]
    by_hand = torch.nn.functional.normalize(table[used].mean(dim=0), dim=0)
    assert torch.allclose(model.features(words)[1], by_hand, atol=1e-6)


@pytest.mark.parametrize("kind", ["opt", "t5"])
def test_a_blip_says_what_transformers_own_does(kind: str, tmp_path: Path) -> None:
    model = load_frozen(save(tmp_path, f"blip-{kind}"))
    assert isinstance(model, CaptioningVLM)
    pictures = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    pixels = model.preprocess_batch(pictures)
    tokens = model.encode_tokens(pixels)
    words = model.words(ASKED)
    assert (words.kinds[:, : model.parts] == PICTURE).all()
    found = model.language.logits(tokens[None], words.repeated(1), Tuning())[0]
    for row in range(2):
        expected = of_blip(kind, pixels[[row]], words.ids[row], words.kinds[row])
        ahead = (words.kinds[row, 1:] == ANSWER).nonzero()[:, 0]
        assert torch.allclose(found[row, ahead], expected, atol=1e-4)


def of_blip(
    kind: str, pixels: torch.Tensor, ids: torch.Tensor, kinds: torch.Tensor
) -> torch.Tensor:
    """Return what a BLIP-2 of transformers expects of one answer's tokens."""
    model = blip_model(kind)
    model.config.image_token_id = 1  # which no word has
    ids = ids.masked_fill(kinds == PICTURE, 1)
    read = (kinds == PICTURE) | (kinds == INSTRUCTION)
    if kind == "t5":
        labels = ids[kinds == ANSWER][None]
        output = model(pixel_values=pixels, input_ids=ids[read][None], labels=labels)
        return output.logits[0]
    used = kinds != PADDING
    output = model(pixel_values=pixels, input_ids=ids[used][None])
    ahead = (kinds[used][1:] == ANSWER).nonzero()[:, 0]
    return output.logits[0, ahead]


def test_an_encoders_head_from_the_hub_is_left_out(tmp_path: Path) -> None:
    kind = import_transformers().BertForSequenceClassification
    whole = random_model(lambda: kind(text_config("bert")))
    import_transformers().utils.logging.disable_progress_bar()
    whole.save_pretrained(tmp_path)
    text_tokenizer("bert").save_pretrained(tmp_path)
    model = load_frozen(f"encoder:{tmp_path}")
    assert isinstance(model, TextClassifier)
    images: Any = text_data(4).images
    tower: Any = model.tower(("a", "b"), "{}")
    words = model.words(images).repeated(1)
    states = tower.states(words, Tuning())[0]
    inputs = [text_tokenizer("bert")(*parts) for parts in images.texts]
    read = text_tokenizer("bert").pad(inputs, return_tensors="pt")
    expected = whole.bert(**read).last_hidden_state
    real = words.kinds[0] != PADDING
    assert torch.allclose(states[real], expected[real], atol=1e-5)
