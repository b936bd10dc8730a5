import json
from pathlib import Path

import numpy as np

from privaudit import Auditor, Run
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.storage.save import save_audit
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc
from tests.privaudit.made_audits import make_audit, make_writer


def test_the_audit_is_read_back_as_it_was(tmp_path: Path) -> None:
    audit = make_audit()
    place = save_audit(audit, tmp_path)
    assert place == tmp_path / "audits" / "server-reconstruct"
    read = json.loads((place / "audit.json").read_text())
    assert Estimate.from_dict(read["leaks"]["shadow"]["auroc"]) == audit.auroc


def test_scores_give_the_auroc_again(tmp_path: Path) -> None:
    audit = make_audit()
    with np.load(save_audit(audit, tmp_path) / "scores.npz", allow_pickle=False) as z:
        arrays = dict(z)
    assert list(arrays.pop("class names")) == ["zero", "one", "two"]
    assert len(arrays) == 2 * 6
    scores, truth = arrays["shadow/scores"], arrays["shadow/is_member"]
    groups = [
        (scores[own & truth], scores[own & ~truth])
        for own in (
            arrays["shadow/client"] == name
            for name in (c.client for c in audit.headline.clients)
        )
    ]
    assert pooled_auroc(groups) == audit.auroc
    assert len(arrays["shadow/labels"]) == len(arrays["shadow/guesses"]) == 360


def test_folders_are_private_and_hold_nothing_else(tmp_path: Path) -> None:
    place = save_audit(make_audit(), tmp_path)
    assert {entry.name for entry in place.iterdir()} == {"audit.json", "scores.npz"}
    for folder in (place, place.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_run_folder_is_the_default_and_lists_the_audit(whole: Path) -> None:
    place = save_audit(Auditor(Run(whole)).attack(clients=1, shadows=0))
    assert place == whole / "audits" / "server-reconstruct"
    listed = {name for name in Run(whole).files if name.startswith("audits/")}
    names = ("audit.json", "scores.npz")
    assert listed == {
        "audits/log.jsonl",
        *(f"audits/server-reconstruct/{name}" for name in names),
    }


def test_scores_on_the_servers_model_are_kept_too(tmp_path: Path) -> None:
    audit = make_writer()
    with np.load(save_audit(audit, tmp_path) / "scores.npz", allow_pickle=False) as z:
        scores = z["server model/max-renyi/scores"]
    common = audit.part(SERVER_MODEL)["max-renyi"].clients
    assert np.array_equal(scores, np.concatenate([c.scores for c in common]))
