"""An epsilon of mechanisms that nothing here applied is declared, and no proof."""

import json
from dataclasses import replace

import pytest

from privaudit.federated.trainer import TRAINERS
from privaudit.privacy.certificate import (
    Certificate,
    certify,
    is_repeatable,
)
from privaudit.privacy.claim import Claim
from privaudit.privacy.events import MechanismEvent
from privaudit.privacy.privacy_record import declared_only, privacy_record
from privaudit.privacy.reconstruction_robustness import reconstruction_bounds
from privaudit.trainers.dp_promptfl import DPPromptFL

EVENT = MechanismEvent(
    release="upload", noise_multiplier=2.0, sensitivity=1.0, clip_norm=1.0,
    sampling_rate=1.0, sampling="fixed-batch", noise_at="client", parties=3,
)  # fmt: skip
CLAIM = Claim(8.0, 1e-5, "a formula")


def test_the_number_stays_and_is_no_epsilon() -> None:
    proved = certify([[EVENT]], "server", 1e-5)
    word = proved.as_declared()
    assert (word.epsilon, word.declared, word.stated) == (
        None, proved.epsilon, proved.stated,
    )  # fmt: skip
    assert str(word) == f"declared {proved}"
    assert word.accountant == ""
    assert Certificate.from_json(json.loads(json.dumps(word.to_json()))) == word
    assert word.as_declared() == word


def test_nothing_that_reads_epsilon_takes_it_for_a_proof() -> None:
    fields = replace(certify([[EVENT]], "server", 1e-5), randomness="seed")
    word = fields.as_declared().fields()
    assert not is_repeatable(word)
    assert reconstruction_bounds(word) is None


def test_a_certificate_of_our_own_has_no_new_field() -> None:
    proved = certify([[EVENT]], "server", 1e-5)
    assert "declared" not in proved.fields()
    assert "declared" not in proved.to_json()


def test_no_record_used_is_a_word_too_but_what_was_not_sent_is_none() -> None:
    nothing = Claim(0.0, 1e-5, "no record is used")
    for sends, server in ((True, None), (False, 0.0)):
        record = privacy_record(nothing, [[]], sends_updates=sends, declared=True)
        assert record["certified"]["server"]["epsilon"] == server
        assert record["certified"]["released"]["epsilon"] is None
        assert record["certified"]["released"]["declared"] == 0.0


def test_an_earlier_versions_record_is_read_as_declared() -> None:
    before = privacy_record(CLAIM, [[EVENT.to_json()]], sends_updates=True)
    now = privacy_record(CLAIM, [[EVENT.to_json()]], sends_updates=True, declared=True)
    assert declared_only(before) == now == declared_only(now)


class Theirs(DPPromptFL):
    """Inherits all, and stands elsewhere."""


@pytest.mark.parametrize(("made", "own"), [(DPPromptFL(), True), (Theirs(), False)])
def test_a_class_is_our_own_where_its_code_stands(made: object, own: bool) -> None:
    assert TRAINERS.is_own(made) == own


def test_every_built_in_trainer_is_our_own() -> None:
    for name in TRAINERS.names():
        if not TRAINERS.package_of(name):
            assert TRAINERS.is_own(TRAINERS.find(name)())
