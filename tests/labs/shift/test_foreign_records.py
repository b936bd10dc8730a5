import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, PixelImages
from privaudit.runs.config import make_config
from privaudit.runs.population import populate
from privaudit_labs.shift.foreign_records import _with_classes_of, records_elsewhere


def named(*names: str) -> Dataset:
    labels = torch.arange(6) % len(names)
    return Dataset(PixelImages(torch.zeros(6, 1, 2, 2)), labels, names)


def test_another_data_sets_classes_are_found_by_name() -> None:
    """In another order, fewer, and spelled otherwise."""
    own = named("stop sign", "cat", "dog")
    found = _with_classes_of(named("Dog", "stop_sign"), own, "other")
    assert found.class_names == own.class_names
    assert found.labels.tolist() == [2, 0] * 3
    with pytest.raises(ConfigError, match="1 of the 2 classes of other are none of"):
        _with_classes_of(named("cat", "cow"), own, "other")


def test_records_elsewhere_are_read_as_the_runs_model_reads_them() -> None:
    config = make_config("fedotp")
    found = records_elsewhere(config, "drawn-digits")
    own = populate(config).records
    assert found.features.shape == (1000, own.features.shape[1])
    assert found.tokens is not None
    assert own.tokens is not None
    assert found.tokens.read().shape[1:] == own.tokens.read().shape[1:]
    assert found.labels.tolist() == [n % 10 for n in range(1000)]
