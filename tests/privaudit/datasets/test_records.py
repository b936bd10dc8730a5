"""Records as a whole: what is kept where several parts become one."""

from dataclasses import replace

import torch

from privaudit.datasets.records import Records
from tests.conftest import toy_records


def test_joined_records_keep_what_all_parts_have() -> None:
    one, other = toy_records(5), toy_records(3, seed=1)
    both = Records.joined([one, other])
    assert torch.equal(both.features, torch.cat([one.features, other.features]))
    assert torch.equal(both.labels, torch.cat([one.labels, other.labels]))
    assert both.crafted is None
    assert both.contents is None  # of no data set
    crafted = [replace(r, crafted=torch.ones(len(r), 2, 3)) for r in (one, other)]
    joined = Records.joined(crafted).crafted
    assert joined is not None
    assert joined.shape == (8, 2, 3)
    assert Records.joined([crafted[0], other]).crafted is None
