import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.stored_audit import read_audit, save_audit
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    StorageError,
    TranscriptError,
)
from privaudit.core.signing import own_key
from privaudit.core.storage import file_hash
from privaudit.evaluation.card import read_card, verdict_kind
from privaudit.report.export import export as export_module
from privaudit.report.export import export_public
from privaudit.report.export.verify import leaves
from tests.altered_cards import statement_in
from tests.privaudit.report.export.conftest import NAME, SEED, edit

CANARY = "Patient 17 has a red hat, see /home/ward/17.png"


def everything(folder: Path) -> str:
    """Return what files of a folder say, the card's payload as text."""
    texts = [path.read_text() for path in sorted(folder.rglob("*"))]
    return "".join([*texts, json.dumps(statement_in(folder))])


def test_an_export_is_a_card_with_a_noised_number_for_each_audit(
    run: Run, tmp_path: Path
) -> None:
    card = export_public(run, tmp_path / "out").card
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["card.json"]
    assert set(card.audits) == {"curious-peer", "one-run", "server-reconstruct"}
    assert (card.ledger.numbers, card.design.sampling) == (3, "coin")
    for name, shown in card.audits.items():
        assert shown.auroc is not None
        clients = read_audit(run, name).clients(shown.headline)
        assert shown.auroc.candidates == sum(len(one.scores) for one in clients)
        assert shown.verdict == verdict_kind(shown.auroc)


def test_no_exact_number_that_a_membership_enters_gets_out(
    run: Run, tmp_path: Path
) -> None:
    """Neither an attack's, nor a client's, nor how many members there are."""
    card = export_public(run, tmp_path / "out").card
    numbers = {v for v in leaves(card.plain()).values() if isinstance(v, int | float)}
    numbers -= {True, False}
    for name in card.audits:
        stored = read_audit(run, name)
        exact = set(
            leaves([dict(stored.attack_result(one)) for one in stored.attacks]).values()
        )
        exact = {v for v in exact if isinstance(v, float) and v % 0.5 and v != 0.95}
        assert len(exact) > 10
        assert not numbers & exact
    truth = run.truth
    counts = {len(truth.members_of(client)) for client in range(len(truth.clients))}
    assert not numbers & {*counts, int(truth.is_member.sum())}


def test_seed_name_paths_and_truth_stay_here(run: Run, tmp_path: Path) -> None:
    export_public(run, tmp_path / "out")
    text = everything(tmp_path / "out")
    header = json.loads((run.path / "run.json").read_text())
    for secret in (
        str(SEED), NAME, str(tmp_path), "zebra", header["ledger_hash"],
        header["data_hash"], header["progress"]["head"], run.config.short_hash,
        header["progress"]["trace_hash"], header["progress"]["metrics_hash"],
        file_hash(run.path / "ledger.npz"),
        json.loads((run.path / "card.key").read_text())["key"],
    ):  # fmt: skip
        assert secret not in text
    assert (run.path / "card.key").stat().st_mode & 0o777 == 0o600


def test_a_score_of_no_record_gets_out(run: Run, tmp_path: Path) -> None:
    export_public(run, tmp_path / "out")
    numbers = set(re.findall(r"-?\d+\.\d{5,}", everything(tmp_path / "out")))
    for path in run.path.glob("audits/*/scores.npz"):
        with np.load(path, allow_pickle=False) as arrays:
            for key in (key for key in arrays if key.endswith("/scores")):
                assert not numbers & {repr(float(score)) for score in arrays[key]}


def planted(value: Any) -> Any:
    """Put a canary in place of each text, and beside each key."""
    if isinstance(value, dict):
        below = {key: planted(one) for key, one in value.items()}
        return {**below, "Zebra": CANARY}
    if isinstance(value, list):
        return [planted(one) for one in value]
    return CANARY if isinstance(value, str) else value


def test_no_text_and_no_key_that_somebody_put_there_gets_out(
    run: Run, tmp_path: Path
) -> None:
    """The card is made of what is named in it: nothing has to be taken out."""
    for path in run.path.glob("audits/*/audit.json"):
        content = json.loads(path.read_text())
        for part in ("rebuilt", "rounds", "one_run"):
            content[part] = planted(content[part])
        content["question"] = content["run"] = CANARY
        content["utility"]["Zebra"] = CANARY
        for leak in content["attack_results"].values():
            leak["settings"] = leak["threshold"] = leak["description"] = CANARY
            leak["Zebra"] = CANARY
        edit(path, content)
    (run.path / "notes.txt").write_text(CANARY)
    (run.path / "audits" / "mine").mkdir()
    (run.path / "audits" / "mine" / "audit.json").write_text('{"leaks": "Patient"}')
    card = export_public(run, tmp_path / "out").card
    assert len(card.audits) == 3
    assert not re.search("Zebra|Patient|mine", everything(tmp_path / "out"))


def test_what_no_card_can_say_stops_the_export_in_one_line(
    run: Run, tmp_path: Path
) -> None:
    path = run.path / "audits" / "one-run" / "audit.json"
    content = json.loads(path.read_text())
    content["threat"] = CANARY
    edit(path, content)
    with pytest.raises(TranscriptError, match="holds what no card can say"):
        export_public(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_scenarios_asked_for_are_on_the_card_and_no_others(
    run: Run, tmp_path: Path
) -> None:
    found = export_public(run, tmp_path / "out", scenarios=["one-run"])
    assert list(found.card.audits) == ["one-run"]
    assert found.card.ledger.numbers == 1
    with pytest.raises(MissingFileError, match="no audit of one-rum"):
        export_public(run, tmp_path / "out", scenarios=["one-rum"])


def test_the_same_run_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    export_public(run, tmp_path / "one")
    export_public(run.path, tmp_path / "two")
    export_public(run, tmp_path / "two")  # in place of itself
    assert everything(tmp_path / "one") == everything(tmp_path / "two")


def test_a_card_is_read_back_as_it_was(run: Run, tmp_path: Path) -> None:
    card = export_public(run, tmp_path / "out").card
    assert read_card(tmp_path / "out").card == card


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
    with pytest.raises(StorageError, match="is no folder"):
        export_public(run, tmp_path / "file")
    with pytest.raises(StorageError, match="lies in the run"):
        export_public(run, run.path / "out")


def test_an_export_of_another_run_is_left_alone(run: Run, tmp_path: Path) -> None:
    other = train("zero-shot", rounds=1, clients=2, seed=0)
    export_public(other, tmp_path / "out")
    with pytest.raises(ConfigError, match="no earlier export"):
        export_public(run, tmp_path / "out")


def test_a_run_without_audits_has_a_card_too(tmp_path: Path) -> None:
    card = export_public(
        train("zero-shot", rounds=1, clients=2, seed=0), tmp_path / "out"
    ).card
    assert (card.audits, card.ledger.numbers) == ({}, 0)
    assert card.privacy.certified["server"].epsilon == 0


def test_a_full_disk_leaves_the_earlier_card_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_public(run, out)
    before = everything(out)

    def fail(path: Path, content: bytes) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(export_module, "write_output", fail)
    with pytest.raises(StorageError):
        export_public(run, out)
    assert everything(out) == before


def test_an_interrupted_run_is_not_exported(cut: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stopped after"):
        export_public("cut", tmp_path / "out")


def test_others_may_read_a_card(run: Run, tmp_path: Path) -> None:
    found = export_public(run, tmp_path / "out")
    assert os.stat(found.folder / "card.json").st_mode & 0o444 == 0o444  # noqa: PTH116


def test_copies_of_a_run_commit_to_the_same(run: Run, tmp_path: Path) -> None:
    """Whoever has a copy can check the card, and no guess can be tried without one."""
    other = Run(shutil.copytree(run.path, tmp_path / "copy"))
    cards = [
        export_public(one, tmp_path / f"out-{n}").card
        for n, one in enumerate((run, other))
    ]
    assert cards[0] == cards[1]


def test_copies_on_machines_of_other_keys_say_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever gets cards from several machines averages the noise away."""
    run = train("zero-shot", rounds=1, clients=2)
    save_audit(Auditor(run).attack(shadows=0))
    ours = own_key().public_key().public_bytes_raw().hex()
    monkeypatch.setenv("PRIVAUDIT_TRUST", ours)
    shown = []
    for n in range(2):
        copy = Run(shutil.copytree(run.path, tmp_path / f"copy-{n}"))
        shown.append(export_public(copy, tmp_path / f"out-{n}").card)
        monkeypatch.setenv("PRIVAUDIT_KEYS", str(tmp_path / "other keys"))
    assert shown[0].audits["server-reconstruct"].auroc is not None
    assert shown[0].audits == shown[1].audits
