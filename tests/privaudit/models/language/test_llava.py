"""LLaVA against transformers' own, and captioning models by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.datasets.records import ANSWER, PICTURE, Dialogue
from privaudit.federation.query import questions
from privaudit.models.feature_cache import cached_tokens, content_hash
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.language.captioning_vlm import CaptioningVLM, PictureTower
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.stacked_language import StackedLanguageModel
from tests.loaded_models import load_captioner
from tests.small_transformers import (
    PATCH,
    alter,
    image_processor,
    random_model,
    vision_config,
)

WORDS = ["USER", ":", "ASSISTANT", "a", "red", "square", "blue", "circle", "what", "?"]
WORDS += ["is", "this", "two"]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
CHAT = (
    "{% for message in messages %}USER: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)
DIALOGUES = [
    Dialogue("what is this ?", ("a red square",)),
    Dialogue("a circle ?", ("two blue circle",)),
]


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
    )


def write_llava(folder: Path, kind: str, chat: str | None = CHAT) -> Any:
    """Save a small random LLaVA with its processor, and return it."""
    transformers = import_transformers()
    text = getattr(transformers, f"{kind}Config")(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=48,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    config = transformers.LlavaConfig(
        vision_config=vision_config("CLIPVision"), text_config=text, image_token_index=4
    )
    model = random_model(lambda: transformers.LlavaForConditionalGeneration(config))
    processor = transformers.LlavaProcessor(
        image_processor=image_processor(),
        tokenizer=make_tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat,
    )
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=["Llama", "Qwen2"])
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_llava(folder, request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    write_llava(folder, "Llama")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> CaptioningVLM:
    return load_captioner(f"llava:{folder}")


@pytest.fixture
def pictures() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(0, 256, (2, 3, 30, 40), generator=generator)
    return drawn.to(torch.uint8)


def test_logits_and_tokens_are_llavas_own(
    saved: tuple[Path, Any], pictures: torch.Tensor
) -> None:
    folder, original = saved
    model = load_captioner(f"llava:{folder}")
    words = model.words(DIALOGUES)
    tokens = cached_tokens(model, PixelImages(pictures), folder / "cache")
    found = model.language.logits(tokens[None], words.repeated(1), Tuning())
    processor = import_transformers().AutoProcessor.from_pretrained(folder)
    texts = [
        f"USER: <image>\n{d.question} ASSISTANT: {d.answers[0]}</s>" for d in DIALOGUES
    ]
    inputs = processor(
        images=list(pictures),
        text=texts,
        return_tensors="pt",
        padding=True,
        padding_side="right",
    )
    assert words.ids.equal(inputs["input_ids"])
    assert words.kinds.bool().equal(inputs["attention_mask"].bool())
    assert (words.kinds == PICTURE).equal(words.ids == 4)
    with torch.no_grad():
        expected = original(**inputs).logits
    real = words.kinds > 0
    assert torch.allclose(found[0][real], expected[real], atol=1e-5)
    answers = [
        ids[kinds == ANSWER] for ids, kinds in zip(words.ids, words.kinds, strict=True)
    ]
    assert [model.language.decode(ids.tolist()) for ids in answers] == [
        dialogue.answers[0] for dialogue in DIALOGUES
    ]


def test_answers_are_those_of_transformers_own_generation(
    saved: tuple[Path, Any], pictures: torch.Tensor
) -> None:
    folder, original = saved
    model = load_captioner(f"llava:{folder}")
    prompts = questions(model.words(DIALOGUES))
    tokens = model.encode_tokens(model.preprocess_batch(pictures))
    asked = prompts.repeated(1)
    found = model.language.generate_ids(tokens[None], asked, Tuning(), 6)[0]
    pixels = model.preprocess_batch(pictures)
    for row in range(2):
        ids = prompts.ids[row][prompts.kinds[row] > 0]
        with torch.no_grad():
            whole = original.generate(
                input_ids=ids[None],
                attention_mask=torch.ones_like(ids)[None],
                pixel_values=pixels[row : row + 1],
                max_new_tokens=6,
                do_sample=False,
            )
        assert found[row] == whole[0, len(ids) :].tolist()


def test_only_the_language_models_layers_are_targets(model: CaptioningVLM) -> None:
    targets = model.language.targets
    assert all(name.startswith("model.language_model.layers.") for name in targets)
    assert [target.layer for target in targets.values()] == [0] * 7 + [1] * 7


def test_a_target_that_both_towers_have_is_the_language_models(folder: Path) -> None:
    model = load_captioner(f"llava:{folder}", targets=["q_proj"])
    assert len(model.language.targets) == 2
    with pytest.raises(ConfigError, match=r"No linear layer of the language .* 'fc1'"):
        load_captioner(f"llava:{folder}", targets=["fc1"])


def test_sizes_are_known(model: CaptioningVLM, pictures: torch.Tensor) -> None:
    assert (model.image_size, model.parts, model.width) == (16, 4, 16)
    assert (model.language.vocabulary, model.language.context) == (24, 48)
    prepared = model.preprocess_batch(pictures)
    assert model.encode_tokens(prepared, batch=1).shape == (2, 4, 16)


def test_pictures_are_prepared_as_by_the_models_processor(
    model: CaptioningVLM, folder: Path, pictures: torch.Tensor
) -> None:
    processor = import_transformers().AutoProcessor.from_pretrained(folder)
    expected = processor.image_processor(list(pictures), return_tensors="pt")
    found = model.preprocess_batch(pictures)
    assert torch.equal(found, expected["pixel_values"])
    assert torch.equal(model.preprocess_batch(pictures / 255), found)


def test_without_a_chat_template_it_is_llavas_own(tmp_path: Path) -> None:
    write_llava(tmp_path, "Llama", chat=None)
    model = load_captioner(f"llava:{tmp_path}")
    assert model.template == "USER: {image}\n{question} ASSISTANT:"


def test_a_record_without_picture_is_refused(model: CaptioningVLM) -> None:
    with pytest.raises(ConfigError, match="has no pixels"):
        model.preprocess_batch(torch.empty(1, 3, 0, 0))
    with pytest.raises(ConfigError, match="reads pictures of 16 pixels"):
        cached_tokens(model, FeatureBank(torch.ones(1, 512)))


def test_a_long_answer_names_its_record(model: CaptioningVLM) -> None:
    long = Dialogue("what ?", (" ".join(["red"] * 40),))
    with pytest.raises(ConfigError, match=r"Record 1 takes .* takes 48"):
        model.words([DIALOGUES[0], long])


config = partial(alter, "config.json")


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(1)}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pickle_weights, "safetensors"),
        (config(model_type="qwen2"), "of type 'qwen2'"),
        (config(text_config={"num_hidden_layers": 10**9}), "have 64 tensors"),
        (config(text_config={"vocab_size": 10**10}), "parameters, and"),
        (
            config(model_type="mine", auto_map={"AutoConfig": "mine.Config"}),
            "comes with code of its own",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"cut"),
            "cannot be used",
        ),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(
    change: Callable[[Path], None], message: str, folder: Path, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    change(tmp_path)
    with pytest.raises(ConfigError, match=message):
        load_captioner(f"llava:{tmp_path}")


@pytest.fixture(scope="module")
def tiny() -> CaptioningVLM:
    return load_captioner()


def test_the_embedded_model_reads_pictures_and_words(
    tiny: CaptioningVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    pictures = PixelImages(drawn)
    tokens = cached_tokens(tiny, pictures, tmp_path)
    assert tokens.shape == (2, tiny.parts, tiny.width)
    monkeypatch.setattr(tiny, "encode_tokens", pytest.fail)
    assert torch.equal(cached_tokens(tiny, pictures, tmp_path), tokens)
    dialogues = [
        Dialogue("how many circles are there?", ("two",)),
        Dialogue("what do you see?", ("a red circle",)),
    ]
    words = tiny.words(dialogues)
    ids = words.ids[1][words.kinds[1] == ANSWER]
    assert tiny.language.decode(ids.tolist()) == "a red circle"
    logits = tiny.language.logits(tokens[None], words.repeated(1), Tuning())
    assert logits.shape == (1, 2, words.length, tiny.language.vocabulary)
    prompts = questions(words).repeated(1)
    assert len(tiny.language.generate(tokens[None], prompts, Tuning(), 5)[0]) == 2


def test_places_and_parts_must_agree(language: StackedLanguageModel) -> None:
    words = DialogueTokens(language.tokenizer, "{image}{question}", parts=3)
    eye = PictureTower(lambda pictures: pictures, lambda pictures: pictures, 4, 1, "")
    with pytest.raises(ConfigError, match=r"has 1 tokens, .* places for 3"):
        CaptioningVLM("mine", eye, language, words, "hash")


def test_the_cache_is_named_after_weights_and_preparation(tiny: CaptioningVLM) -> None:
    pictures = PixelImages(torch.zeros(1, 3, 4, 4))
    before = content_hash(tiny, pictures, "tokens")
    other = load_captioner()
    other.model_hash = "another"
    assert content_hash(other, pictures, "tokens") != before
    assert content_hash(load_captioner(), pictures, "tokens") == before
