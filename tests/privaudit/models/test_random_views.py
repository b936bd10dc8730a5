"""Crops and flips: what they are, and what a step takes of them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import Dataset, FeatureBank, PixelImages
from privaudit.federation.batches import epochs_of_batches
from privaudit.federation.trainer import Cohort, Records, Round
from privaudit.models.random_views import RandomView, crop_of, with_views
from privaudit.models.registry import load_frozen
from privaudit.runs.config import make_config
from privaudit.tuning.prompts.gradients import fixed_batch, poisson_batch


def numbered(count: int, views: int = 3) -> Records:
    """Return records whose view v of record n is 10 n + v, and whose feature is -1."""
    codes = 10 * torch.arange(count)[:, None] + torch.arange(views)
    return Records(
        -torch.ones(count, 1), torch.arange(count), views=codes[..., None].float()
    )


def test_crops_lie_within_the_picture_and_have_the_limits_of_the_source() -> None:
    stream, shares = Seeds(3).stream("test"), []
    for _ in range(500):
        top, left, height, width = crop_of(60, 90, stream)
        assert top >= 0
        assert left >= 0
        assert top + height <= 60
        assert left + width <= 90
        assert 0.7 < width / height < 1.4 or (height, width) == (60, 90)
        shares.append(height * width / 5400)
    assert min(shares) < 0.15
    assert max(shares) > 0.7
    assert crop_of(1, 1000, stream) == (0, 0, 1, 1000)  # nothing fits


def test_a_view_is_a_part_of_its_picture_and_the_same_every_time() -> None:
    ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)  # darker on the left
    pictures = PixelImages(ramp.repeat(40, 1, 1, 1))
    views = RandomView(pictures, 0, 16)
    assert len(views) == 40
    assert views[3].shape == (3, 16, 16)
    assert torch.equal(views[3], RandomView(pictures, 0, 16)[3])
    assert not torch.equal(views[3], views[4])
    assert not torch.equal(views[3], RandomView(pictures, 1, 16)[3])
    mirrored = [bool(v[0, 0, 0] > v[0, 0, -1]) for v in (views[i] for i in range(40))]
    assert 10 < sum(mirrored) < 30
    digests = {RandomView(pictures, n, s).digest for n in (0, 1) for s in (16, 17)}
    assert len(digests) == 4
    assert views.contents == pictures.contents


def test_each_step_takes_one_view_of_each_record_whoever_else_trains() -> None:
    shards = [numbered(5), numbered(3)]
    cohort = Cohort.of(["ann", "bob"], shards)
    at = Round(0, Seeds(1), cohort.clients)
    batches = epochs_of_batches(cohort, at, epochs=40, batch_size=2)
    seen: dict[int, set[int]] = {}
    for batch in batches.of(cohort):
        codes = batch.features[0, batch.mask[0], 0].int().tolist()
        labels = batch.labels[0, batch.mask[0]].tolist()
        assert [code // 10 for code in codes] == labels
        for code, label in zip(codes, labels, strict=True):
            seen.setdefault(label, set()).add(code % 10)
    assert seen == {n: {0, 1, 2} for n in range(5)}
    alone = Cohort.of(["bob"], shards[1:])
    own = epochs_of_batches(alone, at, epochs=40, batch_size=2)
    for one, other in zip(own.of(alone), batches.of(cohort), strict=False):
        width = one.features.shape[1]
        assert torch.equal(one.features[0], other.features[1, :width])


def test_private_batches_take_views_too() -> None:
    cohort = Cohort.of(["ann", "bob"], [numbered(5), numbered(3)])
    at = Round(0, Seeds(1), cohort.clients)
    for batch in (poisson_batch(cohort, at, 1.0), fixed_batch(cohort, at, 2)):
        codes = batch.features[batch.mask].squeeze(1).int()
        assert (codes >= 0).all()
        assert torch.equal(codes // 10, batch.labels[batch.mask])


def test_views_in_private_batches_are_nobodys_to_know() -> None:
    """Known ones shift when a record is put in front, and a sum moves by more than it."""
    cohort = Cohort.of(["ann"], [numbered(40)])
    known, same, other = (
        Round(0, Seeds(1), cohort.clients, secrets=Seeds(key)) for key in (5, 5, 6)
    )
    first, again, apart = (
        fixed_batch(cohort, at, 40).features for at in (known, same, other)
    )
    assert torch.equal(first, again)
    assert torch.equal((first // 10).sort(dim=1)[0], (apart // 10).sort(dim=1)[0])
    assert not torch.equal(first % 10, apart % 10)


def test_features_of_views_stand_beside_those_of_the_centre() -> None:
    """That runs train on them, and are attacked on the centre, the recipes show."""
    pixels = torch.rand(4, 1, 12, 8, generator=torch.Generator().manual_seed(0))
    pictures = PixelImages(pixels)
    dataset = Dataset(pictures, torch.arange(4) % 2, ("cat", "dog"))
    model: Any = load_frozen("tiny-clip")
    records = model.encode(dataset)
    seen = with_views(model, dataset, records, 2)
    assert torch.equal(seen.features, records.features)
    assert seen.views is not None
    for number in range(2):
        views = RandomView(pictures, number, model.image_size)
        alone = model.encode_images(model.preprocess_batch(views[3].unsqueeze(0)))
        torch.testing.assert_close(seen.views[3, number], alone[0])
    picked = seen.pick(torch.tensor([3])).views
    assert picked is not None
    assert torch.equal(picked[0], seen.views[3])
    tokens = model.encode(dataset, image_tokens=True)
    with pytest.raises(ConfigError, match="Leave --views out"):
        with_views(model, dataset, tokens, 2)
    bank = replace(dataset, images=FeatureBank(torch.rand(4, 3)))
    with pytest.raises(ConfigError, match="Leave --views out"):
        with_views(model, bank, records, 2)


def test_one_view_is_the_usual_configuration() -> None:
    plain = make_config("promptfl")
    assert plain.short_hash == make_config("promptfl", views=1).short_hash
    assert plain.short_hash != make_config("promptfl", views=2).short_hash
