"""Active-server audit: what it learns beyond a passive one, and who would notice.

A finished run goes on for some rounds more, in which one client alone takes part: in
the first it is sent what the rule says, in each of the others a model that amplifies
another of its candidates. Active and passive attack ask about the same records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from privaudit.auditing.audit_log import LoggedAttack, check_log, log_audit
from privaudit.auditing.named_attacks import refuse_all_members
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.storage import make_private_folder
from privaudit.core.tensors import Tensors
from privaudit.federation.rounds import Federation, run_round
from privaudit.federation.trainer import ClientId
from privaudit.federation.transcript import (
    SERVER,
    ChainEnd,
    Message,
    Transcript,
    TranscriptFolder,
)
from privaudit.runs.own_files import check_folder
from privaudit.runs.population import MemberShards
from privaudit.runs.run import Run
from privaudit.statistics.comparisons import (
    Comparison,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, proportion
from privaudit.statistics.roc import pooled_auroc
from privaudit_labs.active_server.amplified import (
    ActiveServer,
    Amplified,
    Amplifier,
    amplify,
)
from privaudit_labs.active_server.broadcast_checks import MoveBound, differing

FEWEST_RECORDS = 10
SCENARIO = "active-server"  # in the log of audits


@dataclass(frozen=True)
class ClientCheck:
    """How a client-side check fares.

    Attributes:
        detected: The share of crafted broadcasts that raise an alarm.
        false_alarms: The share of the rule's that do; None without a trial.
    """

    name: str
    detected: Estimate
    false_alarms: Estimate | None


@dataclass(frozen=True)
class ActiveAudit:
    """What an active server finds, beside one who looks on.

    Attributes:
        clients: Who was singled out, one after another.
        active: AUROC of answers to crafted models, over all clients.
        passive: Of the answer to what the rule sends, on the same records, with as
            many shadow clients of the same coins.
        gain: The first less the second, paired.
        checks: What a client could notice.
        messages: All that was sent: crafted broadcasts have what the rule says beside
            them.
    """

    clients: tuple[ClientId, ...]
    active: Estimate
    passive: Estimate
    gain: Comparison
    checks: tuple[ClientCheck, ...]
    messages: Transcript


@dataclass(frozen=True)
class PrintedActive:
    """What the command prints under ``--json``.

    Attributes:
        path: Of the transcript; None where none was to be written.
        transcript: Where that ends.
    """

    run: str
    clients: tuple[ClientId, ...]
    active: Estimate
    passive: Estimate
    gain: Comparison
    checks: tuple[ClientCheck, ...]
    path: str | None
    transcript: ChainEnd | None

    @classmethod
    def of(
        cls, run: str, found: ActiveAudit, path: Path | None, end: ChainEnd | None
    ) -> "PrintedActive":
        """Return what is printed of an audit."""
        numbers = {n: value for n, value in vars(found).items() if n != "messages"}
        where = None if path is None else str(path)
        return cls(run, path=where, transcript=end, **numbers)


@dataclass(frozen=True)
class _Singled:
    """What was found of one client, and what it received before and then."""

    found: Amplified
    is_member: Bool[np.ndarray, " records"]
    earlier: Sequence[Tensors]


def attack_actively(
    run: Run,
    clients: ClientId | Sequence[ClientId] = "client-0",
    *,
    records: int = 24,
    how: Amplifier | None = None,
    seed: int = 0,
    unnoticed: bool = False,
) -> ActiveAudit:
    """Let a run's server single out clients, and say what it learned by that.

    Args:
        run: Of a trainer whose clients keep nothing, such as promptfl; not masked.
        clients: Who is singled out, each in rounds of its own.
        records: Of each one's candidates, drawn at random; a round each. Where records
            share a coin, one of each group.
        how: Models are crafted; None for the usual way.
        seed: Of the adversary.
        unnoticed: Whether each stays within the client's own bound on moves, if it has
            one.

    Raises:
        ConfigError: Uploads are masked, a client is named twice, or there are too few
            records.
        AttackError: The trainer's clients keep a state, its model writes, or all
            candidates are members.
        UnknownNameError: There is no such client.
        MissingFileError: The run's log of audits, to which this adds a line, is gone.
        TranscriptError: It was cut or altered.
        StorageError: It cannot be written.
    """
    named = (clients,) if isinstance(clients, str) else tuple(clients)
    _check_run(run)
    seeds = Seeds(seed).child("active server")
    chosen = _chosen(run, named, records, seeds)
    bound, how = MoveBound(), how or Amplifier()
    messages = list[Message]()
    singled = list[_Singled]()
    for client in named:
        earlier = _broadcasts(run, client)
        one = replace(how, within=bound.reach(earlier)) if unnoticed else how
        singled.append(_single_out(run, client, chosen[client], one, seeds, messages))
    groups = [(s.found.active, s.found.passive, s.is_member) for s in singled]
    active = pooled_auroc([(ours[m], ours[~m]) for ours, _, m in groups])
    passive = pooled_auroc([(theirs[m], theirs[~m]) for _, theirs, m in groups])
    attacks = [
        LoggedAttack.of("amplified", repr(how), active, named=True),
        LoggedAttack.of("not amplified", repr(how), passive, named=False),
    ]
    who = ", ".join(named)
    asked = {
        "client": who, "records": records, "seed": seed, "unnoticed": unnoticed,
        "rounds": how.rounds, "copies": how.copies, "shadows": how.shadows,
    }  # fmt: skip
    log_audit(run, SCENARIO, seed, attacks, asked)
    return ActiveAudit(
        named,
        active,
        passive,
        pooled_paired_auroc_difference(groups),
        _checks(run, singled, bound),
        Transcript(messages),
    )


def _check_run(run: Run) -> None:
    if run.config.is_masked:
        raise ConfigError(
            f"An active server was asked for, and the uploads of {run.name} are masked, "
            "so that it sees no answer. Use a run without --secure-aggregation masked."
        )
    refuse_all_members(run.config, f"{run.name} is trained")
    check_log(run)  # before anything is trained
    if run.population.task.kind != "classification":
        raise AttackError(
            f"An active server was asked for, and {run.name} generates text: what it "
            "turns is the label of a record. Use a run of a classifier."
        )


def _chosen(
    run: Run, clients: Sequence[ClientId], records: int, seeds: Seeds
) -> dict[ClientId, list[int]]:
    """Return which of each client's candidates are amplified.

    Of records that share a coin the first one alone: each that is asked about is then a
    trial of its own.
    """
    if len(set(clients)) < len(clients):
        raise ConfigError(
            f"A client is singled out once, and the names are {', '.join(clients)}. "
            "Name each once."
        )
    chosen, count = dict[ClientId, list[int]](), [0, 0]
    for client in clients:
        run.ledger.candidates_of(client)  # raises where there is none
        positions = run.population.asked_about(client, canaries=False)
        truth = run.ledger.is_member[positions]
        units = run.ledger.units(positions).first
        drawn = seeds.stream("amplified", client=client).permutation(len(units))
        chosen[client] = np.sort(units[drawn[:records]]).tolist()
        own = int(truth[chosen[client]].sum())
        either = own, len(chosen[client]) - own
        if not min(either):
            raise ConfigError(
                f"{len(chosen[client])} records of {client}, each with a coin of its own, "
                f"were to be amplified, {own} of them members: it takes some of either. "
                "Use more records, or other clients."
            )
        count = [c + e for c, e in zip(count, either, strict=True)]
    if min(sum(count), 2 * min(count)) < FEWEST_RECORDS:
        raise ConfigError(
            f"{sum(count)} records of {', '.join(clients)}, each with a coin of its own, "
            f"were to be amplified, {count[0]} of them members: it takes "
            f"{FEWEST_RECORDS // 2} of either. Use more records, or other clients."
        )
    return chosen


def _single_out(
    run: Run,
    client: ClientId,
    chosen: Sequence[int],
    how: Amplifier,
    seeds: Seeds,
    messages: list[Message],
) -> _Singled:
    """Ask one client about some of its candidates, in rounds after all that there were.

    What is sent is added to the messages.
    """
    population, trainer = run.population, run.trainer
    earlier = _broadcasts(run, client)
    rule = earlier[-1]
    first = 1 + max((m.round for m in messages), default=run.config.rounds)
    positions = population.asked_about(client, canaries=False)

    def ask(index: int, received: Tensors) -> Tensors:
        shards = {client: MemberShards(population, run.ledger)[client]}
        federation = Federation(shards, run.config.seeds, server=rule)
        crafted = {} if received is rule else {client: received}
        (done,) = run_round(
            trainer,
            population.task,
            [federation],
            first + index,
            crafted=crafted,
        )
        messages.extend(done.messages)
        return next(m.tensors for m in done.messages if m.is_update)

    server = ActiveServer(trainer, population.task, rule, seeds)
    found = amplify(server, population.pick(positions), chosen, ask, how)
    return _Singled(found, run.ledger.is_member[positions][chosen], earlier)


def _broadcasts(run: Run, client: ClientId) -> list[Tensors]:
    """Return all that the server sent to a client, in the order of rounds."""
    sent = [m for m in run.transcript if m.sender == SERVER and m.receiver == client]
    return [dict(m.tensors) for m in sent if m.kind == "broadcast"]


def _checks(
    run: Run, singled: Sequence[_Singled], bound: MoveBound
) -> tuple[ClientCheck, ...]:
    """Return how both checks fare on crafted broadcasts, and on those before.

    Digests of those before are compared in each round with two receivers or more; moves
    are the first client's: others mostly received the same.
    """
    seen, moved = list[object](), list[object]()
    for one in singled:
        rule = one.earlier[-1]
        others = {"one": rule, "two": rule}
        seen += [differing({**others, "singled out": s}) for s in one.found.sent]
        moved += [bound.alarms(one.earlier, s) for s in one.found.sent]
    earlier = singled[0].earlier
    sent = (m for m in run.transcript if m.sender == SERVER and m.kind == "broadcast")
    rounds = [
        {m.receiver: m.tensors for m in of_round}
        for _, of_round in groupby(sent, key=attrgetter("round"))
    ]
    plain = [differing(received) for received in rounds if len(received) > 1]
    counts = range(3, len(earlier))  # of which enough came before
    honest = [bound.alarms(earlier[:n], earlier[n]) for n in counts]
    return (
        ClientCheck("digests compared", _share(seen), _share(plain) if plain else None),
        ClientCheck(
            f"moves within {bound.factor:g} times the farthest",
            _share(moved),
            _share(honest) if honest else None,
        ),
    )


def _share(alarms: Sequence[object]) -> Estimate:
    raised: Bool[np.ndarray, " n"] = np.array([bool(one) for one in alarms], bool)
    return proportion(int(raised.sum()), len(raised))


def write_messages(folder: Path, messages: Transcript) -> ChainEnd:
    """Write who was sent what into a new folder, and return where its chain ends.

    Raises:
        StorageError: The folder cannot be written.
    """
    make_private_folder(check_folder(folder))
    stored, end = TranscriptFolder(folder), ChainEnd()
    stored.clear()
    for number, sent in groupby(messages, key=attrgetter("round")):
        end = stored.write(number, list(sent), end)
    return end
