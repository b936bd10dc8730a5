import torch

from privaudit.models import torchvision_shim


def test_open_clip_imports_whatever_torchvision_was_built_for() -> None:
    first = torchvision_shim.import_open_clip()
    assert first is torchvision_shim.import_open_clip()
    assert "ViT-B-16" in first.list_models()


def test_operators_are_declared_only_where_they_are_missing() -> None:
    torchvision_shim.declare_missing_operators()
    declared = len(torchvision_shim._declared)
    assert hasattr(torch.ops.torchvision, "nms")
    assert hasattr(torch.ops.torchvision, "qnms")
    torchvision_shim.declare_missing_operators()
    assert len(torchvision_shim._declared) == declared
