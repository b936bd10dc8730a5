"""Audits of scores and signals that were computed elsewhere, on any model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

from privaudit.auditing.audit import Audit
from privaudit.auditing.external_models import ShadowAttack, SignalScale, shadow_scores
from privaudit.auditing.model_outputs import Array, as_array
from privaudit.auditing.scores.score_table import Names, ScoreTable
from privaudit.auditing.scores.scored_audit import Declared, audit_scores
from privaudit.auditing.scores.slips import refuse_mask, refuse_training
from privaudit.core.errors import ConfigError
from privaudit.recording.origins.scores import SCORES
from privaudit.statistics.delong import checked_scores
from privaudit.statistics.verdict import Sampling


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
        sampling: Sampling = "unknown",
        attack: str = SCORES,
    ) -> Audit:
        """Return the audit of anybody's scores, from any model and framework.

        Its ``auroc`` and ``verdict`` are what most ask for. ``write_report`` makes a
        page of it, and ``save_audit(audit, "runs/mine")`` a folder that report, gate,
        compare and export take.

        Args:
            member_scores: Of records that were trained on; higher means more likely a
                member.
            nonmember_scores: Of records that were not.
            clients: Whose each record is, the members' first. Scores are compared
                within a client, and the AUROCs averaged by pairs.
            classes: The class of each record, in that order.
            records: What each record is called, in that order: audits of the same
                records can be compared with one another.
            groups: Which records share a coin, such as those of one patient: their
                scores are averaged, and count once.
            known: Numbers of each record, in that order, that hold nothing of the
                trained model: a score of a model that saw no record, features. What the
                scores tell beyond them is measured as in
                :mod:`privaudit.auditing.parts.panoramia`.
            sampling: "coin" if an independent fair coin chose each member, before
                training. Otherwise members and non-members may differ from the start,
                and the audit gives no verdict on membership.
            attack: What the scores are called.

        Raises:
            ConfigError: There are none of one kind, or a score is not finite, or not
                one number for each record; one argument is a mask of the other; or
                names, or what is known, are not one for each score.

        Example:
            >>> from privaudit import Auditor
            >>> audit = Auditor.from_scores([0.9, 0.8, 0.4], [0.7, 0.3, 0.1])
            >>> print(audit)
            AUROC 0.889 [0.211, 0.995], n = 3 + 3
            >>> audit.verdict.kind
            'sampling unknown'
        """
        members, others = as_array(member_scores), as_array(nonmember_scores)
        checked_scores(members, others)
        refuse_mask(members, others)
        scores = np.concatenate([members, others])
        is_member = np.arange(len(scores)) < len(members)
        columns = (clients, classes, records, groups)
        table = ScoreTable.of(scores, is_member, *columns, known=known)
        return audit_scores(table, Declared(attack, sampling))

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
            nonmembers: Records that were not.
            **said: As in :meth:`from_scores`: clients, classes, records, groups, known,
                sampling and attack.

        Raises:
            ConfigError: As there, or the function asks a model in training mode.

        Example:
            >>> from privaudit import Auditor
            >>> print(Auditor.from_signal(abs, [3, -4, 5], [1, -2, 4]))
            AUROC 0.833 [0.217, 0.987], n = 3 + 3
        """
        refuse_training(score, members)
        return AuditsScores.from_scores(
            [float(score(record)) for record in members],
            [float(score(record)) for record in nonmembers],
            **said,
        )

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
        sampling: Sampling = "unknown",
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
            sampling: Likewise.

        Raises:
            ConfigError: As there, or the truth is not of the records' number.
        """
        scores = shadow_scores(target, shadows, is_in, attack, scale)
        truth = as_array(is_member).astype(bool)
        if truth.shape != scores.shape:
            raise ConfigError(
                f"There are signals of {len(scores)} records, and the truth is of "
                f"shape {truth.shape}. Say of each record whether it is a member."
            )
        columns = (clients, classes, records, groups)
        table = ScoreTable.of(scores, truth, *columns, known=known)
        settings = f"shadows={len(shadows)}, scale={scale}"
        return audit_scores(table, Declared(attack, sampling, settings))
