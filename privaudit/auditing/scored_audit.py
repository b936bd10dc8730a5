"""Audits of scores and signals that were computed elsewhere, evaluated as any attack's are.

No model, no record and no transcript is needed. Slips that would be audited in silence, a
mask given as scores or a model in training mode, are refused: hardly anybody means them,
and whoever does is told how to say so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped
from scipy.special import bdtrc

from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.external_models import (
    Array,
    ShadowAttack,
    SignalScale,
    as_array,
    as_truths,
    shadow_scores,
)
from privaudit.auditing.fitted_models import (
    Fit,
    LabelledRecords,
    refitted,
    refuse_training,
    score_of,
    signal_of,
)
from privaudit.auditing.played_scenario import audit_parts
from privaudit.auditing.scenario import OF_SCORES
from privaudit.auditing.score_table import Names, ScoreTable
from privaudit.core.errors import ConfigError, shown
from privaudit.recording.membership_split import drawn_by
from privaudit.recording.origins.scores import SCORES, ScoredConfig, ScoredRun
from privaudit.runs.ledger import Ledger
from privaudit.statistics.evidence import LIMITS, Limits
from privaudit.statistics.roc import checked_scores


def refuse_mask(
    first: Shaped[np.ndarray, "..."], second: Shaped[np.ndarray, "..."]
) -> None:
    """Refuse scores and what says who is a member, where two kinds of scores are wanted.

    A mask has as many entries as the scores, and two whole numbers among them: 0 and 1,
    1 and -1, 1 and 2. Classes are as many whole numbers, of which some are equal.
    Positions are distinct whole numbers below that many. The scores are of another
    kind: fractions, or more than two numbers beside truths. Scores of attacks on labels
    alone are 0 and 1, too, but then those of both arguments are; and counts are whole in
    both.
    """
    for said, scores, which in ((second, first, "second"), (first, second, "first")):
        if looks := _looks_like(said, scores):
            raise ConfigError(
                f"The {which} argument holds whole numbers for the {len(scores)} scores "
                f"of the other: it looks like {looks}, and members' scores and "
                "non-members' are wanted. Say from_scores(scores[mask], scores[~mask]), "
                "with a mask of truths. If both are scores, add 0.5 to all of them, "
                "which changes no result."
            )


def _looks_like(
    said: Shaped[np.ndarray, "..."], scores: Shaped[np.ndarray, "..."]
) -> str:
    """Return what one looks like beside the other, in words; empty where it may be scores."""
    if _are_positions(said, scores):
        return "a list of members"
    if said.shape != scores.shape or _broken(said):
        return ""
    distinct, others = np.unique(said), len(np.unique(scores))
    are_truths = set(distinct.tolist()) in ({0, 1}, {-1, 1})
    more = others > 2 and (are_truths or _broken(scores))
    if len(distinct) == 2 and (more or (said.dtype == bool) > (scores.dtype == bool)):
        return "a mask of members"
    return "classes" * (2 < len(distinct) < said.size and _broken(scores))


def _are_positions(
    said: Shaped[np.ndarray, "..."], scores: Shaped[np.ndarray, "..."]
) -> bool:
    """Say whether they are some, three or more, of as many places as there are scores."""
    if said.dtype == bool or not 3 <= said.size < scores.size or _broken(said):
        return False
    is_distinct = len(np.unique(said)) == said.size
    is_within = said.min() >= 0 and said.max() < scores.size
    return bool(is_distinct and is_within and _broken(scores))


def _broken(numbers: Shaped[np.ndarray, "..."]) -> bool:
    """Say whether there are fractions among them."""
    as_floats = np.asarray(numbers, dtype=float)
    return bool((as_floats != np.floor(as_floats)).any())


HALF = "median of the client's scores: half of its records are guessed members"
_LONGEST = 60  # characters of a name
_HARDLY = 1e-9  # chance, as of six standard deviations of a fair coin


@dataclass(frozen=True)
class Declared:
    """What is said of scores, by whoever computed them.

    Attributes:
        attack: What the scores are called.
        sampling: How members were chosen, see :func:`Auditor.from_scores`.
        settings: The attack's parameters, in words.
        model: What was attacked, in words.
        dataset: What the records are, in words.
        limits: What of a leak does not matter to the verdict.
    """

    attack: str = SCORES
    sampling: str = "unknown"
    settings: str = ""
    model: str = ""
    dataset: str = ""
    limits: Limits = LIMITS


def audit_scores(table: ScoreTable, said: Declared) -> Audit:
    """Return the audit of a table of scores, in memory.

    :func:`privaudit.auditing.stored_audit.save_audit` writes it to a folder, which
    report, gate, compare and export take as they take any run.

    Raises:
        ConfigError: A name is none; a library's split, or a fair coin, did not choose
            these members; a group of members has another by a slip; or the scores are
            all the same number, or members' those of non-members.
        UnknownNameError: There is no such sampling.
    """
    for what, words in (
        ("attack", said.attack),
        ("model", said.model or "-"),
        ("data set", said.dataset or "-"),
    ):
        _check_name(what, words)
    _refuse_nothing(table)
    named = table.is_member, table.client, table.names
    coin = None if said.sampling == "coin" else drawn_by(said.sampling, *named)
    ledger = Ledger(table.client, table.is_member, (), table.group, coin, table.cluster)
    if said.sampling == "coin":
        _refuse_no_coin(ledger)
    if said.sampling in ("coin", "split"):
        _refuse_slips(table, is_fair=said.sampling == "coin")
    config = ScoredConfig(
        clients=len(table.clients),
        sampling=ledger.sampling,
        model=said.model,
        dataset=said.dataset,
    )
    run = ScoredRun.of(SCORES, ledger, config, table.classes, table.names_hash)
    clients = [_of_client(table, ledger, n) for n in range(len(table.clients))]
    result = evaluate_scores(
        said.attack, said.settings, HALF, clients,
        sampling=ledger.sampling, limits=said.limits,
    )  # fmt: skip
    parts = _beyond(table.known, ledger, result) if table.known is not None else {}
    return Audit(
        run, OF_SCORES, {said.attack: result}, utility=None, seed=0, parts=parts,
        computed=run.header["computed"],
    )  # fmt: skip


def _refuse_nothing(table: ScoreTable) -> None:
    """Refuse scores that tell nobody apart, which an intact attack hardly gives."""
    members = np.sort(table.scores[table.is_member])
    others = np.sort(table.scores[~table.is_member])
    distinct = len(np.unique(members))
    if members[0] == members[-1] == others[0] == others[-1]:
        fault = f"All {len(table.scores)} scores are {members[0]:g}"
    elif 2 * distinct > len(members) > 2 and np.array_equal(members, others):
        fault = f"Members' {len(members)} scores are those of the non-members"
    else:
        return
    raise ConfigError(
        f"{fault}: nothing was measured. Look whether the attack reads the model, and "
        "whether records were given twice."
    )


def _refuse_no_coin(ledger: Ledger) -> None:
    """Refuse memberships that no fair coins give, on which cards and controls rely."""
    tossed = ledger.units(np.arange(len(ledger.owner))).first
    for number in range(len(ledger.clients)):
        drawn = ledger.is_member[tossed][ledger.owner[tossed] == number]
        members, count = int(drawn.sum()), len(drawn)
        if _is_hardly_chance(max(members, count - members), count, 0.5):
            raise ConfigError(
                f"{members} of {count} of a client's records are members, and a fair coin "
                "for each was declared, which gives such a share less than once in 10^8 "
                'times. Give all records that it was tossed for, or declare "population" '
                'of two random samples, "split" of a random split.'
            )


def _refuse_slips(table: ScoreTable, *, is_fair: bool) -> None:
    """Refuse groups of members or of others alone, but for few of both by a slip.

    Of k records that were drawn one by one, p of the client's, p^k + (1 - p)^k of groups
    are alike; p = 1/2 of a fair coin.
    """
    if table.cluster is None:
        return
    first, group, sizes = np.unique(
        table.cluster, return_inverse=True, return_counts=True
    )
    members, several = np.bincount(group, table.is_member), sizes > 1
    is_mixed = (members > 0) & (members < sizes)
    drawn = np.bincount(table.client, table.is_member) / np.bincount(table.client)
    share = np.full(len(first), 0.5) if is_fair else drawn[table.client[first]]
    chances = (share**sizes + (1 - share) ** sizes)[several]
    alike, count = int((several & ~is_mixed).sum()), len(chances)
    if _is_hardly_chance(alike, count, float(chances.mean())):
        odd = is_mixed.argmax()
        places = np.flatnonzero(group == odd)
        names = places if table.names is None else table.names[places]
        raise ConfigError(
            f"{alike} of {count} groups are of members or of others alone, which records "
            "that are drawn one by one give less than once in 10^8 times. But of the "
            f"group of the records {shown(', '.join(map(str, names)))} "
            f"{int(members[odd])} of {len(places)} are members. Correct "
            "their member or group, or leave out the odd ones."
        )


def _is_hardly_chance(found: int, count: int, chance: float) -> bool:
    """Say whether chance gives so many of a count, or more, less than once in 10^9 times.

    Of unlike chances, their mean gives a bound: Hoeffding, "On the distribution of the number
    of successes in independent trials", Annals of Mathematical Statistics 27, 1956.
    """
    return bool(bdtrc(found - 1, count, chance) < _HARDLY)


def _beyond(
    known: Float[np.ndarray, "records columns"], ledger: Ledger, result: AttackResult
) -> dict[str, Any]:
    """Return what scores tell beyond what is known; of records that share a coin, the mean."""
    asked = {part.name: part.of_known for part in audit_parts() if part.of_known}
    if not asked:
        raise ConfigError(
            "Numbers that are known without the model were given (baseline, feature_NAME, "
            "known=), and PANORAMIA, which sets scores beside them, stands in "
            "privaudit-labs, which is not installed. Install it from a clone of the "
            "repository (pip install ./labs), or leave the numbers out."
        )
    units = ledger.units(np.arange(len(known)))
    records = np.concatenate([client.records for client in result.clients])
    rows = units.mean(known.T).T[units.unit[records]]
    return {name: of_known(result, rows) for name, of_known in asked.items()}


def _check_name(what: str, name: str) -> None:
    if (
        not isinstance(name, str)
        or not name.strip()
        or len(name) > _LONGEST
        or not name.isprintable()
    ):
        raise ConfigError(
            f"The {what} was to be called {shown(name)}. A name has 1 to {_LONGEST} "
            "printable characters."
        )


def _of_client(table: ScoreTable, ledger: Ledger, number: int) -> ClientScores:
    """Return a client's scores, of records that share a coin their mean."""
    records = np.flatnonzero(table.client == number)
    units = ledger.units(records)
    scores = units.mean(table.scores[records])
    records = records[units.first]
    return ClientScores(
        client=table.clients[number],
        records=records,
        labels=table.label[records],
        scores=scores,
        guesses=scores > np.median(scores),
        is_member=table.is_member[records],
        cluster=None if table.cluster is None else table.cluster[records],
    )


class AuditsScores:
    """What an auditor does without a run."""

    @staticmethod
    def from_scores(
        member_scores: Shaped[Array, "..."] | Sequence[float],
        nonmember_scores: Shaped[Array, "..."] | Sequence[float],
        *,
        clients: Names | None = None,
        classes: Names | None = None,
        records: Names | None = None,
        groups: Names | None = None,
        known: Shaped[Array, "..."] | None = None,
        sampling: str = "unknown",
        attack: str = SCORES,
        limits: Limits = LIMITS,
    ) -> Audit:
        """Return the audit of anybody's scores, from any model and framework.

        Its ``auroc`` and ``verdict`` are what most ask for. ``write_report`` makes a
        page of it, and ``save_audit(audit, "runs/mine")`` a folder that report, gate,
        compare and export take.

        Args:
            member_scores: Of records that were trained on; higher means more likely a
                member.
            nonmember_scores: Of records that were not trained on.
            clients: Whose each record is, the members' first. Scores are compared
                within a client, and the AUROCs averaged by pairs.
            classes: The class of each record, in that order.
            records: What each record is called, in that order: audits of the same
                records can be compared with one another.
            groups: Which records share a coin, such as those of one patient: their
                scores are averaged, and count once.
            known: Numbers of each record, in that order, that hold nothing of the
                trained model: a score of a model that saw no record, features. What the
                scores tell beyond them is measured after PANORAMIA, which stands in
                privaudit-labs: ``pip install ./labs`` of a clone.
            sampling: "coin" if an independent fair coin chose each member, before
                training. "sklearn:42", "torch:42" or "datasets:42" if the library's
                random split with that seed did, of all records or of each client's: it
                is done again and checked, with ``records`` their positions in what was
                split; "torch:42:50000" if that were so many. "split": by another random
                split of fixed size. "population": members and others are random samples
                of one population. Otherwise members and non-members may differ from the
                start, and the audit gives no verdict on membership.
            attack: What the scores are called.
            limits: What of a leak does not matter to the verdict:
                ``Limits(margin=0.05, tail_margin=0.05, fpr=0.01)``.

        Raises:
            ConfigError: There are none of one kind, or a score is not finite, or not
                one number for each record; one argument is a mask of the other; or
                names, or what is known, are not one for each score.

        Example:
            >>> from privaudit import Auditor
            >>> audit = Auditor.from_scores([0.9, 0.8, 0.4], [0.7, 0.3, 0.1])
            >>> print(audit)
            AUROC 0.889 [0.346, 0.995], n = 3 + 3
            >>> audit.verdict.kind
            'sampling unknown'
        """
        members, others = as_array(member_scores), as_array(nonmember_scores)
        for one in (members, others):
            if one.dtype.kind not in "biuf":
                raise ConfigError(
                    f"Scores of type {one.dtype} were given. Give numbers: members' scores, "
                    "and non-members'."
                )
        checked_scores(members, others)
        refuse_mask(members, others)
        scores = np.concatenate([members, others])
        is_member = np.arange(len(scores)) < len(members)
        columns = (clients, classes, records, groups)
        table = ScoreTable.of(scores, is_member, *columns, known=known)
        return audit_scores(table, Declared(attack, sampling, limits=limits))

    @staticmethod
    def from_signal(
        score: Callable[[Any], float],
        members: Sequence[Any],
        nonmembers: Sequence[Any],
        **said: Any,
    ) -> Audit:
        """Return the audit of any scoring function of a record.

        Args:
            score: Higher means more likely a member.
            members: Records that were trained on, of any type.
            nonmembers: Records that were not trained on, in the same form.
            **said: As in :meth:`from_scores`: clients, classes, records, groups, known,
                sampling, attack and limits.

        Raises:
            ConfigError: As there, or the function asks a model in training mode.

        Example:
            >>> from privaudit import Auditor
            >>> print(Auditor.from_signal(abs, [3, -4, 5], [1, -2, 4]))
            AUROC 0.833 [0.317, 0.987], n = 3 + 3
        """
        if not callable(score):
            raise ConfigError(
                f"A {type(score).__name__} was given in place of a scoring function. "
                "Say from_signal(score, members, nonmembers)."
            )
        refuse_training(score, members)
        return AuditsScores.from_scores(
            [score_of(score, record) for record in members],
            [score_of(score, record) for record in nonmembers],
            **said,
        )

    @staticmethod
    def from_model(
        model: Any,
        members: Any,
        nonmembers: Any,
        fit: Fit | None = None,
        *,
        shadows: int = 16,
        seed: int = 0,
        names: tuple[str, str] = ("", ""),
        sampling: str = "unknown",
        clients: Names | None = None,
        groups: Names | None = None,
        limits: Limits = LIMITS,
    ) -> Audit:
        """Return the audit of a fitted model: torch's, scikit-learn's, or transformers'.

        By RMIA if ``fit`` says how to train shadow models; else by the model's
        confidence, which is a weak attack, and the page says so.

        Args:
            model: As :func:`privaudit.auditing.fitted_models.signal_of` takes it, in
                evaluation mode.
            members: Records that it was fitted on: (inputs, labels), or a mapping with
                "labels" of what the model takes by name.
            nonmembers: Records that it was not, in the same form.
            fit: From inputs and labels to a model fitted as the target was. It never
                sees which records are members.
            shadows: How many models it fits, at least 5, each on a random half of all
                records.
            seed: What draws these halves, at least 0.
            names: What was attacked and what the records are, for the page: the model
                and the data set.
            sampling: As in :meth:`from_scores`: how members were chosen.
            clients: Whose each record is, the members' first.
            groups: Which records share a coin, in that order.
            limits: What of a leak does not matter to the verdict.

        Raises:
            ConfigError: The model is in training mode or of another form, it returns no
                logits, or the records are not as it takes them.

        Example:
            >>> from sklearn.tree import DecisionTreeClassifier
            >>> from privaudit import Auditor
            >>> x, y = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 1, 0]
            >>> model = DecisionTreeClassifier().fit(x, y)
            >>> print(Auditor.from_model(model, (x, y), ([[0.4], [2.6]], [1, 0])))
            AUROC 0.750 [0.473, 0.976], n = 4 + 2
        """
        inside, outside = LabelledRecords.of(members), LabelledRecords.of(nonmembers)
        records = inside.and_then(outside)
        scores, scale = signal_of(model, records)
        attack, settings = "confidence", ""
        if fit is not None:
            others, is_in = refitted(fit, records, shadows, seed)
            scores = shadow_scores(scores, others, is_in, "rmia", scale)
            attack, settings = "rmia", f"shadows={shadows}, scale={scale}"
        labels = as_array(records.labels)
        columns = (clients, labels if labels.ndim == 1 else None, None, groups)
        is_member = np.arange(len(records)) < len(inside)
        table = ScoreTable.of(scores, is_member, *columns)
        said = Declared(attack, sampling, settings, *names, limits=limits)
        return audit_scores(table, said)

    @staticmethod
    def from_shadows(
        target: Float[Array, " records"],
        shadows: Float[Array, "models columns"],
        is_in: Bool[Array, "rows coins"],
        is_member: Bool[Array, " truth"],
        attack: ShadowAttack = "lira",
        scale: SignalScale = "log-odds",
        *,
        clients: Names | None = None,
        classes: Names | None = None,
        records: Names | None = None,
        groups: Names | None = None,
        known: Shaped[Array, "..."] | None = None,
        sampling: str = "unknown",
        limits: Limits = LIMITS,
    ) -> Audit:
        """Return the audit of LiRA or RMIA with shadow models of one's own.

        The truth meets the scores here; :func:`privaudit.auditing.external_models.shadow_scores`,
        which says what the other arguments are, never sees it.

        Args:
            target: What the target says of each record, such as its confidence.
            shadows: What each shadow says, [models, records].
            is_in: Which shadow was trained on which record, [models, records].
            is_member: Which record the target was trained on.
            attack: "lira", "lira-offline", "rmia" or "rmia-offline".
            scale: What the signals are, where RMIA makes probabilities of them.
            clients: Whose each record is, in the order of the signals.
            classes: The class of each record, in that order.
            records: What each record is called, in that order.
            groups: Which records share a coin, in that order.
            known: As in :meth:`from_scores`, in that order.
            sampling: As in :meth:`from_scores`: how members were chosen.
            limits: What of a leak does not matter to the verdict.

        Raises:
            ConfigError: As there, or the truth is not of the records' number.
        """
        scores = shadow_scores(target, shadows, is_in, attack, scale)
        truth = as_truths("is_member", is_member)
        columns = (clients, classes, records, groups)
        table = ScoreTable.of(scores, truth, *columns, known=known)
        settings = f"shadows={len(shadows)}, scale={scale}"
        said = Declared(attack, sampling, settings, limits=limits)
        return audit_scores(table, said)
