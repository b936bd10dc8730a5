"""A card by itself: what an outsider's or its owner's change of one field comes to."""

import base64
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from privaudit import Run
from privaudit.core.errors import ConfigError, PrivauditError, TrustError
from privaudit.core.signing import SECRET, Envelope, own_key, public_half
from privaudit.core.storage import file_hash
from privaudit.evaluation.card import CARD, PREDICATE, Statement, read_card
from privaudit.report.export import check_card, export_public, verify_card
from privaudit.report.export.verify import leaves
from tests.altered_cards import (
    alter_card,
    other_value,
    put,
    sign_statement,
    statement_in,
)
from tests.conftest import Cli
from tests.places import ROOT
from tests.privaudit.core.test_lazy_torch import HEAVY, without

SCHEMA = ROOT / "docs" / "card.schema.json"


@pytest.fixture
def out(run: Run, tmp_path: Path) -> Path:
    return export_public(run, tmp_path / "out", release="api").folder


@pytest.fixture
def certified(private: Path, tmp_path: Path) -> Path:
    return shutil.copytree(private, tmp_path / "certified")


def accepts(card: Path) -> bool:
    try:
        return check_card(read_card(card)).matches
    except PrivauditError:
        return False


def test_a_card_is_an_in_toto_statement_of_its_schema(run: Run, out: Path) -> None:
    said = statement_in(out)
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == PREDICATE
    digests = {one["name"]: one["digest"] for one in said["subject"]}
    model = file_hash(run.path / "kept" / "personal.safetensors")
    assert digests["personal-models"] == {"sha256": model}
    assert set(digests) == {"transcript", "personal-models", "privaudit", "environment"}
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema |= Statement.model_json_schema(by_alias=True)
    assert schema == json.loads(SCHEMA.read_text())
    Draft202012Validator(schema).validate(said)


def test_its_signature_is_of_the_envelope_s_standard(out: Path) -> None:
    """By hand, without this package: the key, and DSSE's encoding."""
    envelope = json.loads((out / CARD).read_text())
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    signed = b" ".join(
        [b"DSSEv1", b"%d" % len(kind), kind, b"%d" % len(payload), payload]
    )
    (signature,) = envelope["signatures"]
    own_key().public_key().verify(base64.b64decode(signature["sig"]), signed)
    assert signature["keyid"] == public_half(own_key())


@pytest.mark.slow
def test_no_change_by_somebody_without_the_key_is_accepted(
    out: Path, certified: Path
) -> None:
    """Of every field of the statement and of the envelope, in turn."""
    count = 0
    for card in (out, certified):
        text = (card / CARD).read_text()
        for place, value in leaves(statement_in(card)).items():
            forged = put(statement_in(card), place, other_value(value))
            payload = json.dumps(forged, sort_keys=True, separators=(",", ":")).encode()
            envelope = json.loads(text)
            envelope["payload"] = base64.b64encode(payload).decode()
            (card / CARD).write_text(json.dumps(envelope))
            assert not accepts(card), place
            count += 1
        for place, value in leaves(json.loads(text)).items():
            forged = put(json.loads(text), place, other_value(value))
            (card / CARD).write_text(json.dumps(forged))
            assert not accepts(card), place
            count += 1
        (card / CARD).write_text(text)
        assert accepts(card)
    assert count >= 200


TRUSTED = (
    "subject/", "predicate/privaudit", "predicate/made", "predicate/release",
    "predicate/design/", "predicate/training/", "predicate/utility/",
    "predicate/computed/", "predicate/commitments/", "predicate/privacy/claimed/",
    "predicate/audits/NAME/threat", "predicate/audits/NAME/headline",
    "predicate/audits/NAME/settings", "predicate/audits/NAME/attacks/",
    "predicate/audits/NAME/unnamed", "predicate/audits/NAME/audits",
    "predicate/audits/NAME/planned", "predicate/audits/NAME/scores",
    "predicate/audits/NAME/auroc/candidates",
    "predicate/privacy/mechanisms/0/clip_norm",  # noise is in units of it
    "predicate/privacy/mechanisms/1/clip_norm",
    "predicate/privacy/certified/VIEW/randomness",
    "predicate/privacy/certified/VIEW/accountant",
)  # fmt: skip
SMALL = ("scale", "values", "delta", "noise_sd", "null_sd", "parties", "per_record")
"""What moves no recomputed number, or one by less than two accountants may differ."""


def halved(value: Any) -> Any:
    return value / 2 if isinstance(value, float) else other_value(value)


def generic(place: str) -> str:
    parts = place.split("/")
    if parts[1:2] == ["audits"]:
        parts[2] = "NAME"
    if parts[1:3] == ["privacy", "certified"]:
        parts[3] = "VIEW"
    return "/".join(parts)


@pytest.mark.slow
def test_what_the_owner_changes_is_noticed_where_the_table_promises_it(
    out: Path, certified: Path
) -> None:
    """Signed again: what follows from other values is recomputed, the rest on trust."""
    verdicts = Counter[str]()
    for card in (out, certified):
        whole = statement_in(card)
        for place, value in leaves(whole).items():
            sign_statement(
                card,
                put(statement_in(card), place, halved(value)),
            )
            accepted = accepts(card)
            verdicts["accepted" if accepted else "noticed"] += 1
            if accepted:
                on_trust = generic(place).startswith(TRUSTED)
                assert on_trust or place.endswith(SMALL), place
            sign_statement(card, whole)
    assert verdicts.total() >= 200
    assert verdicts["noticed"] >= 60


@pytest.mark.parametrize(
    "change",
    [
        lambda card: card["privacy"]["certified"]["server"].update(epsilon=7.0),
        lambda card: card["privacy"]["certified"]["server"].update(unit="client"),
        lambda card: card["privacy"]["certified"]["peer"].update(
            adjacency="replace-one"
        ),
        lambda card: card["privacy"]["mechanisms"][0].update(noise_multiplier=0.1),
        lambda card: card["privacy"]["mechanisms"][0].update(rounds=[[0, 0]]),
        lambda card: card["privacy"]["mechanisms"][0].update(rounds=[[0, 5]]),
        lambda card: card["privacy"]["mechanisms"][0].update(noise_at="none"),
        lambda card: card["privacy"]["mechanisms"][0].update(steps=10**400),
        lambda card: card["privacy"]["mechanisms"][0].update(noise_multiplier=1e-320),
        lambda card: card["privacy"].update(mechanisms=[]),
        lambda card: card["training"].update(rounds=3),
    ],
)
def test_an_epsilon_that_the_mechanisms_do_not_give_is_noticed(
    certified: Path, change: Callable[[Any], Any]
) -> None:
    found = check_card(read_card(certified))
    assert found.matches
    assert sum("certified epsilon" in line for line in found.recomputed) == 4
    alter_card(certified, change)
    assert not check_card(read_card(certified)).matches


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda card: card["privacy"]["certified"]["server"].update(declared=8.0),
            "certified or declared",
        ),
        (
            lambda card: card["privacy"]["certified"]["server"].update(accountant=""),
            "certified by an accountant",
        ),
        (
            lambda card: card["privacy"]["mechanisms"][0].update(
                rounds=3 * [[0, 10**6]]
            ),
            "more than 2,000,000 events",
        ),
        (
            lambda card: card["privacy"]["mechanisms"][0].update(rounds=[[1, 0]]),
            "ends before it begins",
        ),
    ],
)
def test_what_is_certified_has_one_epsilon_and_its_accountant(
    certified: Path, change: Callable[[Any], Any], why: str
) -> None:
    alter_card(certified, change)
    with pytest.raises(ConfigError, match=why):
        read_card(certified)


def test_a_number_counts_in_the_ledger_and_among_its_audits(out: Path) -> None:
    def fewer(card: Any) -> None:
        card["ledger"].update(numbers=1, epsilon=1.0862)

    def alone(card: Any) -> None:
        card["audits"]["one-run"]["corrected_for"] = 1

    whole = statement_in(out)
    for change, why in ((fewer, "3 numbers are on it"), (alone, "an interval is at")):
        alter_card(out, change)
        with pytest.raises(ConfigError, match=why):
            read_card(out)
        sign_statement(out, whole)


def test_another_spelling_of_the_same_is_no_card(out: Path) -> None:
    statement = json.dumps(statement_in(out), indent=1).encode()
    (out / CARD).write_text(Envelope.of(statement).model_dump_json(by_alias=True))
    with pytest.raises(ConfigError, match="its text is not as a card is written"):
        read_card(out)


def test_a_key_that_did_not_sign_is_refused(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = public_half(own_key())
    assert check_card(read_card(out), [owner]).matches
    with pytest.raises(TrustError, match=f"and not by {64 * 'a'}"):
        check_card(read_card(out), [owner, 64 * "a"])
    monkeypatch.setenv(SECRET, 64 * "2")
    with pytest.raises(TrustError, match="not by a key that you trust"):
        check_card(read_card(out))
    assert check_card(read_card(out), [owner]).checked[0].startswith("signature of")


def test_a_countersignature_is_another_signature_of_the_same(
    out: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    owner, before = public_half(own_key()), statement_in(out)
    monkeypatch.setenv(SECRET, 64 * "2")
    for _ in range(2):  # once is as good as twice
        assert cli("key", "sign", out)[0] == 0
    auditor = public_half(own_key())
    signed = read_card(out)
    assert [one.keyid for one in signed.envelope.signatures] == [owner, auditor]
    assert statement_in(out) == before
    assert len(signed.signers([owner, auditor])) == 2
    assert (out / CARD).stat().st_mode & 0o777 == 0o644  # others read it


def test_who_signed_first_stays_first_and_no_more_sign_than_a_card_may_hold(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelope, secrets = read_card(out).envelope, [f"{n:064x}" for n in range(1, 21)]
    owner = envelope.signatures[0]
    for secret in secrets[:-1]:
        monkeypatch.setenv(SECRET, secret)
        envelope = envelope.countersigned()
    assert envelope.countersigned() is envelope
    assert envelope.signatures[0] == owner
    monkeypatch.setenv(SECRET, secrets[-1])
    with pytest.raises(ConfigError, match="20 keys have signed this"):
        envelope.countersigned()


def test_a_file_must_be_a_subject_if_it_is_named(run: Run, out: Path) -> None:
    model = run.path / "kept" / "personal.safetensors"
    found = check_card(read_card(out), files=[model])
    assert f"{model} is its subject personal-models" in found.checked
    found = check_card(read_card(out), files=[run.path / "ledger.npz"])
    assert [one.entry for one in found.mismatches] == ["subject"]


def test_a_released_file_is_a_subject(run: Run, tmp_path: Path) -> None:
    (tmp_path / "released.bin").write_bytes(b"weights")
    models = [tmp_path / "released.bin"]
    export_public(run, tmp_path / "out", models=models)
    found = check_card(read_card(tmp_path / "out"), files=models)
    assert any("subject model-1" in line for line in found.checked)
    assert verify_card(tmp_path / "out", run).matches


def test_a_stamp_of_another_file_is_noticed(out: Path) -> None:
    digest = bytes.fromhex(file_hash(out / CARD))
    stamp = out / f"{CARD}.tsr"
    stamp.write_bytes(b"\x30\x82" + digest + b"rest")
    bundle = {"messageDigest": {"digest": base64.b64encode(digest).decode()}}
    (out / f"{CARD}.sigstore.json").write_text(json.dumps(bundle))
    found = check_card(read_card(out))
    assert sum("is about this file" in line for line in found.checked) == 2
    assert sum("until openssl or cosign" in line for line in found.trusted) == 2
    stamp.write_bytes(b"\x30\x82" + bytes(32))
    assert not check_card(read_card(out)).matches


@pytest.mark.slow
def test_an_officer_without_torch_or_the_run_checks_a_card(
    certified: Path, tmp_path: Path
) -> None:
    (tmp_path / "owner.pub").write_text(public_half(own_key()))
    other = shutil.copytree(certified, tmp_path / "other")
    alter_card(other, lambda card: card["privacy"].update(mechanisms=[]))
    done = without(
        *HEAVY, "matplotlib", "PIL", folder=tmp_path,
        before=["verify certified --key owner.pub"], run="verify other --key owner.pub",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")  # the second's; the first's is 0
    assert "DOES NOT HOLD" in done.stdout
    for head in ("checked:", "recomputed:", "taken on trust:"):
        assert done.stdout.count(f"{head}\n") == 2


@pytest.mark.slow
def test_the_code_s_digest_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    """A wheel has folders where a clone has links, and compiled files besides."""
    shutil.copytree(ROOT / "privaudit", tmp_path / "privaudit")  # links as folders
    script = "from privaudit.report.export.export import code_digest as d; print(d())"
    found = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=place, capture_output=True, text=True
        ).stdout
        for place in (ROOT, tmp_path)
    }
    assert len(found) == 1
    assert len(found.pop()) == 65
