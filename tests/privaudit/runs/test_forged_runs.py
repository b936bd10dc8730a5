"""Runs that were forged: each attack was accepted before headers were signed."""

import io
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privaudit import Auditor, Run
from privaudit.auditing.audit_log import LOG, LoggedAttack, log_audit, read_log
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import PrivauditError, TranscriptError, TrustError
from privaudit.core.signing import SECRET, TRUST, keys_folder, public_half, sign
from privaudit.runs.run_header import ADDED, COUNTS, NOTES, SIGNATURE, save_header
from tests.altered_runs import alter_messages
from tests.conftest import Cli, common_cache

AUDIT = "audits/server-reconstruct"
OTHERS_SECRET = "22" * 32
ALL = ("report", "export", "gate", "compare", "lint", "attack", "costs", "shift")
COUNTING = ("report", "export", "gate", "lint", "attack")
OF_AUDITS = ("report", "export", "gate", "compare")
OF_TRANSCRIPTS = ("lint", "attack", "export", "costs")


@pytest.fixture(scope="module")
def attacked(originals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an audit, to be forged in copies."""
    folder = tmp_path_factory.mktemp("attacked")
    run = Run(shutil.copytree(originals / "whole", folder / "run"))
    with common_cache(tmp_path_factory):
        save_audit(Auditor(run).attack(shadows=0))
    return run.path


@pytest.fixture
def run(attacked: Path) -> Path:
    runs = Path(os.environ["PRIVAUDIT_RUNS"])
    shutil.copytree(attacked, runs / "true")
    return shutil.copytree(attacked, runs / "run")


def words_of(command: str, tmp_path: Path) -> list[object]:
    more: Mapping[str, list[object]] = {
        "export": ["--public", tmp_path / "card"],
        "gate": ["--max-auroc", "0.9"],
        "compare": ["true", "--no-utility"],
        "attack": ["--shadows", "0"],
    }
    return [command, "run", *more.get(command, [])]


def refuse(cli: Cli, tmp_path: Path, commands: tuple[str, ...], *parts: str) -> None:
    """Check that commands exit with 2, name the file and say what to do."""
    for command in commands:
        code, _, said = cli(*words_of(command, tmp_path))
        assert code == 2, (command, said)
        assert "Traceback" not in said
        for part in parts:
            assert part in said, (command, said)


def change_json(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(place.read_text())
    change(content)
    place.write_text(json.dumps(content, indent=2) + "\n")


def forge_accuracy(run: Path, **more: float) -> None:
    change_json(
        run / AUDIT / "audit.json",
        lambda audit: audit["utility"]["local"].update(value=0.999, **more),
    )


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("config", "secure_aggregation", "masked"),
        ("config", "members", "all"),
        (None, "data_hash", "x"),
        (None, "privaudit", "9.9"),
        ("progress", "rounds", 1),
        (None, "signature", None),
    ],
)
def test_what_is_written_into_run_json_is_refused_by_every_command(
    part: str | None, name: str, value: object, run: Path, tmp_path: Path, cli: Cli
) -> None:
    change_json(
        run / "run.json",
        lambda header: (header[part] if part else header).update({name: value}),
    )
    refuse(cli, tmp_path, ALL, "run.json is not as it was signed", "from a copy")


def test_a_forged_accuracy_is_refused(run: Path, tmp_path: Path, cli: Cli) -> None:
    forge_accuracy(run, low=0.99, high=1.0)
    what = "audit.json is not the file that the run lists"
    refuse(cli, tmp_path, OF_AUDITS, what, "make it again")
    code, _, said = cli("gate", "true", "--baseline", run / AUDIT / "audit.json")
    assert code == 2
    assert what in said


def noise(stored: bytes) -> bytes:
    """Return scores that are noise in place of an attack's."""
    arrays, rng, buffer = (
        dict(np.load(io.BytesIO(stored))),
        np.random.default_rng(0),
        io.BytesIO(),
    )
    for name in [name for name in arrays if name.endswith("/scores")]:
        arrays[name] = rng.normal(size=arrays[name].shape).astype(arrays[name].dtype)
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_replaced_scores_move_no_gate(run: Path, tmp_path: Path, cli: Cli) -> None:
    scores = run / AUDIT / "scores.npz"
    scores.write_bytes(noise(scores.read_bytes()))
    what = "scores.npz is not the file that the run lists"
    refuse(cli, tmp_path, OF_AUDITS, what, "make it again")


def test_scores_listed_by_their_hash_are_refused_without_the_key(
    run: Path, tmp_path: Path, cli: Cli
) -> None:
    import hashlib

    scores = run / AUDIT / "scores.npz"
    scores.write_bytes(content := noise(scores.read_bytes()))

    listed = {f"{AUDIT}/scores.npz": hashlib.sha256(content).hexdigest()}
    change_json(run / "run.json", lambda h: h["added"]["files"].update(listed))
    refuse(cli, tmp_path, ALL, "run.json is not as it was signed")


def rewrite(run: Path) -> str:
    """Change every upload, and make the hash chain anew; return its head."""
    return alter_messages(run, lambda t: t + 0.1, lambda _, m: m.is_update).head


def test_a_rewritten_transcript_is_refused(run: Path, tmp_path: Path, cli: Cli) -> None:
    head = rewrite(run)
    refuse(cli, tmp_path, OF_TRANSCRIPTS, "does not end as the run recorded")

    change_json(run / "run.json", lambda h: h["progress"].update(head=head))
    refuse(cli, tmp_path, ALL, "run.json is not as it was signed")


def test_a_card_of_a_rewritten_run_is_not_found_true(
    run: Path, tmp_path: Path, cli: Cli
) -> None:
    assert cli("export", "run", "--public", tmp_path / "card")[0] == 0
    rewrite(run)
    code, said, _ = cli("verify", tmp_path / "card", "run")
    assert code == 1
    assert "manifest.jsonl does not end as the run recorded" in said

    forge_accuracy(run)
    code, said, _ = cli("verify", tmp_path / "card", "run")
    assert code == 1
    assert "audit.json is not the file that the run lists" in said


@pytest.mark.parametrize(
    "name", ["ledger.npz", "metrics.jsonl", "privacy.json", "kept/personal.safetensors"]
)
def test_a_replaced_file_of_another_run_is_refused(
    name: str, run: Path, cut: Path
) -> None:
    """Also one that its own run lists under the same key."""
    other = run.parent / "true"
    content = (other / name).read_bytes()
    changed = content.replace(b"0", b"1") if name != "ledger.npz" else toggled(content)
    (run / name).write_bytes(changed)
    found = Run(run)
    read = {"ledger.npz": "truth", "metrics.jsonl": "metrics"}
    read |= {"privacy.json": "privacy", "kept/personal.safetensors": "personal_models"}
    with pytest.raises(TranscriptError, match=Path(name).name):
        getattr(found, read[name])


def toggled(content: bytes) -> bytes:
    with np.load(io.BytesIO(content)) as stored:
        owner, is_member = stored["owner"], stored["is_member"]
    buffer = io.BytesIO()
    np.savez(buffer, owner=owner, is_member=is_member ^ (owner == 0))
    return buffer.getvalue()


def test_an_audit_that_was_put_there_is_none(run: Path, cli: Cli) -> None:
    shutil.copytree(run / AUDIT, run / "audits" / "prompt-release")
    code, _, said = cli(
        "gate", "run", "--scenario", "prompt-release", "--max-auroc", "0.99"
    )
    assert code == 2
    assert "is not listed by its run" in said


def test_an_audit_that_was_taken_away_is_missed(
    run: Path, tmp_path: Path, cli: Cli
) -> None:
    shutil.rmtree(run / AUDIT)
    refuse(cli, tmp_path, OF_AUDITS, "privaudit attack run")


def test_another_runs_audit_is_refused(run: Path, tmp_path: Path, cli: Cli) -> None:
    """Both are signed by the same key: entries of one header say nothing in another."""
    other = json.loads((run.parent / "true" / "run.json").read_text())
    save_header(run, Run(run).header | {"python": "3.0"})

    change_json(run / "run.json", lambda h: h.update(added=other["added"]))
    refuse(cli, tmp_path, ALL, "run.json is not as it was signed")


def test_a_run_by_a_stranger_is_read_once_the_key_is_trusted(
    run: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.environ[SECRET]
    monkeypatch.setenv(SECRET, OTHERS_SECRET)
    monkeypatch.setenv("PRIVAUDIT_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv(TRUST, public_half(private(mine)))
    save_header(run, Run(run).header)
    drop_audits(run)
    save_audit(Auditor(Run(run)).attack(shadows=0))
    monkeypatch.setenv(SECRET, mine)
    monkeypatch.delenv(TRUST)
    stranger = public_half(private(OTHERS_SECRET))
    refuse(cli, tmp_path, ALL, "a key that you do not trust", "privaudit key trust")
    with pytest.raises(TrustError, match=stranger):
        Auditor(Run(run))
    assert cli("key", "trust", stranger, "--name", "Ada")[0] == 0
    assert cli("report", "run")[0] == 0
    page = (run / AUDIT / "report.html").read_text()
    assert f"Ada ({stranger[:16]})" in page
    save_audit(Auditor(Run(run)).attack(shadows=0))
    trained, audited = Run(run).signers
    assert (trained.name, audited and audited.name) == ("Ada", "your own key")


def private(text: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))


def test_an_unsigned_run_of_an_earlier_version_is_refused(
    run: Path, tmp_path: Path, cli: Cli
) -> None:
    def change(header: dict[str, Any]) -> None:
        header["format"] = 1
        del header["signature"], header["added"]

    change_json(run / "run.json", change)
    refuse(cli, tmp_path, ALL, "run format 1", "train again")


def test_a_forged_table_of_signals_is_not_used(run: Path) -> None:
    """An attack with poisoned signals of shadow models gives what a clean one gives."""
    clean = Auditor(Run(run)).attack("prompt-release", clients=1, shadows=5)
    tables = sorted((run / "audits" / "signals").iterdir())
    assert tables
    from safetensors.torch import load_file, save_file

    for table in tables:
        tensors = load_file(table)
        moved = {n: t + 1 if t.is_floating_point() else t for n, t in tensors.items()}
        save_file(moved, table)
    again = Auditor(Run(run)).attack("prompt-release", clients=1, shadows=5)
    for name, leak in clean.results.items():
        assert leak.auroc == again.results[name].auroc


def test_two_attacks_at_once_lose_no_entry(run: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    found = Run(run)
    _ = found.header
    names = [f"audits/table/{number}.json" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: Run(run).add({name: b"{}"}), names))
    assert set(names) < set(found.files)
    assert found.read(names[0]) == b"{}"


def test_an_audit_of_a_run_that_was_trained_anew_is_not_kept(run: Path) -> None:
    before = Run(run)
    _ = before.header
    save_header(run, before.header | {"python": "3.0"})
    with pytest.raises(PrivauditError, match="trained again"):
        before.add({"audits/x/audit.json": b"{}"})
    assert not (run / "audits" / "x").exists()


def count(run: Path, audits: int) -> None:
    """Note further audits, each with another result."""
    for number in range(audits):
        attack = LoggedAttack(
            attack="x", settings="", named=True, n=(9, 9), auroc=0.5 + number / 100
        )
        log_audit(Run(run), "server-reconstruct", number, [attack])


def drop_added(run: Path) -> None:
    change_json(run / "run.json", lambda header: header.pop("added"))


def drop_log(run: Path) -> None:
    (run / LOG).unlink()


def drop_audits(run: Path) -> None:
    shutil.rmtree(run / "audits")


def drop_both(run: Path) -> None:
    drop_added(run)
    drop_audits(run)


def empty_list(run: Path) -> None:
    """Take the log off the list, and leave the signature of the list with it."""
    change_json(run / "run.json", lambda header: header["added"]["files"].clear())
    drop_audits(run)


def reorder(run: Path) -> None:
    lines = (run / LOG).read_text().splitlines(keepends=True)
    (run / LOG).write_text("".join(lines[::-1]))


def truncate(run: Path) -> None:
    lines = (run / LOG).read_text().splitlines(keepends=True)
    (run / LOG).write_text("".join(lines[:2]))


@pytest.mark.parametrize(
    ("forge", "says"),
    [
        (drop_added, "lacks the signed list"),
        (drop_log, ""),
        (drop_audits, ""),
        (drop_both, "lacks the signed list"),
        (empty_list, "is not as it was signed"),
        (reorder, "does not hold the lines that its run lists"),
        (truncate, "does not hold the lines that its run lists"),
    ],
)
def test_the_count_of_audits_is_not_reset_without_the_key(
    forge: Callable[[Path], None], says: str, run: Path, tmp_path: Path, cli: Cli
) -> None:
    count(run, 4)
    assert len(read_log(Run(run))) == 5
    forge(run)
    refuse(cli, tmp_path, COUNTING, says)


@pytest.mark.parametrize("audits", [0, 2, 4])
def test_a_run_that_is_put_back_to_fewer_audits_is_noticed(
    audits: int, run: Path, tmp_path: Path, cli: Cli
) -> None:
    """Header and audits together, as they once were: all in it is signed."""
    older = tmp_path / "older"
    count(run, audits)
    shutil.copytree(run, older)
    count(run, 5 - audits)
    shutil.rmtree(run)
    shutil.copytree(older, run)
    refuse(cli, tmp_path, COUNTING, "put back to an earlier state", "latest copy")
    with pytest.raises(TranscriptError, match="put back"):
        count(run, 1)
    assert len(read_log(Run(older))) == audits + 1  # a copy elsewhere counts by itself


def test_a_note_of_the_count_that_something_else_was_written_over_is_noticed(
    run: Path, tmp_path: Path, cli: Cli
) -> None:
    count(run, 2)
    (note,) = (keys_folder() / NOTES).glob("*.json")
    note.write_text('{"schemaVersion": 1, "label": "privacy gate"}')
    refuse(cli, tmp_path, COUNTING, "is no note of a log of audits")


def test_audits_that_stay_behind_show_that_the_header_was_put_back(
    originals: Path, run: Path, tmp_path: Path, cli: Cli
) -> None:
    """On a machine that saw none of them."""
    moved = shutil.copytree(run, run.parent / "moved")
    (moved / LOG).unlink()
    shutil.copy(originals / "whole" / "run.json", moved / "run.json")
    for command in ("attack", "lint"):
        code, _, said = cli(command, "moved")
        assert code == 2
        assert "counts no audit" in said


def test_audits_on_another_machine_go_on_counting(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed there with its own key, also where nothing can be noted beside it."""
    mine = os.environ[SECRET]
    with monkeypatch.context() as there:
        there.setenv(SECRET, OTHERS_SECRET)
        there.setenv("PRIVAUDIT_KEYS", "/dev/null/keys")
        there.setenv(TRUST, public_half(private(mine)))
        count(run, 2)
        assert len(read_log(Run(run))) == 3
    monkeypatch.setenv(TRUST, public_half(private(OTHERS_SECRET)))
    assert len(read_log(Run(run))) == 3
    count(run, 1)
    moved = Path(shutil.move(run, run.parent / "moved"))
    count(moved, 1)
    assert len(read_log(Run(moved))) == 5


def test_a_run_of_an_earlier_version_goes_on_counting(run: Path) -> None:
    """It says of no list that there is one, and nothing was added to it."""
    content = json.loads((run / "run.json").read_text())
    header = {k: v for k, v in content.items() if k not in (SIGNATURE, ADDED, COUNTS)}
    drop_audits(run)
    signed = {**header, SIGNATURE: sign("run", header)}
    (run / "run.json").write_text(json.dumps(signed))
    assert read_log(Run(run)) == []
    count(run, 2)
    assert len(read_log(Run(run))) == 2


def test_audits_leave_the_first_signature_as_it_was(run: Path, attacked: Path) -> None:
    before = json.loads((run / "run.json").read_text())
    Run(run).add({"audits/x/audit.json": b"{}"})
    after = json.loads((run / "run.json").read_text())
    assert after["signature"] == before["signature"]
    assert after["added"]["files"].items() > before["added"]["files"].items()


def test_no_audit_leads_out_of_the_run(run: Path, tmp_path: Path) -> None:
    shutil.move(run / "audits", tmp_path / "elsewhere")
    (run / "audits").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivauditError, match="is a link"):
        Auditor(Run(run))
    link, out = ("audits/x/a.json", "is a link"), "and leads out of it"
    for name, why in (link, ("audits/../../a.json", out), (f"{tmp_path}/a.json", out)):
        with pytest.raises(PrivauditError, match=why):
            Run(run).add({name: b"{}"})
