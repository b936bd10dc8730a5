from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.core.errors import ConfigError, UnknownNameError
from privaudit.runs.run import Run
from privaudit_tools.tables import afterwards
from privaudit_tools.tables.afterwards import (
    Afterwards,
    clients_of,
    measure_afterwards,
)
from privaudit_tools.tables.metrics import attack_of
from privaudit_tools.tables.outcomes import perform, read_metric, read_outcome
from privaudit_tools.tables.parts import Elsewhere
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import schedule
from privaudit_tools.tables.table import make_table
from tests.altered_runs import sign_again

LOSS = "client loss-threshold"
ASKED = Afterwards((LOSS,), "server-reconstruct")


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the runs that are attacked."""
    names: list[str] = []

    class Counting(Auditor):
        def attack(self, *given: Any, **named: Any) -> Any:
            names.append(self.run.name)
            return super().attack(*given, **named)

    monkeypatch.setattr(afterwards, "Auditor", Counting)
    return names


def test_an_attack_is_the_auditors_own(whole: Path) -> None:
    found = measure_afterwards(Run(whole), ASKED)
    audit = Auditor(Run(whole)).attack("server-reconstruct", shadows=0)
    assert found[LOSS] == audit.results["loss-threshold"].auroc.value


def test_shadow_models_attack_as_many_clients_as_the_plan_says(whole: Path) -> None:
    metrics = ["client shadow success", "client rmia"]
    plan = plan_of(scenario="prompt-release", shadows=5, attacked=1, metrics=metrics)
    asked = schedule(plan).runs[0].afterwards
    found = measure_afterwards(Run(whole), asked)
    audit = Auditor(Run(whole)).attack("prompt-release", clients=1, shadows=5)
    assert found["client shadow success"] == audit.results["shadow"].success.value
    assert found["client rmia"] == audit.results["rmia"].auroc.value
    with pytest.raises(ValueError, match="'client shadow' is no metric"):
        plan_of(scenario="prompt-release", metrics=["client shadow"])
    with pytest.raises(ValueError, match="3 shadow models were requested"):
        plan_of(shadows=3)


def test_a_run_is_attacked_once(whole: Path, attacks: list[str]) -> None:
    first = measure_afterwards(Run(whole), ASKED)
    assert measure_afterwards(Run(whole), ASKED) == first
    assert attacks == ["whole"]
    assert measure_afterwards(Run(whole), Afterwards()) == {}
    kept = whole / "audits" / "table"
    assert [file.name for file in kept.iterdir()] == ["server-reconstruct.json"]
    assert kept.stat().st_mode & 0o777 == 0o700


def test_another_run_in_the_folder_and_other_attacks_are_made_anew(
    whole: Path, attacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_afterwards(Run(whole), ASKED)
    measure_afterwards(Run(whole), Afterwards((LOSS,), "prompt-release"))
    monkeypatch.setattr(afterwards, "FORMAT", 0)
    measure_afterwards(Run(whole), ASKED)
    sign_again(whole, privaudit="0.0.1")
    measure_afterwards(Run(whole), ASKED)
    assert attacks == ["whole"] * 4


def test_another_data_set_in_the_same_place_is_asked_anew(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, asked = (SimpleNamespace(hash=one) for one in "aab"), count(1.0)
    monkeypatch.setattr(afterwards, "load_dataset", lambda *_: next(there))
    monkeypatch.setattr(afterwards, "_measure_elsewhere", lambda *_: {"n": next(asked)})
    far = Afterwards(elsewhere=Elsewhere(dataset="scenes-far"))
    found = [measure_afterwards(Run(whole), far) for _ in range(3)]
    assert found == [{"n": 1}, {"n": 1}, {"n": 2}]


def test_attacks_that_a_table_does_not_print_are_not_made(whole: Path) -> None:
    found = measure_afterwards(Run(whole), ASKED)
    made = {str(attack_of(metric)).partition(" as ")[0] for metric in found}
    assert made == {"loss-threshold"}
    both = Afterwards((LOSS, "client no-such-attack"), "server-reconstruct")
    every = measure_afterwards(Run(whole), both)
    assert found.items() <= every.items()
    assert len(every) > len(found)


def test_an_outcome_holds_what_was_asked_and_the_runs_own_record(whole: Path) -> None:
    run = Run(whole)
    asked = Afterwards((LOSS, "megabytes per round"), "server-reconstruct")
    outcome = read_outcome(run, asked)
    assert outcome.value(LOSS, "last") == outcome.value(LOSS, "last10")
    sent = [entry["bytes_up"] + entry["bytes_down"] for entry in run.metrics]
    assert outcome.value("megabytes per round", "last") == pytest.approx(
        sum(sent) / 2e6
    )
    assert outcome.value("server token-loss", "last") is None


def test_megabytes_are_a_mean_over_all_rounds_by_hand() -> None:
    rounds = [{"bytes_up": 3_000_000, "bytes_down": 1_000_000}] + [
        {"bytes_up": 0, "bytes_down": 1_000_000}
    ] * 14
    found = read_metric(rounds, "megabytes per round")
    assert found == {"last10": pytest.approx(1.2), "last": pytest.approx(1.2)}
    assert read_metric([], "megabytes per round") == {"last10": None, "last": None}


def test_metrics_of_captions_are_read_by_their_own_names() -> None:
    rounds = [{"server BLEU-1": 0.5}, {"server BLEU-1": 0.75}, {"clients BLEU-1": 1.0}]
    assert read_metric(rounds, "server BLEU-1") == {"last10": 0.625, "last": None}


def plan_of(**changes: Any) -> TablePlan:
    asked: dict[str, Any] = {
        "title": "t",
        "seeds": [1],
        "metrics": [LOSS],
        "fields": {"clients": 2, "rounds": 1},
        "rows": [{"label": "a", "trainer": "promptfl", "settings": {"epochs": 1}}],
    }
    return TablePlan.model_validate(asked | changes)


def test_a_failed_attack_is_an_outcome_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ConfigError("No room for it.")

    (planned,) = schedule(plan_of()).runs
    monkeypatch.setattr(Auditor, "attack", broken)
    assert perform(planned, tmp_path).error == "No room for it."
    monkeypatch.undo()
    assert perform(planned, tmp_path).value(LOSS, "last") is not None


def in_domains(tmp_path: Path, **changes: Any) -> TablePlan:
    """Return a plan on a bank of two domains, whose last round is measured by domain."""
    bank = tmp_path / "two.npz"
    stream = np.random.default_rng(0)
    np.savez(
        bank,
        embeddings=stream.normal(size=(160, 64)).astype(np.float32),
        labels=np.arange(160) % 4,
        class_names=["one", "two", "three", "four"],
        domains=np.where(np.arange(160) < 80, "photo", "sketch"),
    )
    return plan_of(
        **{
            "fields": {
                "dataset": "feature-bank", "data": str(bank), "clients": 4, "rounds": 1,
                "partition": "domains", "members": "all", "tested": 60,
            },
            "metrics": ["mix", "mix on photo", "mix on sketch", "local on sketch"],
            "rows": [{"label": "a", "trainer": "coop", "settings": {"epochs": 1}}],
            **changes,
        }
    )  # fmt: skip


def test_accuracy_by_domain_is_that_of_its_own_clients(tmp_path: Path) -> None:
    """With as many clients in each, the mean over domains is the mean over clients."""
    table = make_table(in_domains(tmp_path), folder=tmp_path)
    assert not table.failures
    (outcome,) = table.outcomes.values()
    both = [outcome.value(f"mix on {name}", "last") for name in ("photo", "sketch")]
    assert None not in both
    assert sum(filter(None, both)) / 2 == pytest.approx(outcome.value("mix", "last"))
    assert both[0] != both[1]
    run = Run(tmp_path / outcome.run)
    assert clients_of(run.population, "sketch") == ["client-1", "client-3"]
    assert (tmp_path / outcome.run / "audits" / "table" / "domains.json").exists()


def test_a_domain_that_nobody_has_is_a_failure_that_says_so(tmp_path: Path) -> None:
    table = make_table(
        in_domains(tmp_path, metrics=["mix on clipart"]), folder=tmp_path
    )
    ((_, outcome),) = table.failures
    assert "The domains are: photo, sketch" in outcome.error


WRITER = [{"label": "a", "trainer": "lora-fedavg", "whose": "server"}]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"fields": {"members": "all"}},
            "a, accuracy, seed 1: The run is trained on all candidates",
        ),
        ({"metrics": ["client token-loss"]}, "'token-loss' cannot read what tiny-clip"),
        ({"rows": WRITER}, "'loss-threshold' cannot read what tiny-llava answers"),
        ({"metrics": ["server BLEU-1"]}, "generative models, and tiny-clip classifies"),
        ({"metrics": ["mix on clipart"]}, "of one domain, and partition = dirichlet"),
    ],
)
def test_what_a_finished_run_could_not_be_asked_is_refused_before_it_is_trained(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        schedule(plan_of(**changes))


def test_unknown_scenarios_and_data_sets_are_refused_before_anything_is_trained() -> (
    None
):
    with pytest.raises(ValueError, match="mean 'server-reconstruct'"):
        plan_of(scenario="server-reconstuct")
    far = {"metrics": ["elsewhere BLEU-1"], "rows": WRITER}
    with pytest.raises(UnknownNameError, match="mean 'scenes-far'"):
        schedule(plan_of(**far, elsewhere={"dataset": "scene-far"}))


def test_only_what_is_printed_is_asked() -> None:
    plain = plan_of(metrics=["local"])
    assert schedule(plain).runs[0].afterwards == Afterwards(("local",))
    both = plan_of(
        metrics=["elsewhere BLEU-1", "token-loss"],
        elsewhere={"dataset": "scenes-far"},
        rows=WRITER,
    )
    assert schedule(both).runs[0].afterwards == Afterwards(
        ("elsewhere BLEU-1", "server token-loss"),
        "server-reconstruct",
        Elsewhere(dataset="scenes-far"),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_scenes")
def test_a_model_that_writes_is_attacked_and_measured_elsewhere(
    tmp_path: Path, attacks: list[str]
) -> None:
    """Two rows are of one run: the server's model, and the rebuilt clients'."""
    metrics = ["token-loss", "server BLEU-1", "elsewhere BLEU-1", "elsewhere ROUGE-L"]
    plan = plan_of(
        over="last",
        fields={
            "clients": 2, "rounds": 1, "participation": 1.0, "shots": 4, "tested": 12,
        },
        metrics=metrics,
        elsewhere={"dataset": "scenes-far"},
        rows=[*WRITER, {"label": "b", "trainer": "lora-fedavg", "whose": "client"}],
    )  # fmt: skip
    table = make_table(plan, folder=tmp_path)
    assert not table.failures
    assert len(attacks) == 1
    column = plan.columns[0]
    shown = [
        [table.cell(row, column, metric, "last") for metric in metrics]
        for row in plan.rows
    ]
    assert all(cell and cell.mean for line in shown for cell in line)
    assert shown[0][1:] == shown[1][1:]
    (name,) = {outcome.run for outcome in table.outcomes.values()}
    run = Run(tmp_path / name)
    audit = Auditor(run).attack("server-reconstruct", shadows=0)
    values = [line[0].mean.value for line in shown if line[0] and line[0].mean]
    assert values == pytest.approx(
        [
            100 * results["token-loss"].auroc.value
            for results in (audit.part(SERVER_MODEL), audit.results)
        ]
    )
