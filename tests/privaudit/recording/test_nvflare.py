"""The filter, given what NVFlare gives it: make test-nvflare installs NVFlare."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.recording.bundle import read_bundle
from privaudit.recording.membership_split import split_membership

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from privaudit.privacy.events import noise_of_pure
from privaudit.recording.nvflare import ENGINE, WEIGHT, EngineFilter, RecordingFilter
from privaudit.recording.opacus import EngineNote
from tests.privaudit.recording.small_federation import (
    NAMES,
    Linear,
    audited,
    recorded_messages,
    start,
    toss,
)

SITES = ("hospital-a", "hospital-b")


def context(
    site: str, task: str = "train", at: str = ProcessType.SERVER_JOB
) -> FLContext:
    """Return what a filter is given of who talks with whom."""
    own, other = ("server", site) if at == ProcessType.SERVER_JOB else (site, "server")
    made = FLContextManager(identity_name=own, job_id="job").new_context()
    made.set_prop(FLContextKey.PROCESS_TYPE, at, private=True, sticky=False)
    made.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
    peer = FLContextManager(identity_name=other, job_id="job").new_context()
    made.set_peer_context(peer)
    return made


def message(value: float, round: int, kind: DataKind, **meta: Any) -> Shareable:
    held = DXO(kind, data={"w": np.full(2, value, dtype=np.float32)}, meta=meta)
    made = held.to_shareable()
    made.set_header(AppConstants.CURRENT_ROUND, round)
    return made


def send(recording: RecordingFilter, ctx: FLContext, task: Shareable) -> None:
    ctx.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
    recording.handle_event(EventType.AFTER_TASK_DATA_FILTER, ctx)


def play(
    recording: RecordingFilter,
    kind: DataKind = DataKind.WEIGHTS,
    rounds: tuple[int, ...] = (0, 1),
    sites: tuple[str, ...] = SITES,
    at: str = ProcessType.SERVER_JOB,
) -> None:
    """Send 10 times the round, and get 10 times the round, plus 1 and 2, back."""
    for round in rounds:
        for site in sites:
            task = message(10 * round, round, DataKind.WEIGHTS)
            send(recording, context(site, at=at), task)
        for number, site in enumerate(sites, start=1):
            value = number + (10 * round if kind == DataKind.WEIGHTS else 0)
            steps = {str(MetaKey.NUM_STEPS_CURRENT_ROUND): 5 * number}
            result = message(value, round, kind, **steps)
            passed = recording.process(result, context(site, at=at))
            assert torch.equal(
                torch.as_tensor(passed["DXO"]["data"]["w"]), torch.full((2,), value)
            )


def recorded(folder: Path, kind: str) -> list[tuple[int, str, float]]:
    return [
        (m.round, m.receiver if kind == "broadcast" else m.sender, float(m.tensors["w"][0]))
        for m in recorded_messages(folder)
        if m.kind == kind
    ]  # fmt: skip


def test_a_server_records_everyone_and_the_mean_of_the_last_round(
    tmp_path: Path,
) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    play(recording)
    mean = FLModel(ParamsType.FULL, params={"w": np.full(2, 11.5, dtype=np.float32)})
    ctx = context("hospital-a")
    ctx.set_prop(AppConstants.AGGREGATION_RESULT, mean, private=True, sticky=False)
    recording.handle_event(AppEventType.AFTER_AGGREGATION, ctx)
    recording.handle_event(EventType.END_RUN, ctx)
    folder = tmp_path / "run"
    assert recorded(folder, "broadcast") == [
        (round, site, value)
        for round, value in ((0, 0.0), (1, 10.0), (2, 11.5))
        for site in SITES
    ]
    assert recorded(folder, "update") == [
        *((0, "hospital-a", 1.0), (0, "hospital-b", 2.0)),
        *((1, "hospital-a", 11.0), (1, "hospital-b", 12.0)),
    ]
    updates = [m.tensors for m in recorded_messages(folder) if m.kind == "update"]
    steps = str(MetaKey.NUM_STEPS_CURRENT_ROUND)
    assert [int(tensors[steps]) for tensors in updates] == [5, 10, 5, 10]
    assert read_bundle(folder).aggregation.uploads == "models"


@pytest.mark.parametrize("is_aborted", [False, True])
def test_a_job_that_was_aborted_is_no_run(is_aborted: bool, tmp_path: Path) -> None:
    """NVFlare ends it as any other: END_RUN is fired, and the abort signal is set."""
    split = split_membership(clients=2, records=400)
    replace(split, names=SITES).save(tmp_path / "ledger.npz")
    recording = RecordingFilter(str(tmp_path / "run"), str(tmp_path / "ledger.npz"))
    play(recording)
    ctx, signal = context("hospital-a"), Signal()
    if is_aborted:
        signal.trigger(True)
    ctx.set_prop(ReservedKey.RUN_ABORT_SIGNAL, signal, private=True, sticky=True)
    recording.handle_event(EventType.END_RUN, ctx)
    assert read_bundle(tmp_path / "run").ended is not is_aborted
    assert (recording.run is None) == is_aborted
    assert (tmp_path / "run" / "run.json").exists() is not is_aborted


def test_differences_are_declared_and_added_to_what_was_sent(tmp_path: Path) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    play(recording, DataKind.WEIGHT_DIFF)
    mean = FLModel(ParamsType.DIFF, params={"w": np.full(2, 1.5, dtype=np.float32)})
    ctx = context("hospital-a")
    ctx.set_prop(AppConstants.AGGREGATION_RESULT, mean, private=True, sticky=False)
    recording.handle_event(AppEventType.AFTER_AGGREGATION, ctx)
    recording.handle_event(EventType.END_RUN, ctx)
    assert read_bundle(tmp_path / "run").aggregation.uploads == "differences"
    assert recorded(tmp_path / "run", "update")[-1] == (1, "hospital-b", 2.0)
    assert recorded(tmp_path / "run", "release")[-1] == (2, "hospital-b", 11.5)


def test_the_older_workflow_gives_its_last_model_too(tmp_path: Path) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    play(recording)
    ctx = context("hospital-a")
    learned = make_model_learnable({"w": np.full(2, 7, dtype=np.float32)}, {})
    ctx.set_prop(AppConstants.GLOBAL_MODEL, learned, private=True, sticky=True)
    recording.handle_event(AppEventType.AFTER_SHAREABLE_TO_LEARNABLE, ctx)
    recording.handle_event(EventType.END_RUN, ctx)
    assert recorded(tmp_path / "run", "release")[0] == (2, "hospital-a", 7.0)


def test_a_client_records_itself_from_whichever_round_it_joins(tmp_path: Path) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    at = ProcessType.CLIENT_JOB
    play(recording, rounds=(3, 4), sites=("hospital-b",), at=at)
    recording.handle_event(EventType.END_RUN, context("hospital-b", at=at))
    assert read_bundle(tmp_path / "run").clients == ("hospital-b",)
    assert recorded(tmp_path / "run", "update") == [
        (0, "hospital-b", 31.0),
        (1, "hospital-b", 41.0),
    ]


def test_other_tasks_and_late_results_are_let_through_unrecorded(
    tmp_path: Path,
) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    play(recording)
    validated = message(99, 1, DataKind.WEIGHTS)
    send(recording, context("hospital-a", task="validate"), validated)
    late = message(99, 0, DataKind.WEIGHTS)
    assert recording.process(late, context("hospital-b")) is late
    recording.handle_event(EventType.END_RUN, context("hospital-a"))
    sent = recorded(tmp_path / "run", "broadcast") + recorded(
        tmp_path / "run", "update"
    )
    assert 99.0 not in {value for _, _, value in sent}


def test_a_job_s_arguments_make_the_same_filter_again(tmp_path: Path) -> None:
    """As NVFlare writes a job down: constructor's arguments by name, in JSON."""
    made = RecordingFilter(
        str(tmp_path / "run"), ledger="l.npz", tasks=["train", "fit"]
    )
    names = ("folder", "ledger", "trainer", "model", "dataset", "tasks")
    written = json.dumps({name: getattr(made, name) for name in names})
    again = RecordingFilter(**json.loads(written))
    assert all(getattr(again, name) == getattr(made, name) for name in names)


def test_another_kind_and_a_name_that_is_none_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    play(recording, rounds=(0,), sites=("../site", "hospital-a"))
    other = message(99, 0, DataKind.WEIGHT_DIFF)
    assert recording.process(other, context("hospital-b")) is other
    recording.handle_event(EventType.END_RUN, context("hospital-a"))
    assert recorded(tmp_path / "run", "update") == [(0, "hospital-a", 2.0)]
    assert recorded(tmp_path / "run", "broadcast") == [(0, "hospital-a", 0.0)]
    assert f"hospital-b sends {DataKind.WEIGHT_DIFF}" in caplog.text
    assert "'../site' is no name of a client" in caplog.text


def test_what_opacus_did_in_a_client_is_recorded_by_the_server(tmp_path: Path) -> None:
    """EngineFilter notes it in the result; another's word is checked."""
    note = EngineNote(1.0, 1.0, 0.1, 5, 50, 5)
    recording = RecordingFilter(str(tmp_path / "run"))
    for site, noted in zip(SITES, (note.to_json(), "{}"), strict=True):
        send(recording, context(site), message(0, 0, DataKind.WEIGHTS))
        result = message(1, 0, DataKind.WEIGHTS, **{ENGINE: noted})
        recording.process(result, context(site))
    recording.handle_event(EventType.END_RUN, context(SITES[0]))
    bundle = read_bundle(tmp_path / "run")
    assert [(one.client, one.note) for one in bundle.engines] == [(SITES[0], note)]
    (event,) = bundle.mechanisms
    assert event["noise_multiplier"] == 0.0  # the other has none that can be read


def filtered_by(made: Any, site: str, steps: int = 1) -> Shareable:
    """Return a result of 100 numbers, and one without an axis, behind a filter."""
    data = {"w": np.linspace(-1, 1, 100, dtype=np.float32)}
    held = DXO(DataKind.WEIGHT_DIFF, data=data, meta={WEIGHT: steps})
    result = held.to_shareable()
    result.set_header(AppConstants.CURRENT_ROUND, 0)
    return made.process(result, context(site, at=ProcessType.CLIENT_JOB))


def test_nvflares_dp_filters_are_mechanisms_and_others_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SVTPrivacy's budget counts ten answers: a pass may accept all of a hundred."""

    class Halving(ExcludeVars):  # type: ignore[misc]
        def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
            return dxo

    svt = {"epsilon": 1.0, "gamma": 0.1, "epsilon_release": 2.0, "fraction": 0.1}
    parts = {"epsilon_threshold": 0.5, "epsilon_query": 0.5}
    folder, made = tmp_path / "run", []
    for number, second in enumerate([SVTPrivacy(**svt, **parts), PercentilePrivacy()]):
        recording = RecordingFilter(str(folder / str(number)))
        for site, own in zip(SITES, (SVTPrivacy(**svt, **parts), second), strict=True):
            send(recording, context(site), message(0, 0, DataKind.WEIGHTS))
            result = Halving().process(filtered_by(own, site), context(site))
            recording.process(result, context(site))
        recording.handle_event(EventType.END_RUN, context(SITES[0]))
        bundle = read_bundle(folder / str(number))
        made += bundle.mechanisms
    both, one = made
    assert both["noise_multiplier"] == noise_of_pure(0.5 + 10 * 0.5 + 2)
    assert (both["parties"], both["bounded"], both["unit"]) == (2, True, "client")
    assert one["noise_multiplier"] == 0.0  # PercentilePrivacy adds none
    assert bundle.settings["filters"] == ["SVTPrivacy", "Halving", "PercentilePrivacy"]
    assert caplog.text.count("the filters Halving do to a result is not known") == 2


def test_what_is_no_model_is_said_not_to_be_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = RecordingFilter(str(tmp_path / "run"))
    other = message(1, 0, DataKind.FL_MODEL)
    assert recording.process(other, context(SITES[0])) is other
    assert "and no weights: not recorded" in caplog.text


def test_a_client_without_an_engine_notes_nothing() -> None:
    noting = EngineFilter()
    result = message(1, 0, DataKind.WEIGHTS)
    ctx = context(SITES[0], at=ProcessType.CLIENT_JOB)
    assert ENGINE not in noting.process(result, ctx)["DXO"]["meta"]


def test_what_clients_keep_to_themselves_is_said_and_the_rest_attacked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client's own filter takes the bias out of what it sends."""
    ledger, server, folder = toss(), start(), tmp_path / "run"
    ledger.save(tmp_path / "ledger.npz")
    recording = RecordingFilter(str(folder), str(tmp_path / "ledger.npz"))
    for round in range(2):
        for client in NAMES:
            task = DXO(DataKind.WEIGHTS, {n: t.numpy() for n, t in server.items()})
            asked = task.to_shareable()
            asked.set_header(AppConstants.CURRENT_ROUND, round)
            send(recording, context(client), asked)
        sums = torch.zeros_like(server["weight"])
        for client in NAMES:
            members = ledger.members_of(client)
            trained = Linear().local_update(server, members, round)
            sums += trained["weight"] * len(members)
            held = DXO(
                DataKind.WEIGHTS,
                {n: t.numpy() for n, t in trained.items()},
                meta={WEIGHT: len(members)},
            )
            result = held.to_shareable()
            result.set_header(AppConstants.CURRENT_ROUND, round)
            own = context(client, at=ProcessType.CLIENT_JOB)
            left = ExcludeVars(["bias"]).process(result, own)
            assert recording.process(left, context(client)) is left
        mean = sums / sum(len(ledger.members_of(client)) for client in NAMES)
        server = {**server, "weight": mean}
        assert caplog.text.count("sends 1 of 2 tensors, without bias") == 1
    recording.handle_event(EventType.END_RUN, context(NAMES[0]))
    assert recording.run is not None
    settings = recording.run.config.settings
    assert settings["partial"] == "1 of 2 tensors, without bias"
    assert settings["filters"] == ["ExcludeVars"]
    for scenario in ("server-reconstruct", "server-aggregate"):
        assert audited(folder, scenario, shadows=0).auroc.value > 0.75
