"""NVFlare: a filter that records what passes through its server or a client.

It stands among the job's ``task_result_filters``, on the server to record everyone, or on
a client to record that one. Filters receive events too: so it sees what is sent to
clients, as it is after other filters, and the model that follows the last round.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ProcessType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.privacy.events import MechanismEvent, noise_of_pure
from privaudit.recording.opacus import EngineNote, engines_in_use
from privaudit.recording.recorder import Recorder
from privaudit.runs.ledger import check_client_name
from privaudit.runs.run import Run

WEIGHT = str(MetaKey.NUM_STEPS_CURRENT_ROUND)
ENGINE = "privaudit_engine"  # the property of a result that holds an EngineNote
BUDGET = "svt_privacy_budget"  # the property in which SVTPrivacy's accountant writes
KNOWN_FILTERS = (
    *("SVTPrivacy", "PercentilePrivacy", "ExcludeVars", "ConvertWeights"),
    *("EngineFilter", "RecordingFilter"),
)
"""Names in a result's history of filters whose doing is known."""
_OF_CLIENTS = (ProcessType.CLIENT_JOB, ProcessType.CLIENT_PARENT)


class EngineFilter(DXOFilter):  # type: ignore[misc]
    """Notes in a client's result what Opacus did in its process, for a RecordingFilter.

    It stands among the client's ``task_result_filters``, before a RecordingFilter there.
    """

    def __init__(self) -> None:
        super().__init__([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF], None)
        self._engines = engines_in_use(loading=True)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """Note it in the result."""
        note = None if self._engines is None else self._engines.take()
        if note is not None:
            dxo.set_meta_prop(ENGINE, note.to_json())
        return dxo


def filtered(dxo: DXO) -> MechanismEvent | None:
    """Return what NVFlare's DP filters did to a result; None where none changed it.

    PercentilePrivacy adds no noise. SVTPrivacy is pure DP, and counts as a Gaussian that
    tells no less. Its accountant counts as many answers above the threshold as numbers
    are sent, but a pass accepts all that lie above: at most all there are, each of which
    costs as much. Numbers without an axis pass it as they are.

    Source: nvflare 2.9, svt_privacy.py; Lyu, Su and Li, "Understanding the sparse vector
    technique for differential privacy", VLDB 2017, algorithm 7.
    """
    history = dxo.get_filter_history() or []
    if not {"SVTPrivacy", "PercentilePrivacy"} & {*history}:
        return None
    noise, bounded = 0.0, True
    if isinstance(budget := dxo.get_meta_prop(BUDGET), Mapping):
        numbers = sum(math.prod(np.shape(one)) for one in dxo.data.values())
        parts = (
            budget[f"epsilon_{name}"] for name in ("threshold", "query", "release")
        )
        threshold, query, release = map(float, parts)
        accepted = max(1.0, numbers / max(1, int(budget["n_upload"])))
        noise = noise_of_pure(threshold + query * accepted + release)
        bounded = not budget["has_scalar_passthrough"]
    return MechanismEvent(
        release="upload",
        noise_multiplier=noise,
        sensitivity=1.0,
        clip_norm=1.0,
        sampling_rate=1.0,
        sampling="without-replacement",
        noise_at="client",
        parties=1,
        per_record=False,
        unit="client",
        adjacency="replace-one",
        bounded=bounded,
    )


class RecordingFilter(DXOFilter):  # type: ignore[misc]
    """Records weights, or differences of weights, and passes them on unchanged.

    Uploads are weighed by NUM_STEPS_CURRENT_ROUND, as NVFlare's aggregators do, and by
    1 where a client does not say it. A result that arrives after the next round began
    is not recorded: no aggregator takes it. With a warning left out are a result of
    another kind than the first, and a site whose name no client of a run can bear.
    Which filters changed a result before, NVFlare writes into it: what SVTPrivacy and
    PercentilePrivacy did is recorded as a mechanism, and others are named. That a result
    lacks tensors, as behind ExcludeVars, is the setting ``partial``.

    Attributes:
        run: What was recorded, once the job has ended and if there is a ledger.

    Args:
        folder: Of the run: new, or empty.
        ledger: A file of ``privaudit split``, whose clients bear the sites' names; empty
            leaves it to ``privaudit import`` to end what is begun here.
        trainer: The method, in your words.
        model: The model, in your words.
        dataset: The data, in your words.
        tasks: Names of the tasks that train.
    """

    def __init__(
        self,
        folder: str,
        ledger: str = "",
        trainer: str = "recorded",
        model: str = "",
        dataset: str = "",
        tasks: tuple[str, ...] | list[str] = (AppConstants.TASK_TRAIN,),
    ) -> None:
        super().__init__(None, None)
        # NVFlare writes a job's arguments down by these names.
        self.folder, self.ledger, self.tasks = folder, ledger, list(tasks)
        self.trainer, self.model, self.dataset = trainer, model, dataset
        self.run: Run | None = None
        self._lock = threading.RLock()
        self._recorder: Recorder | None = None
        self._kind = ""  # of the first upload
        self._first: int | None = None  # NVFlare's number of the first round
        self._round = 0
        self._final: dict[str, Tensor] = {}
        self._sent: dict[str, dict[str, Tensor]] = {}  # in this round, by client
        self._filtered = dict[str, MechanismEvent | None]()  # likewise
        self._filters: tuple[str, ...] = ()

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Record what a client sends."""
        with self._lock:
            try:
                told = self._checked(dxo, shareable, fl_ctx)
            except Exception as error:  # whatever clients send
                self.log_warning(fl_ctx, f"A result is not recorded: {error}")
                return
            if told:
                is_whole = dxo.data_kind == DataKind.WEIGHTS
                recorder = self._begun("models" if is_whole else "differences")
                with recorder.omitted.stop_on_failure():
                    recorder.update(*told)
                    noted = dxo.get_meta_prop(ENGINE)
                    self._record_engine(recorder, told, noted, fl_ctx)
                    self._note_filters(recorder, told[1], dxo, fl_ctx)

    def _checked(
        self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext
    ) -> tuple[int, str, Mapping[str, Any], Any] | None:
        """Return round, client, tensors and weight; None, with a warning, of others."""
        client, round = self._client(fl_ctx), self._number(shareable)
        weight = dxo.get_meta_prop(WEIGHT, 1.0)
        is_model = dxo.data_kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
        self._kind = self._kind or (dxo.data_kind if is_model else "")
        if client and round != self._round:
            when = "late" if round < self._round else "in a round that nobody began"
            self.log_warning(fl_ctx, f"{client} is {when}: not recorded")
        elif client and not is_model:
            sent = f"{client} sends {dxo.data_kind}, and no weights"
            self.log_warning(fl_ctx, f"{sent}: not recorded")
        elif client and dxo.data_kind != self._kind:
            sent = f"{client} sends {dxo.data_kind}, where others sent {self._kind}"
            self.log_warning(fl_ctx, f"{sent}: not recorded")
        elif client:
            return round, client, dxo.data, weight
        return None

    def _record_engine(
        self, recorder: Recorder, told: Sequence[Any], noted: Any, fl_ctx: FLContext
    ) -> None:
        """Record what a client's EngineFilter noted."""
        if noted is None:
            return
        try:
            recorder.engine(told[0], told[1], EngineNote.from_json(str(noted)))
        except ConfigError as error:
            self.log_warning(fl_ctx, f"{told[1]}: {error}")

    def _note_filters(
        self, recorder: Recorder, client: str, dxo: DXO, fl_ctx: FLContext
    ) -> None:
        """Note what filters before this one did to a result, and say what is not known."""
        try:
            self._filtered[client] = filtered(dxo)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            self._filtered[client] = None
            self.log_warning(fl_ctx, f"{client}: its budget cannot be read: {error!r}")
        named = map(str, dxo.get_filter_history() or ())
        seen = tuple(dict.fromkeys((*self._filters, *named)))
        if unknown := sorted({*seen} - {*self._filters} - {*KNOWN_FILTERS}):
            self.log_warning(
                fl_ctx,
                f"What the filters {', '.join(unknown)} do to a result is not known: no "
                "clipping and no noise of theirs is counted.",
            )
        if seen != self._filters:
            self._filters = seen
            recorder.declare(filters=list(seen))

    def _end_round(self) -> None:
        """Record what filters did in a round: what is least protected counts."""
        events, self._filtered = list(self._filtered.values()), {}
        made = [event for event in events if event is not None]
        if made and self._recorder is not None:
            least = min(event.noise_multiplier for event in made)
            event = replace(
                made[0],
                noise_multiplier=least * (len(made) == len(events)),
                parties=len(events),
                bounded=all(event.bounded for event in made),
            )
            self._recorder.mechanism(self._round, event)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record what is sent to a client; at the end of a whole job end the run."""
        recorder = self._recorder
        failing = recorder.omitted.stop_on_failure() if recorder else nullcontext()
        with self._lock, failing:
            if event_type == EventType.AFTER_TASK_DATA_FILTER:
                self._record_task(fl_ctx)
            elif event_type == AppEventType.AFTER_AGGREGATION:
                self._keep_mean(fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT))
            elif event_type == AppEventType.AFTER_SHAREABLE_TO_LEARNABLE:
                model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL) or {}
                self._final = _copied(model.get("weights", {}))
            elif event_type == EventType.END_RUN:
                self._end(fl_ctx)

    def _record_task(self, fl_ctx: FLContext) -> None:
        task = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        if fl_ctx.get_prop(FLContextKey.TASK_NAME) not in self.tasks or not task:
            return
        round, dxo = self._number(task), from_shareable(task)
        if round > self._round:
            self._end_round()
            self._round, self._sent = round, {}
        client = self._client(fl_ctx)
        if not client:
            return
        self._sent[client] = _copied(dxo.data)
        if self._recorder is not None:
            self._recorder.broadcast(round, client, self._sent[client])

    def _begun(self, uploads: Literal["models", "differences"]) -> Recorder:
        """Return the recorder; the first upload says what uploads are."""
        if self._recorder is None:
            self._recorder = Recorder(
                Path(self.folder),
                weight=WEIGHT,
                uploads=uploads,
                ledger=self.ledger or None,
                trainer=self.trainer,
                model=self.model,
                dataset=self.dataset,
                library="nvflare",
            )
            for client, tensors in self._sent.items():
                self._recorder.broadcast(self._round, client, tensors)
        return self._recorder

    def _keep_mean(self, mean: Any) -> None:
        """Keep the model that the server makes of a round, whole or as a difference."""
        if not isinstance(mean, FLModel) or not mean.params:
            return
        self._final = _copied(mean.params)
        if mean.params_type == ParamsType.DIFF:
            before = next(iter(self._sent.values()), {})
            self._final = {
                name: before[name] + tensor if name in before else tensor
                for name, tensor in self._final.items()
            }

    def _end(self, fl_ctx: FLContext) -> None:
        """End the run, but of a job that was aborted keep the rounds only."""
        if self._recorder is None:
            return
        self._end_round()
        signal = fl_ctx.get_run_abort_signal()
        if signal is not None and signal.triggered:
            self.log_warning(
                fl_ctx, f"The job was aborted: {self.folder} is no run yet"
            )
            self._recorder.stop()
            return
        if self._final:
            for client in self._sent:
                self._recorder.broadcast(self._round + 1, client, self._final)
        self.run = self._recorder.end()

    def _number(self, shareable: Shareable) -> int:
        """Return the round that a message is of, from 0; without one the last."""
        cookie = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
        round = shareable.get_header(AppConstants.CURRENT_ROUND, cookie)
        if round is None:
            return self._round
        if self._first is None:
            self._first = int(round)
        return int(round) - self._first

    def _client(self, fl_ctx: FLContext) -> str:
        """Return who receives or sends: whoever asks the server, or this client.

        Empty, with a warning, where a run can have no client of that name.
        """
        is_client = fl_ctx.get_process_type() in _OF_CLIENTS
        own, peer = fl_ctx.get_identity_name(), fl_ctx.get_peer_context()
        name = str(own if is_client or peer is None else peer.get_identity_name())
        try:
            return check_client_name(name)
        except ConfigError as error:
            self.log_warning(fl_ctx, f"A site is not recorded: {error}")
            return ""


def _copied(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(one).clone() for name, one in tensors.items()}
