"""A server that sends one client a model which amplifies one record.

The server trains what it sends on the candidates that it asks about, with the labels
they have, but for one: that has the wrong label which the model finds likeliest, many
times. To what is sent then all the others are known and this one is not, so that the
client moves it back just if it has the record. How far a client would is learned from
shadow clients that train on what is sent, with the record and without.

Ours. A server that crafts what it sends and watches how training moves it is also that of
Nguyen et al., arXiv 2601.06641, of which the abstract was read; theirs crafts keys of a
pool of prompts, from which a record's feature selects, and is another attack: here is one
prompt, and a label is turned. The score is LiRA's (:mod:`privaudit.attacks.lira`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field

from privaudit.auditing.shadow_models import paired_coins
from privaudit.auditing.signals import log_odds
from privaudit.core.errors import AttackError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors, unstack
from privaudit.federation.query import ask_each
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.federation.uploads import update_deltas
from privaudit.statistics.shadow_comparison import online_scores
from privaudit_labs.active_server.broadcast_checks import distance
from privaudit_labs.simulated_clients import train_simulated_clients

Ask = Callable[[int, Tensors], Tensors]  # a round and what is sent: the client's upload


@pydantic.dataclasses.dataclass(frozen=True)
class Amplifier:
    """How what is sent is made, and what is learned of it.

    Attributes:
        copies: Of the record, with a wrong label.
        rounds: Of the server's own training of what it sends.
        shadows: Clients of its own for each record, half of which have it.
        within: Never farther than this from what the rule says; None goes anywhere.
    """

    copies: Annotated[int, Field(ge=1)] = 20
    rounds: Annotated[int, Field(ge=1)] = 4
    shadows: Annotated[int, Field(ge=6, multiple_of=2)] = 8
    within: Annotated[float, Field(ge=0)] | None = None

    def craft(
        self, server: "ActiveServer", candidates: Records, record: int
    ) -> Tensors:
        """Return what is sent to amplify one candidate, given its place among all."""
        others = torch.arange(len(candidates)) != record
        odd = candidates.pick(torch.full((self.copies,), record))
        wrong = torch.full_like(odd.labels, server.likeliest_wrong(candidates, record))
        shard = Records.joined([candidates.pick(others), replace(odd, labels=wrong)])
        sent = server.by_rule
        for index in range(self.rounds):
            (sent,) = server.trained([shard], sent, index, ["crafted"])
        return self._held(server.by_rule, sent)

    def _held(self, rule: Tensors, sent: Tensors) -> Tensors:
        """Return what is sent, drawn towards the rule until it is near enough."""
        far = distance(sent, rule)
        if self.within is None or far <= self.within:
            return sent
        share = 0.999 * self.within / far  # so that rounding stays within, too
        return {n: rule[n] + share * (sent[n] - rule[n]) for n in rule}


@dataclass(frozen=True)
class ActiveServer:
    """What an active server has: the algorithm, its own state, and coins.

    Attributes:
        trainer: Public, and so are its parameters. Its clients keep nothing, and train
            what they receive.
        by_rule: What the rule would send.
    """

    trainer: Trainer
    task: Task
    by_rule: Tensors
    seeds: Seeds

    def trained(
        self, shards: Sequence[Records], received: Tensors, index: int, names: list[str]
    ) -> Sequence[Tensors]:
        """Return what clients with these shards would make of what they receive.

        Raises:
            AttackError: They keep a state, or send something else.
        """
        result = train_simulated_clients(
            self.trainer, self.task, received, names, shards, self.seeds, index
        )
        moved = update_deltas(result.sent, received)
        if result.kept or moved.keys() != received.keys():
            raise AttackError(
                f"An active server was asked for, and clients of "
                f"{type(self.trainer).__name__} keep a state of their own, which no "
                "server sees, or send something else than what they received. Use a run "
                "of promptfl, prompt-fedprox, dp-promptfl, fedpt or full-fedavg."
            )
        return unstack({n: received[n] + moved[n] for n in received}, len(names))

    def made_of(self, upload: Tensors, received: Tensors) -> Tensors:
        """Return the model that a client sent."""
        sent = {n: t.unsqueeze(0) for n, t in upload.items()}
        moved = update_deltas(sent, received)
        return {n: received[n] + moved[n][0] for n in received}

    def likeliest_wrong(self, candidates: Records, record: int) -> int:
        """Return the class that a record would sooner have than any but its own."""
        one = candidates.pick(torch.tensor([record]))
        logs = ask_each(self.trainer, self.task, [self.by_rule], one)[0, 0].clone()
        logs[one.labels[0]] = -torch.inf
        return int(logs.argmax())

    def confidences(
        self, models: Sequence[Tensors], records: Records
    ) -> Float[np.ndarray, "models records"]:
        """Return the log-odds of records' classes."""
        logs = ask_each(self.trainer, self.task, models, records)
        return log_odds(logs, records.labels).numpy()


@dataclass(frozen=True)
class Amplified:
    """What came of sending crafted models.

    Attributes:
        active: A score of each record, by the answer to a model that amplifies it.
        passive: The same record's by the answer to what the rule sends, with as many
            shadow clients of the same coins.
        sent: What was sent in each record's round.
    """

    active: Float[np.ndarray, " records"]
    passive: Float[np.ndarray, " records"]
    sent: tuple[Tensors, ...]


def amplify(
    server: ActiveServer,
    candidates: Records,
    chosen: Sequence[int],
    ask: Ask,
    how: Amplifier,
) -> Amplified:
    """Send a crafted model for each chosen candidate, a round each, and score the answers."""
    coins = paired_coins(candidates, how.shadows, server.seeds.stream("active coins"))
    sent = tuple(how.craft(server, candidates, record) for record in chosen)
    names = [f"shadow-{n}" for n in range(len(coins))]
    shards = [candidates.pick(row) for row in coins]

    def table(
        received: Tensors, upload: Tensors, records: list[int]
    ) -> Float[np.ndarray, "models records"]:
        """Return log-odds under shadow clients, and last under the client."""
        models = [*server.trained(shards, received, 0, names)]
        models.append(server.made_of(upload, received))
        return server.confidences(models, candidates.pick(torch.tensor(records)))

    passive = table(server.by_rule, ask(0, server.by_rule), [*chosen])
    columns = [
        table(crafted, ask(1 + n, crafted), [record])
        for n, (record, crafted) in enumerate(zip(chosen, sent, strict=True))
    ]
    is_in = coins[:, [*chosen]].numpy()
    scores = [
        online_scores(side[-1], side[:-1], is_in, ~is_in, "global")
        for side in (np.concatenate(columns, axis=1), passive)
    ]
    return Amplified(scores[0], scores[1], sent)
