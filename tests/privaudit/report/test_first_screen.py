"""Five questions of an officer, answered before anything else."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from privaudit import Auditor, signals_of_logits
from privaudit.auditing.audit import Assurance, Audit, assure
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.auditing.shadow_budget import ShadowBudget
from privaudit.report.advice import advise
from privaudit.report.attack_strength import strength_of
from privaudit.report.ci_formats import gate_markdown
from privaudit.report.columns import audit_row
from privaudit.report.first_screen import FirstScreen, audited_on, card, first_screen
from privaudit.report.index import IndexEntry, write_index
from privaudit.report.page import render_report
from privaudit.report.report_data import (
    KEPT,
    NO_PROMISE,
    NOT_PROVED,
    REFUTED,
    Badge,
    Findings,
    ReportData,
)
from privaudit.statistics.estimate import unresolved
from privaudit.statistics.verdict import judge_leak
from tests.privaudit.made_audits import make_audit, make_claimed
from tests.privaudit.report.gate_results import made
from tests.privaudit.report.test_page import Page, printed
from tests.privaudit.report.test_report_data import with_aurocs

QUESTIONS = [
    "Does it leak?",
    "How sure?",
    "To whom?",
    "Is the promise kept?",
    "What now?",
]


def screen_of(audits: Sequence[Audit]) -> FirstScreen:
    data = ReportData.of(audits)
    return first_screen(data, advise(data))


def quiet(trainer: str = "dp-fpl", **settings: Any) -> Audit:
    return make_audit(trainer, shift=0.0, seed=2, candidates=700, **settings)


@pytest.mark.parametrize(
    ("audit", "title", "leak", "promise"),
    [
        (make_audit(shift=1.0), "promptfl leaks", "Leaks", "No promise made"),
        (
            make_audit(shift=0.1, candidates=30),
            "Undecided whether promptfl leaks",
            "Undecided",
            "No promise made",
        ),
        (
            quiet(epsilons=(8.0, 7.9)),
            "No leak found in dp-fpl",
            "No leak found",
            "Promise kept",
        ),
        (
            quiet(epsilons=(0.1, None)),
            "No leak found in dp-fpl, claim not proved",
            "No leak found",
            "Promise not proved",
        ),
    ],
)
def test_a_run_is_shown_by_its_name_and_by_two_badges(
    audit: Audit, title: str, leak: str, promise: str
) -> None:
    screen = screen_of([audit])
    assert screen.title == title
    assert [answer.question for answer in screen.answers] == QUESTIONS
    badges = [answer.badge for answer in screen.answers if answer.badge]
    assert [badge.text for badge in badges] == [leak, promise]
    auroc = audit.auroc
    for part in (f"{100 * auroc.value:.1f}", f"n = {auroc.n[0]} members", "beforehand"):
        assert part in screen.lead
    assert dict(screen.facts)["Run"] == audit.run.name
    assert dict(screen.facts)["Data"] == audit.run.config.dataset
    assert dict(screen.facts)["Model"] == audit.run.config.model


def test_good_news_is_green_only_beside_a_promise_that_is_kept() -> None:
    for epsilons in ((8.0, None), (None, None), (8.0, 57.0)):
        answers = screen_of([quiet(epsilons=epsilons)]).answers
        assert "good" not in {answer.badge.kind for answer in answers if answer.badge}
    answers = screen_of([quiet(epsilons=(8.0, 7.9))]).answers
    assert [answer.badge.kind for answer in answers if answer.badge] == ["good"] * 2


def test_a_refuted_promise_is_said_first_of_all() -> None:
    refuted, leaks = make_claimed(2.0, claimed=0.4), make_audit(shift=1.0)
    assert ReportData.of([leaks, refuted]).worst_first[0].audit == refuted
    screen = screen_of([refuted])
    promise = screen.answers[3]
    assert promise.badge == Badge("Promise refuted", "alarm", "✕")
    assert "Canaries show a larger epsilon" in promise.text


def test_a_refuted_promise_is_in_title_and_lead_whatever_the_attack_found() -> None:
    refuted = make_claimed(3.0, claimed=1.0, shift=0.0, seed=2, candidates=700)
    screen = screen_of([refuted])
    assert refuted.verdict.kind == "no evidence"
    assert screen.title == "No leak found in dp-fpl, claim refuted"
    assert screen.lead.startswith("Claim refuted. Given one member")
    undecided = make_audit(shift=0.1, candidates=30)
    assert ReportData.of([undecided, refuted]).worst_first[0].audit == refuted
    screen = screen_of([undecided, refuted])
    assert screen.title.endswith("; claim refuted in dp-fpl")
    assert screen.lead.startswith("Worst of 2: dp-fpl. Claim refuted. ")
    assert screen.answers[0].badge == Badge("Undecided", "open", "?")
    screen = screen_of([refuted, make_audit(shift=1.0)])
    assert screen.title == "1 of 2 runs leaks; claim refuted in dp-fpl"
    assert screen.answers[0].badge == Badge("Leaks", "alarm", "▲")


def test_runs_in_which_nothing_is_found_say_what_is_not_proved() -> None:
    runs = [quiet(epsilons=(8.0, None)), quiet("promptfl")]
    said = "No leak found in 2 runs; claim not proved in 1; nothing proved in 1"
    assert screen_of(runs).title == said
    assert screen_of(runs[1:]).title == "No leak found in promptfl, nothing proved"
    assert screen_of(runs[1:]).lead.startswith("Nothing proved. Given one member")


def test_a_title_says_why_no_run_is_decided() -> None:
    turned = [with_aurocs(value, n=i) for i, value in enumerate((0.2, 0.3))]
    unknown, few = with_aurocs(0.9, sampling="unknown", n=2), with_aurocs(0.5, n=3)
    separate = "2 of 2 runs separate members, with the sign turned"
    assert screen_of(turned).title == separate
    assert screen_of([few, unknown]).title == (
        "No verdict on 1 of 2 runs; 1 of 2 runs undecided"
    )
    assert screen_of([turned[0], unknown]).title == (
        "1 of 2 runs separates members, with the sign turned; no verdict on 1 of 2 runs"
    )
    assert screen_of([few, with_aurocs(0.51, n=4)]).title == (
        "No leak shown; 2 of 2 runs undecided"
    )


def test_another_attack_that_shows_a_leak_gives_its_own_estimate() -> None:
    audit = with_aurocs(0.5, 0.7)
    screen = screen_of([audit])
    assert screen.title == "promptfl leaks by another attack"
    sure = screen.answers[1]
    for text in (screen.lead, sure.text):
        assert text.startswith("The other attack, loss-threshold 0.700 [0.660, 0.740]")
        assert "p < 0.001" in text
    assert sure.drawn == audit.results["loss-threshold"].auroc


def test_every_adversary_of_the_runs_is_named() -> None:
    one, other = make_audit(shift=1.0), make_audit("dp-fpl", shift=0.5)
    other = replace(other, scenario=replace(other.scenario, threat="released"))
    text = screen_of([one, other]).answers[2].text
    assert "honest-but-curious server" in text
    assert "an outsider with a client's released final model" in text
    assert screen_of([one, one]).answers[2].text.count("server") == 1


def test_several_runs_are_counted_and_the_worst_is_named() -> None:
    audits = [quiet(epsilons=(8.0, None)), make_audit(shift=1.0)]
    screen = screen_of(audits)
    assert screen.title == "1 of 2 runs leaks"
    assert screen.lead.startswith("Worst of 2: promptfl. Given one member")
    assert "promise not proved: 1" in screen.answers[3].text.lower()
    html = render_report(audits)
    links = re.findall(r'data-sort="[^"]*"><a href="(#run-\d)">([^<]*)</a>', html)
    assert links == [("#run-1", "promptfl"), ("#run-2", "dp-fpl")]
    names = re.findall(r'id="(run-\d)">\s*<summary><span class="name">([^<]*)', html)
    assert names == [("run-1", "promptfl"), ("run-2", "dp-fpl")]
    assert html.count('<svg class="drawn"') == 1 + 2 * len(audits)
    assert "Worst first" in Page(html).words
    others = [make_audit(seed=seed) for seed in range(3)]
    for one, name in zip(others, ("digits", "scenes", "letters"), strict=True):
        object.__setattr__(one.run.config, "dataset", name)
    assert dict(screen_of(others).facts)["Data"] == "3 data sets"


def test_what_is_unresolved_says_why() -> None:
    audit = make_audit()
    unknown = unresolved("needs more", audit.auroc.n, "AUROC", 0.95)
    headline = replace(audit.headline, auroc=unknown, verdict=judge_leak(unknown))
    audit = replace(audit, results={headline.attack: headline})
    screen = screen_of([audit])
    assert screen.lead == headline.verdict.sentence
    assert "needs more" in screen.answers[1].text


def test_the_day_of_an_audit_is_none_where_there_is_no_log() -> None:
    assert audited_on(make_audit()) == ""


CASES = [
    ((None, None), "nothing proved", NO_PROMISE, "Nothing is claimed and nothing"),
    ((8.0, None), "claim not proved", NOT_PROVED, "proved is nothing"),
    ((8.0, 57.4), "claim not proved", NOT_PROVED, "proved is 57.4"),
    ((8.0, 7.95), "", KEPT, ""),
    ((None, 0.0), "", NO_PROMISE, ""),
    ((0.0, 0.0), "", KEPT, ""),
]


@pytest.mark.parametrize(("epsilons", "short", "promise", "says"), CASES)
def test_green_is_for_a_proof_and_the_rest_is_followed_by_what_is_missing(
    tmp_path: Path,
    epsilons: tuple[float | None, float | None],
    short: str,
    promise: Badge,
    says: str,
) -> None:
    audit = quiet("promptfl", epsilons=epsilons)
    found = card(Findings(audit))
    leak = found["leak"]
    assert (leak.text, leak.kind) == ("No leak found", "neutral" if short else "good")
    assert found["promise"] == promise
    assert says in found["unproved"]
    assert bool(says) == bool(found["unproved"])
    entry = IndexEntry(audit, tmp_path / "audits" / "report.html")
    row = write_index(tmp_path, [entry]).read_text()
    assert f"{leak.sign} No leak found" in Page(row).words
    assert f"{promise.sign} {promise.text}" in Page(row).words
    assert ('<span class="badge good">' in row) == (not short)
    text = printed(audit, width=200)
    assert len([line for line in text.splitlines() if "No leak found" in line]) == 1
    assert short in text


def test_a_refuted_claim_is_an_alarm_whatever_the_attack_says() -> None:
    audit = make_claimed(3.0, claimed=1.0)
    found = audit.part(ONE_RUN)
    assert found is not None
    assert found.verdict.kind == "REFUTED"
    shown = card(Findings(audit))
    assert shown["promise"] == REFUTED
    assert shown["leak"].kind != "good"
    assert audit.assurance.kind == "refuted"


def test_no_badge_but_a_proofs_is_green_and_none_is_colour_alone() -> None:
    page = render_report([quiet("promptfl", epsilons=(8.0, None))])
    words = Page(page).words
    assert "○ No leak found ? Promise not proved" in words
    assert "No guarantee. The claimed epsilon of 8 is not proved" in words
    assert '<span class="badge good">' not in page
    colours = dict(
        re.findall(r"\.badge\.(\w+) \{ border(?:-color)?: .*?var\(--(\w+)\)", page)
    )
    assert colours == {"alarm": "alarm", "good": "good", "open": "open"}


def test_a_leak_stays_a_leak() -> None:
    assert card(Findings(make_audit(shift=1.0)))["leak"] == Badge("Leaks", "alarm", "▲")


def test_noise_of_the_seed_is_no_proof() -> None:
    certificate = {"epsilon": 7.9, "randomness": "system"}
    assert assure(8.0, certificate, refuted=False).kind == "proved"
    found = assure(8.0, {**certificate, "randomness": "seed"}, refuted=False)
    assert (found.kind, found.short) == ("unproved", "not private")
    assert assure(8.0, certificate, refuted=True).kind == "refuted"


def test_a_gate_that_passes_has_no_green_mark_where_nothing_is_proved() -> None:
    result = made(same=0.0)
    assert "✅" in gate_markdown(result)
    bare = replace(result, assurance=Assurance("unproved", "nothing proved", "x 8.25"))
    text = gate_markdown(bare)
    assert "✅" not in text
    assert "Nothing proved." in text
    assert "❌ regression" in text


def test_what_a_network_s_confidence_misses_eight_shadow_models_find() -> None:
    """Digits, n = 910 + 887: 0.509 [0.482, 0.536], no leak found; 0.581 [0.554, 0.607]."""
    torch.manual_seed(0)
    x, labels = map(torch.as_tensor, load_digits(return_X_y=True))
    x, coins = x.float() / 16, torch.rand(9, len(x)) < 0.5

    def logits(chosen: torch.Tensor) -> torch.Tensor:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), labels[chosen]).backward()
            optimiser.step()
        return model(x).detach()

    said = signals_of_logits(torch.stack([*map(logits, coins)]), labels).confidence
    (own, *_), is_in, truth = said, coins[1:], coins[0]
    weak = Auditor.from_scores(own[truth], own[~truth], sampling="coin")
    strong = Auditor.from_shadows(own, said[1:], is_in, truth, "rmia", sampling="coin")
    assert strong.verdict.kind == "leaks"
    assert strong.auroc.value > weak.auroc.value
    leak, sure, *_ = screen_of([weak]).answers
    assert leak.badge is not None
    assert leak.badge.kind != "good"  # whatever its coins give
    assert "Stronger on what is here: rmia with 8" in sure.text


def test_a_weak_attack_is_never_green_and_the_stronger_one_is_named() -> None:
    members, others = np.random.default_rng(5).normal(size=(2, 1000))
    audit = Auditor.from_scores(members, others, sampling="coin", attack="confidence")
    screen = screen_of([audit])
    assert screen.title.startswith("No leak found in scores by a weak attack")
    assert screen.answers[0].badge == Badge(
        "No leak found by a weak attack", "open", "?"
    )
    both = screen_of([quiet(epsilons=(8.0, 7.9)), audit])
    assert both.answers[0].badge == screen.answers[0].badge
    made = "confidence, no shadow models declared, on 1000 members and 1000 non-members"
    assert f"Attack: {made} of all clients, by whoever" in screen.answers[1].text
    stronger = "rmia with 8 shadow models (from_shadows), at the cost of 8 trainings"
    assert f"Stronger on what is here: {stronger}." in screen.answers[1].text
    assert screen.answers[4].text.startswith("To try: Make a stronger attack")
    many = Auditor.from_scores(
        members, others, sampling="coin", attack="RMIA, 64 shadow models"
    )
    shown = screen_of([many])
    assert shown.answers[0].badge == Badge("No leak found", "neutral", "○")
    assert "Stronger" not in shown.answers[1].text


def test_a_strong_attack_s_next_rung_and_its_cost_are_said() -> None:
    audit = quiet(epsilons=(8.0, 7.9))
    made = replace(audit.headline, settings="Rmia(shadows=16)")
    paid = ShadowBudget(120.0, 2.0, 5, 16)
    strong = replace(audit, results={"rmia": made}, budget=paid)
    found = strength_of(strong)
    assert found.stronger == "rmia with 32 shadow models, at the cost of 32 trainings"
    assert found.command.endswith("--scenario server-reconstruct --shadows 32")
    assert not found.is_weak
    assert screen_of([strong]).answers[0].badge == Badge("No leak found", "good", "○")
    alone = replace(strong, results={"rmia": replace(made, settings="Loss()")})
    assert strength_of(alone).is_weak
    assert screen_of([alone]).answers[0].badge.kind == "open"  # type: ignore[union-attr]
    weights = replace(made, attack="joint-regression", settings="JointRegression()")
    assert strength_of(replace(strong, results={"w": weights})).stronger == ""


def test_a_tail_is_what_the_first_screen_leads_with() -> None:
    members, others = np.random.default_rng(5).normal(size=(2, 1000))
    members[:30] += 8
    audit = Auditor.from_scores(members, others, sampling="coin")
    screen = screen_of([audit])
    assert screen.title == "scores leaks in the tail"
    assert screen.answers[0].badge == Badge("Leaks in the tail", "alarm", "▲")
    assert re.match(r"3\d of the 3\d highest scores are members'\. Given", screen.lead)
    row = audit_row(ReportData.of([audit]).runs[0], "")
    (cell,) = (one for column, one in row["cells"] if column.heads["index"] == "Leak")
    assert "highest scores are members'" in cell.note
