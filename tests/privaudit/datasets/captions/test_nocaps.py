import json
from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.captions.nocaps import read_nocaps
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import Bring, picture, write_folder

LIST = "nocaps_val_4500_captions.json"
DOMAINS = ("out-domain", "in-domain", "near-domain")


def content(domains: tuple[str, ...] = DOMAINS) -> bytes:
    images = [
        {"id": n, "open_images_id": f"00{n}", "file_name": f"00{n}.jpg", "license": 0,
         "coco_url": "https://", "height": 4, "width": 6, "date_captured": "2018"}
        for n in range(3)
    ]  # fmt: skip
    for image, domain in zip(images, domains, strict=False):
        image["domain"] = domain
    written = [
        {"image_id": n, "id": 10 * n + i, "caption": f"Picture {n}, caption {i}."}
        for n in range(3)
        for i in range(10)
    ]
    return json.dumps({"info": {}, "images": images, "annotations": written}).encode()


PICTURES = {f"images/00{grey}.jpg": picture(grey) for grey in range(3)}


def test_pictures_have_ten_captions_and_a_domain(bring: Bring) -> None:
    path = bring({LIST: content(), **PICTURES}, [LIST])
    dataset = load_dataset("nocaps", path)
    assert dataset.class_names == ("in-domain", "near-domain", "out-domain")
    assert dataset.labels.tolist() == [2, 0, 1]
    assert [len(dialogue.answers) for dialogue in dataset.dialogues] == [10] * 3
    assert dataset.dialogues[1].answers[9] == "Picture 1, caption 9."
    assert [int(dataset.images[i][0, 0, 0]) for i in range(3)] == [0, 1, 2]  # type: ignore[index]


def test_a_file_without_domains_is_of_one_class(tmp_path: Path) -> None:
    path = write_folder(tmp_path, {LIST: content(()), **PICTURES})
    dataset = read_nocaps(path / LIST, question="What is there?")
    assert dataset.class_names == ("unknown domain",)
    assert dataset.dialogues[0].question == "What is there?"


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=rf"no {LIST} in .*nocaps\.org/download"):
        read_nocaps(tmp_path)
    write_folder(tmp_path, {LIST: content()})
    with pytest.raises(MissingFileError, match=r"000\.jpg is not in"):
        read_nocaps(tmp_path)
    write_folder(tmp_path, {LIST: b"\xff"})
    with pytest.raises(ConfigError, match="is not as it should be"):
        read_nocaps(tmp_path)
    write_folder(tmp_path, {"nocaps_captions_2.json": content()})
    with pytest.raises(ConfigError, match="Name one of them"):
        read_nocaps(tmp_path)


def test_a_missing_data_set_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    with pytest.raises(MissingFileError, match=r"https://nocaps\.s3\.amazonaws\.com"):
        load_dataset("nocaps")
