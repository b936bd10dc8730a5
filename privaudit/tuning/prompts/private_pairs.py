"""Private trainers with a shared prompt, which is sent, and a part that is kept."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import pydantic.dataclasses
import torch
from torch import Tensor

from privaudit.core.tensors import Stacked, Tensors, numbers_in
from privaudit.federated.batches import Penalty
from privaudit.federated.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Round,
    Task,
)
from privaudit.federated.transcripts.threat_models import RoundSum, View
from privaudit.privacy.events import Release, on_grid
from privaudit.tuning.optimiser import VELOCITY
from privaudit.tuning.prompts.private_prompts import PrivateLocalTrainer
from privaudit.tuning.prompts.record_gradients import RecordLosses


@pydantic.dataclasses.dataclass(frozen=True)
class PrivatePairTrainer(PrivateLocalTrainer):
    """Rounds of a shared prompt and a kept part, in each of the three modes.

    "sound": ``steps`` steps of DP-SGD on all parameters; what is sent, averaged and
    released is post-processing. "published-paper": one clipped step on one batch, then
    noise on the kept part by its client, and 1 / N of it on the mean of the shared
    prompts by the server. "published-code": clients send the clipped gradient by the
    shared prompt, the server adds that noise to the mean; the gradients by the kept
    part get their client's; momentum 0.9 and weight decay 5e-4 on either side.

    Averages are plain, as DP-FPL's appendix has them: a weight would be a size.
    """

    shared: ClassVar[str]  # the name of the prompt that is sent

    @abstractmethod
    def losses(self, task: Task) -> RecordLosses:
        """Return the function from parameters and a batch to every record's loss."""

    def penalty(self, task: Task) -> Penalty | None:
        """Return the term of the loss that no record enters, if there is one."""
        return None

    def broadcast(self, server: Tensors, client: ClientId, at: Round) -> Tensors:
        """Send the shared prompt to everyone."""
        return {self.shared: server[self.shared]}

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train, and send the shared prompt or the clipped gradient by it."""
        personal = {n: tensor for n, tensor in kept.items() if not n.endswith(VELOCITY)}
        do = self.gradients if self.mode == "published-code" else self.train
        done, loss = do(
            task,
            cohort,
            {**received, **personal},
            self.losses(task),
            at,
            self.penalty(task),
        )
        parties, values = len(at.participants), numbers_in(done)
        sent = {self.shared: done.pop(self.shared)}
        grid = self.grid(self.noise_std(task), at)
        if self.mode == "sound":
            events = on_grid(self.steps_event(task, parties), grid, values)
            return LocalResult(sent, done, loss, events)
        done = self.add_noise(
            done, self.noise_std(task), "local noise", cohort, at,
            self._kept_release, self.event_unit(task),
        )  # fmt: skip
        if self.mode == "published-code":
            sent, done = {"gradient": sent[self.shared]}, self.descend(kept, done)
        events = self._kept_event(task, parties, len(personal))
        return LocalResult(
            sent, done, loss, on_grid(events, grid, numbers_in(personal))
        )

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Average the shared prompts, or step along the mean gradient, with noise."""
        parties, code = len(at.participants), self.mode == "published-code"
        mean: Tensor = inbox["gradient" if code else self.shared] / parties
        if self.mode == "sound":
            return {self.shared: mean}, ()
        std = self.noise_std(task) / parties
        mean, grid = self.noised_by_server(mean, std, at), self.grid(std, at)
        if code:
            events = self.gradient_event(task, "global", "server", parties)
            moved = self.descend(server, {self.shared: mean})
            return moved, on_grid(events, grid, mean.numel())
        events = self.prompt_event(task, "global", "server", parties)
        return {self.shared: mean}, on_grid(events, grid, mean.numel())

    def without_own_noise(self, view: View) -> Tensor | None:
        """Return the shared prompt as clean sums make it; None where they are not seen.

        A server adds its noise to what it broadcasts, and knows the sums before.
        """
        adds_noise = self.mode != "sound" and self.epsilon is not None
        if not (adds_noise and view.last_sum):
            return None
        return view.once(("clean prompt", repr(self)), lambda: self._clean(view.sums))

    def _clean(self, rounds: Sequence[RoundSum]) -> Tensor:
        state = {self.shared: rounds[0].broadcast[self.shared]}
        if self.mode == "published-code":
            state = self.begin(state)
            for one in rounds:
                state = self.descend(state, {self.shared: one.mean("gradient")})
            return state[self.shared]
        moves = [one.mean(self.shared) - one.broadcast[self.shared] for one in rounds]
        return state[self.shared] + torch.stack(moves).sum(dim=0)

    def shared_part(self, view: View, client: ClientId) -> Tensor:
        """Return the best shared prompt for a client: its own where uploads are seen.

        Where the server's noise can be left out, in "published-paper", the client's own
        moves take the place of the mean ones. (dp-fedpgp at epsilon 0.4 on digits, six
        seeds, attack by loss: AUROC 0.524, with the mean moves alone 0.516, on the
        client's last upload, noise and all, 0.509.)
        """
        clean = self.without_own_noise(view)
        if self.mode == "published-code" or not view.sees_updates_of(client):
            last = view.last_broadcast(client).tensors[self.shared]
            return last if clean is None else clean
        if clean is None:
            return view.updates_of(client)[-1].tensors[self.shared]
        moves = torch.stack(view.moves_of(client, self.shared))
        of_mean = 1 / view.sums[-1].parties
        return clean + (1 - of_mean) * moves.sum(dim=0)

    def _kept_event(self, task: Task, parties: int, tensors: int) -> Events:
        """Describe the noise on the kept part.

        A batch mean is clipped to its bound whatever the kept part is, so who sees the
        shared prompt alone need not account for that. A sum of clipped records moves by
        one clip norm only as long as the kept part is the same: then every view must.
        """
        describe = (
            self.gradient_event if self.mode == "published-code" else self.prompt_event
        )
        return describe(task, self._kept_release, "client", parties, tensors)

    @property
    def _kept_release(self) -> Release:
        return "upload" if self.clips_records else "local"
