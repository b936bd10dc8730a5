import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from privaudit.report.export.card import render, with_hash

from privaudit import Auditor, Run, train
from privaudit.auditing.storage.save import save_audit
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.report.export import Verification, export_public, verify_card
from privaudit.report.export.verify import leaves
from tests.conftest import Cli
from tests.owner_changes import sign_again
from tests.privaudit.report.export.conftest import make_small

LOSS = "audits/one-run/leaks/loss-threshold"


@pytest.fixture
def out(run: Run, tmp_path: Path) -> Path:
    return export_public(run, tmp_path / "out").folder


def places(found: Verification) -> set[str]:
    return {mismatch.place for mismatch in found.mismatches}


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    (folder,) = (place for place in path.parents if (place / "run.json").exists())
    sign_again(folder)


def edit_scores(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    with np.load(path, allow_pickle=False) as arrays:
        columns = dict(arrays)
    change(columns)
    np.savez(path, allow_pickle=False, **columns)
    sign_again(path.parents[2])


def test_a_card_matches_the_run_it_came_from(run: Run, out: Path) -> None:
    for card, where in ((out, None), (out / "card.json", run), (out, run.name)):
        found = verify_card(card, where)
        assert found.matches
        assert found.run.path.resolve() == run.path.resolve()
        assert found.values > found.values - found.on_trust > 800


def test_any_digit_of_the_text_that_is_altered_is_noticed(
    run: Run, out: Path, rng: np.random.Generator
) -> None:
    card = out / "card.json"
    text = card.read_text()
    digits = [place for place, sign in enumerate(text) if sign.isdecimal()]
    head = json.loads(text)["run"]["progress"]["head"]
    for place in rng.choice(digits, 8, replace=False):
        digit = "1" if text[place] != "1" else "2"
        card.write_text(text[:place] + digit + text[place + 1 :])
        if head in card.read_text() and '"format": 1' in card.read_text():
            found = verify_card(card, run)
            assert not found.matches
            assert "card" in places(found)
    card.write_text(text.replace("0.95,", "0.950,", 1))
    assert places(verify_card(card, run)) == {"card"}


def test_every_value_is_compared_also_where_the_hash_was_made_again(
    run: Run, out: Path, rng: np.random.Generator
) -> None:
    card = json.loads((out / "card.json").read_text())
    there = [p for p, _ in leaves(card) if p.split("/")[0] not in ("card", "sha256")]
    for place in rng.choice(there, 6, replace=False):
        forged = json.loads(json.dumps(card))
        *above, last = place.split("/")
        one = forged
        for key in above:
            one = one[int(key)] if isinstance(one, list) else one[key]
        key = int(last) if isinstance(one, list) else last
        one[key] = -1.5 if isinstance(one[key], int | float) else 7
        (out / "card.json").write_text(render(with_hash(forged)))
        if place == "run/progress/head":
            with pytest.raises(ConfigError):
                verify_card(out, run)
            continue
        found = verify_card(out, run)
        assert places(found) == {place}, str(found.mismatches)
        assert f"the card says {json.dumps(one[key])}" in found.mismatches[0].why


def test_what_a_card_adds_or_lacks_is_noticed(run: Run, out: Path) -> None:
    card = json.loads((out / "card.json").read_text())
    del card["audits"]["one-run"]["leaks"]["loss-threshold"]["auroc"]["n"]
    card["note"] = "all is well"
    (out / "card.json").write_text(render(with_hash(card)))
    assert places(verify_card(out, run)) == {
        "note",
        f"{LOSS}/auroc/n/0",
        f"{LOSS}/auroc/n/1",
    }


def test_scores_that_were_altered_are_noticed(run: Run, out: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["loss-threshold/scores"][:40] += 1

    edit_scores(run.path / "audits" / "one-run" / "scores.npz", change)
    found = verify_card(out)
    assert places(found) == {"audits/one-run"}
    assert "is not what the scores beside it give" in found.mismatches[0].why


def test_scores_that_give_the_same_numbers_are_noticed_by_their_sealed_hash(
    run: Run, out: Path
) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["loss-threshold/scores"] *= 2

    edit_scores(run.path / "audits" / "one-run" / "scores.npz", change)
    assert places(verify_card(out)) == {"audits/one-run/scores/sealed"}


def test_a_ledger_that_was_altered_is_noticed(run: Run, out: Path) -> None:
    with np.load(run.path / "ledger.npz", allow_pickle=False) as arrays:
        owner, is_member = arrays["owner"], arrays["is_member"].copy()
    is_member[np.flatnonzero(owner == 0)[0]] ^= True
    np.savez(run.path / "ledger.npz", owner=owner, is_member=is_member)
    found = verify_card(out)
    assert {"truth", "audits/one-run", "audits/server-reconstruct"} <= places(found)


def test_a_truth_that_was_altered_everywhere_is_noticed_by_its_sealed_hash(
    run: Run, out: Path
) -> None:
    """Ledger, header, scores and numbers agree with one another, not with the card."""
    make_small(run, members=80)
    assert {"truth/sealed", f"{LOSS}/auroc/value"} <= places(verify_card(out, run))


def test_a_transcript_that_was_altered_is_noticed(run: Run, out: Path) -> None:
    shard = run.path / "transcript" / "round-0001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(bytes(content))
    found = verify_card(out)
    assert places(found) == {"sent"}
    assert "Round 1" in found.mismatches[0].why or "altered" in found.mismatches[0].why


def test_a_transcript_that_was_cut_is_noticed(run: Run, out: Path) -> None:
    manifest = run.path / "transcript" / "manifest.jsonl"
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:-1]))
    assert places(verify_card(out)) == {"sent"}


def test_recorded_numbers_that_were_altered_are_noticed(run: Run, out: Path) -> None:
    def more_use(content: Any) -> None:
        content["utility"]["local"]["value"] += 0.01

    def less_claimed(content: Any) -> None:
        content["claimed"]["epsilon"] = 0.1

    def threads(content: Any) -> None:
        content["threads"] += 1

    edit(run.path / "audits" / "one-run" / "audit.json", more_use)
    edit(run.path / "privacy.json", less_claimed)
    edit(run.path / "run.json", threads)
    assert places(verify_card(out)) == {
        "audits/one-run/utility/local/value",
        "privacy/claimed/epsilon",
        "run/threads",
    }


def test_a_privacy_record_that_was_altered_with_its_hash_is_noticed(
    run: Run, out: Path
) -> None:
    def claim(content: Any) -> None:
        content["claimed"]["epsilon"] = 0.1

    edit(run.path / "privacy.json", claim)
    assert places(verify_card(out)) == {"privacy/claimed/epsilon"}


def test_without_its_key_sealed_hashes_cannot_be_checked(run: Run, out: Path) -> None:
    (run.path / "card.key").unlink()
    found = verify_card(out)
    assert "truth" in places(found)
    assert "card.key" in found.mismatches[0].why
    (run.path / "card.key").write_text("no key")
    assert not verify_card(out).matches


def test_a_copy_of_the_run_is_as_good(run: Run, out: Path, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "elsewhere" / "copy")
    shutil.rmtree(run.path)
    assert verify_card(out, runs=tmp_path / "elsewhere").matches
    with pytest.raises(MissingFileError, match="No run in"):
        verify_card(out)


def test_played_anew_an_audit_gives_the_same(run: Run, out: Path) -> None:
    found = verify_card(out, again=True)
    assert found.matches
    assert 0 < found.on_trust < verify_card(out).on_trust
    counts = {one.scenario: one.scores for one in found.replayed}
    assert set(counts) == {"curious-peer", "one-run", "server-reconstruct"}
    assert counts["one-run"] == 2 * 539  # of its own attack, and as black-box-labels
    assert all(one.largest <= 1e-5 for one in found.replayed)


def test_an_audit_that_was_made_up_is_noticed_when_played_anew(
    run: Run, tmp_path: Path
) -> None:
    """Scores, numbers and card agree with one another, and no attack gives them."""
    for name in ("curious-peer", "server-reconstruct"):
        shutil.rmtree(run.path / "audits" / name)
    sign_again(run.path)
    audit = Auditor(run).attack("one-run")
    (client, *_) = audit.headline.clients
    client.scores[client.scores.argmax()] += 1e-3  # which stays the highest
    save_audit(audit)

    def less_leak(content: Any) -> None:
        from privaudit.auditing.attack_result import evaluate_scores

        leak = audit.headline
        texts = leak.attack, leak.settings, leak.threshold
        content["leaks"][leak.attack] = evaluate_scores(*texts, leak.clients).to_dict()
        content["utility"]["mix"]["value"] -= 0.001

    edit(run.path / "audits" / "one-run" / "audit.json", less_leak)
    out = export_public(run, tmp_path / "out").folder
    assert verify_card(out).matches
    found = verify_card(out, again=True)
    assert not found.matches
    (one,) = found.replayed
    assert len(one.why) == 2
    assert one.why[0].startswith("loss-threshold: a score differs by 0.001")
    assert one.why[1] == "audits/one-run/utility comes out otherwise"


def test_the_commands_say_so_with_exit_codes_0_1_and_2(
    run: Run, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "out"
    code, text, warning = cli("export", run.name, "--public", out)
    assert code == 0
    assert "0 unknown keys" in text
    assert "small enough to be guessed" in warning
    code, text, _ = cli("verify", out)
    assert code == 0
    assert "does not differ from" in text  # and not "matches", since some is on trust
    assert "matches" not in text
    assert "taken on trust. Who signed: the training your own key (" in text
    card = (out / "card.json").read_text()
    (out / "card.json").write_text(card.replace("0.95,", "0.94,", 1))
    code, text, _ = cli("verify", out)
    assert code == 1
    assert "the card says 0.94, the run gives 0.95" in text
    assert "does NOT match" in text
    other = train("zero-shot", rounds=1, clients=2)
    (out / "card.json").write_text(card)
    code, text, _ = cli("verify", out, other.name)
    assert code == 1
    assert "run/progress/head: the card says" in text
    for bad in (tmp_path / "none", run.path / "run.json", run.path / "ledger.npz"):
        code, _, error = cli("verify", bad)
        assert code == 2
        assert error.startswith("privaudit: ")
    assert cli("verify", out, "--runs", tmp_path)[0] == 2
