import pytest
import torch
from torch import Tensor

from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.models.clip.picture_preparation import PicturePreparation
from privaudit_tools.surrogate_clip.pictures import (
    PublicBank,
    PublicPictures,
)
from privaudit_tools.surrogate_clip.storage import VariationSettings

PREPARE = PicturePreparation(8, (0.5,) * 3, (0.25,) * 3)
ROWS = torch.arange(50) % 2


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def pictures() -> Tensor:
    return (torch.rand(5, 3, 8, 8, generator=seeded()) * 255).to(torch.uint8)


def varied(pictures: Tensor, settings: VariationSettings) -> Tensor:
    chosen = torch.tensor([3, 1])
    public = PublicPictures(PixelImages(pictures), chosen, PREPARE, settings)
    assert len(public) == 2
    return public.draw(ROWS, seeded())


def test_without_shift_a_view_is_the_picture_or_its_mirror(pictures: Tensor) -> None:
    views = varied(pictures, VariationSettings(smallest_crop=1, shift=0))
    whole = PREPARE(pictures)[[3, 1]][ROWS]
    mirrored = whole.flip(-1)
    same = [torch.allclose(a, b, atol=1e-4) for a, b in zip(views, whole, strict=True)]
    other = [torch.allclose(*p, atol=1e-4) for p in zip(views, mirrored, strict=True)]
    assert all(a != b for a, b in zip(same, other, strict=True))
    assert 10 < sum(same) < 40


def test_shifts_move_by_whole_pixels(pictures: Tensor) -> None:
    views = varied(pictures, VariationSettings(smallest_crop=1, shift=0.25))
    values = (views * 0.25 + 0.5) * 255
    torch.testing.assert_close(values, values.round(), atol=1e-2, rtol=0)
    assert len({tuple(view.flatten().tolist()) for view in values.round()}) > 10


def test_crops_of_one_colour_keep_it() -> None:
    flat = torch.full((2, 1, 12, 9), 51, dtype=torch.uint8)
    settings = VariationSettings(smallest_crop=0.5, shift=0.5)
    public = PublicPictures(PixelImages(flat), torch.arange(2), PREPARE, settings)
    views = public.draw(ROWS, seeded())
    torch.testing.assert_close(views, torch.full((50, 3, 8, 8), (0.2 - 0.5) / 0.25))


def test_dropout_keeps_the_mean_the_seed_decides_and_without_all_stays() -> None:
    bank = FeatureBank(torch.tensor([[1.0, 4.0], [3.0, 4.0], [9.0, 9.0]]))
    public = PublicBank(bank, torch.tensor([0, 1]), VariationSettings(dropout=0.5))
    assert public.mean.tolist() == [2.0, 4.0]
    assert public.deviation.tolist() == [1.0, 1.0]
    rows = torch.zeros(4000, dtype=torch.long)
    drawn = public.draw(rows, seeded())
    assert set(drawn[:, 0].tolist()) == {0.0, 2.0}
    assert drawn.mean(0)[0] == pytest.approx(1.0, abs=0.1)
    assert torch.equal(drawn, public.draw(rows, seeded()))
    same = PublicBank(bank, torch.arange(3), VariationSettings(dropout=0))
    torch.testing.assert_close(same.draw(torch.arange(3), seeded()), bank.embeddings)
