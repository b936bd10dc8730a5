import json
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN
from privaudit.datasets.sources import load_dataset
from privaudit_tools.data_sets.coco import read_mscoco_captions, read_nocaps
from tests.privaudit.datasets.conftest import (
    Bring,
    assert_refused,
    greys,
    parts_of,
    picture,
    write_archive,
    write_folder,
)

CATEGORIES = [
    {"supercategory": "person", "id": 1, "name": "person"},
    {"supercategory": "outdoor", "id": 13, "name": "stop sign"},
]


def captions(*numbers: int, **changed: Any) -> bytes:
    """Return a caption file of pictures with two captions each, the first last."""
    images = [
        {"id": n, "file_name": f"{n:012}.jpg", "height": 4, "width": 6, "license": 1}
        for n in numbers
    ]
    written = [
        {"image_id": n, "id": 10 * n + i, "caption": f" Picture {n}, way {i}. \n"}
        for i in range(2)
        for n in reversed(numbers)
    ]
    content = {"info": {}, "images": images, "annotations": written, "licenses": []}
    return json.dumps({**content, **changed}).encode()


def instances(*things: tuple[int, int, float]) -> bytes:
    """Return an instance file of (picture, category, area)."""
    marked = [
        {
            "segmentation": [[0.0, 1.0]], "area": area, "iscrowd": 0, "image_id": n,
            "bbox": [0, 0, 1, 1], "category_id": category, "id": i,
        }
        for i, (n, category, area) in enumerate(things)
    ]  # fmt: skip
    return json.dumps({"annotations": marked, "categories": CATEGORIES}).encode()


CAPTIONS = "annotations/captions_train2017.json"
INSTANCES = "annotations/instances_train2017.json"
THINGS = instances((1, 1, 5.0), (1, 13, 9.5), (1, 1, 6.0), (2, 1, 3.0), (2, 13, 3.0))
TRAINING = {
    CAPTIONS: captions(1, 2, 3),
    INSTANCES: THINGS,
    **{f"train2017/{n:012}.jpg": picture(n) for n in (1, 2, 3)},
}
VALIDATING = {
    "annotations/captions_val2017.json": captions(7),
    "annotations/instances_val2017.json": instances((7, 13, 1.0)),
    "val2017/000000000007.jpg": picture(7),
}


def test_the_class_is_that_of_the_largest_thing(tmp_path: Path) -> None:
    """Picture 3 has no thing, and is left out; the first counts of two as large."""
    dataset = load_dataset("mscoco-captions", write_folder(tmp_path, TRAINING))
    assert dataset.class_names == ("person", "stop sign")
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.split is None
    assert dataset.dialogues[0].question == "Describe the picture."
    assert dataset.dialogues[0].answers == ("Picture 1, way 0.", "Picture 1, way 1.")
    assert greys(dataset) == [1, 2]


@pytest.mark.parametrize("images", ["", "images/"])
def test_with_train_and_val_the_second_is_for_tests(
    images: str, tmp_path: Path
) -> None:
    both = {
        name if name.startswith("annotations") else images + name: content
        for name, content in {**TRAINING, **VALIDATING}.items()
    }
    dataset = load_dataset("mscoco-captions", write_folder(tmp_path, both))
    assert parts_of(dataset) == [TRAIN, TRAIN, TEST_SPLIT]
    assert greys(dataset) == [1, 2, 7]


def test_one_caption_file_may_be_named_and_the_question_changed(
    tmp_path: Path,
) -> None:
    path = write_folder(tmp_path, {**TRAINING, **VALIDATING})
    dataset = read_mscoco_captions(path / CAPTIONS, question="What is there?")
    assert len(dataset) == 2
    assert dataset.dialogues[1].question == "What is there?"


def test_the_pictures_of_one_part_may_lie_in_an_archive(tmp_path: Path) -> None:
    lists = {name: TRAINING[name] for name in TRAINING if name.endswith(".json")}
    pictures = {name: TRAINING[name] for name in TRAINING if name not in lists}
    write_archive(write_folder(tmp_path, lists) / "train2017.zip", pictures)
    dataset = load_dataset("mscoco-captions", tmp_path)
    assert greys(dataset) == [1, 2]
    write_folder(tmp_path, VALIDATING)
    with pytest.raises(ConfigError, match=r"train2017\.zip\. Extract it"):
        read_mscoco_captions(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({CAPTIONS: b"[1, "}, "Invalid JSON"),
        ({CAPTIONS: b'{"images": []}'}, "at annotations: Field required"),
        ({CAPTIONS: captions()}, "List at least one"),
        ({CAPTIONS: captions(1, 1)}, "2 pictures under 1 numbers"),
        (
            {CAPTIONS: captions(1, annotations=[{"image_id": 1, "caption": " "}])},
            "gives picture 1 the caption ''",
        ),
        (
            {CAPTIONS: captions(1, annotations=[{"image_id": 4, "caption": "A dog."}])},
            "gives picture 4 the caption 'A dog.'",
        ),
        (
            {CAPTIONS: captions(1, annotations=[])},
            "lists picture 1, and no caption of it",
        ),
        (
            {INSTANCES: instances((1, 7, 1.0))},
            "object of category 7 in picture 1, and no such category",
        ),
        ({INSTANCES: instances((9, 1, 1.0))}, "No picture of .* has an object"),
        ({INSTANCES: instances((1, 1, 1.0))}, "holds 1 class: person"),
        (
            {"annotations/captions_train2014.json": captions(1)},
            r"holds captions_train2014\.json, captions_train2017\.json",
        ),
        (
            {"annotations/captions_mine.json": captions(1)},
            "Leave one for train and one for val",
        ),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(
    changed: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    path = write_folder(tmp_path / "home", {**TRAINING, **changed})
    assert_refused("mscoco-captions", path, message)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (CAPTIONS, r"no captions_\*\.json in"),
        (INSTANCES, r"no instances_train2017\.json in"),
        ("train2017/000000000002.jpg", r"1 of 2 pictures .* 000000000002\.jpg"),
    ],
)
def test_what_is_missing_is_named(missing: str, message: str, tmp_path: Path) -> None:
    rest = {name: content for name, content in TRAINING.items() if name != missing}
    with pytest.raises(MissingFileError, match=message):
        read_mscoco_captions(write_folder(tmp_path, rest))


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
    assert greys(dataset) == [0, 1, 2]


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
