"""Baselines in one form: signed scores of the same records, or public numbers.

A signed baseline names the attacks that are to be made and how strong they were, the
gate's settings, the code's revision, and is signed as runs are. It holds each
candidate's score without the truth and without its position. Rows stand under keyed
hashes, in their order, and the key is made of the ledger: only who has the same ledger
can say which record a score belongs to, and who of them is a member. That is no
encryption. Seeds are left out, but whoever has the data set and the settings can try
seeds until a ledger fits, so the file is as sensitive as the ledger, and mode 0600.

With public numbers no record can be compared with itself. Two intervals give the
interval of a difference (:func:`privaudit.statistics.comparisons.independent_difference`),
which takes the two for independent. Two models of the same records rise and fall
together, so for these it is too wide, not too narrow, and takes more records to decide.
"""

import base64
import hashlib
import hmac
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Int, Shaped, UInt8

from privaudit.auditing.audit_log import differences, read_log
from privaudit.auditing.scenario import OF_SCORES, find_plan
from privaudit.auditing.stored_audit import (
    LEFT_OUT,
    StoredAudit,
    other_format,
    read_audit,
)
from privaudit.checks.gate.checks import (
    TURNED_SIDES,
    GateQuestion,
    as_sampled,
    changes,
    margin_of,
    turned_at,
)
from privaudit.checks.gate.guarantees import NONE_STATED, Stated, stated
from privaudit.checks.gate.settings import (
    GateSettings,
    commits_lacking,
    commits_since,
    make_settings,
    revision_of,
)
from privaudit.checks.gate.strength import AttackStrength, Made, Shortfall, made_in
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    LimitError,
    MissingFileError,
    TranscriptError,
    shown,
)
from privaudit.core.limits import check_json
from privaudit.core.parameters import from_plain
from privaudit.core.signing import check_signature, sign, trusted_keys
from privaudit.core.storage import DAMAGE, read_bytes, read_npz, to_json
from privaudit.evaluation.card import SignedCard, parse_card
from privaudit.evaluation.compare.measured import (
    OWN_COINS,
    Measured,
    TestScores,
    measure_attacks,
    measure_utility,
    refuse_unnamed,
    score_tests,
    unlike_settings,
)
from privaudit.evaluation.metric import Metric, metrics_of
from privaudit.runs.ledger import Ledger
from privaudit.runs.own_files import write_output
from privaudit.runs.run import Run
from privaudit.statistics.comparisons import IntervalAt, independent_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import Sampling, VerdictKind, at_confidence

Pairing = Literal["record", "seed", "no", "no baseline"]


class Against(ABC):
    """What a run is compared with.

    Attributes:
        pairing: Whether each record is compared with itself.
        guarantees: Claimed and certified epsilons, by name; empty where nothing is
            said, not even "none".
        gate: The gate's settings that were in force, which later ones may not fall
            behind; None where nothing says them, nor how strong attacks are to be.
    """

    pairing: ClassVar[Pairing]
    guarantees: Mapping[str, Stated]
    gate: GateSettings | None

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is called in sentences."""

    @abstractmethod
    def demanded(self, scenario: str) -> Made:
        """Return the attacks that are to be made, the headline first, and how."""

    @abstractmethod
    def questions(
        self, audit: StoredAudit, attacks: Sequence[str], settings: GateSettings
    ) -> Iterator[GateQuestion]:
        """Yield a question for each metric that is asked for.

        Raises:
            IncompatibleRunsError: The two cannot be compared; the text says by what.
        """

    def notes(self, run: Run, settings: GateSettings, target: str) -> Iterator[str]:
        """Yield in words what a reader must know besides.

        The target is the branch that a change goes to; empty, or a file, where none is
        named.
        """
        yield from ()

    def stale(self, made_by: str | None) -> Iterator[Shortfall]:
        """Yield what makes it one of something else than the run's past.

        The run was attacked by that version of privaudit; None where nobody knows.
        """
        yield from ()

    def check_alike(self, run: Run) -> None:  # noqa: B027 # public numbers say neither
        """Raise IncompatibleRunsError unless both have the same data and model."""


FORMAT = 3
SIGNATURE = "signature"
_PURPOSE = "baseline"  # what the signature is for
KEY_BYTES = 16
SCORES, GUESSES, KEYS, CLIENT = "scores", "guesses", "keys", "client"
UTILITY, OWN = "utility/scores", "utility/own"
_SENSITIVE = "scores of single records: keep it where the ledger may be kept"

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]

_MODEL = ("model", "checkpoint")
_SPLIT = (
    "clients", "partition", "alpha", "shards", "sizes", "shots", "test_share",
    "public_share",
)  # fmt: skip
_UNLIKE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "data": ("were trained on other data", ("dataset", "data", *_MODEL)),
    "model": ("tune other models", _MODEL),
    "deal": ("split their records differently", _SPLIT),
    "ledger": ("have other members", ("members", "canary", "canaries")),
}
"""By hash, what another one means, and the settings that it follows from."""


@dataclass(frozen=True)
class Baseline(Against):
    """A run as later ones are compared with it.

    Attributes:
        settings: Its configuration without the seed.
        hashes: Of "data", "model", "deal" (who owns which record) and "ledger".
        attacks: On clients' models, the headline first, and how they were made.
        tool: The version of privaudit that attacked; None where no log says it.
        revision: Of the code; None outside of a checkout.
        metric: Of utility, such as "accuracy"; None where it was left out.
        arrays: "ATTACK/keys", "/client", "/scores", "/guesses", and with shadow models
            "/left_out": one row for each candidate, ordered by key; "utility/scores"
            and "utility/own", [clients, tests].
    """

    run: str
    scenario: str
    settings: Mapping[str, Any]
    hashes: Mapping[str, str]
    attacks: Mapping[str, AttackStrength]
    gate: GateSettings
    tool: str | None
    revision: str | None
    made: str
    guarantees: Mapping[str, Stated]
    metric: str | None
    arrays: Arrays

    pairing = "record"

    @property
    def label(self) -> str:
        """The run's name."""
        return self.run

    def demanded(self, scenario: str) -> Made:
        """Return the attacks that are to be made."""
        return self.attacks

    def questions(
        self, audit: StoredAudit, attacks: Sequence[str], settings: GateSettings
    ) -> Iterator[GateQuestion]:
        """Yield a question for each metric that is asked for, record by record."""
        check_same(audit.run, self)
        chosen: list[Measured] = []
        if metrics_of("leak", settings.metrics):
            other = joined_audit(audit, self, attacks)
            chosen = measure_attacks(audit, other, attacks, settings.metrics)
        known = audit.run.has_utility or self.metric is not None
        if metrics_of("utility", settings.metrics) and known:
            tests = _joined_tests(audit.run, self)
            chosen += measure_utility(*tests, settings.metrics)
        yield from changes(chosen, settings)

    def notes(self, run: Run, settings: GateSettings, target: str) -> Iterator[str]:
        """Yield by what the run differs, and how old the baseline is, if git can tell."""
        now = {k: v for k, v in run.config.described().items() if k != "seed"}
        if unlike := differences(self.settings, now):
            yield f"The run differs from its baseline: {'; '.join(unlike)}."
        if self.revision is not None:
            yield from _age(self.revision, target)
        elif revision_of() is not None:
            yield "Nothing says of which revision the baseline is: it may be an old one."

    def stale(self, made_by: str | None) -> Iterator[Shortfall]:
        """Yield that another version attacked, or that the code is another branch's."""
        if self.tool != made_by:
            yield Shortfall(
                "baseline", "another version", str(made_by), str(self.tool), "baseline",
                f"Undecided: the baseline was attacked by privaudit {self.tool}, and the "
                f"run by {made_by}, whose attacks may be others. Attack both by one "
                "version, and write the baseline again.",
            )  # fmt: skip
        try:
            if self.revision is not None:
                commits_since(self.revision)
        except LookupError:
            yield Shortfall(
                "baseline", "another branch", "not from it", str(self.revision),
                "baseline",
                f"Undecided: the baseline was written at revision {self.revision}, from "
                "which the code here does not come. Write one on the branch that the "
                "change goes to, or update the change from it.",
            )  # fmt: skip

    def check_alike(self, run: Run) -> None:
        """Raise IncompatibleRunsError unless both have the same data and model."""
        check_same(run, self, ("data", "model"))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a baseline file, but for its signature."""
        return {
            "baseline": FORMAT,
            "privaudit": version("privaudit"),
            "sensitive": _SENSITIVE,
            **asdict(replace(self, arrays={})),
            "arrays": _packed(self.arrays),
        }


def make_baseline(
    run: Run,
    scenario: str,
    *,
    utility: bool = True,
    settings: GateSettings | None = None,
) -> Baseline:
    """Return what later runs are compared with, of a run that was audited.

    Utility takes minutes of models that write.
    """
    audit = read_audit(run.require_complete(), scenario)
    ledger = run.truth
    arrays: dict[str, Any] = {}
    attacks = made_in(audit)
    for name in attacks:
        columns = audit.columns[name]
        keys = record_keys(ledger, columns["records"])
        order = np.lexsort(keys.T[::-1])
        arrays[f"{name}/{KEYS}"] = keys[order]
        for column in (CLIENT, SCORES, GUESSES, LEFT_OUT):
            if column in columns:
                arrays[f"{name}/{column}"] = columns[column][order]
    metric = None
    if utility and run.has_utility:
        tests = score_tests(run)
        metric, arrays[UTILITY], arrays[OWN] = tests.metric, tests.scores, tests.own
    return Baseline(
        run=run.name,
        scenario=scenario,
        settings={k: v for k, v in run.config.described().items() if k != "seed"},
        hashes=hashes_of(run, ledger),
        attacks=attacks,
        gate=settings or GateSettings(scenario=scenario),
        tool=tool_of(run, scenario),
        revision=revision_of(),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        guarantees=stated_of(run),
        metric=metric,
        arrays=arrays,
    )


def tool_of(run: Run, scenario: str) -> str | None:
    """Return the version of privaudit that made a run's audit, as its log says."""
    made = [one.privaudit for one in read_log(run) if one.scenario == scenario]
    return made[-1] if made else None


def stated_of(run: Run) -> dict[str, Stated]:
    """Return the epsilons that a run claims and that are certified, by name.

    Raises:
        TranscriptError: Its privacy.json is damaged.
    """
    try:
        return stated(run.privacy, run.config.model_dump().get("randomness"))
    except DAMAGE as error:
        raise TranscriptError(
            f"{run.path / 'privacy.json'} does not say what was claimed and certified "
            f"({error!r}): it was altered. Restore it from a copy, or train again."
        ) from None


def hashes_of(run: Run, ledger: Ledger) -> dict[str, str]:
    """Return what two runs must share for their records to be paired."""
    return {
        "data": run.header["data_hash"],
        "model": "" if run.origin else run.header["model_hash"],  # else of what is sent
        "deal": hashlib.sha256(ledger.owner.astype("<i8").tobytes()).hexdigest(),
        "ledger": ledger.hash,
    }


def record_keys(
    ledger: Ledger, records: Int[np.ndarray, " candidates"]
) -> UInt8[np.ndarray, "candidates 16"]:
    """Return a name for each record that only who has the ledger can make."""
    secret = hashlib.sha256(b"privaudit baseline|")
    secret.update(ledger.owner.astype("<i8").tobytes())
    secret.update(ledger.is_member.tobytes())
    key = secret.digest()
    names = [hmac.digest(key, str(int(r)).encode(), "sha256") for r in records]
    joined = b"".join(name[:KEY_BYTES] for name in names)
    return np.frombuffer(joined, np.uint8).reshape(len(records), KEY_BYTES)


def _age(revision: str, target: str) -> Iterator[str]:
    try:
        count = commits_since(revision)
    except LookupError:
        return  # that is a shortfall
    if count != 0:
        since = "an unknown number of" if count is None else f"{count}"
        ago = f"{since} commit{'s' * (count != 1)} ago"
        yield f"The baseline is of revision {revision[:12]}, {ago}."
    if target and (newer := commits_lacking(revision, target)):
        yield (
            f"The baseline is older than {target}, which has {newer} "
            f"commit{'s' * (newer != 1)} since: a newer one can be written there."
        )


def check_same(
    run: Run, baseline: Baseline, parts: Collection[str] = tuple(_UNLIKE)
) -> None:
    """Raise unless run and baseline have the same data, model, split and membership."""
    if "ledger" in parts:
        refuse_unnamed(run)
    hashes = hashes_of(run, run.truth)
    for part in parts:
        if hashes[part] != baseline.hashes[part]:
            _refuse(run, baseline, *_UNLIKE[part])


def _refuse(run: Run, baseline: Baseline, what: str, names: tuple[str, ...]) -> None:
    unlike = unlike_settings(run.config.described(), baseline.settings, names)
    guess = "with equal settings, so the seeds or the versions differ"
    if run.config.seed is None:
        guess = OWN_COINS
    raise IncompatibleRunsError(
        f"{run.name} and the baseline of {baseline.run} {what} "
        f"({'; '.join(unlike) or guess}), so that no record can be compared with "
        "itself. Train both alike and with the same --seed, write the baseline again, or "
        "compare with public numbers (`privaudit export`), which takes more records."
    )


def joined_audit(
    audit: StoredAudit, baseline: Baseline, attacks: Sequence[str]
) -> StoredAudit:
    """Return the baseline as an audit, with the truth of the run's own ledger.

    Its records are those of the run's audit that the baseline has, in that order.

    Raises:
        IncompatibleRunsError: The baseline lacks an attack.
    """
    if lacking := [name for name in attacks if name not in baseline.attacks]:
        raise IncompatibleRunsError(
            f"The baseline of {baseline.run} holds no {lacking[0]}: it has "
            f"{', '.join(baseline.attacks)}. Attack that run again and write its "
            "baseline again, or ask for one of these."
        )
    ledger, names = audit.run.truth, tuple(attacks)
    columns = {name: _joined(audit, baseline, ledger, name) for name in names}
    return StoredAudit(audit.run, audit.scenario, names, columns, audit.contents)


def _joined(
    audit: StoredAudit, baseline: Baseline, ledger: Ledger, attack: str
) -> dict[str, Any]:
    ours, there = audit.columns[attack], baseline.arrays
    keys = there[f"{attack}/{KEYS}"]
    row_of = {key.tobytes(): row for row, key in enumerate(keys)}
    positions = [
        row_of.get(k.tobytes(), -1) for k in record_keys(ledger, ours["records"])
    ]
    rows = np.array(positions, np.int64)
    matched = rows >= 0
    known = {name: ours[name][matched] for name in ("records", "labels", "is_member")}
    columns = [
        c for c in (CLIENT, SCORES, GUESSES, LEFT_OUT) if f"{attack}/{c}" in there
    ]
    return known | {c: there[f"{attack}/{c}"][rows[matched]] for c in columns}


def _joined_tests(run: Run, baseline: Baseline) -> tuple[TestScores, TestScores]:
    """Return the run's and the baseline's scores on the same test records."""
    if baseline.metric is None:
        raise IncompatibleRunsError(
            f"The baseline of {baseline.run} was written without utility. Write it "
            'again, or leave "utility" out of the metrics.'
        )
    tests = score_tests(run)
    scores, own_mask = baseline.arrays[UTILITY], baseline.arrays[OWN]
    if tests.metric != baseline.metric or tests.scores.shape != scores.shape:
        raise IncompatibleRunsError(
            f"{run.name} measures {tests.metric} of {tests.scores.shape} clients and "
            f"test records, and the baseline {baseline.metric} of {scores.shape}. "
            'Leave "utility" out of the metrics, or write the baseline again.'
        )
    return tests, TestScores(baseline.metric, scores, own_mask)


def save_baseline(baseline: Baseline, path: Path) -> Path:
    """Sign a baseline, and write it whole or not at all; only its owner can read it."""
    contents = baseline.to_dict()
    signed = {**contents, SIGNATURE: sign(_PURPOSE, contents)}
    write_output(path, to_json(signed))
    return path


def read_contents(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file to compare with.

    Raises:
        MissingFileError: There is no such file.
        ConfigError: It holds no JSON object.
    """
    try:
        content = read_bytes(path)
        check_json(content, str(path))
        contents = json.loads(content)
    except MissingFileError:
        raise MissingFileError(
            f"There is no baseline {path}. Make it from the run that later ones are to "
            f"be compared with: `privaudit gate RUN --write-baseline {path}`."
        ) from None
    except LimitError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no baseline ({error}). Make one with `privaudit gate RUN "
            "--write-baseline FILE`."
        ) from None
    if not isinstance(contents, dict):
        raise ConfigError(f"{path} is no baseline: it holds no JSON object.")
    return contents


def parse_baseline(contents: Mapping[str, Any], path: Path) -> Baseline:
    """Return the baseline that a file's JSON object is.

    Raises:
        ConfigError: It is of another version.
        TranscriptError: It was cut or altered, or nobody signed it.
        TrustError: It is signed by a key that is not trusted.
    """
    if contents.get("baseline") != FORMAT:
        raise ConfigError(
            f"{path} is in baseline format {contents.get('baseline')!r}, and this "
            f"version reads format {FORMAT}. Write it again."
        )
    plain = {name: part for name, part in contents.items() if name != SIGNATURE}
    if SIGNATURE not in contents:
        raise TranscriptError(
            f"{path} is not signed, so anybody could have written it. Write it again "
            "with `privaudit gate RUN --write-baseline FILE`."
        )
    check_signature(_PURPOSE, plain, contents[SIGNATURE], path)
    try:
        packed = base64.b64decode(plain["arrays"], validate=True)
        made = {
            "attacks": from_plain(dict[str, AttackStrength], plain["attacks"]),
            "gate": make_settings(plain["gate"], str(path)),
            "guarantees": {n: Stated(**one) for n, one in plain["guarantees"].items()},
            "arrays": dict(read_npz(packed, "The baseline")),
        }
        names = [field.name for field in fields(Baseline)]
        baseline = Baseline(**{name: plain[name] for name in names} | made)
        _check(baseline)
    except LimitError:
        raise
    except DAMAGE as error:
        raise TranscriptError(
            f"{path} is a damaged baseline ({error}): it was cut or altered. Write it "
            "again with `privaudit gate RUN --write-baseline FILE`."
        ) from None
    return baseline


def _check(baseline: Baseline) -> None:
    """Raise ValueError, KeyError or TypeError unless the parts fit one another."""
    texts = [baseline.run, baseline.scenario, baseline.made]
    texts += [one for one in (baseline.tool, baseline.revision) if one is not None]
    texts += [baseline.hashes[name] for name in ("data", "model", "deal", "ledger")]
    for one in baseline.attacks.values():
        texts += [one.settings or "", one.package, *one.clients]
        if not all(type(count) is int for count in one.n):
            raise ValueError(f"an attack has {one.n} candidates")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a name or a hash is no text")
    if not isinstance(baseline.settings, dict):
        raise ValueError("settings are no table")
    for attack in baseline.attacks:
        _check_rows(attack, baseline.arrays)
    if baseline.metric is not None:
        scores, own_mask = baseline.arrays[UTILITY], baseline.arrays[OWN]
        kinds = scores.dtype.kind + own_mask.dtype.kind
        if scores.shape != own_mask.shape or scores.ndim != 2 or kinds != "fb":
            raise ValueError(
                f"utility is of shapes {scores.shape} and {own_mask.shape}"
            )


def _check_rows(attack: str, arrays: Arrays) -> None:
    names = (KEYS, CLIENT, SCORES, GUESSES)
    columns = [arrays[f"{attack}/{name}"] for name in names]
    kinds = "".join(column.dtype.kind for column in columns)
    shapes = [column.shape for column in columns]
    count = len(columns[0])
    if kinds != "uUfb" or shapes != [(count, KEY_BYTES), *[(count,)] * 3]:
        raise ValueError(f"{attack} has columns of {kinds} and {shapes}")
    if not np.isfinite(columns[2]).all():
        raise ValueError(f"{attack} has a score that is not finite")
    left_out = arrays.get(f"{attack}/{LEFT_OUT}")
    if left_out is not None and (
        left_out.dtype.kind != "f"
        or left_out.shape[:1] != (count,)
        or left_out.ndim != 2
        or not np.isfinite(left_out).all()
    ):
        raise ValueError(f"{attack} has scores without some shadows of no such records")


def _packed(arrays: Arrays) -> str:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return base64.b64encode(buffer.getvalue()).decode()


NOTE = (
    " Unpaired: the baseline holds numbers and no scores, so this takes more records "
    "than a comparison of each record with itself."
)


@dataclass(frozen=True)
class PublicNumbers(Against):
    """What an export, or an audit.json, says of a run.

    Attributes:
        dataset: Its name; None where nothing is said.
        contents: "attack_results" by attack, and "utility".
        is_signed: Whether it is a card that a trusted key signed.
        of_card: The headline's settings, where it is a card: it says nothing of others.
    """

    name: str
    dataset: str | None
    contents: Mapping[str, Any]
    guarantees: Mapping[str, Stated]
    of_card: str | None = None
    is_signed: bool = False

    pairing = "no"
    gate = None

    @property
    def label(self) -> str:
        """The file's name."""
        return self.name

    def demanded(self, scenario: str) -> Made:
        """Return its attacks, in the scenario's order, and how they were made."""
        results = self.contents["attack_results"]
        own = [name for name in find_plan(scenario).attacks if name in results]
        ordered = {name: results[name] for name in [*own, *results]}
        return {
            name: _strength_of(result, scenario)
            for name, result in ordered.items()
            if isinstance(result, dict)
        }

    def questions(
        self, audit: StoredAudit, attacks: Sequence[str], settings: GateSettings
    ) -> Iterator[GateQuestion]:
        """Yield a question for each metric that is asked for, without pairing."""
        ours = audit.run.config.dataset
        if self.dataset not in (None, ours):
            raise IncompatibleRunsError(
                f"{audit.run.name} was trained on {ours}, and {self.name} is of a run "
                f"on {self.dataset}. Compare runs on one data set."
            )
        for name in attacks:
            clients = audit.clients(name)
            _check_strength(audit, self, name)
            for metric in metrics_of("leak", settings.metrics):
                listed = _listed(self, name)
                before = _estimate(
                    self, "attack_results", listed, metric.key or metric.code
                )
                asked = _question(metric, name, metric.at(clients), before, settings)
                yield as_sampled(asked, _sampling(self, name))
        known = audit.run.has_utility or self.contents.get("utility") is not None
        if (measures := metrics_of("utility", settings.metrics)) and known:
            yield from _of_utility(audit, self, measures, settings)

    def notes(self, run: Run, settings: GateSettings, target: str) -> Iterator[str]:
        """Yield that no guarantee is stated, where guarantees are asked for."""
        stated_here = self.guarantees.values()
        nothing = stated_here and all(one.epsilon is None for one in stated_here)
        if settings.guarantees and nothing:
            yield f"{self.name} states no guarantee, so none is compared."


def _strength_of(result: Mapping[str, Any], scenario: str) -> AttackStrength:
    settings = "" if scenario == OF_SCORES.name else result.get("settings")
    how = settings if isinstance(settings, str) else None
    return AttackStrength(how, str(result.get("package", "")))


def parse_numbers(
    contents: Mapping[str, Any], scenario: str, path: Path
) -> PublicNumbers:
    """Return the numbers of an audit card (``privaudit export``) or of an audit.json.

    Raises:
        ConfigError: It is neither, or not of the scenario.
    """
    if "payload" in contents or "audits" in contents:
        return _of_card(parse_card(contents, path), scenario, path)
    is_audit = contents.keys() & {"attack_results", "leaks"}  # the latter in format 1
    if is_audit and (fault := other_format(contents, path)):
        raise ConfigError(f"{fault} Make it again with `privaudit attack`.")
    if not isinstance(contents.get("attack_results"), dict):
        raise ConfigError(
            f"{path} is neither a baseline nor an audit card. Make one with "
            "`privaudit gate RUN --write-baseline FILE`, or `privaudit export`."
        )
    if contents.get("scenario", scenario) != scenario:
        raise IncompatibleRunsError(
            f"{path} is an audit of {contents['scenario']}, and the gate asks about "
            f"{scenario}. Choose one."
        )
    config = contents.get("config")
    config = config if isinstance(config, dict) else {}
    guarantees = _stated(contents.get("privacy"), config.get("randomness"), path)
    return PublicNumbers(path.name, config.get("dataset"), contents, guarantees)


def _of_card(signed: SignedCard, scenario: str, path: Path) -> PublicNumbers:
    """Return what a card says, its intervals as the noise widened them."""
    card = signed.card
    audit = card.audits.get(scenario)
    if audit is None:
        raise ConfigError(
            f"{path} holds audits of {', '.join(card.audits) or 'no scenario'}, and none "
            f"of {scenario}. Choose one of them, or export again."
        )
    result: dict[str, Any] = {
        "verdict": {"kind": audit.verdict},
        "settings": audit.settings,
    }
    if audit.auroc is not None:
        result["auroc"] = audit.auroc.estimate.to_dict()
    contents: dict[str, Any] = {"attack_results": {audit.headline: result}}
    if card.utility is not None:
        local = card.utility.estimate.to_dict()
        contents["utility"] = {"local": local, "metric": card.utility.metric}
    guarantees: Mapping[str, Stated] = NONE_STATED
    if card.privacy.certified:
        privacy = card.privacy.model_dump()
        guarantees = _stated(privacy, card.training.randomness, path)
    return PublicNumbers(
        path.name,
        card.training.dataset,
        contents,
        guarantees,
        audit.settings or "",
        not trusted_keys().keys().isdisjoint(signed.keys),
    )


def _stated(privacy: Any, randomness: Any, path: Path) -> dict[str, Stated]:
    if privacy is None:
        return {}
    try:
        return stated(privacy, randomness)
    except DAMAGE as error:
        raise ConfigError(
            f"{path} does not say as a run does what was claimed and certified "
            f"({error!r}). Export the run again."
        ) from None


def _listed(numbers: PublicNumbers, attack: str) -> str:
    """Return what the numbers call an attack: a card has one, by its plain name."""
    results = numbers.contents["attack_results"]
    return attack if numbers.of_card is None else next(iter(results))


def _check_strength(audit: StoredAudit, numbers: PublicNumbers, attack: str) -> None:
    """Refuse to compare with a card of an attack that had other parameters."""
    ours = audit.attack_result(attack)["settings"]
    if numbers.of_card is None or ours == numbers.of_card:
        return
    there = ", ".join(numbers.contents["attack_results"])
    raise IncompatibleRunsError(
        f"{audit.run.name} was attacked by {ours}, and {numbers.name} has a number of "
        f"{numbers.of_card or there} alone. Ask for that one with the same parameters."
    )


def _sampling(numbers: PublicNumbers, attack: str) -> Sampling:
    """Return how its members were chosen, as its verdict on the attack says."""
    result = numbers.contents["attack_results"][_listed(numbers, attack)]
    verdict = result.get("verdict")
    kind = verdict.get("kind") if isinstance(verdict, dict) else None
    if kind not in get_args(VerdictKind):
        raise ConfigError(
            f"{numbers.name} has the verdict {shown(kind)} on {attack}, which is none of "
            f"{', '.join(get_args(VerdictKind))}. It was altered: export the run again."
        )
    return "unknown" if kind == "sampling unknown" else "coin"


def _of_utility(
    audit: StoredAudit,
    numbers: PublicNumbers,
    measures: Sequence[Metric[Any]],
    settings: GateSettings,
) -> Iterator[GateQuestion]:
    tests = score_tests(audit.run)
    before = [_estimate(numbers, "utility", m.key or m.code) for m in measures]
    metric = numbers.contents["utility"].get("metric", tests.metric)
    if metric != tests.metric:
        raise IncompatibleRunsError(
            f"{audit.run.name} measures {tests.metric}, and {numbers.name} {metric}. "
            'Leave "utility" out of the metrics.'
        )
    for one, stated_before in zip(measures, before, strict=True):
        yield _question(one, metric, one.at(tests), stated_before, settings)


def _question(
    metric: Metric[Any],
    of: str,
    now: IntervalAt,
    before: Estimate,
    settings: GateSettings,
) -> GateQuestion:
    """Return the question of a metric, of either side with its sign turned if need be."""
    turned = False, False
    if metric.of_scores and metric.turn is not None:
        turned = _is_reversed(metric, now(0.95)), _is_reversed(metric, before)
        now = partial(turned_at, metric, now) if turned[0] else now
        before = metric.turn(before) if turned[1] else before
    setting, margin = margin_of(metric, settings)
    return GateQuestion(
        name=metric.name(of),
        about=metric.side,
        setting=setting,
        limit=margin,
        now=now(0.95).value,
        before=before.value,
        interval_at=partial(
            independent_difference, now, partial(at_confidence, before)
        ),
        note=f"{TURNED_SIDES[turned]}{NOTE}",
    )


def _is_reversed(metric: Metric[Any], estimate: Estimate) -> bool:
    """Say whether all of an interval is on the turned side of chance."""
    assert metric.turn is not None
    return estimate.high < metric.turn(estimate).low


def _estimate(numbers: PublicNumbers, *keys: str) -> Estimate:
    entry: Any = numbers.contents
    try:
        for key in keys:
            entry = entry[key]
        estimate = Estimate.from_dict(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{numbers.name} has no estimate at {'/'.join(keys)} ({error!r}). Leave "
            "that metric out, or export the run again."
        ) from None
    if estimate.unresolved:
        raise ConfigError(
            f"{numbers.name} has no interval at {'/'.join(keys)}: {estimate}. Leave "
            "that metric out."
        )
    return estimate
