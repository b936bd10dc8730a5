"""The most exposed records as pictures: sensitive, so only on request."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import Shaped
from PIL import Image
from torch import Tensor

from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.inversion import INVERSION
from privaudit.datasets.dataset import FeatureBank, Texts
from privaudit.report.report_data import ReportData
from privaudit.report.wording import writes

SHOWN = 8  # of each client


@dataclass(frozen=True)
class ExposedRecord:
    """A record that an attack found out, as the page shows it.

    Attributes:
        picture: A PNG as a data address; None where there are embeddings or texts.
        label: Its class name.
        above: Share of the client's non-members that score at least as high.
        text: What it says, where records are texts.
    """

    picture: str | None
    label: str
    above: float
    text: str = ""


@dataclass(frozen=True)
class ReadPicture:
    """What was read of a record out of an upload, and the record, as the page shows it.

    Attributes:
        shown: The reference picture nearest to what was read, as a data address.
        true: The client's picture nearest to it.
        psnr: Of the two, in dB.
    """

    shown: str | None
    true: str | None
    psnr: float


def read_pictures(data: ReportData) -> dict[str, dict[str, list[ReadPicture]]]:
    """Return reconstructions beside true pictures, by run and client, where some were read."""
    found = {}
    for one in data.runs:
        inversion = one.audit.part(INVERSION)
        if inversion is not None and inversion.pairs:
            found[one.label] = {
                client: [
                    ReadPicture(
                        picture_of(one.audit, pair.public),
                        picture_of(one.audit, pair.true),
                        pair.psnr,
                    )
                    for pair in pairs
                ]
                for client, pairs in inversion.pairs.items()
            }
    return found


def most_exposed(audit: Audit) -> dict[str, list[ExposedRecord]]:
    """Return each client's members that the headline attack scores highest."""
    return {
        client.client: _exposed(audit, client)
        for client in audit.headline.clients
        if all(map(len, client.groups))
    }


def _exposed(audit: Audit, client: ClientScores) -> list[ExposedRecord]:
    names, (_, others) = audit.run.class_names, client.groups
    order = np.argsort(-client.scores, kind="stable")
    members = [index for index in order if client.is_member[index]][:SHOWN]
    return [
        ExposedRecord(
            picture=picture_of(audit, int(client.records[index])),
            label=names[int(client.labels[index])],
            above=float((others >= client.scores[index]).mean()),
            text=_text_of(audit, int(client.records[index])),
        )
        for index in members
    ]


def picture_of(audit: Audit, index: int) -> str | None:
    """Return a record as a PNG in a data address; None where there is no picture."""
    population = audit.run.population
    images, canaries = population.dataset.images, population.canaries
    if isinstance(images, FeatureBank | Texts):
        return None
    shown = images[index] if canaries is None else canaries.shown(index, images[index])
    return _as_address(shown)


def _text_of(audit: Audit, index: int) -> str:
    images = audit.run.population.dataset.images
    return " / ".join(images.texts[index]) if isinstance(images, Texts) else ""


def _as_address(pixels: Shaped[Tensor, "channels height width"]) -> str:
    """Return a picture, grey or colour, as a PNG in a data address."""
    if pixels.is_floating_point():
        pixels = (pixels.clamp(0, 1) * 255).round().byte()
    array = pixels.numpy()
    grey = len(array) == 1
    image = Image.fromarray(array[0] if grey else array.transpose(1, 2, 0))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def galleries(data: ReportData) -> dict[str, dict[str, list[ExposedRecord]]]:
    """Return the most exposed records by run and client, where models classify."""
    return {
        one.label: most_exposed(one.audit) for one in data.runs if not writes(one.audit)
    }
