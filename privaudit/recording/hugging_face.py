"""A training by Hugging Face's Trainer, recorded as a federation of one party.

Each checkpoint is an upload of the only client: whoever reads checkpoints sees what a
server would, and whoever is given the last one has the released model.
"""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from privaudit.core.errors import ConfigError, shown
from privaudit.models.hugging_face import import_peft, import_transformers
from privaudit.recording.opacus import engines_in_use
from privaudit.recording.recorder import Recorder

MOMENTS = ("save", "epoch")
Base: Any = import_transformers().TrainerCallback


class RecordingCallback(Base):  # type: ignore[misc]
    """Records a model at each of its checkpoints, and gives away the last one.

    Of a model of peft the adapter is recorded, as ``get_peft_model_state_dict`` names
    it; of another, the parameters that are trained. In training by several processes
    the first one records. What Opacus does is recorded, if it was imported before.

    Attributes:
        recorder: Of the training that began last; None before.

    Args:
        folder: Of the run: new, or empty.
        client: The party's name, as the ledger has it.
        at: What a checkpoint is: each "save" of the Trainer, or each "epoch".
        recording: Other arguments of :class:`privaudit.recording.recorder.Recorder`,
            such as ``ledger``.

    Raises:
        ConfigError: ``at`` is neither.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        client: str = "client-0",
        at: str = "save",
        **recording: Any,
    ) -> None:
        if at not in MOMENTS:
            raise ConfigError(
                f"A checkpoint at each {shown(repr(at))} was requested. Say save or "
                "epoch."
            )
        self.recorder: Recorder | None = None
        self._begin = partial(Recorder, folder, library="transformers", **recording)
        self._client, self._at, self._engines = client, at, engines_in_use()
        self._round, self._step = 0, -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Record the model that training begins with."""
        if state.is_world_process_zero:
            self.recorder, self._round, self._step = self._begin(), 0, -1
            self.recorder.broadcast(0, self._client, tensors_of(given["model"]))

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Record a checkpoint, where each save is one."""
        if self._at == "save":
            self._record(state, given["model"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Record a checkpoint, where each epoch ends in one."""
        if self._at == "epoch":
            self._record(state, given["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Record what was trained after the last checkpoint, and end the run.

        The model that is given away may be an earlier one: ``load_best_model_at_end``.
        """
        self._record(state, given["model"])
        if self.recorder is not None:
            last = tensors_of(given["model"])
            self.recorder.broadcast(self._round, self._client, last)
            self.recorder.end()

    def _record(self, state: Any, model: Any) -> None:
        """Record a round, unless this step was: it may be saved twice."""
        if self.recorder is None or state.global_step == self._step:
            return
        tensors = tensors_of(model)
        self.recorder.update(self._round, self._client, tensors)
        if self._engines is not None and (note := self._engines.take()) is not None:
            self.recorder.engine(self._round, self._client, note)
        self._round, self._step = self._round + 1, state.global_step
        self.recorder.broadcast(self._round, self._client, tensors)


def tensors_of(model: Any) -> dict[str, Tensor]:
    """Return what is trained of a model: its adapter, or its trained parameters."""
    peft = import_peft()
    if isinstance(model, peft.PeftModel):
        found = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    else:
        found = {n: p for n, p in model.named_parameters() if p.requires_grad}
    tensors = {name: one.detach().cpu().clone() for name, one in found.items()}
    if not tensors or any(not one.numel() for one in tensors.values()):
        what = "holds parts of its tensors" if tensors else "has nothing to be trained"
        raise ConfigError(
            f"A {type(model).__name__} was to be recorded, and it {what}. Record a "
            "model that lies whole in this process: neither FSDP nor ZeRO 3 leaves it so."
        )
    return tensors
