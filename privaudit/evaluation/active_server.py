"""What an active server learns that one who only looks does not, and who would notice.

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

from privaudit.auditing.active.amplified import ActiveServer, Amplifier, amplify
from privaudit.auditing.repetition.audit_log import (
    LoggedAttack,
    check_log,
    log_audit,
)
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.storage import make_private_folder
from privaudit.core.tensors import Tensors
from privaudit.federated.broadcast_checks import MoveBound, differing
from privaudit.federated.federation import Federation, run_round
from privaudit.federated.runs.member_shards import MemberShards
from privaudit.federated.runs.runs import Run
from privaudit.federated.trainer import ClientId
from privaudit.federated.transcripts.folder import TranscriptFolder
from privaudit.federated.transcripts.transcript import (
    SERVER,
    ChainEnd,
    Message,
    Transcript,
)
from privaudit.statistics.comparisons import Comparison, paired_auroc_difference
from privaudit.statistics.estimate import Estimate, proportion
from privaudit.statistics.roc import auroc

FEWEST_RECORDS = 10
SCENARIO = "active-server"  # in the log of audits


@dataclass(frozen=True)
class ClientCheck:
    """How a client-side check fares.

    Attributes:
        name: Of the check.
        detected: The share of crafted broadcasts that raise an alarm.
        false_alarms: The share of the rule's that do.
    """

    name: str
    detected: Estimate
    false_alarms: Estimate


@dataclass(frozen=True)
class ActiveAudit:
    """What an active server finds, beside one who looks on.

    Attributes:
        client: Who was singled out.
        active: AUROC of answers to crafted models.
        passive: Of the answer to what the rule sends, on the same records, with as
            many shadow clients of the same coins.
        gain: The first less the second, paired.
        checks: What a client could notice.
        messages: All that was sent: crafted broadcasts have what the rule says beside
            them.
    """

    client: ClientId
    active: Estimate
    passive: Estimate
    gain: Comparison
    checks: tuple[ClientCheck, ...]
    messages: Transcript


def attack_actively(
    run: Run,
    client: ClientId = "client-0",
    *,
    records: int = 24,
    how: Amplifier | None = None,
    seed: int = 0,
    unnoticed: bool = False,
) -> ActiveAudit:
    """Let a run's server single out one client, and say what it learned by that.

    Args:
        run: Of a trainer whose clients keep nothing, such as promptfl; not masked.
        client: Who is singled out.
        records: Of its candidates, drawn at random; a round each.
        how: Models are crafted; None for the usual way.
        seed: Of the adversary.
        unnoticed: Whether each stays within the client's own bound on moves.

    Raises:
        ConfigError: Uploads are masked, or there are too few records.
        AttackError: The trainer's clients keep a state, or its model writes.
        UnknownNameError: There is no such client.
        MissingFileError: The run's log of audits, to which this adds a line, is gone.
        TranscriptError: It was cut or altered.
        StorageError: It cannot be written.
    """
    if run.config.is_masked:
        raise ConfigError(
            f"An active server was asked for, and the uploads of {run.name} are masked, "
            "so that it sees no answer. Use a run without --secure-aggregation masked."
        )
    check_log(run)  # before anything is trained
    population, trainer = run.population, run.trainer
    if population.task.kind != "classification":
        raise AttackError(
            f"An active server was asked for, and {run.name} generates text: what it "
            "turns is the label of a record. Use a run of a classifier."
        )
    run.ledger.candidates_of(client)  # raises where there is none
    positions = population.asked_about(client, canaries=False)
    truth = run.ledger.is_member[positions]
    seeds = Seeds(seed).child("active server")
    drawn = seeds.stream("amplified", client=client).permutation(len(positions))
    chosen = np.sort(drawn[:records]).tolist()
    told = truth[chosen]
    if min(len(chosen), 2 * int(told.sum()), 2 * int((~told).sum())) < FEWEST_RECORDS:
        raise ConfigError(
            f"{len(chosen)} records of {client} were to be amplified, {int(told.sum())} "
            f"of them members: it takes {FEWEST_RECORDS // 2} of either. Use more "
            "records, or another client."
        )
    earlier = _broadcasts(run, client)
    bound, how = MoveBound(), how or Amplifier()
    if unnoticed:
        how = replace(how, within=bound.reach(earlier) or 0.0)
    rule, messages = earlier[-1], list[Message]()

    def ask(index: int, received: Tensors) -> Tensors:
        shards = {client: MemberShards(population, run.ledger)[client]}
        federation = Federation(shards, Seeds(run.config.seed), server=rule)
        crafted = {} if received is rule else {client: received}
        (done,) = run_round(
            trainer,
            population.task,
            [federation],
            run.config.rounds + 1 + index,
            crafted=crafted,
        )
        messages.extend(done.messages)
        return next(m.tensors for m in done.messages if m.is_update)

    server = ActiveServer(trainer, population.task, rule, seeds)
    found = amplify(server, population.pick(positions), chosen, ask, how)
    active, passive = (auroc(s[told], s[~told]) for s in (found.active, found.passive))
    attacks = [
        LoggedAttack.of("amplified", repr(how), active, named=True),
        LoggedAttack.of("not amplified", repr(how), passive, named=False),
    ]
    asked = {"client": client, "records": records, "seed": seed, "unnoticed": unnoticed}
    log_audit(run, SCENARIO, seed, attacks, asked)
    return ActiveAudit(
        client,
        active,
        passive,
        paired_auroc_difference(found.active, found.passive, told),
        _checks(earlier, found.sent, bound),
        Transcript(messages),
    )


def _broadcasts(run: Run, client: ClientId) -> list[Tensors]:
    """Return all that the server sent to a client, in the order of rounds."""
    sent = [m for m in run.transcript if m.sender == SERVER and m.receiver == client]
    return [dict(m.tensors) for m in sent if m.kind == "broadcast"]


def _checks(
    earlier: Sequence[Tensors], crafted: Sequence[Tensors], bound: MoveBound
) -> tuple[ClientCheck, ...]:
    """Return how both checks fare on crafted broadcasts, and on those before."""
    rule = earlier[-1]
    others = {"one": rule, "two": rule}
    seen = [differing({**others, "singled out": one}) for one in crafted]
    plain = [differing({**others, "one more": one}) for one in (rule,) * len(earlier)]
    moved = [bound.alarms(earlier, one) for one in crafted]
    places = range(3, len(earlier))  # of which enough came before
    honest = [bound.alarms(earlier[:n], earlier[n]) for n in places]
    return (
        ClientCheck("digests compared", _share(seen), _share(plain)),
        ClientCheck(
            f"moves within {bound.factor:g} times the farthest",
            _share(moved),
            _share(honest),
        ),
    )


def _share(alarms: Sequence[object]) -> Estimate:
    raised: Bool[np.ndarray, " n"] = np.array([bool(one) for one in alarms], bool)
    return proportion(int(raised.sum()), max(len(raised), 1))


def write_messages(folder: Path, messages: Transcript) -> ChainEnd:
    """Write who was sent what into a new folder, and return where its chain ends.

    Raises:
        StorageError: The folder cannot be written.
    """
    make_private_folder(folder)
    stored, end = TranscriptFolder(folder), ChainEnd()
    stored.clear()
    for number, sent in groupby(messages, key=attrgetter("round")):
        end = stored.write(number, list(sent), end)
    return end
