"""A part that only this file knows: computed, stored, read back and shown."""

import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from privaudit import Audit, Auditor, Run
from privaudit.auditing import parts
from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.played_scenario import (
    PARTS,
    AuditPart,
    PlayedScenario,
    audit_parts,
)
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.report.page import render_report
from privaudit.report.tables.table import print_table
from privaudit.statistics.estimate import Estimate, proportion
from tests.conftest import common_cache

NAME = "server-reconstruct"


@dataclass(frozen=True)
class MemberShare:
    """How many candidates are members."""

    share: Estimate
    by_client: Mapping[str, int]


def count_members(played: PlayedScenario) -> MemberShare:
    counts = {client: int(truth.sum()) for client, truth in played.truth.items()}
    total = sum(len(truth) for truth in played.truth.values())
    return MemberShare(proportion(sum(counts.values()), total), counts)


MEMBER_SHARE = AuditPart(
    "member_share",
    MemberShare | None,
    applies=lambda played: played.scenario.name == NAME,
    compute=count_members,
    nothing=None,
    title="Members among candidates",
)
AGAIN: AuditPart[Mapping[str, AttackResult]] = AuditPart(
    "again",
    Mapping[str, AttackResult],
    applies=lambda played: True,
    compute=lambda played: played.attack(played.scenario, played.targets[:1]),
    nothing={},
    title="The same on one client",
    scores="again/",
)


_ENTERED = {part.name: PARTS._entries.pop(part.name) for part in (MEMBER_SHARE, AGAIN)}


def enter(patch: pytest.MonkeyPatch) -> None:
    for name, part in _ENTERED.items():
        patch.setitem(PARTS._entries, name, part)


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the parts in the list in one test: other tests do not know them."""
    enter(monkeypatch)


def stored(folder: Path) -> tuple[Audit, Audit]:
    """Audit a run, and return what was found and what is read back."""
    audit = Auditor(Run(folder)).attack(NAME, shadows=0)
    save_audit(audit)
    return audit, restore_audit(read_audit(Run(folder), NAME))


@pytest.fixture(scope="module")
def audits(
    originals: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Audit, Audit]:
    """What is found, and what is read back, where the parts are in the list."""
    place = shutil.copytree(originals / "whole", tmp_path_factory.mktemp("runs") / "a")
    with pytest.MonkeyPatch.context() as patch, common_cache(tmp_path_factory):
        enter(patch)
        return stored(place)


@pytest.mark.usefixtures("entered")
def test_a_part_is_one_file(audits: tuple[Audit, Audit]) -> None:
    audit, again = audits
    found = audit.part(MEMBER_SHARE)
    assert found is not None
    assert sum(found.by_client.values()) == found.share.value * found.share.n[0]
    assert again.part(MEMBER_SHARE) == found
    assert again.to_dict() == audit.to_dict()
    page = unescape(render_report([again]))
    assert "<h2>Members among candidates</h2>" in page
    assert f"<td>share</td><td>{found.share}</td>" in page
    assert f"<td>by client client-0</td><td>{found.by_client['client-0']}</td>" in page
    console = Console(width=400, record=True, file=io.StringIO())
    print_table([again], console)
    assert f"Members among candidates: share {found.share}" in console.export_text()


@pytest.mark.usefixtures("entered")
def test_a_part_of_attacks_keeps_their_scores(audits: tuple[Audit, Audit]) -> None:
    audit, again = audits
    attack = audit.headline.attack
    kept = read_audit(audit.run, NAME)
    (one,) = kept.clients(f"again/{attack}")
    assert one.scores.tolist() == audit.part(AGAIN)[attack].clients[0].scores.tolist()
    assert again.part(AGAIN)[attack].auroc == audit.part(AGAIN)[attack].auroc
    assert f"{attack}</td><td>{audit.part(AGAIN)[attack].auroc}" in render_report(
        [audit]
    )


def test_a_part_says_which_numbers_and_what_of_records_pages_show(
    audits: tuple[Audit, Audit], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = replace(
        MEMBER_SHARE,
        numbers=lambda found: {"half of them": found.share},
        of_records=lambda found, picture: f"<p>the first: {picture(0)}</p>",
    )
    monkeypatch.setitem(PARTS._entries, chosen.name, PARTS._entries.pop(chosen.name))
    page = render_report([audits[0]], show_records=True)
    assert "<td>half of them</td>" in page
    assert "<td>by client" not in page
    assert "&lt;p&gt;the first: data:image/png" in page  # a text: Markup is HTML
    assert "the first:" not in render_report([audits[0]])


def test_audits_of_before_and_after_are_read(
    whole: Path, request: pytest.FixtureRequest
) -> None:
    audit, _ = stored(whole)
    assert "member_share" not in audit.to_dict()
    request.getfixturevalue("entered")
    again = restore_audit(read_audit(Run(whole), NAME))
    assert again.to_dict() == audit.to_dict()
    assert again.part(MEMBER_SHARE) is None
    assert "Members among candidates" not in render_report([again])


def test_each_file_holds_the_part_of_its_name() -> None:
    folder = Path(str(parts.__file__)).parent
    assert {path.stem for path in folder.glob("[!_]*.py")} == set(PARTS.names())
    first = ["rebuilt", "server_model", "rounds", "one_run"]
    assert [part.entry for part in audit_parts()][: len(first)] == first
