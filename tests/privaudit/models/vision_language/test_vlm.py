"""Each family against transformers' own processor and peft's own model; what is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.datasets.records import (
    ANSWER,
    PADDING,
    PICTURE,
    Dialogue,
    TokenSequences,
)
from privaudit.federation.query import questions
from privaudit.models.hugging_face import import_peft, import_transformers
from privaudit.models.interfaces import Tuning
from privaudit.models.registry import load_frozen
from privaudit.models.vision_language import vlm
from privaudit.models.vision_language.vlm import (
    TRIED,
    PictureFormat,
    VisionLanguageModel,
    pack_grid,
    processor_example,
    unpack_grids,
)
from privaudit.tuning.peft_methods.registry import PEFT_METHODS, MechanismOptions
from tests.small_records import RaggedPictures, ragged_data
from tests.small_transformers import alter, draw, pair_shapes, some_lora
from tests.small_vlms import (
    FAMILIES,
    logits_of_peft,
    own_inputs,
    own_processor,
    save_vlm,
)

DATA = ragged_data(3)
PICTURES, DIALOGUES = RaggedPictures(3), DATA.dialogues
OF_NUMPY = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(family)
    save_vlm(folder, family)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> VisionLanguageModel:
    return loaded(folder)


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return own_processor(folder)


@OF_NUMPY
def test_words_are_those_of_the_familys_own_processor(
    family: str, model: VisionLanguageModel, processor: Any
) -> None:
    words = model.read(DATA).words
    assert words is not None
    image = model.language.model.config.image_token_id
    for row in range(len(DATA)):
        ids, kinds = words.ids[row], words.kinds[row]
        prompt = (kinds != PADDING) & (kinds != ANSWER)
        own = own_inputs(family, processor, PICTURES[row], DIALOGUES[row])["input_ids"][
            0
        ]
        assert torch.equal(ids.masked_fill(kinds == PICTURE, image)[prompt], own)
        said = model.language.decode(ids[kinds == ANSWER].tolist())
        assert said == DIALOGUES[row].answers[0]


@OF_NUMPY
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_logits_are_those_of_pefts_own_model(
    family: str, model: VisionLanguageModel, folder: Path
) -> None:
    records = model.read(DATA)
    assert records.words is not None
    assert records.tokens is not None
    pairs = draw(pair_shapes(model.language, 2))
    tokens = records.tokens[None].read().expand(2, -1, -1, -1)
    words = records.words.repeated(2)
    found = model.language.logits(tokens, words, some_lora(model.language, pairs))
    theirs = logits_of_peft(family, folder, model, records, pairs)
    for row, expected in enumerate(theirs):
        real = records.words.kinds[row] != PADDING
        assert torch.allclose(found[0, row][real], expected, atol=1e-4)
    second = some_lora(model.language, {name: t[1:] for name, t in pairs.items()})
    alone = model.language.logits(tokens[1:], words[1:2], second)[0]
    assert torch.allclose(found[1], alone, atol=2e-5)
    assert not torch.allclose(found[0], found[1], atol=0.01)
    untuned = model.language.logits(tokens, words, Tuning())
    assert not torch.allclose(found[0], untuned[0], atol=0.01)


@OF_NUMPY
def test_answers_are_those_that_the_model_generates(
    family: str, model: VisionLanguageModel, processor: Any
) -> None:
    records = model.read(DATA)
    assert records.words is not None
    assert records.tokens is not None
    pairs = draw(pair_shapes(model.language, 2))
    pairs = {n: torch.cat([t[:1], 0 * t[1:]]) for n, t in pairs.items()}
    said = model.language.generate_ids(
        records.tokens[None].read().expand(2, -1, -1, -1),
        questions(records.words).repeated(2),
        some_lora(model.language, pairs),
        5,
    )
    original = model.language.model
    for row in range(len(DATA)):
        own = own_inputs(family, processor, PICTURES[row], DIALOGUES[row])
        own.pop("labels", None)
        found = original.generate(**own, max_new_tokens=5, do_sample=False)
        assert said[1][row] == found[0, own["input_ids"].shape[1] :].tolist()
    # Random weights whose head is the embedding say one word again and again.
    assert said[0] != said[1] or family == "paligemma"


def loaded(folder: Path) -> VisionLanguageModel:
    model = load_frozen(f"vlm:{folder}")
    assert isinstance(model, VisionLanguageModel)
    return model


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    save_vlm(folder, "llava")
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> VisionLanguageModel:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    save_vlm(folder, "qwen3_vl")
    return loaded(folder)


def read(model: VisionLanguageModel) -> tuple[torch.Tensor, TokenSequences]:
    """Return the pictures and words of two models that see the same three records."""
    records = model.read(DATA)
    assert records.tokens is not None
    assert records.words is not None
    tokens = records.tokens[None].read()
    return tokens.expand(2, -1, -1, -1), records.words.repeated(2)


def test_the_tests_try_every_type_that_a_message_names() -> None:
    assert sorted(TRIED) == sorted(FAMILIES)


def test_a_folder_is_in_the_hubs_layout(llava: Path) -> None:
    index = json.loads((llava / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert json.loads((llava / "config.json").read_text())["dtype"] == "bfloat16"


def test_pictures_of_different_sizes_have_different_numbers_of_tokens(
    qwen: VisionLanguageModel,
) -> None:
    tokens, words = read(qwen)
    parts = (words.kinds[0] == PICTURE).sum(dim=1)
    assert parts.tolist() == [10, 4, 48]
    assert tokens.shape[2:] == (48, 3 * qwen.language.width)  # two levels of deepstack
    assert not tokens[0, 1, 4:].any()
    features = qwen.read(DATA).features
    assert torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-5)


def test_grids_are_packed_and_unpacked() -> None:
    grids = [(1, 34, 46), (1, 2, 65535), (7, 8, 9)]
    numbers = torch.tensor([pack_grid(*grid) for grid in grids])
    assert unpack_grids(numbers).tolist() == [list(grid) for grid in grids]


def test_the_image_tower_runs_once_for_each_picture(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(llava)
    first = model.read(DATA)
    monkeypatch.setattr(model.reader, "encode", pytest.fail)
    again = model.read(DATA)
    assert first.tokens is not None
    assert again.tokens is not None
    assert torch.equal(again.tokens.read(), first.tokens.read())
    monkeypatch.setattr(model.language.model.model.vision_tower, "forward", pytest.fail)
    model.language.logits(*read(model), Tuning())


def test_some_positions_are_those_of_all(qwen: VisionLanguageModel) -> None:
    added = some_lora(qwen.language, draw(pair_shapes(qwen.language, 2)))
    some = torch.tensor([3, 9])
    whole = qwen.language.logits(*read(qwen), added)
    found = qwen.language.logits(*read(qwen), added, some)
    assert torch.allclose(found, whole[:, :, some], atol=2e-5)


def test_a_row_of_padding_changes_nothing(qwen: VisionLanguageModel) -> None:
    pairs = draw(pair_shapes(qwen.language, 2))
    tokens, words = read(qwen)
    kinds = words.kinds.clone()
    kinds[1, 2] = PADDING
    padded = TokenSequences(words.ids, kinds)
    logits = qwen.language.logits(tokens, padded, some_lora(qwen.language, pairs))
    expected = qwen.language.logits(tokens, words, some_lora(qwen.language, pairs))
    assert torch.allclose(logits[0], expected[0], atol=2e-5)
    assert torch.allclose(logits[1, :2], expected[1, :2], atol=2e-5)
    logits.square().mean().backward()
    gradients = [pair.grad for pair in pairs.values() if pair.grad is not None]
    assert len(gradients) == len(pairs)
    assert all(gradient.isfinite().all() for gradient in gradients)
    prompts = TokenSequences(words.ids, torch.full_like(words.kinds, PADDING))
    assert qwen.language.generate(tokens, prompts, Tuning(), 2) == [[""] * 3] * 2


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_soft_prompt_is_pefts(llava: Path) -> None:
    model = loaded(llava)
    options = MechanismOptions(virtual_tokens=5)
    method = PEFT_METHODS.find("soft-prompt")(options)
    stream = Seeds(4).stream("starts")
    both = stack([method.start(model.language, stream) for _ in range(2)])
    tokens, words = read(model)
    found = model.language.logits(tokens, words, method.tuning(model.language, both))
    config = method.config(model.language)
    config.task_type = import_peft().TaskType.CAUSAL_LM
    kind = import_transformers().AutoModelForImageTextToText
    original = kind.from_pretrained(llava, dtype=torch.float32)
    peft = import_peft().get_peft_model(original, config).eval()
    peft.prompt_encoder["default"].load_state_dict({n: t[1] for n, t in both.items()})
    image = original.config.image_token_id
    real = words.kinds[1, 0] != PADDING
    ids = words.ids[1, 0].masked_fill(words.kinds[1, 0] == PICTURE, image)[real][None]
    pixels = model.reader._processor.image_processor(
        images=[RaggedPictures(3)[0]], return_tensors="pt"
    )
    with torch.no_grad():
        theirs = peft(input_ids=ids, pixel_values=pixels["pixel_values"]).logits
    assert torch.allclose(found[1, 0][real], theirs[0, 5:], atol=1e-4)


def test_a_prefix_is_refused(qwen: VisionLanguageModel) -> None:
    method = PEFT_METHODS.find("prefix")(MechanismOptions())
    with pytest.raises(ConfigError, match="Use another PEFT method, such as"):
        method.config(qwen.language)


def test_models_with_all_weights_of_their_own_answer(qwen: VisionLanguageModel) -> None:
    method = PEFT_METHODS.find("full")(MechanismOptions())
    start = method.start(qwen.language, Seeds(0).stream("start"))
    models = method.tuning(qwen.language, stack([start, start]))
    found = qwen.language.logits(*read(qwen), models)
    assert torch.allclose(found, qwen.language.logits(*read(qwen), Tuning()), atol=1e-5)


def of_another_type(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = getattr(import_transformers(), name)()
        (folder / "config.json").write_text(config.to_json_string(use_diff=False))
        for path in folder.glob("*.safetensors*"):
            path.unlink()

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_another_type("BertConfig"), "writes no text about pictures"),
        (of_another_type("Florence2Config"), "only a decoder writes"),
        (of_another_type("MllamaConfig"), "no mm_encoder_outputs"),
        (of_another_type("FuyuConfig"), "no method get_image_features"),
        (of_another_type("InstructBlipConfig"), "takes qformer_input_ids beside"),
        (
            alter("config.json", model_type="mine", auto_map={"AutoConfig": "a.B"}),
            "comes with code of its own",
        ),
    ],
)
def test_what_cannot_be_taken_is_refused_before_weights_are_read(
    change: Callable[[Path], None],
    message: str,
    llava: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = copytree(llava, tmp_path / "changed")
    change(folder)
    monkeypatch.setattr("privaudit.models.vision_language.vlm.load_model", pytest.fail)
    with pytest.raises(ConfigError, match=message) as caught:
        load_frozen(f"vlm:{folder}")
    if "which vlm: does not take" in str(caught.value):
        assert all(kind in str(caught.value) for kind in TRIED)


def test_what_is_not_there_is_missing(llava: Path, tmp_path: Path) -> None:
    folder = copytree(llava, tmp_path / "changed")
    (folder / "processor_config.json").unlink()
    with pytest.raises(ConfigError, match="by its files, cannot lay out a picture"):
        loaded(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(MissingFileError, match=r"a preprocessor_config\.json file"):
        loaded(folder)


def test_a_processor_without_a_mark_for_pictures_is_refused(llava: Path) -> None:
    config = import_transformers().AutoConfig.from_pretrained(llava)
    plain = SimpleNamespace(tokenizer=1, image_processor=None)
    with pytest.raises(ConfigError, match="no image_processor and no image_token"):
        processor_example("mine", config, plain)


def test_an_untried_type_is_tried_on_a_picture(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vlm, "TRIED", ("qwen2_vl",))
    assert loaded(llava).template.startswith("USER")
    monkeypatch.setattr(PictureFormat, "restored", lambda self, tokens: None)
    with pytest.raises(ConfigError, match="its logits differ by"):
        loaded(llava)
    monkeypatch.setattr(vlm, "name_of", lambda model, _: model.none)
    with pytest.raises(ConfigError, match="does not run on stored picture features"):
        loaded(llava)


def test_a_processor_that_does_not_fit_is_refused(llava: Path, tmp_path: Path) -> None:
    folder = copytree(llava, tmp_path / "changed")
    alter("processor_config.json", patch_size=4)(folder)
    with pytest.raises(ConfigError, match=r"makes 4 tokens .* writes 16 places"):
        loaded(folder).read(DATA)


def test_records_that_cannot_be_read_are_refused(
    llava: Path, qwen: VisionLanguageModel
) -> None:
    model = loaded(llava)
    with pytest.raises(ConfigError, match="reads pictures, and was given embeddings"):
        model.read(replace(DATA, images=FeatureBank(torch.ones(3, 8))))
    nothing = PixelImages(torch.zeros(3, 3, 0, 4))
    with pytest.raises(ConfigError, match="has no pixels"):
        model.read(replace(DATA, images=nothing))
    long = PixelImages(torch.zeros(3, 3, 1, 400))
    with pytest.raises(ConfigError, match="takes no picture of 1 x 400 pixels"):
        qwen.read(replace(DATA, images=long))
    marked = (Dialogue("what <image> is it?", ("yes",)), *DATA.dialogues[1:])
    with pytest.raises(ConfigError, match="its question holds '<image>'"):
        model.read(replace(DATA, dialogues=marked))
    tokens, words = read(model)
    with pytest.raises(ConfigError, match="a picture of at most 3 tokens"):
        model.language.logits(tokens[:, :, :3], words, Tuning())


CHAT = (
    "Look: {% for part in messages[0]['content'] %}{% if part['type'] == 'image' %}"
    "<image>{% else %} {{ part['text'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} Say:{% endif %}"
)


def test_a_chat_template_may_be_given(llava: Path) -> None:
    given = load_frozen(f"vlm:{llava}", template=CHAT)
    assert isinstance(given, VisionLanguageModel)
    assert given.template == "Look: {image} {question} Say:"
    assert given.template != loaded(llava).template
    words = given.read(DATA).words
    assert words is not None
    text = given.language.tokenizer.decode(words.ids[0])
    assert text.startswith("<bos>Look:")
    assert " Say:" in text


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for part in messages %}", "cannot be used: Unexpected end of template"),
        ("{{ raise_exception('no system') }}", "cannot be used: no system"),
        ("{{ messages[0]['content'][1]['text'] }}", "its picture as <image> once"),
        (CHAT.replace("part['text']", "'what is it'"), "and then its text once"),
        (CHAT.replace("<image>", "<image><image>"), "its picture as <image> once"),
        ("{{ ''.__class__.__mro__ }}", "cannot be used: access to attribute"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_before_weights_are_read(
    template: str, says: str, llava: Path, tmp_path: Path
) -> None:
    for file in llava.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_frozen(f"vlm:{tmp_path}", template=template)
