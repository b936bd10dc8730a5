"""An export of models that write: their records are texts."""

from pathlib import Path

import pytest

from privaudit import Auditor, train
from privaudit.auditing.storage.save import save_audit
from privaudit.report.export import export_public, verify_card

pytestmark = pytest.mark.slow


def test_no_word_of_a_record_leaves_and_the_card_matches(tmp_path: Path) -> None:
    run = train(
        "fedrand", rounds=1, clients=2, participation=1.0, tested=12, shots=4,
        public_share=0.02, seed=987654321,
    )  # fmt: skip
    save_audit(Auditor(run).attack())
    found = export_public(run, tmp_path / "out")
    left = found.left
    assert (left.unknown, left.odd) == ([], [])
    assert left.few  # clients have a handful of records each
    assert all("by_client" in place for place in left.few)
    text = "".join(path.read_text() for path in found.folder.iterdir())
    for dialogue in run.population.dataset.dialogues:
        for said in (dialogue.question, *dialogue.answers):
            assert said not in text
    assert "987654321" not in text
    assert verify_card(found.folder).matches
