"""A baseline: what a later run must be held to, and what is compared with it.

It names the attacks that are to be made and how strong they were, the gate's settings,
the code's revision, and is signed as runs are. It holds each candidate's score without
the truth and without its position. Rows stand under keyed hashes, in their order, and
the key is made of the ledger: only who has the same ledger can say which record a score
belongs to, and who of them is a member. That is no encryption. Seeds are left out, but
whoever has the data set and the settings can try seeds until a ledger fits, so the file
is as sensitive as the ledger, and mode 0600.
"""

import base64
import hashlib
import hmac
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped, UInt8

from privaudit.auditing.repetition.audit_log import read_log
from privaudit.auditing.storage.load import LEFT_OUT, read_audit
from privaudit.checks.gate.guarantees import Stated, stated
from privaudit.checks.gate.revision import revision_of
from privaudit.checks.gate.settings import GateSettings, make_settings
from privaudit.checks.gate.strength import AttackStrength, made_in
from privaudit.core.arrays import DAMAGE, read_npz
from privaudit.core.errors import (
    ConfigError,
    LimitError,
    MissingFileError,
    TranscriptError,
)
from privaudit.core.limits import check_json
from privaudit.core.signing import check_signature, sign
from privaudit.core.storage import read_bytes, to_json
from privaudit.evaluation.compare.comparable import score_tests
from privaudit.federated.runs.folder.outputs import write_output
from privaudit.federated.runs.ledger import Ledger
from privaudit.federated.runs.runs import Run

FORMAT = 3
SIGNATURE = "signature"
_PURPOSE = "baseline"  # what the signature is for
KEY_BYTES = 16
SCORES, GUESSES, KEYS, CLIENT = "scores", "guesses", "keys", "client"
UTILITY, OWN = "utility/scores", "utility/own"
_SENSITIVE = "scores of single records: keep it where the ledger may be kept"

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]


@dataclass(frozen=True)
class Baseline:
    """A run as later ones are compared with it.

    Attributes:
        run: Its name.
        scenario: Under which it was audited.
        settings: Its configuration without the seed.
        hashes: Of "data", "model", "deal" (who owns which record) and "ledger".
        attacks: On clients' models, the headline first, and how they were made.
        gate: The gate's settings that were in force.
        tool: The version of privaudit that attacked; None where no log says it.
        revision: Of the code; None outside of a checkout.
        made: When, in UTC.
        guarantees: Claimed and certified epsilons, by name.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a baseline file, but for its signature."""
        return {
            "baseline": FORMAT,
            "privaudit": version("privaudit"),
            "sensitive": _SENSITIVE,
            "run": self.run,
            "scenario": self.scenario,
            "settings": dict(self.settings),
            "hashes": dict(self.hashes),
            "attacks": {n: asdict(one) for n, one in self.attacks.items()},
            "gate": asdict(self.gate),
            "tool": self.tool,
            "revision": self.revision,
            "made": self.made,
            "guarantees": {n: asdict(one) for n, one in self.guarantees.items()},
            "metric": self.metric,
            "arrays": _packed(self.arrays),
        }


def make_baseline(
    run: Run,
    scenario: str,
    *,
    utility: bool = True,
    settings: GateSettings | None = None,
) -> Baseline:
    """Return what later runs are compared with.

    Args:
        run: A finished one, audited under ``scenario``.
        scenario: Its name.
        utility: Whether to ask the models for their utility, if anybody can say what it
            is; of models that write this takes minutes.
        settings: The gate's, which later ones may not fall behind.

    Raises:
        ConfigError: The run is not finished.
        MissingFileError: There is no such audit.
        TranscriptError: It is damaged.
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
    """Return the version of privaudit that made a run's audit, as its log says.

    Raises:
        MissingFileError: The log is gone.
        TranscriptError: It was cut or altered.
    """
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


def save_baseline(baseline: Baseline, path: Path) -> Path:
    """Sign a baseline, and write it whole or not at all; only its owner can read it.

    Raises:
        ConfigError: The owner's key is none.
        StorageError: The folder, or that of the keys, cannot be written.
    """
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
        baseline = Baseline(
            run=plain["run"],
            scenario=plain["scenario"],
            settings=plain["settings"],
            hashes=plain["hashes"],
            attacks={n: _strength(**one) for n, one in plain["attacks"].items()},
            gate=make_settings(plain["gate"], str(path)),
            tool=plain["tool"],
            revision=plain["revision"],
            made=plain["made"],
            guarantees={n: Stated(**one) for n, one in plain["guarantees"].items()},
            metric=plain["metric"],
            arrays=_unpacked(plain["arrays"]),
        )
        _check(baseline)
    except LimitError:
        raise
    except DAMAGE as error:
        raise TranscriptError(
            f"{path} is a damaged baseline ({error}): it was cut or altered. Write it "
            "again with `privaudit gate RUN --write-baseline FILE`."
        ) from None
    return baseline


def _strength(
    settings: str, package: str, clients: list[str], n: list[int]
) -> AttackStrength:
    return AttackStrength(settings, package, tuple(clients), tuple(n))


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


def _unpacked(text: str) -> dict[str, Any]:
    content = base64.b64decode(text, validate=True)
    return dict(read_npz(content, "The baseline"))
