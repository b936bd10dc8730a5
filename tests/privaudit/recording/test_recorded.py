"""Audits of federations that others trained, where the truth is known."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.func import functional_call

from privaudit import Auditor, load_run
from privaudit.auditing.audit import Audit
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.checks.lint import lint
from privaudit.core.errors import AttackError, ConfigError, PrivauditError, ViewError
from privaudit.core.tensors import Tensors, stack
from privaudit.datasets.split import PUBLIC, TEST
from privaudit.federation.threat_models import find_threat
from privaudit.privacy.events import MechanismEvent
from privaudit.recording import recorded_trainer
from privaudit.recording.origins.recorded import RecordedRun
from privaudit.recording.owner import use_owner
from privaudit.recording.recorded_trainer import why_not_repeatable
from privaudit.recording.recorder import Recorder
from privaudit.report.export.export import export_public
from privaudit.report.page import render_report
from privaudit.report.tables.table import print_table
from privaudit.report.wording import privacy_sort
from privaudit.runs.ledger import Coin, Ledger
from privaudit_labs.shift.distribution_shift import measure_shift, usual_foreign
from tests.privaudit.recording.small_federation import (
    CANDIDATES,
    CLASSES,
    CLIENTS,
    NAMES,
    ROUNDS,
    Linear,
    audited,
    drawn_start,
    first_updates,
    headline_alone,
    linear,
    record,
    recorded_messages,
    run_federation,
    start,
    toss,
)

SCENARIOS = (
    "server-reconstruct",
    "server-aggregate",
    "prompt-release",
    "black-box",
    "update-watch",
)


@pytest.fixture(scope="module")
def audits(folder: Path) -> dict[str, Audit]:
    with use_owner(Linear()):
        run = load_run(folder)
        return {name: Auditor(run).attack(name, shadows=0) for name in SCENARIOS}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_is_memorised_is_found(audits: dict[str, Audit], scenario: str) -> None:
    audit = audits[scenario]
    assert audit.auroc.value > 0.95
    assert audit.headline.verdict.kind == "leaks"
    assert sum(audit.auroc.n) == CLIENTS * CANDIDATES


def test_no_public_record_is_needed_where_a_split_chose_the_members(
    tmp_path: Path,
) -> None:
    """60 candidates of each client, half of them in by scikit-learn's order."""
    tossed = toss()
    owner = np.where(tossed.owner == PUBLIC, TEST, tossed.owner)
    in_order = np.random.RandomState(3).permutation(len(owner))
    part = np.isin(np.arange(len(owner)), in_order[: len(owner) // 2])
    ledger = Ledger(owner, part & (owner >= 0), coin=Coin("sklearn", 3))
    record(tmp_path / "run", ledger)
    with use_owner(Linear()):
        auditor = Auditor(load_run(tmp_path / "run"))
        for scenario in SCENARIOS:
            audit = auditor.attack(scenario, shadows=0)
            assert audit.headline.verdict.kind == "leaks"
    shadowed = audited(tmp_path / "run", "server-reconstruct", clients=1, shadows=6)
    assert shadowed.results["rmia"].auroc.value > 0.9
    with pytest.raises(AttackError, match="independent coin for each record"):
        audited(tmp_path / "run", "one-run")


def covering(place: Path, ledgers: int, owner: Linear) -> dict[str, float]:
    """Return by scenario in which share of federations the interval covers chance.

    Each has its own coins and its own first model, and is audited with its own truth.
    """
    covered = dict.fromkeys(SCENARIOS, 0)
    for seed in range(ledgers):
        begin = {name: tensor / 9 for name, tensor in drawn_start(seed).items()}
        played = {"rounds": 1, "begin": begin}
        record(place / str(seed), toss(seed), owner, played=played)
        with use_owner(Linear(steps=1)):
            auditor = Auditor(load_run(place / str(seed)))
            for name in SCENARIOS:
                found = auditor.attack(headline_alone(name)).auroc
                covered[name] += found.low <= 0.5 <= found.high
    return {name: count / ledgers for name, count in covered.items()}


@pytest.mark.usefixtures("fewer_permutations")
def test_what_was_never_seen_is_not(tmp_path: Path) -> None:
    """38 of 40 intervals are to cover chance; fewer than 34 do with a chance of 0.3 %."""
    shares = covering(tmp_path, 40, Linear(learns=False, steps=5))
    assert min(shares.values()) >= 34 / 40, shares


@pytest.mark.usefixtures("fewer_permutations")
def test_what_was_seen_fails_the_bound_on_what_was_never_seen(tmp_path: Path) -> None:
    shares = covering(tmp_path, 6, Linear())
    assert max(shares.values()) < 34 / 40 / 2, shares  # fails by far


def test_shadows_are_trained_by_the_owners_function(folder: Path) -> None:
    audit = audited(
        folder, "server-reconstruct", attacks=["lira:mode=online"], shadows=8, clients=1
    )
    lira = audit.results["lira:mode=online"]
    assert lira.auroc.value > 0.95
    assert sum(lira.auroc.n) == CANDIDATES


def test_utility_is_the_owners_accuracy(audits: dict[str, Audit]) -> None:
    """Classes of the test records are random, and nothing is compared with."""
    utility = audits["server-aggregate"].measured_utility
    assert utility.metric == "accuracy"
    assert utility.local.value < 0.6
    assert utility.gain is None
    assert utility.zero_shot is None


def test_an_owners_measure_of_utility_is_taken(folder: Path) -> None:
    class Measured(Linear):
        def utility(self, tensors: object, positions: np.ndarray) -> np.ndarray:
            return np.full(len(positions), 0.25)

    audit = audited(folder, "prompt-release", shadows=0, owner=Measured())
    assert audit.measured_utility.local.value == 0.25
    assert audit.measured_utility.metric == "utility"


def test_participants_are_read_from_the_transcript(folder: Path) -> None:
    run = load_run(folder)
    assert isinstance(run, RecordedRun)
    assert run.participants == [NAMES] * ROUNDS
    assert run.config.model_dump()["trainer"] == "FedAvg, a loop"
    assert "alpha" not in run.config.model_dump()


def test_uploads_lie_on_disk_as_they_were_sent(folder: Path) -> None:
    sent = next(m for m in recorded_messages(folder) if m.is_update).tensors
    members = toss().members_of(0)
    expected = Linear().local_update(start(), members, 0)
    assert torch.equal(sent["weight"], expected["weight"])
    assert sent["num-examples"] == len(members)
    weighted = next(m for m in load_run(folder).transcript if m.is_update)
    torch.testing.assert_close(
        weighted.tensors["owner's weight"], expected["weight"] * len(members)
    )


def test_an_audit_is_stored_and_shown_without_the_owner(folder: Path) -> None:
    audit = audited(folder, "server-reconstruct", shadows=0)
    save_audit(audit)
    stored = read_audit(load_run(folder), "server-reconstruct")
    assert stored.class_names == Linear.class_names
    again = restore_audit(stored)
    assert again.auroc == audit.auroc
    assert "FedAvg, a loop" in render_report([again])


def test_an_export_names_no_word_of_the_owner(tmp_path: Path) -> None:
    words: dict[str, Any] = {"model": "open_clip:secret_net", "dataset": "digits"}
    record(tmp_path / "run", settings={"hospital": "charite"}, **words)
    found = export_public(load_run(tmp_path / "run"), tmp_path / "out")
    text = "".join(p.read_text() for p in (tmp_path / "out").iterdir())
    for word in ("FedAvg, a loop", "secret_net", "digits", "charite"):
        assert word not in text
    assert found.card.training.origin == "recorded"


NOISE = MechanismEvent("upload", 1.0, 2.0, 1.0, 1.0, "poisson", "client", 1)


def test_a_card_leaves_an_owners_mechanisms_out(tmp_path: Path) -> None:
    """A noise multiplier that was divided by weights tells how many members there are."""
    ledger = toss()
    weighted: dict[str, Any] = {"ledger": ledger, "weight": "num-examples"}
    with Recorder(tmp_path / "run", **weighted) as recorder:
        run_federation(recorder, ledger, Linear())
        recorder.mechanism(0, replace(NOISE, noise_multiplier=112 / (3 * 40)))
    privacy = export_public(load_run(tmp_path / "run"), tmp_path / "out").card.privacy
    assert (privacy.certified, privacy.mechanisms) == ({}, ())


def test_lint_speaks_about_a_recorded_federation(folder: Path) -> None:
    assert [finding.rule for finding in lint(load_run(folder))] == ["nothing-claimed"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"shadows": 5}, "local_update(received, positions, seed)"),
        ({"scenario": "update-watch"}, "local_update"),
    ],
)
def test_what_cannot_be_done_says_which_function_is_missing(
    folder: Path, asked: dict[str, object], says: str
) -> None:
    cut = linear(local_update=None)
    with use_owner(cut), pytest.raises(AttackError, match="needs") as raised:
        Auditor(load_run(folder)).attack(**asked)  # type: ignore[arg-type]
    assert says in str(raised.value)


def test_without_local_update_no_shadows_are_trained_by_default(folder: Path) -> None:
    audit = audited(folder, "server-reconstruct", owner=linear(local_update=None))
    assert "lira" not in audit.results
    assert audit.auroc.value > 0.95


def test_without_an_owner_or_with_other_labels_nothing_is_asked(folder: Path) -> None:
    with pytest.raises(AttackError, match="--owner"):
        Auditor(load_run(folder)).attack("server-reconstruct", shadows=0)
    owner = linear(labels=np.zeros(7, dtype=int))
    with use_owner(owner), pytest.raises(ConfigError, match="7 labels"):
        Auditor(load_run(folder)).attack(shadows=0)


def test_differences_are_models_again(tmp_path: Path) -> None:
    """NVFlare's clients send what they changed: the audit is the same."""

    def say(recorder: Recorder, index: int, client: str, sent, count: int) -> None:  # type: ignore[no-untyped-def]
        before = recorder._rounds.received[client][-1]
        changed = {n: t - before[n] for n, t in sent.items()}
        recorder.update(index, client, changed, weight=count)

    record(tmp_path / "run", uploads="differences", played={"say": say})
    audit = audited(tmp_path / "run", shadows=0)
    assert audit.auroc.value > 0.95


def test_uploads_that_a_server_uses_one_by_one_are_attacked(tmp_path: Path) -> None:
    record(tmp_path / "run", aggregation="individual")
    with use_owner(Linear()):
        run = load_run(tmp_path / "run")
        audit = Auditor(run).attack("server-reconstruct", shadows=0)
        assert audit.auroc.value > 0.95
        with pytest.raises(PrivauditError, match="uses the update of"):
            Auditor(run).attack("server-aggregate", shadows=0)


def test_equal_tensors_under_other_names_are_distinguished(tmp_path: Path) -> None:
    """Equal tensors are held once: names say which message has which."""
    one, other = torch.ones(3), torch.zeros(3)
    with Recorder(tmp_path / "run", ledger=toss()) as recorder:
        for client in NAMES:
            recorder.broadcast(0, client, {"a": one, "b": other})
        for client in NAMES:
            recorder.update(0, client, {"a": one, "b": other})
        recorder.broadcast(1, "client-0", {"b": one, "a": other})
    run = recorder.run
    assert run is not None
    last = [m for m in run.transcript if m.kind == "broadcast"][-1]
    assert [last.tensors[name].sum().item() for name in "ab"] == [0, 3]


def send_masked(recorder: Recorder) -> list[dict[str, Tensor]]:
    """Let each client send what is masked, and return what is under the masks."""
    for name in NAMES:
        recorder.broadcast(0, name, start())
        recorder.masked(0, name, {"masked": torch.randint(0, 2**31, (9,))})
    return list(first_updates().values())


def test_a_sum_that_was_learned_under_masks_is_all_that_a_server_sees(
    tmp_path: Path,
) -> None:
    ledger = toss()
    with Recorder(tmp_path / "run", ledger=ledger, weight="n") as recorder:
        sent = send_masked(recorder)
        counts = [len(ledger.members_of(n)) for n in range(3)]
        pairs = list(zip(sent, counts, strict=True))
        total = {k: sum(one[k] * n for one, n in pairs) for k in start()}
        recorder.summed(0, NAMES, {**total, "n": torch.tensor(float(sum(counts)))})
        mean = {k: t / sum(counts) for k, t in total.items()}
        recorder.broadcast(1, NAMES, mean)
    run = load_run(tmp_path / "run")
    assert run.config.is_masked
    with use_owner(Linear()):
        audit = Auditor(run).attack("server-reconstruct", shadows=0)
        assert audit.scenario.threat == "server-aggregate"
        assert audit.auroc.value > 0.95
        with pytest.raises(Exception, match="masked"):
            Auditor(run).attack("update-watch")


def test_masked_uploads_without_a_sum_leave_what_the_server_sends(
    tmp_path: Path,
) -> None:
    """A round counts, nothing is called no mechanism, and peers can be audited."""
    with Recorder(tmp_path / "run", ledger=toss()) as recorder:
        sent = send_masked(recorder)
        mean = {k: torch.stack([s[k] for s in sent]).sum(dim=0) / 3 for k in start()}
        recorder.broadcast(1, NAMES, mean)
    run = load_run(tmp_path / "run")
    assert (run.config.rounds, run.config.is_masked) == (1, True)
    assert run.privacy["claimed"]["source"] == "nobody's"
    with use_owner(Linear()):
        audit = Auditor(run).attack("curious-peer", shadows=0)
        assert audit.auroc.value > 0.95
        summed = Auditor(run).attack("server-reconstruct", shadows=0)
        assert summed.scenario.threat == "server-aggregate"
    assert privacy_sort(audit) == "no mechanism declared"


def test_a_recording_is_masked_only_where_no_update_stands_in_the_clear(
    tmp_path: Path,
) -> None:
    """A round of masks hides no update of another, nor the leak that it is."""

    def say(recorder: Recorder, index: int, client: str, sent: Tensors, n: int) -> None:
        recorder.update(index, client, sent, weight=n)
        recorder.masked(index, client, {"masked": torch.randint(0, 2**31, (9,))})

    record(tmp_path / "run", played={"say": say})
    assert not load_run(tmp_path / "run").config.is_masked
    audit = audited(tmp_path / "run", shadows=0)
    assert audit.scenario.threat == "server"
    assert audit.auroc.value > 0.95


def test_an_owners_words_are_words_on_page_and_terminal(tmp_path: Path) -> None:
    """No markup of a terminal's or a page's."""
    name = "[red]<b>FedAvg</b>[/red]"
    record(tmp_path / "run", trainer=name)
    audit = audited(tmp_path / "run", "prompt-release", shadows=0)
    console = Console(file=io.StringIO(), width=200)
    print_table([audit], console)
    assert name in console.file.getvalue()  # type: ignore[attr-defined]
    page = render_report([audit])
    assert "&lt;b&gt;FedAvg" in page
    assert "<b>FedAvg" not in page


def test_without_broadcasts_uploads_are_attacked(tmp_path: Path) -> None:
    """Nobody recorded what the server sent: utility is not known, membership is."""
    with Recorder(tmp_path / "run", ledger=toss()) as recorder:
        for client, sent in first_updates().items():
            recorder.update(0, client, sent)
    audit = audited(tmp_path / "run", shadows=0)
    assert audit.utility is None
    assert audit.auroc.value > 0.95
    assert "Privacy-utility trade-off" not in render_report([audit])


def test_a_ledger_that_says_nothing_of_a_coin_gives_no_verdict(tmp_path: Path) -> None:
    tossed = toss()
    record(tmp_path / "run", Ledger(tossed.owner, tossed.is_member))
    audit = audited(tmp_path / "run", shadows=0)
    assert audit.auroc.value > 0.95
    assert audit.headline.verdict.kind == "sampling unknown"


LATE = NAMES[2]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One client answers the broadcast of round 0 in round 1."""
    place, sent = tmp_path_factory.mktemp("late") / "run", first_updates()
    with Recorder(place, ledger=toss(), weight="n") as recorder:
        recorder.broadcast(0, NAMES, start())
        for name in NAMES[:2]:
            recorder.update(0, name, sent[name], weight=5)
        recorder.broadcast(1, NAMES[:2], sent[NAMES[0]])
        recorder.update(1, LATE, sent[LATE], weight=5)
        recorder.broadcast(2, NAMES, sent[NAMES[0]])
    return place


def test_a_late_upload_answers_the_last_broadcast_before_it(late: Path) -> None:
    view = find_threat("server")(load_run(late).transcript)
    assert view.received_in(LATE, 1).round == 0
    assert view.received_in(NAMES[0], 1).round == 1
    nothing = find_threat("server")(m for m in view.messages if m.round)
    with pytest.raises(ViewError, match="nothing that was sent to it by then"):
        nothing.received_in(LATE, 1)


def test_a_late_upload_is_attacked(late: Path) -> None:
    with use_owner(Linear()):
        audit = Auditor(load_run(late)).attack("update-watch", shadows=0)
        lira = Auditor(load_run(late)).attack(
            attacks=["lira:mode=online"], shadows=8, clients="all"
        )
    assert audit.auroc.value > 0.95
    late_alone = lira.results["lira:mode=online"].clients[2]
    assert late_alone.client == LATE
    scores, truth = late_alone.scores, late_alone.is_member
    assert scores[truth].mean() > scores[~truth].mean()


class _Counting(Linear):
    """Beside the model it sends a counter, a mask and nothing at all."""

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        model = {n: received[n].float() for n in ("weight", "bias")}
        return {**received, **super().local_update(model, positions, seed)}


def test_integers_and_truth_values_are_watched(tmp_path: Path) -> None:
    others = {
        "batches": torch.tensor(7),
        "pruned": torch.tensor([True, False]),
        "codes": torch.ones(2, dtype=torch.int8),
        "none": torch.zeros(0, 3),
    }
    owner, ledger, begin = _Counting(), toss(), {**start(), **others}
    with Recorder(tmp_path / "run", ledger=ledger, weight="n") as recorder:
        recorder.broadcast(0, NAMES, begin)
        for number, name in enumerate(NAMES):
            sent = owner.local_update(begin, ledger.members_of(number), 0)
            recorder.update(0, name, sent, weight=5)
    audit = audited(tmp_path / "run", "update-watch", shadows=0, owner=owner)
    assert audit.auroc.value > 0.95


def test_shift_is_not_measured_on_a_recorded_run(late: Path) -> None:
    run = load_run(late)
    for ask in (measure_shift, usual_foreign):
        with pytest.raises(ConfigError, match="run was trained elsewhere"):
            ask(run)


@pytest.mark.parametrize("damage", ["not finite", "a tensor less"])
def test_a_damaged_upload_leaves_its_client_out(tmp_path: Path, damage: str) -> None:
    """And no other: the audit says who is missing."""

    def say(
        recorder: Recorder, at: int, client: str, sent: Tensors, count: int
    ) -> None:
        left = {} if damage == "a tensor less" else {"bias": sent["bias"] * torch.nan}
        if client == NAMES[0]:
            sent = {"weight": sent["weight"], **left}
        recorder.update(at, client, sent, weight=count)

    record(tmp_path / "run", played={"rounds": 1, "say": say})
    run = load_run(tmp_path / "run")
    with use_owner(Linear()):
        for scenario in ("server-reconstruct", "update-watch"):
            audit = Auditor(run).attack(scenario, shadows=0)
            assert [c.client for c in audit.headline.clients] == list(NAMES[1:])
            assert audit.auroc.value > 0.95
            assert f"Left out: {NAMES[0]}." in " ".join(audit.scenario.notes.values())
        alone = Auditor(run).attack("prompt-release", shadows=0)
    assert len(alone.headline.clients) == len(NAMES)
    assert alone.scenario.notes.keys() == {"attacks"}  # no base was declared


class Asked(Linear):
    """Asks its linear model with a layer behind it, whose mode nobody set."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.asked = 0

    def query(self, tensors: Any, positions: np.ndarray) -> Tensor:
        self.asked += 1
        answer: Tensor = self.layer(super().query(tensors, positions))
        return answer


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(CLASSES)])
def test_models_in_training_mode_give_no_audit(layer: nn.Module, folder: Path) -> None:
    owner = Asked(layer.train())
    with (
        use_owner(owner),
        pytest.raises(AttackError, match=r"call its \.eval\(\) in query"),
    ):
        Auditor(load_run(folder)).attack(shadows=0, is_logged=False)
    owner.layer.eval()
    with use_owner(owner):
        Auditor(load_run(folder)).attack(shadows=0, is_logged=False)


def test_a_question_about_few_records_is_no_proof_of_evaluation_mode(
    folder: Path,
) -> None:
    """The same eight, asked again, are a batch of their own again."""
    with use_owner(Asked(nn.BatchNorm1d(CLASSES))):
        run = load_run(folder)
        task, records = run.population.task, run.population.records
        few, more = (records.pick(torch.arange(n)) for n in (8, 24))
        model = stack([run.personal_models[NAMES[0]]])
        assert [*run.trainer.query(task, model, few)]
        with pytest.raises(AttackError, match="other records are in a batch"):
            [*run.trainer.query(task, model, more)]


class TrainsIt(Asked):
    """Its clients put the model into training mode, and leave it there."""

    def local_update(self, *arguments: Any) -> Any:
        self.layer.train()
        return super().local_update(*arguments)


def test_a_model_that_shadow_training_left_in_training_mode_is_refused(
    folder: Path,
) -> None:
    owner = TrainsIt(nn.Dropout(0.1).eval())
    with use_owner(owner):
        Auditor(load_run(folder)).attack(shadows=0, is_logged=False)
        with pytest.raises(AttackError, match="answers the same question differently"):
            Auditor(load_run(folder)).attack(clients=1, shadows=5, is_logged=False)


def test_a_run_asks_its_models_again_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many attacks are made of it: an owner's models may be slow."""
    checked: list[int] = []

    def counted(ask: Any, positions: np.ndarray, answer: Any) -> str:
        before = owner.asked
        found = why_not_repeatable(ask, positions, answer)
        checked.append(owner.asked - before)
        return found

    monkeypatch.setattr(recorded_trainer, "why_not_repeatable", counted)
    owner = Asked(nn.Identity())
    with use_owner(owner):
        run = load_run(folder)
        for _ in range(2):
            Auditor(run).attack(shadows=0, is_logged=False)
    assert checked == [2]


def test_rounding_is_no_training_mode(rng: np.random.Generator) -> None:
    """In several kinds of arithmetic; half precision rounds otherwise in another batch."""
    weight, records = (torch.from_numpy(rng.normal(size=(64, n))) for n in (10, 256))
    rows = np.arange(255)
    for kind in (torch.float64, torch.float32, torch.bfloat16):

        def ask(asked: np.ndarray, kind: torch.dtype = kind) -> Tensor:
            answer = records.T[asked].to(kind) @ weight.to(kind)
            is_moved = kind == torch.bfloat16 and len(asked) < 255
            return answer * (1 + 2**-7 * is_moved)

        assert why_not_repeatable(ask, rows, ask(rows)) == ""


def test_answers_that_all_are_one_or_of_other_lengths_are_repeatable() -> None:
    def constant(rows: np.ndarray) -> Tensor:
        return torch.full((len(rows), 3), -torch.inf)

    def padded(rows: np.ndarray) -> tuple[Tensor, Tensor]:
        shape = (len(rows), len(rows))  # as long as the longest of a batch
        return torch.ones(*shape, 5), torch.ones(shape)

    rows = np.arange(20)
    for ask in (constant, padded):
        assert why_not_repeatable(ask, rows, ask(rows)) == ""


def test_a_network_whose_hidden_layer_drops_one_in_a_hundred_is_noticed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 256), nn.ReLU(), nn.Dropout(0.01), nn.Linear(256, 4)
    )
    records = torch.randn(64, 8)

    def ask(rows: np.ndarray) -> Tensor:
        with torch.no_grad():
            answer: Tensor = functional_call(net, {}, (records[rows],))
        return answer

    rows = np.arange(64)
    assert "differently" in why_not_repeatable(ask, rows, ask(rows))
    net.eval()
    assert why_not_repeatable(ask, rows, ask(rows)) == ""
