import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError
from privaudit.report.export import Verification, export_public, verify_card
from privaudit.report.export.verify import leaves
from tests.altered_cards import (
    alter_card,
    other_value,
    put,
    sign_statement,
    statement_in,
)
from tests.altered_runs import sign_again
from tests.conftest import Cli


@pytest.fixture
def out(run: Run, tmp_path: Path) -> Path:
    return export_public(run, tmp_path / "out").folder


def places(found: Verification) -> set[str]:
    return {mismatch.entry for mismatch in found.mismatches}


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
        assert found.matches, found.mismatches
        assert found.run.path.resolve() == run.path.resolve()
        assert found.values > found.values - found.on_trust > 60


def test_any_value_that_its_owner_alters_is_noticed_with_the_run(
    run: Run, out: Path
) -> None:
    """Every one, in turn, signed again: by the card's own form or by its run."""
    whole, count, passed = statement_in(out), 0, []
    for place, value in leaves(whole).items():
        forged = put(statement_in(out), place, other_value(value))
        sign_statement(out, forged)
        try:
            if verify_card(out, run).matches:
                passed.append(place)
        except ConfigError as error:
            assert "no audit card" in str(error)  # noqa: PT017
            count += 1
        sign_statement(out, whole)
    assert 10 < count < len(leaves(whole)) - 30
    assert set(passed) <= ON_TRUST


ON_TRUST = {"predicate/made"} | {
    f"subject/{n}/{part}" for n in (2, 3) for part in ("name", "digest/sha256")
}  # the code and the environment


@pytest.mark.parametrize(
    "spoil",
    [
        lambda card: card.update(note="all is well"),
        lambda card: card.pop("ledger"),
        lambda card: card["audits"]["one-run"].update(verdict="no evidence, at all"),
        lambda card: card["audits"]["one-run"]["auroc"].update(value="0.5"),
        lambda card: card["audits"]["one-run"]["auroc"].update(high=0.5),
        lambda card: card["audits"]["one-run"]["auroc"].update(noise_sd=float("nan")),
        lambda card: card["audits"]["one-run"].update(settings="see /home/ann"),
        lambda card: card["audits"].update({"a scenario": card["audits"]["one-run"]}),
        lambda card: card["ledger"].update(epsilon=0.1),
        lambda card: card["training"].update(trainer="ours; see <script>"),
        lambda card: card.update(format=2),
        lambda card: card.update(format=True),
    ],
)
def test_what_a_card_cannot_say_is_no_card(
    out: Path, spoil: Callable[[Any], Any]
) -> None:
    alter_card(out, spoil)
    with pytest.raises(ConfigError, match="is no audit card"):
        verify_card(out)


def test_a_verdict_that_its_number_does_not_give_is_no_card(out: Path) -> None:
    def turn(card: Any) -> None:
        shown = card["audits"]["one-run"]
        shown["verdict"] = "leaks" if shown["verdict"] != "leaks" else "no evidence"

    alter_card(out, turn)
    with pytest.raises(ConfigError, match="its number says"):
        verify_card(out)


def test_a_card_of_the_first_format_is_said_to_give_members_away(out: Path) -> None:
    (out / "card.json").write_text(json.dumps({"card": {"format": 1}, "audits": {}}))
    with pytest.raises(ConfigError, match="publish it no longer"):
        verify_card(out)
    (out / "card.json").write_text(json.dumps({"format": 2, "audits": {}}))
    with pytest.raises(ConfigError, match="is a card of format 2, which nobody signed"):
        verify_card(out)


def test_scores_that_were_altered_are_noticed(run: Run, out: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["loss-threshold/scores"][:40] += 1

    edit_scores(run.path / "audits" / "one-run" / "scores.npz", change)
    found = places(verify_card(out))
    assert {"audits/one-run/scores", "audits/one-run"} <= found


def test_scores_that_give_the_same_numbers_are_noticed_by_their_commitment(
    run: Run, out: Path
) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["loss-threshold/scores"] *= 2

    edit_scores(run.path / "audits" / "one-run" / "scores.npz", change)
    assert places(verify_card(out)) == {"audits/one-run/scores"}


def test_a_ledger_that_was_altered_is_noticed(run: Run, out: Path) -> None:
    with np.load(run.path / "ledger.npz", allow_pickle=False) as arrays:
        owner, is_member = arrays["owner"], arrays["is_member"].copy()
    is_member[np.flatnonzero(owner == 0)[0]] ^= True
    np.savez(run.path / "ledger.npz", owner=owner, is_member=is_member)
    found = verify_card(out, Run(run.path))
    assert places(found) == {"run"}
    assert "is not the ledger that was trained on" in found.mismatches[0].why


def test_a_transcript_that_was_altered_or_cut_is_noticed(run: Run, out: Path) -> None:
    shard = run.path / "transcript" / "round-0001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(bytes(content))
    assert places(verify_card(out)) == {"run"}
    manifest = run.path / "transcript" / "manifest.jsonl"
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:-1]))
    assert places(verify_card(out)) == {"run"}


def test_recorded_numbers_that_were_altered_are_noticed(run: Run, out: Path) -> None:
    def more_use(content: Any) -> None:
        content["utility"]["local"]["value"] += 0.01

    def less_claimed(content: Any) -> None:
        content["claimed"]["epsilon"] = 0.1

    for path in run.path.glob("audits/*/audit.json"):
        edit(path, more_use)
    edit(run.path / "privacy.json", less_claimed)
    assert places(verify_card(out)) == {"utility/value", "privacy/claimed/epsilon"}


def test_without_its_secret_a_card_cannot_be_made_again(run: Run, out: Path) -> None:
    (run.path / "card.key").unlink()
    found = verify_card(out, run)
    assert places(found) == {"run"}
    assert "card.key" in found.mismatches[0].why
    (run.path / "card.key").write_text("no key")
    assert not verify_card(out, run).matches


def test_a_number_that_no_export_noted_is_noticed(run: Run, out: Path) -> None:
    def forget(content: Any) -> None:
        content["released"] = content["released"][1:]

    edit(run.path / "card.key", forget)
    (place,) = places(verify_card(out, run))
    assert place.startswith("audits/")


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

    def more_use(content: Any) -> None:
        content["utility"]["local"]["value"] += 0.003

    edit(run.path / "audits" / "one-run" / "audit.json", more_use)
    out = export_public(run, tmp_path / "out").folder
    assert verify_card(out).matches
    found = verify_card(out, again=True)
    assert not found.matches
    (one,) = found.replayed
    assert one.why[0].startswith("loss-threshold: a score differs by 0.001")
    assert one.why[1] == "utility comes out otherwise"


def test_the_commands_say_so_with_exit_codes_0_1_and_2(
    run: Run, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "out"
    text = cli.done("export", run.name, "--public", out)
    assert "Attacked together before writing: within chance." in text
    text = cli.done("verify", out)
    assert "does not differ from" in text  # and not "matches", since some is on trust
    assert "taken on trust. Who signed: the training your own key (" in text
    alter_card(out, lambda card: card["training"].update(rounds=7))
    code, text, _ = cli("verify", out)
    assert code == 1
    assert "training/rounds: the card says 7, the run gives 2" in text
    assert "does NOT match" in text
    other = train("zero-shot", rounds=1, clients=2, seed=0)
    code, text, _ = cli("verify", out, other.name)
    assert code == 1
    assert "commitments/transcript: the run's transcript is another" in text
    for bad in (tmp_path / "none", run.path / "run.json", run.path / "ledger.npz"):
        cli.refused("verify", bad)
    assert cli("verify", out, "--runs", tmp_path)[0] == 2


def test_errors_of_a_card_are_lines(out: Path) -> None:
    (out / "card.json").write_text("[" * 100_000)
    with pytest.raises(PrivauditError):
        verify_card(out)


def test_a_card_says_in_which_bits_it_was_computed(run: Run, out: Path) -> None:
    """Not on which processor, whose name is anybody's text."""
    said = statement_in(out)["predicate"]["computed"]
    assert {"training", "server-reconstruct", "one-run"} < set(said)
    assert set(said["training"]) == {"bits", "differing", "builds"}
    assert said["training"]["bits"] == run.header["computed"]["bits"]
    assert said["training"]["builds"] == run.header["computed"]["builds"]


def test_a_run_that_says_nothing_or_odd_versions_is_exported(
    run: Run, tmp_path: Path
) -> None:
    odd = {"torch": "Bob's <b>", "numpy": "2.4-тайна", "alice@host:member-10110": "2.1"}
    sign_again(run.path, computed={"bits": "native", "builds": odd})
    found = export_public(run.path, tmp_path / "out").card.computed
    assert found["training"].builds == {}
