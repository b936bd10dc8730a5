import io
import json
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from privaudit import Auditor, train
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.linkage_gain import LINKAGE_GAIN
from privaudit.auditing.stored_audit import save_audit
from privaudit.report.page import render_report
from privaudit.report.tables.parts import linkage_sentences
from privaudit.report.tables.table import print_table
from privaudit.scenarios.curious_peer import curious_peer


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Audit]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: Auditor(
            train(name, folder=folder, rounds=2, clients=4, epochs=2, seed=0)
        ).attack("curious-peer", shadows=5)
        for name in ("pfedmoap", "promptfl")
    }


def test_the_peer_attacks_all_others(audits: dict[str, Audit]) -> None:
    clients = [c.client for c in audits["pfedmoap"].headline.clients]
    assert clients == ["client-1", "client-2", "client-3"]
    assert audits["pfedmoap"].scenario.threat == "peer:client-0"
    other = curious_peer(peer="client-2")
    _, targets = Auditor(audits["promptfl"].run).prepare(other)
    assert [t.client for t in targets] == ["client-0", "client-1", "client-3"]


def test_an_audit_says_how_much_more_the_peer_learns_than_in_promptfl(
    audits: dict[str, Audit], tmp_path: Path
) -> None:
    audit = audits["pfedmoap"]
    found = audit.part(LINKAGE_GAIN)
    assert found is not None
    assert {"rmia", "loss-threshold", "lira"} <= set(found.auroc_difference)
    assert found.suspects == 6  # three others, two rounds
    assert found.linked_right_by_chance == pytest.approx(1 / 3)
    gain = audit.auroc.value - found.auroc_without.value
    assert found.headline.estimate.value == pytest.approx(gain)
    stored = json.loads((save_audit(audit, tmp_path) / "audit.json").read_text())
    estimate = stored["linking"]["auroc_difference"]["rmia"]["estimate"]
    assert estimate["value"] == pytest.approx(gain)


def test_terminal_and_page_say_it_in_one_sentence(audits: dict[str, Audit]) -> None:
    (said,) = linkage_sentences(audits["pfedmoap"])
    assert "6 anonymous prompts" in said
    assert "what a PromptFL client learns" in said
    assert said in unescape(render_report([audits["pfedmoap"]]))
    console = Console(width=200, record=True, file=io.StringIO())
    print_table([audits["pfedmoap"]], console)
    assert "anonymous prompts" in console.export_text()


def test_who_gets_averages_only_has_nothing_to_link(audits: dict[str, Audit]) -> None:
    audit = audits["promptfl"]
    assert audit.part(LINKAGE_GAIN) is None
    assert audit.to_dict()["linking"] is None
    assert linkage_sentences(audit) == []
    assert "Linkage." not in render_report([audit])
