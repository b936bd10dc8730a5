"""Words read off weights: counted by hand, and in audits of a recorded federation."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from privaudit import Auditor, load_run
from privaudit.auditing.audit import Audit
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from privaudit.report.page import render_report
from privaudit.runs.ledger import Coin, Ledger
from privaudit_labs.words.span_words import ReadTexts
from privaudit_labs.words.words import WORDS, judge
from tests.labs.words.test_span_words import CausalOwner, texts

USUAL = {1, 2}
TEXTS = [(1, 10, 11, 2), (1, 12, 2), (1, 10, 13, 2)]
MEMBERS = np.array([True, True, False])
CLIENTS, EACH, REFERENCE = 3, 10, 40
OWNER = np.array([n for n in range(CLIENTS) for _ in range(EACH)] + [PUBLIC] * REFERENCE
                 + [TEST] * 4)  # fmt: skip


def test_tokens_that_all_texts_hold_count_nowhere() -> None:
    read = ReadTexts(frozenset({1, 2, 10, 11}), frozenset({(1, 0), (12, 1), (40, 1)}))
    assert judge(read, TEXTS, MEMBERS, USUAL) == {
        "precision by rows of the table": (1.0, 0.5),
        "recall by rows of the table": (pytest.approx(2 / 3), 0.5),
        "precision by the span": (0.5, 0.0),
        "recall by the span": (pytest.approx(1 / 3), 0.0),
    }


def test_what_was_not_read_and_who_has_no_others_are_no_zeros() -> None:
    assert judge(ReadTexts(), TEXTS, MEMBERS, USUAL) == {}
    read = ReadTexts(frozenset({10}))
    assert judge(read, TEXTS, np.ones(3, bool), USUAL) == {}


class Silent(CausalOwner):
    """A client that sends what it received."""

    def local_update(
        self, received: Mapping[str, Tensor], positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        return dict(received)


def audited(place: Path, kind: type[CausalOwner]) -> Audit:
    owner, coin = kind(texts(len(OWNER), seed=1)), np.random.default_rng(3)
    is_member = (coin.random(len(OWNER)) < 0.5) & (OWNER >= 0)
    ledger = Ledger(OWNER, is_member, coin=Coin("seed", 3))
    model = owner.model()
    with Recorder(place, ledger=ledger) as recorder:
        for client in ledger.clients:
            recorder.broadcast(0, client, model)
            sent = owner.local_update(model, ledger.members_of(client), 0)
            recorder.update(0, client, sent)
        for client in ledger.clients:
            recorder.broadcast(1, client, model)
    with use_owner(owner):
        return Auditor(load_run(place)).attack("server-reconstruct", shadows=0)


def test_an_audit_says_which_words_were_members_and_keeps_it(tmp_path: Path) -> None:
    audit = audited(tmp_path / "run", CausalOwner)
    found = audit.part(WORDS)
    assert found is not None
    recall = found.tokens["recall by rows of the table"]
    assert recall.members.value > 0.95  # a row may move by less than its rounding
    assert recall.others.value < 0.3
    assert found.tokens["recall by the span"].members.value > 0.95
    assert found.texts is not None
    assert found.texts.members.value > 0.9 > 0.1 > found.texts.others.value
    save_audit(audit)
    again = restore_audit(read_audit(audit.run, "server-reconstruct"))
    assert again.part(WORDS) == found
    assert "Words read off weights" in render_report([audit])


def test_no_words_are_read_where_nothing_is_sent(tmp_path: Path) -> None:
    found = audited(tmp_path / "run", Silent).part(WORDS)
    assert found is not None
    assert found.tokens == {}
    assert found.texts is None or found.texts.members.value == 0
    assert sum(found.untold.values()) == CLIENTS
    assert WORDS.from_json(WORDS.to_json(found), {}) == found
