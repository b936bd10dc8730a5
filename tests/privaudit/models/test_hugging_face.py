"""Importing open_clip and transformers beside a torchvision that was built for another torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from privaudit.models import hugging_face
from tests.places import ROOT

DECLARES = """
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
LACKS = """
import torch
@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets
"""
BROKEN = "raise RuntimeError('built for another planet')"


def imported_beside(torchvision: str, folder: Path) -> str:
    """Return what declaring prints, in a process that has this torchvision."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(torchvision)
    code = (
        f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n"
        "import privaudit.models.hugging_face as shim\n"
        "shim.declare_missing_operators(); shim.declare_missing_operators()\n"
        "import torch, torchvision\n"
        "print(len(shim._declared), hasattr(torch.ops.torchvision, 'nms'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_open_clip_imports_whatever_torchvision_was_built_for() -> None:
    first = hugging_face.import_open_clip()
    assert first is hugging_face.import_open_clip()
    assert "ViT-B-16" in first.list_models()


@pytest.mark.parametrize(
    ("torchvision", "printed"),
    [
        (DECLARES, "0 True"),  # a second declaration would abort
        (LACKS, "2 True"),
        (BROKEN, "RuntimeError: built for another planet"),
    ],
)
def test_operators_are_declared_only_where_they_are_missing(
    torchvision: str, printed: str, tmp_path: Path
) -> None:
    assert imported_beside(torchvision, tmp_path) == printed


EXTENSION = """
import torch
def _has_ops():
    return {has_ops}
"""


@pytest.mark.parametrize(("has_ops", "mended"), [(False, 1), (True, 0)])
def test_make_mends_a_torchvision_that_was_built_for_another_torch(
    has_ops: bool, mended: int, tmp_path: Path
) -> None:
    """As .ci/mend_torchvision.py does; a second time changes nothing."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(
        f"import torchvision.extension{DECLARES if has_ops else LACKS}"
    )
    (package / "extension.py").write_text(EXTENSION.format(has_ops=has_ops))
    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    mend = [sys.executable, str(ROOT / ".ci/mend_torchvision.py")]
    for _ in range(1 + mended):  # where it mends, it has seen an import fail
        subprocess.run(mend, env=place, check=True)
    assert (package / "extension.py").read_text().count("_declared = ") == mended
    if has_ops:  # where it mends, it ends with an import that must succeed
        imports = [sys.executable, "-c", "import torchvision"]
        subprocess.run(imports, env=place, check=True)


@pytest.mark.slow
def test_open_clip_can_be_imported_before_privaudit() -> None:
    """In the environments that make builds; where this fails, run make."""
    code = "import open_clip, privaudit; assert open_clip.list_models()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:]
