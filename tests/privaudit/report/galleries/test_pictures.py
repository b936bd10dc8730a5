import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from privaudit.datasets.dataset import FeatureBank, PixelImages
from privaudit.report.galleries.pictures import SHOWN, most_exposed
from tests.privaudit.made_audits import make_audit


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_those_of_the_highest_scoring_members(channels: int) -> None:
    audit = make_audit(first=0, clients=1)
    (client,) = audit.headline.clients
    pixels = torch.zeros(len(client.records), channels, 2, 2)
    pixels[:, 0] = torch.arange(len(client.records))[:, None, None] / 255
    object.__setattr__(audit.run.population.dataset, "images", PixelImages(pixels))
    shown = most_exposed(audit)["client-0"]
    members = client.records[client.is_member]
    best = members[np.argsort(-client.scores[client.is_member])][:SHOWN]
    assert [_first_pixel(record.picture) for record in shown] == list(best)


def test_the_share_above_counts_nonmembers_that_score_as_high() -> None:
    audit = make_audit(first=0, clients=1)
    _, others = audit.headline.clients[0].groups
    members = np.sort(audit.headline.clients[0].groups[0])[::-1]
    shown = most_exposed(audit)["client-0"]
    assert [record.above for record in shown] == [
        np.mean([other >= score for other in others]) for score in members[:SHOWN]
    ]


def test_embeddings_are_shown_as_label_and_share_alone() -> None:
    audit = make_audit(first=0, clients=1)
    bank = FeatureBank(torch.zeros(len(audit.headline.clients[0].records), 3))
    object.__setattr__(audit.run.population.dataset, "images", bank)
    shown = most_exposed(audit)["client-0"]
    assert [record.picture for record in shown] == [None] * SHOWN


def _first_pixel(address: str | None) -> int:
    assert address is not None
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    pixel = Image.open(io.BytesIO(content)).getpixel((0, 0))
    return int(pixel[0] if isinstance(pixel, tuple) else pixel or 0)
