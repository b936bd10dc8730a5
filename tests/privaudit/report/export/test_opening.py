"""A session of owner and auditor: what each can still forge, every line of docs' table."""

import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, train
from privaudit.auditing.attack_result import evaluate_scores
from privaudit.auditing.audit_log import make_plan, write_plan
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditError,
    TranscriptError,
    TrustError,
)
from privaudit.core.seeds import Seeds
from privaudit.core.signing import SECRET, own_key, public_half, seal, trust_key
from privaudit.datasets.split import Split
from privaudit.evaluation.card import read_card
from privaudit.privacy.events import MechanismEvent
from privaudit.report.export import (
    Verification,
    export_public,
    recompute_run,
    verify_as_auditor,
    verify_card,
    write_opening,
)
from privaudit.report.export.opening import OpenedRun, check_opened
from privaudit.report.export.verify import leaves
from privaudit.runs.ledger import Ledger
from privaudit.runs.session import (
    _secret,
    answer_session,
    commit,
    offer_session,
    read_session,
    seal_session,
)
from tests.altered_cards import other_value, put
from tests.altered_runs import sign_again
from tests.conftest import Cli, common_cache

CONFIG: dict[str, Any] = {"rounds": 1, "clients": 2}
EPOCHS = {"epochs": 1}
ASKED = {"attacks": [], "clients": "all", "shadows": 0, "budget": None, "seed": 0}
PLANNED = ("black-box-labels", "one-run")


Change = tuple[str, Callable[[], dict[str, Any]]]


@dataclass(frozen=True)
class Parties:
    """A folder with an owner's things, an auditor's, and what lies between them."""

    folder: Path

    @property
    def session(self) -> Path:
        return self.folder / "session.json"

    @property
    def run(self) -> Run:
        return Run(self.folder / "joint")

    @contextmanager
    def _keys(self, party: str, secret: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PRIVAUDIT_KEYS", str(self.folder / party))
            patch.setenv(SECRET, 64 * secret)
            yield

    def owner(self) -> AbstractContextManager[None]:
        return self._keys("owner", "3")

    def auditor(self) -> AbstractContextManager[None]:
        return self._keys("auditor", "4")

    def offer(self, session: Path | None = None) -> Path:
        with self.owner():
            plan, path = self.folder / "plan.json", session or self.session
            offer_session(path, "promptfl", EPOCHS, plan, **CONFIG)
        return path

    def answer(self, session: Path | None = None) -> Any:
        with self.auditor():
            return answer_session(session or self.session)

    def train(self, name: str = "joint") -> Run:
        with self.owner():
            return train(
                "promptfl", folder=self.folder, name=name, settings=EPOCHS,
                session=self.session, plan=self.folder / "plan.json", **CONFIG,
            )  # fmt: skip

    def audit(self) -> None:
        with self.owner():
            for scenario in PLANNED:
                save_audit(Auditor(self.run).attack(scenario, shadows=0))

    def show(self, **said: Any) -> Verification:
        """Export a card and an opening, and check them as the auditor."""
        with self.owner():
            shutil.rmtree(self.folder / "card", ignore_errors=True)
            export_public(self.run, self.folder / "card", **said)
            write_opening(self.run, self.folder / "opening.json")
        return self.check()

    def check(self) -> Verification:
        with self.auditor():
            return verify_as_auditor(self.folder / "card", self.folder / "opening.json")

    def cheat(self, **fields: Any) -> None:
        """Sign a run as it now lies there, as its owner can."""
        with self.owner():
            sign_again(self.run.path, **fields)


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session that was played honestly, until the auditor has all."""
    parties = Parties(tmp_path_factory.mktemp("parties"))
    with parties.owner():
        owner = public_half(own_key())
    with parties.auditor():
        trust_key(owner, "owner")
        auditor = public_half(own_key())
    with parties.owner():
        trust_key(auditor, "auditor")
        plan = make_plan(dict.fromkeys(PLANNED, ASKED), {})
        write_plan(plan, parties.folder / "plan.json")
    with common_cache(tmp_path_factory):
        parties.offer()
        parties.answer()
        parties.train()
        parties.answer()
        parties.audit()
        parties.show()
    return parties.folder


@pytest.fixture
def parties(played: Path, tmp_path: Path) -> Iterator[Parties]:
    """A copy, for a test that has the owner's keys where it says nothing else."""
    copied = Parties(shutil.copytree(played, tmp_path / "parties"))
    with copied.owner():
        yield copied


def places(found: Verification) -> set[str]:
    assert not found.matches
    return {one.entry for one in found.mismatches}


def flip(path: Path, number: int = 0) -> str:
    """Make a candidate a member, or none if it was one, and return the ledger's hash."""
    ledger = Ledger.load(path / "ledger.npz")
    is_member = ledger.is_member.copy()
    is_member[np.flatnonzero(ledger.owner == 0)[number]] ^= True
    other = replace(ledger, is_member=is_member)
    (path / "ledger.npz").write_bytes(other.to_bytes())
    return other.hash


def test_an_honest_session_is_recomputed_without_a_record_or_a_weight(
    parties: Parties,
) -> None:
    found = parties.check()
    assert found.matches, (found.mismatches, found.check.mismatches)
    assert isinstance(found.run, OpenedRun)
    names = {p.name for p in found.run.path.rglob("*") if p.is_file()}
    assert not any(n.endswith(".safetensors") or n == "run.key" for n in names)
    said = " ".join(found.check.recomputed)
    assert "the coins of 539 candidates" in said
    assert f"bound on epsilon and verdict of {', '.join(PLANNED)}" in said
    assert "session 1 of 1" in said
    subjects = read_card(parties.folder / "card").statement.subject
    assert "session-1" in {one.name for one in subjects}
    assert verify_card(parties.folder / "card", parties.run).matches


def test_the_coins_of_a_session_come_out_again_where_the_run_is_trained_again(
    parties: Parties,
) -> None:
    assert recompute_run(parties.run).matches


def test_the_commands_play_a_session(
    parties: Parties, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parties.folder)
    for name in ("joint", "card"):
        shutil.rmtree(name)
    shutil.rmtree("auditor/sessions")
    Path("session.json").unlink()
    training: tuple[object, ...] = (
        "train", "--rounds", 1, "--clients", 2, "--set", "epochs=1", "--name", "joint",
        "--runs", ".", "--session", "session.json",
    )  # fmt: skip
    assert "without a plan of audits" in cli.refused(*training)
    training += ("--plan", "plan.json")
    assert "without the auditor" in cli.refused(*training, "--seed", 1)
    assert "train them one by one" in cli.refused(*training, "--trainings", 2)
    assert "Send it to your auditor" in cli.done(*training)
    assert "has no answer yet" in cli.refused(*training)
    with parties.auditor():
        assert "answered: send" in cli.done("key", "answer", "session.json")
    cli.done(*training)
    with parties.auditor():
        assert "its run is sealed" in cli.done("key", "answer", "session.json")
    cli.done("attack", "joint", "--planned", "--runs", ".")
    exported = ("export", "joint", "--public", "card", "--runs", ".")
    cli.done(*exported, "--opening", "opening.json")
    with parties.auditor():
        text = cli.done("verify", "card", "--as-auditor", "opening.json")
        assert "from the secrets of both parties" in text
        both = ("verify", "card", "joint", "--as-auditor", "opening.json")
        assert "takes the place of the run" in cli.refused(*both)
    said = cli.refused("verify", "card", "--as-auditor", "opening.json")
    assert "answered with this key" in said
    zero = train("zero-shot", folder=parties.folder, name="zero", **CONFIG)
    with pytest.raises(ConfigError, match="without an auditor"):
        write_opening(zero, parties.folder / "none.json")
    cli.refused("export", "zero", "--public", "spent", *exported[4:], "--opening", "o")
    assert not Path("spent").exists()  # nor a number noted


# What the owner does.


def test_coins_that_are_chosen_after_the_answer_are_noticed(parties: Parties) -> None:
    parties.cheat(ledger_hash=flip(parties.run.path))
    for scenario in PLANNED:
        shutil.rmtree(parties.run.path / "audits" / scenario)
    parties.cheat()
    parties.audit()
    found = parties.show(budget=4.0)
    assert {"session/coins", "session/seal"} <= places(found)


def test_another_secret_than_the_one_committed_to_is_noticed(parties: Parties) -> None:
    (parties.run.path / "kept/session.key").write_bytes(bytes(32))
    parties.cheat()
    assert "session/commitment" in places(parties.show())


def test_other_data_owners_or_plans_than_before_the_coin_are_noticed(
    parties: Parties,
) -> None:
    for fields in ({"data_hash": 64 * "0"}, {"model_hash": 64 * "0"}):
        before = {name: parties.run.header[name] for name in fields}
        parties.cheat(**fields)
        assert "session/commitment" in places(parties.show())
        parties.cheat(**before)
    assert parties.show().matches
    with pytest.raises(ConfigError, match="another session"):
        train(
            "promptfl", folder=parties.folder, name="other", settings={"epochs": 2},
            session=parties.session, plan=parties.folder / "plan.json", **CONFIG,
        )  # fmt: skip


def test_a_session_is_answered_once_and_all_are_counted(parties: Parties) -> None:
    first = parties.answer()
    parties.session.write_bytes(replace_answer(first, None))
    assert parties.answer().answer == first.answer
    for number in (2, 3):
        later = parties.offer(parties.folder / f"later-{number}.json")
        assert parties.answer(later).answer.number == number
    said = " ".join(parties.check().check.recomputed)
    assert "session 1 of 3 that the owner began here, 2 of them without" in said


def replace_answer(session: Any, answer: Any) -> bytes:
    changed = session.model_copy(update={"answer": answer, "seal": None})
    return bytes(changed.to_bytes())


def test_an_answer_that_the_auditor_did_not_give_is_noticed(parties: Parties) -> None:
    """The owner answers as an auditor of their own, and trains with that."""
    mine = parties.offer(parties.folder / "mine.json")
    forged = answer_session(mine)
    with parties.auditor(), pytest.raises(TranscriptError, match="none was given here"):
        answer_session(mine)
    session = parties.answer()
    parties.session.write_bytes(replace_answer(session, forged.answer))
    with pytest.raises(TranscriptError, match="parts of several"):
        read_session(parties.session)


@pytest.mark.parametrize("is_left_out", [True, False])
def test_a_planned_audit_that_is_dropped_is_noticed(
    parties: Parties, is_left_out: bool
) -> None:
    if is_left_out:  # of the card alone
        found = parties.show(scenarios=PLANNED[:1])
    else:  # and of run and log
        shutil.rmtree(parties.run.path / "audits" / PLANNED[1])
        parties.cheat()
        found = parties.show()
    assert f"audits/{PLANNED[1]}" in places(found)


def test_a_log_is_no_shorter_than_it_was_opened_before(parties: Parties) -> None:
    save_audit(Auditor(parties.run).attack("curious-peer", shadows=0))
    assert parties.show().matches
    log = parties.run.path / "audits/log.jsonl"
    kept = b"".join(log.read_bytes().splitlines(keepends=True)[:2])
    shutil.rmtree(parties.run.path / "audits/curious-peer")
    log.write_bytes(kept)
    shutil.rmtree(parties.folder / "owner/audited")  # the owner's own witness
    parties.cheat()
    found = parties.show()
    assert "was put back to an earlier state" in str(found.mismatches)


def test_another_model_than_the_sealed_one_is_noticed(parties: Parties) -> None:
    (parties.run.path / "kept/personal.safetensors").write_bytes(b"another")
    parties.cheat()
    assert "session/seal" in places(parties.show())
    with parties.auditor():
        noted = read_session(parties.session)
    unsealed = noted.model_copy(update={"seal": None})
    parties.session.write_bytes(unsealed.to_bytes())
    with pytest.raises(ConfigError, match="was audited before"):
        seal_session(parties.session, parties.run)
    other = parties.train("other")  # of the same coins; who is sealed first counts
    assert other.truth.hash == parties.run.truth.hash
    with parties.auditor(), pytest.raises(TranscriptError, match="counts"):
        answer_session(parties.session)


def test_a_run_that_was_never_sealed_is_noticed(parties: Parties) -> None:
    with parties.auditor():
        noted = read_session(read_session(parties.session).note)
        noted.note.write_bytes(noted.model_copy(update={"seal": None}).to_bytes())
    assert places(parties.check()) == {"session/seal"}


def test_mechanisms_that_the_rounds_do_not_list_are_noticed(parties: Parties) -> None:
    event = MechanismEvent("global", 1.0, 1.0, 1.0, 1.0, "poisson", "server", 2)
    place = parties.run.path / "privacy.json"
    record = json.loads(place.read_text())
    record["mechanisms"] = [{**event.to_json(), "rounds": [0]}]
    place.write_text(json.dumps(record))
    parties.cheat()
    assert "privacy/mechanisms" in places(parties.show())


def test_scores_that_no_attack_gave_are_on_trust_until_it_is_made_again(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("joint/audits", "owner/audited", "auditor/audited"):
        shutil.rmtree(parties.folder / place)
    parties.cheat()
    rng = np.random.default_rng(0)

    def invented(
        attack: str,
        settings: str,
        threshold: str,
        clients: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        turned = [replace(c, scores=rng.permutation(c.scores)) for c in clients]
        return evaluate_scores(attack, settings, threshold, turned, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr("privaudit.auditing.played_scenario.evaluate_scores", invented)
        parties.audit()
    found = parties.show(budget=4.0)
    assert found.matches, found.mismatches
    assert any("those of the attacks" in one for one in parties.check().check.trusted)
    found = verify_card(parties.folder / "card", parties.run, again=True)
    assert not found.matches


def test_members_that_were_not_trained_on_are_on_trust_until_it_is_trained_again(
    parties: Parties, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on all others than the coins say, with the ledger of the coins."""
    second = parties.folder / "second.json"
    parties.answer(parties.offer(second))
    shutil.move(second, parties.session)
    shutil.rmtree(parties.run.path)
    toss = Ledger.toss

    def turned(split: Any, seeds: Any) -> Ledger:
        ledger = toss(split, seeds)
        return replace(ledger, is_member=(split.owner >= 0) & ~ledger.is_member)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "toss", turned)
        parties.train()
    ledger = parties.run.truth
    honest = replace(ledger, is_member=(ledger.owner >= 0) & ~ledger.is_member)
    (parties.run.path / "ledger.npz").write_bytes(honest.to_bytes())
    parties.cheat(ledger_hash=honest.hash)
    session = read_session(parties.session).model_copy(update={"seal": None})
    parties.session.write_bytes(session.to_bytes())
    seal_session(parties.session, parties.run)
    parties.answer()
    parties.audit()
    assert parties.show().matches
    assert "message" in recompute_run(parties.run).difference


# What the auditor, and others, do.


def test_no_answer_chooses_the_coins(parties: Parties) -> None:
    """Of 200 answers, made knowing the offer: as fair as any, and none tells them."""
    with parties.auditor():
        session = read_session(parties.session)
    secret = (parties.run.path / "kept/session.key").read_bytes()
    truth = parties.run.truth
    owned, split, shares = truth.owner >= 0, Split(truth.owner), []
    for number in range(200):
        answer = session.answered.model_copy(update={"secret": f"{number:064x}"})
        other = session.model_copy(update={"answer": answer})
        ledger = Ledger.toss(split, Seeds.of_key(other.coin_key(secret)))
        shares.append(ledger.is_member[owned].mean())
    standard_error = 0.5 / (200 * owned.sum()) ** 0.5
    assert abs(np.mean(shares) - 0.5) < 4 * standard_error
    assert len(set(shares)) > 20
    assert session.coin_key(bytes(32)) != session.coin_key(secret)


def test_before_the_opening_nothing_tells_an_auditor_the_owner_s_secret(
    parties: Parties,
) -> None:
    with parties.auditor():
        offer = read_session(parties.session).offer
        assert commit(_secret(offer.nonce), offer.design) != offer.commitment
    secret = (parties.run.path / "kept/session.key").read_bytes()
    assert commit(secret, offer.design) == offer.commitment
    assert secret.hex() not in parties.session.read_text()


def test_who_is_not_the_auditor_opens_nothing(
    parties: Parties, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PRIVAUDIT_KEYS", str(tmp_path / "third"))
    with pytest.raises(MissingFileError, match="answered with this key"):
        verify_as_auditor(parties.folder / "card", parties.folder / "opening.json")
    shutil.copytree(parties.folder / "auditor/sessions", tmp_path / "third/sessions")
    with pytest.raises(TrustError, match="your key does not open it"):
        verify_as_auditor(parties.folder / "card", parties.folder / "opening.json")


@pytest.mark.parametrize(
    "name",
    ["../owner.key", "joint/../../owner.key", "joint/audits/../audit.json", "a/b", ""],
)
def test_an_opening_writes_nothing_but_a_run_s_files(
    parties: Parties, name: str
) -> None:
    """Anybody can seal something for an auditor."""
    buffer, path = io.BytesIO(), parties.folder / "opening.json"
    held: dict[str, Any] = {name: np.zeros(3, np.uint8)}
    np.savez(buffer, **held)
    with parties.auditor():
        session = read_session(parties.session)
    about = session.offer.commitment
    purpose = f"privaudit opening of session {about}"
    sealed = seal(buffer.getvalue(), session.answered.key, purpose)
    path.write_bytes(about.encode() + sealed)
    with parties.auditor(), pytest.raises(PrivauditError):
        verify_as_auditor(parties.folder / "card", path)
    assert not (parties.folder / "auditor/owner.key").exists()


def test_any_field_of_a_session_that_somebody_changes_is_noticed(
    parties: Parties,
) -> None:
    whole = json.loads(parties.session.read_text())
    for place, value in leaves(whole).items():
        forged = put(json.loads(json.dumps(whole)), place, other_value(value))
        parties.session.write_text(json.dumps(forged))
        with parties.auditor(), pytest.raises(PrivauditError):
            answer_session(parties.session)
    assert len(leaves(whole)) >= 15


def test_the_card_of_another_session_is_noticed(parties: Parties) -> None:
    earlier = shutil.copytree(parties.folder / "card", parties.folder / "earlier")
    shutil.move(parties.run.path, parties.folder / "was")
    second = parties.folder / "second.json"
    parties.answer(parties.offer(second))
    shutil.move(second, parties.session)
    parties.train()
    parties.answer()
    parties.audit()
    assert parties.show().matches
    shutil.rmtree(parties.folder / "card")
    shutil.move(earlier, parties.folder / "card")
    assert {"subject/session-1", "subject/session-2"} <= places(parties.check())


def json_changes(path: Path, each: int, but: tuple[str, ...] = ()) -> Iterator[Change]:
    """Yield every so many fields of a file of JSON, with what puts another value there."""
    whole = json.loads(path.read_text())
    found = [one for one in leaves(whole).items() if not one[0].startswith(but)]
    for place, value in found[::each]:
        is_float = isinstance(value, float)
        other = (value / 2 or 0.5) if is_float else other_value(value)

        def change(place: str = place, other: Any = other) -> dict[str, Any]:
            forged = put(json.loads(json.dumps(whole)), place, other)
            path.write_text(json.dumps(forged))
            return {}

        yield f"{path.name}/{place}", change


def score_changes(path: Path) -> Iterator[Change]:
    """Yield the columns of all attacks, with what changes one entry."""
    with np.load(path, allow_pickle=False) as arrays:
        columns = dict(arrays)
    for name, values in columns.items():

        def change(name: str = name, values: Any = values) -> dict[str, Any]:
            other = values.copy()
            at = (len(other) // 2,) + (0,) * (other.ndim - 1)
            is_bool = other.dtype == bool
            other[at] = ~other[at] if is_bool else other_value(other[at].item())
            np.savez(path, allow_pickle=False, **{**columns, name: other})
            return {}

        yield f"scores.npz/{name}", change


def run_changes(folder: Path) -> Iterator[Change]:
    for number in range(0, 80, 10):

        def change(number: int = number) -> dict[str, Any]:
            return {"ledger_hash": flip(folder, number)}

        yield f"ledger.npz/{number}", change
    yield from json_changes(
        folder / "run.json", 4, ("signature", "added", "files", "counts_audits")
    )
    yield from json_changes(folder / "audits/one-run/audit.json", 4)
    yield from score_changes(folder / "audits/one-run/scores.npz")


ON_TRUST = re.compile(
    r"audit\.json/(utility/|config/|question|attack_results/[^/]*/(attack|settings|"
    r"threshold|verdict/(margin|tail_margin|fpr)))|scores\.npz/class names"
)
"""Words, margins, and what scores and coins do not give."""


@pytest.mark.slow
def test_what_becomes_of_each_field_that_somebody_or_the_owner_changes(
    parties: Parties,
) -> None:
    """Of ledger, run, audit and scores in turn: as they are, and signed by the owner."""
    with parties.auditor():
        noted = read_session(read_session(parties.session).note)
    opened, card = parties.check().run.path, read_card(parties.folder / "card")
    whole = shutil.copytree(opened, parties.folder / "whole")
    counts, passed = Counter[str](), set[str]()

    def matches() -> bool:
        with parties.auditor():
            try:
                return check_opened(card, OpenedRun(opened), noted).matches
            except PrivauditError:
                return False

    for place, change in run_changes(opened):
        fields = change()
        assert not matches(), place
        try:
            sign_again(opened, **fields)
            if matches():
                passed.add(place)
        except (PrivauditError, ValueError, KeyError, TypeError):
            counts["refused"] += 1
        counts["changed"] += 1
        shutil.rmtree(opened)
        shutil.copytree(whole, opened)
    assert counts["changed"] >= 100
    assert {place for place in passed if not ON_TRUST.match(place)} == set()
