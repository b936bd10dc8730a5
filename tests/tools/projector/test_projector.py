import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from privaudit.core.devices import use_device
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.storage import read_tensors
from privaudit.datasets.dataset import Dataset, FeatureBank, PixelImages
from privaudit.datasets.records import ANSWER, Dialogue
from privaudit.federation.query import questions
from privaudit.models.feature_cache import cached_tokens
from privaudit.models.interfaces import Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.transformers.text_writer import load_language
from privaudit_tools.projector import making
from privaudit_tools.projector.making import captioner_on, make_captioner
from privaudit_tools.projector.projector import caption_loss, learn_projector
from privaudit_tools.projector.projector_folder import (
    WEIGHTS,
    ProjectorDescription,
    ProjectorSettings,
)
from privaudit_tools.surrogate_clip.public_split import drawn_records
from tests.conftest import Cli
from tests.loaded_models import load_captioner
from tests.places import ROOT
from tests.privaudit.cli.test_json import valid
from tests.privaudit.models.language.small_language import (
    draw_rows,
    stacked,
)
from tests.simulated_device import another_device, assert_agree

STORIES = ROOT / "tests/data/stories260K"
WAYS = ProjectorSettings(
    parts=4, steps=150, batch=16, learning_rate=0.05, weight_decay=0.1
)
SAYINGS = ("A dog runs.", "A cat sits.", "The sun shines.", "He sang.")


@pytest.fixture
def language() -> StackedLanguageModel:
    return stacked()


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """Four kinds of records, of which embedding and caption say the same."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(4).repeat(10)
    centres = torch.randn(4, 12, generator=generator)
    noise = 0.1 * torch.randn(40, 12, generator=generator)
    return Dataset(
        FeatureBank(normalize(centres[kinds] + noise, dim=-1)),
        kinds,
        ("dog", "cat", "sun", "song"),
        dialogues=tuple(Dialogue("Look:", (SAYINGS[kind],)) for kind in kinds),
    )


@pytest.fixture(scope="module")
def made(
    dataset: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ProjectorDescription]:
    folder = tmp_path_factory.mktemp("captioner") / "mine"
    public = drawn_records(dataset, 0.5, seed=1)
    description = captioner_on(
        str(STORIES), dataset, "drawn", public, folder, settings=WAYS
    )
    return folder, description


def test_the_projector_learns_what_embeddings_say(
    made: tuple[Path, ProjectorDescription],
) -> None:
    _, description = made
    assert description.log[-1].loss < description.log[0].loss
    assert description.losses.own < 0.5 * description.losses.other
    assert description.losses.records == 20


@pytest.mark.gpu
def test_another_device_learns_the_same(dataset: Dataset, tmp_path: Path) -> None:
    public, few = drawn_records(dataset, 0.5, seed=1), replace(WAYS, steps=3)
    learned = []
    for name in ("here", "there"):
        with (
            another_device() as device,
            use_device("cpu" if name == "here" else device),
        ):
            captioner_on(
                str(STORIES), dataset, "drawn", public, tmp_path / name, settings=few
            )
        learned.append(read_tensors(tmp_path / name / WEIGHTS))
    assert_agree(learned[0], learned[1])


def test_a_captioner_describes_records_that_it_has_not_seen(
    made: tuple[Path, ProjectorDescription], dataset: Dataset
) -> None:
    folder, description = made
    model = load_captioner(f"language:{folder}")
    unseen = sorted(set(range(40)) - set(description.public_indices))
    tokens = cached_tokens(model, dataset.pictures)[unseen]
    dialogues = [dataset.dialogues[i] for i in unseen]
    prompts = questions(model.words(dialogues)).repeated(1)
    said = model.language.generate(tokens[None], prompts, Tuning(), 20)[0]
    right = sum(s == d.answers[0].strip() for s, d in zip(said, dialogues, strict=True))
    assert right >= 12  # of 20; who always says the same gets 5


def test_a_captioner_says_what_it_is_and_has_seen(
    made: tuple[Path, ProjectorDescription], dataset: Dataset
) -> None:
    folder, description = made
    model = load_captioner(f"language:{folder}", targets=["q_proj"])
    assert model.public_indices == description.public_indices
    assert len(description.public_indices) == 20
    known = model.known_records(replace(dataset, template="{}"))
    np.testing.assert_array_equal(known, description.public_indices)
    assert (model.parts, model.width, model.image_size) == (4, 64, None)
    assert (model.language.vocabulary, len(model.language.targets)) == (512, 5)
    assert folder.stat().st_mode & 0o777 == 0o700
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["language", "projector.json", "projector.safetensors"]
    text = (folder / "projector.json").read_text()
    assert str(STORIES.parent) not in text


def test_the_language_model_comes_back_as_it_was(
    made: tuple[Path, ProjectorDescription],
) -> None:
    model, (original, tokenizer) = (
        load_captioner(f"language:{made[0]}"),
        load_language(str(STORIES)),
    )
    loaded = model.language.model.state_dict()
    for name, weight in original.state_dict().items():
        assert torch.equal(loaded[name], weight)
    text = "A child in a pink dress ☃."
    assert model.language.tokenizer.encode(text) == tokenizer.encode(text)


def test_another_chat_template_may_be_given(
    made: tuple[Path, ProjectorDescription],
) -> None:
    chat = (
        "{% for part in messages[0]['content'] %}{% if part['type'] == 'image' %}"
        "<image>{% else %} {{ part['text'] }}{% endif %}{% endfor %}?"
    )
    model = load_captioner(f"language:{made[0]}", template=chat)
    assert model.template == "{image} {question}?"


def test_folder_and_pictures_that_do_not_fit_are_refused(
    made: tuple[Path, ProjectorDescription],
) -> None:
    model = load_captioner(f"language:{made[0]}")
    with pytest.raises(ConfigError, match="reads embeddings of 12 numbers and no pict"):
        cached_tokens(model, PixelImages(torch.rand(2, 3, 8, 8)))
    with pytest.raises(ConfigError, match="was given embeddings of 13"):
        model.tokens_of_bank(torch.ones(2, 13))
    nothing = torch.ones(3, 12)
    nothing[1] = 0
    with pytest.raises(ConfigError, match="Record 1 has no picture"):
        model.tokens_of_bank(nothing)
    with pytest.raises(ConfigError, match="Record 0 has no picture"):
        model.tokens_of_bank(torch.full((1, 12), torch.nan))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("sha256", "projector.safetensors"),
        ("language_hash", "language"),
        ("readers_hash", "language"),
    ],
)
def test_files_of_two_captioners_are_refused(
    key: str, name: str, made: tuple[Path, ProjectorDescription], tmp_path: Path
) -> None:
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / "projector.json").read_text())
    (tmp_path / "projector.json").write_text(json.dumps(content | {key: "0" * 64}))
    with pytest.raises(ConfigError, match=f"{name} should have the SHA-256 0000"):
        load_captioner(f"language:{tmp_path}")
    (tmp_path / "projector.json").write_text("{}")
    with pytest.raises(ConfigError, match="describes no captioner"):
        load_captioner(f"language:{tmp_path}")
    with pytest.raises(MissingFileError, match="There is no captioner"):
        load_captioner(f"language:{made[0].parent}")


def test_the_loss_is_the_answers_mean_by_hand(language: StackedLanguageModel) -> None:
    pictures, words = draw_rows(1, 3)
    words.kinds[0, 1, -1] = 0  # a shorter answer
    found = caption_loss(language, pictures[0], words[0])
    logits = language.logits(pictures, words, Tuning())[0].log_softmax(dim=-1)
    losses = [
        -logits[row, place - 1, words.ids[0, row, place]]
        for row, place in (words.kinds[0] == ANSWER).nonzero().tolist()
    ]
    assert len(losses) == 8
    assert torch.allclose(found, torch.stack(losses).mean(), atol=1e-6)


def test_learning_twice_gives_the_same(language: StackedLanguageModel) -> None:
    words = draw_rows(1, 6)[1][0]
    embeddings = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    ways = ProjectorSettings(parts=3, steps=4, batch=4, log_every=3)
    lines: list[int] = []
    first, second = (
        learn_projector(
            language, embeddings, words, ways, lambda line: lines.append(line.step)
        )
        for _ in range(2)
    )
    assert torch.equal(first.projector.weight, second.projector.weight)
    assert lines == [3, 4, 3, 4]
    assert first.projector(embeddings).shape == (6, 3, 32)
    assert not first.projector.weight.requires_grad


def test_pictures_make_no_projector(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no captions"):
        make_captioner("models/mine", "digits", tmp_path / "out")


def test_json_of_the_command_is_of_its_schema(
    dataset: Dataset, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "load_dataset", lambda name, path: dataset)
    words = ("--language", STORIES, "--dataset", "drawn", "--out", tmp_path)
    few = ("--share", 0.5, "--parts", 4, "--steps", 2)
    (said,) = valid(cli, "pretrain", "projector", *words, *few)
    assert (said["model"], said["found"]["records"]) == (f"language:{tmp_path}", 20)
