import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from privaudit.report.export.allow_list import LEFT_OUT

from privaudit import Run, train
from privaudit.core.errors import ConfigError, StorageError, TranscriptError
from privaudit.core.storage import file_hash
from privaudit.federated.runs.ledger import Ledger
from privaudit.report.export import export as export_module
from privaudit.report.export import export_public
from privaudit.report.export.verify import leaves
from tests.owner_changes import sign_again
from tests.privaudit.report.export.conftest import NAME, SEED, edit

CANARY = "Patient 17 has a red hat, see /home/ward/17.png"
JSON = ["run.json", "privacy.json"]


def everything(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*")))


def objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    below = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for one in below:
            yield from objects(one)


def test_an_export_is_a_card_and_a_text_and_nothing_is_unknown(
    run: Run, tmp_path: Path
) -> None:
    found = export_public(run, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "README.txt",
        "card.json",
    ]
    assert set(found.card["audits"]) == {
        "curious-peer",
        "one-run",
        "server-reconstruct",
    }
    left = found.left
    assert (left.unknown, left.odd, left.few) == ([], [], [])
    assert "unknown" not in found.files
    assert found.seed_is_guessable


def test_seed_name_paths_and_truth_stay_here(run: Run, tmp_path: Path) -> None:
    export_public(run, tmp_path / "out")
    text = everything(tmp_path / "out")
    header = json.loads((run.path / "run.json").read_text())
    for secret in (
        str(SEED), NAME, str(tmp_path), "zebra", header["ledger_hash"],
        run.config.digest, header["progress"]["trace_hash"],
        header["progress"]["checkpoint_hash"], header["progress"]["metrics_hash"],
        file_hash(run.path / "ledger.npz"), (run.path / "card.key").read_text(),
    ):  # fmt: skip
        assert secret not in text
    keys = text.replace("as black-box-labels", "")  # an attack, and no secret
    assert not re.search(r'"[^"]*(seed|records|labels|is_member|guesses)[^"]*":', keys)
    assert header["progress"]["head"] in text
    assert header["model_hash"] in text


def test_no_list_is_as_long_as_a_clients_candidates(run: Run, tmp_path: Path) -> None:
    """Whatever stood beside each record would be as long as there are records."""
    found = export_public(run, tmp_path / "out")
    fewest = np.bincount(Ledger.load(run.path / "ledger.npz").owner.clip(0)).min()

    def lists(value: Any) -> Iterator[list[Any]]:
        if isinstance(value, list):
            yield value
        below = value.values() if isinstance(value, dict) else value
        for one in below if isinstance(value, dict | list) else []:
            yield from lists(one)

    assert max(len(one) for one in lists(dict(found.card))) < min(fewest, 10)


def test_a_score_of_no_record_gets_out(run: Run, tmp_path: Path) -> None:
    export_public(run, tmp_path / "out")
    numbers = set(re.findall(r"-?\d+\.\d{9,}", everything(tmp_path / "out")))
    for path in run.path.glob("audits/*/scores.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            for key in (key for key in arrays if key.endswith("/scores")):
                assert not numbers & {repr(float(score)) for score in arrays[key]}


def test_unknown_keys_stay_behind_wherever_they_are_and_are_counted(
    run: Run, tmp_path: Path
) -> None:
    planted = 0
    audits = [p.relative_to(run.path) for p in run.path.glob("audits/*/audit.json")]
    for name in [*map(str, audits), *JSON]:
        path = run.path / name
        content = json.loads(path.read_text())
        checked = [  # where reading a run or an audit refuses other keys
            *objects(content.get("config")),
            *(content.get(key) for key in ("leaks", "server_model", "files")),
            content.get("libraries"),
        ]
        for one in list(objects(content)):
            if not any(one is other for other in checked):
                one["Zebra"] = CANARY
                planted += 1
        edit(path, content)
    assert planted > 100
    found = export_public(run, tmp_path / "out")
    text = everything(tmp_path / "out")
    assert "Zebra" not in text
    assert "Patient" not in text
    places = {re.sub(r"/Zebra$", "", place) for place in found.left.unknown}
    assert {"run.json", "privacy.json", "privacy.json/claimed"} <= places
    assert "audits/one-run/audit.json/one_run/bound" in places
    assert f"{len(found.left.unknown):4d}  unknown keys" in text


@pytest.mark.parametrize("text", [CANARY, str(SEED), "zebra", "a red hat"])
def test_no_text_gets_out_in_place_of_another(
    run: Run, tmp_path: Path, text: str
) -> None:
    """Each text of an audit that no score gives again, replaced by a canary."""
    for path in run.path.glob("audits/*/audit.json"):
        content = json.loads(path.read_text())
        for part in ("utility", "rebuilt", "linking", "rounds", "source", "one_run"):
            content[part] = replaced(content[part], text)
        for key in ("question", "threat", "run"):
            content[key] = text
        for leak in content["leaks"].values():
            leak["settings"] = leak["threshold"] = text
        edit(path, content)
    privacy = json.loads((run.path / "privacy.json").read_text())
    edit(run.path / "privacy.json", replaced(privacy, text))
    found = export_public(run, tmp_path / "out")
    strings = [v for _, v in leaves(dict(found.card)) if isinstance(v, str)]
    assert not [v for v in strings if text in v]
    assert strings.count(LEFT_OUT) > 50
    assert len(found.left.odd) > 50


def replaced(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: replaced(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [replaced(one, text) for one in value]
    return text if isinstance(value, str) else value


def test_files_of_an_unknown_kind_stay_behind_and_are_counted(
    run: Run, tmp_path: Path
) -> None:
    (run.path / "notes.txt").write_text(CANARY)
    (run.path / "audits" / "one-run" / "report.html").write_text(CANARY)
    (run.path / "audits" / "mine").mkdir()
    (run.path / "audits" / "mine" / "audit.json").write_text('{"leaks": "Patient"}')
    found = export_public(run, tmp_path / "out")
    assert found.files["unknown"] == 1
    assert found.files["audit, of which a part is in the card"] == 4
    assert "Patient" not in everything(tmp_path / "out")
    assert "mine" not in found.card["audits"]


def test_a_path_that_a_rule_would_let_through_stops_the_export(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(run.path.resolve().parent)
    monkeypatch.setattr(export_module, "readme", lambda *_: f"see {place}")
    with pytest.raises(TranscriptError, match="Nothing was written"):
        export_public(run, tmp_path / "out")
    monkeypatch.setattr(export_module, "readme", lambda *_: f"seed {SEED}.")
    with pytest.raises(TranscriptError, match="Nothing was written"):
        export_public(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_peoples_data_are_named_by_a_sealed_hash_only(
    run: Run, tmp_path: Path
) -> None:
    plain = export_public(run, tmp_path / "plain")
    assert plain.card["data"] == {"sha256": run.header["data_hash"]}
    for path in [run.path / "run.json", *run.path.glob("audits/*/audit.json")]:
        text = path.read_text()
        path.write_text(text.replace('"dataset": "digits"', '"dataset": "cifar10"'))
    sign_again(run.path)
    found = export_public(Run(run.path), tmp_path / "out")
    assert set(found.card["data"]) == {"sealed"}
    assert run.header["data_hash"] not in everything(tmp_path / "out")


def test_sealed_hashes_differ_between_copies_of_one_run(
    run: Run, tmp_path: Path
) -> None:
    """So nobody can try guesses of the truth against one."""
    other = Run(shutil.copytree(run.path, tmp_path / "copy"))
    first, second = (
        export_public(one, tmp_path / f"out-{i}").card
        for i, one in enumerate((run, other))
    )
    assert first["truth"] != second["truth"]
    same = {name: part for name, part in first.items() if name in ("run", "privacy")}
    assert same == {name: second[name] for name in same}
    assert (run.path / "card.key").stat().st_mode & 0o777 == 0o600


def test_the_same_run_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    export_public(run, tmp_path / "one")
    export_public(run.path, tmp_path / "two")
    export_public(run, tmp_path / "two")  # in place of itself
    assert everything(tmp_path / "one") == everything(tmp_path / "two")


def test_a_folder_with_anything_else_in_it_is_left_alone(
    run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export_public(run, out)
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no earlier export"):
        export_public(run, out)
    assert (out / "mine.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="no earlier export"):
        export_public(run, tmp_path / "file")
    with pytest.raises(ConfigError, match="stays private"):
        export_public(run, run.path / "out")


def test_an_export_of_another_run_is_left_alone(run: Run, tmp_path: Path) -> None:
    other = train("zero-shot", rounds=1, clients=2)
    export_public(other, tmp_path / "out")
    with pytest.raises(ConfigError, match="no earlier export"):
        export_public(run, tmp_path / "out")


def test_a_run_without_audits_has_a_card_too(tmp_path: Path) -> None:
    found = export_public(train("zero-shot", rounds=1, clients=2), tmp_path / "out")
    assert found.card["audits"] == {}
    assert found.card["privacy"]["certified"]["server"]["epsilon"] == 0


def test_a_full_disk_leaves_the_earlier_export_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_public(run, out)
    before = everything(out)

    def fail(path: Path, content: bytes) -> None:
        if path.name == "README.txt":
            raise StorageError("the disk is full")
        path.write_bytes(content)

    monkeypatch.setattr(export_module, "write_bytes", fail)
    with pytest.raises(StorageError):
        export_public(run, out)
    assert everything(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"out", "runs"}


def test_an_interrupted_run_is_not_exported(cut: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stopped after"):
        export_public("cut", tmp_path / "out")


def test_an_audit_that_does_not_say_what_its_scores_give_is_not_exported(
    run: Run, tmp_path: Path
) -> None:
    path = run.path / "audits" / "one-run" / "audit.json"
    content = json.loads(path.read_text())
    content["leaks"]["loss-threshold"]["auroc"]["value"] += 0.001
    edit(path, content)
    with pytest.raises(TranscriptError, match="is not what the scores beside it give"):
        export_public(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_others_may_read_an_export(run: Run, tmp_path: Path) -> None:
    found = export_public(run, tmp_path / "out")
    assert os.stat(found.folder / "card.json").st_mode & 0o444 == 0o444  # noqa: PTH116
