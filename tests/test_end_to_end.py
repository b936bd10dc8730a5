"""From training to verdicts, for what leaks and for what cannot."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, load_run, train
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.stored_audit import save_audit
from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    TranscriptError,
    UnknownNameError,
    ViewError,
)
from privaudit.core.seeds import Seeds
from privaudit.datasets.partition import Dirichlet
from privaudit.datasets.split import SplitSizes, split_records
from privaudit.report.page import write_report
from privaudit.runs.config import make_config
from privaudit.runs.ledger import Ledger
from privaudit.runs.population import populate
from privaudit.runs.run import Run, mark_latest
from tests.altered_runs import sign_again
from tests.conftest import common_cache, train_and_stop

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with common_cache(tmp_path_factory):
        return train(folder=folder, rounds=2, seed=3, settings={"epochs": 3}).path


@pytest.fixture
def run(trained: Path) -> Run:
    """Return a copy of its own, which a test may spoil, as the latest run."""
    path = Path(os.environ["PRIVAUDIT_RUNS"]) / trained.name
    run = Run(shutil.copytree(trained, path))
    mark_latest([run])
    return run


def test_a_run_can_be_read_back_and_attacked(run: Run) -> None:
    audit = Auditor(load_run()).attack("server-reconstruct", clients=2, shadows=6)
    assert audit.run.name == run.name
    everyone = audit.results["loss-threshold"]
    assert sum(everyone.auroc.n) == sum(run.population.task.candidates.values())
    assert audit.auroc.n == audit.headline.auroc.n
    assert sum(audit.auroc.n) == sum(
        len(run.population.indices(c)) for c in ("client-0", "client-1")
    )
    assert json.dumps(audit.to_dict())


def test_an_audit_is_repeatable(run: Run) -> None:
    pair = [Auditor(run).attack(clients=1, shadows=6).to_dict() for _ in range(2)]
    assert pair[0] == pair[1]


@pytest.mark.parametrize(
    "scenario", ["server-reconstruct", "server-aggregate", "prompt-release"]
)
def test_no_attack_reaches_the_truth(
    scenario: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are made while the ledger cannot be read at all."""
    from privaudit.auditing.scenario import find_scenario

    plan = find_scenario(scenario, 6)
    monkeypatch.setattr(Ledger, "load", lambda path: pytest.fail("the truth was read"))
    adversary, targets = Auditor(run).prepare(plan)
    plan = plan.for_task("classification").that_see(adversary, targets[:2], ())
    for attack in plan.attacks.values():
        for scores in attack(adversary, targets[:2]):
            assert np.isfinite(scores.scores).all()


def test_coins_tossed_anew_are_covered(run: Run) -> None:
    """With other coins the run cannot have leaked: intervals cover 0.5, mostly."""
    from privaudit.auditing.scenario import find_scenario
    from privaudit.core.seeds import Seeds
    from privaudit.statistics.roc import pooled_auroc

    plan = find_scenario("server-reconstruct", 6)
    adversary, targets = Auditor(run).prepare(plan)
    scores = plan.attacks["loss-threshold"](adversary, targets)
    covered, widths = 0, []
    for toss in range(100):
        ledger = Ledger.toss(run.population.split, Seeds(1000 + toss))
        groups = []
        for target, some in zip(targets, scores, strict=True):
            truth = ledger.is_member[run.population.indices(target.client)]
            groups.append((some.scores[truth], some.scores[~truth]))
        estimate = pooled_auroc(groups)
        covered += estimate.low <= 0.5 <= estimate.high
        widths.append(estimate.high - estimate.low)
    assert covered >= 95 - 3 * np.sqrt(100 * 0.95 * 0.05)
    assert np.mean(widths) < 0.12


def test_the_report_is_written_beside_the_run(run: Run) -> None:
    audit = Auditor(run).attack(clients=1, shadows=6)
    save_audit(audit)
    folder = run.path / "audits" / "server-reconstruct"
    write_report([audit], folder / "report.html")
    assert {p.name for p in folder.iterdir()} >= {
        "audit.json",
        "scores.npz",
        "report.html",
    }
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_a_trainer_that_sends_nothing_leaves_the_server_with_the_public_model() -> None:
    run = train("coop", rounds=1, settings={"epochs": 2}, seed=0)
    audit = Auditor(run).attack(clients=1, shadows=6)
    assert audit.part(CLOSENESS).missing[0] == "the client's prompt"
    assert audit.certified_epsilon == 0


def test_clients_that_never_took_part_are_no_targets() -> None:
    run = train("promptfl", rounds=2, epochs=1, participation=0.1, seed=0)
    audit = Auditor(run).attack(shadows=0)
    senders = {m.sender for m in run.transcript if m.kind == "update"}
    assert {c.client for c in audit.headline.clients} == senders
    with pytest.raises(ViewError, match="took part alone"):
        Auditor(run).attack("server-aggregate", shadows=0)


def test_a_peer_attacks_the_others(run: Run) -> None:
    from privaudit.attacks.output_attacks import LossThreshold
    from privaudit.auditing.scenario import Scenario

    plan = Scenario("x", "?", "peer:client-3", {"loss-threshold": LossThreshold()})
    audit = Auditor(run).attack(plan)
    assert "client-3" not in {c.client for c in audit.headline.clients}
    assert audit.certified_epsilon is None
    stranger = Scenario("x", "?", "peer:client-99", plan.attacks)
    with pytest.raises(UnknownNameError, match="No client is called 'client-99'"):
        Auditor(run).attack(stranger)


def test_an_altered_transcript_is_refused(run: Run) -> None:
    manifest = run.path / "transcript" / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace("client-1", "client-2", 1))
    with pytest.raises(TranscriptError, match="hash chain is broken"):
        Auditor(Run(run.path)).attack(clients=1, shadows=6)


def test_a_run_of_another_version_is_refused(run: Run) -> None:
    header = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**header, "format": 99}))
    with pytest.raises(TranscriptError, match="run format 99"):
        load_run(run.path)


def test_a_changed_model_is_refused(run: Run) -> None:
    sign_again(run.path, model_hash="0" * 64)
    with pytest.raises(TranscriptError, match="has changed since"):
        Auditor(run.path.as_posix()).attack(clients=1, shadows=6)


def test_an_unfinished_run_is_not_audited() -> None:
    train_and_stop(1, "promptfl", rounds=3, epochs=1, seed=0)
    with pytest.raises(ConfigError, match="stopped after 1 of 3 rounds"):
        Auditor("cut")


def test_bad_input_is_named(run: Run) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'promptfl'"):
        train("promptlf", seed=0)
    with pytest.raises(UnknownNameError, match="Did you mean 'digits'"):
        train("promptfl", dataset="digit", seed=0)
    with pytest.raises(UnknownNameError, match="Did you mean 'server-reconstruct'"):
        Auditor(run).attack("server-reconstrct")
    with pytest.raises(ConfigError, match="over 30 clients"):
        train("promptfl", clients=30, partition="pathological", seed=0)
    with pytest.raises(ConfigError, match="no parameter 'learning_rat'"):
        train("promptfl", learning_rat=1, seed=0)
    with pytest.raises(ConfigError, match="cannot take epsilon = 0"):
        train("dp-fpl", epsilon=0.0, seed=0, randomness="system")
    with pytest.raises(ConfigError, match="clients = 0 was requested"):
        Auditor(run).attack(clients=0)
    with pytest.raises(ConfigError, match="at least 5 are needed"):
        Auditor(run).attack(shadows=1)
    with pytest.raises(MissingFileError, match="holds no run"):
        load_run("nowhere")


def test_a_secure_sum_needs_a_trainer_that_allows_it(run: Run) -> None:
    from privaudit.federation.threat_models import server_aggregate
    from privaudit.federation.transcript import SERVER, Message

    update = next(m for m in run.transcript if m.kind == "update")
    alone = Message(0, update.sender, SERVER, "individual-update", update.tensors)
    with pytest.raises(ViewError, match="no secure sum could hide"):
        server_aggregate([alone])


AUDITS = 200


@pytest.mark.usefixtures("fewer_permutations")
@pytest.mark.slow
def test_200_audits_of_zero_shot_runs_give_few_false_alarms() -> None:
    """Partition and coin are drawn anew; real pictures, real scores, no training.

    "leaks" needs the whole two-sided 95 % interval above 0.5: nominally 2.5 %.
    """
    population = populate(make_config("zero-shot"))
    records, task = population.records, population.task
    answers = task.logit_scale * records.features @ task.zero_shot.T
    likely = answers.log_softmax(dim=-1).gather(1, records.labels[:, None])[:, 0]
    labels, scores = records.labels.numpy(), likely.double().numpy()
    alarms, covered = 0, 0
    for seed in range(AUDITS):
        clients = _clients(labels, scores, Seeds(seed))
        leak = evaluate_scores("loss-threshold", "", "", clients)
        alarms += leak.verdict.kind == "leaks"
        covered += leak.auroc.low <= 0.5 <= leak.auroc.high
    error = np.sqrt(0.05 * 0.95 / AUDITS)
    assert alarms / AUDITS <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / AUDITS)
    assert covered / AUDITS >= 0.95 - 3 * error


def _clients(
    labels: np.ndarray, scores: np.ndarray, seeds: Seeds
) -> list[ClientScores]:
    split = split_records(
        labels, Dirichlet(10.0), SplitSizes(), clients=10, seeds=seeds
    )
    ledger = Ledger.toss(split, seeds)
    found = []
    for number in range(10):
        mine = split.of(number)
        high = scores[mine] > np.median(scores[mine])
        truth = ledger.is_member[mine]
        found.append(
            ClientScores(
                f"client-{number}", mine, labels[mine], scores[mine], high, truth
            )
        )
    return found
