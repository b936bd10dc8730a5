"""A bank of embeddings in a pretrained encoder's space: what is fitted, read and refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import VALIDATION, Dataset, FeatureBank
from privaudit.models.registry import load_frozen
from privaudit_tools.aligned_clip import making
from privaudit_tools.aligned_clip.making import few_of_each, make_aligned, ridge
from privaudit_tools.aligned_clip.storage import MapSettings
from tests.conftest import Cli
from tests.loaded_models import load_clip
from tests.privaudit.cli.test_json import valid
from tests.small_transformers import alter, save

NAMES = ("cat", "palm_tree", "dog", "hot air balloon")


@pytest.fixture(scope="module")
def bank() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) // 3 % 4
    centres = 2 * torch.randn(4, 12, generator=generator)
    embeddings = centres[labels] + torch.randn(240, 12, generator=generator)
    split = torch.arange(240) % 3
    return Dataset(FeatureBank(embeddings), labels, NAMES, "the {}.", split=split)


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    return save(tmp_path / "encoder", "encoder-bert").partition(":")[2]


@pytest.fixture(autouse=True)
def _its_data(monkeypatch: pytest.MonkeyPatch, bank: Dataset) -> None:
    monkeypatch.setattr(making, "load_dataset", lambda name, data: bank)


def test_what_is_aligned_classifies_what_it_has_not_seen(
    tmp_path: Path, encoder: str, bank: Dataset
) -> None:
    """Chance is a quarter, 80 records; the encoder is random, and says little of names."""
    out = tmp_path / "out"
    made = make_aligned("bank", encoder, out, settings={"public": 4})
    assert made.accuracies.template > 0.5
    model = load_clip(f"aligned:{out}")
    known = model.known_records(replace(bank, template="{}"))
    np.testing.assert_array_equal(known, made.public_indices)
    assert len(made.public_indices) == 16
    assert bank.split is not None
    assert set(bank.split[list(made.public_indices)].tolist()) == {VALIDATION}
    assert 1 <= model.logit_scale <= 100


def test_prompts_are_learned_and_padding_changes_nothing(
    tmp_path: Path, encoder: str
) -> None:
    alter("tokenizer_config.json", padding_side="left")(Path(encoder))
    make_aligned("bank", encoder, tmp_path / "out")
    model = load_clip(f"aligned:{tmp_path / 'out'}")
    context = torch.zeros(1, 2, model.width, requires_grad=True)
    features = model.prompts(NAMES, 2)(context)
    features[0, :, 0].sum().backward()
    assert context.grad is not None
    assert context.grad.abs().max() > 0
    alone = [model.prompts([name], 2)(context)[0, 0] for name in NAMES]
    torch.testing.assert_close(torch.stack(alone), features[0], atol=1e-5, rtol=0)


def test_leave_one_out_is_what_refitting_gives() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, generator=generator)
    y = torch.randn(6, 2, generator=generator)
    matrix, unseen = ridge(x, y, 0.5)
    for left in range(6):
        rest = [row for row in range(6) if row != left]
        again, _ = ridge(x[rest], y[rest], 0.5)
        torch.testing.assert_close(x[left] @ again, unseen[left], atol=1e-5, rtol=0)
    normal = torch.linalg.solve(x.T @ x + 0.5 * torch.eye(3), x.T @ y)
    torch.testing.assert_close(matrix, normal, atol=1e-5, rtol=0)


def test_what_cannot_be_aligned_is_refused(
    tmp_path: Path, encoder: str, bank: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bank.split is not None
    public = (bank.split == VALIDATION).nonzero()[:, 0]
    lacking = public[bank.labels[public] != 2]
    with pytest.raises(ConfigError, match="The class 'dog' has no public record"):
        few_of_each(bank, lacking, MapSettings())
    seq2seq = save(tmp_path / "two", "seq2seq-t5").partition(":")[2]
    with pytest.raises(ConfigError, match="Name an encoder such as"):
        make_aligned("bank", seq2seq, tmp_path / "out")
    with pytest.raises(MissingFileError, match="There is no aligned encoder in"):
        load_frozen(f"aligned:{tmp_path}")


def test_changed_weights_are_refused(tmp_path: Path, encoder: str, cli: Cli) -> None:
    out = tmp_path / "out"
    words = ("pretrain", "aligned-clip", "--dataset", "bank", "--encoder", encoder)
    (found,) = valid(cli, *words, "--out", out)
    assert found["model"] == f"aligned:{out}"
    described = json.loads((out / "map.json").read_text())
    for altered in ({"encoder_hash": "0" * 64}, {"bank_width": 13}):
        (out / "map.json").write_text(json.dumps(described | altered))
        with pytest.raises(ConfigError, match="Restore the whole folder"):
            load_frozen(f"aligned:{out}")
    (out / "map.json").write_text(json.dumps(described))
    load_frozen(f"aligned:{out}")
    with (out / "encoder/tokenizer.json").open("a") as file:
        file.write(" ")
    with pytest.raises(ConfigError, match="Restore the whole folder"):
        load_frozen(f"aligned:{out}")
