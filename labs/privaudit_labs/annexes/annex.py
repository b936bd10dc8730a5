"""Annexes to an assessment: what was tested and what is proved, in the words of who asks.

Of a card they hold what it says, so that who may read the card may read them, and torch is
not needed. Of a run they hold exact numbers, and are as private as its report. Rows stand
in annexes.toml, also of what was not tested; none claims that anything conforms.

Source: EDPB, Opinion 28/2024 on AI models, on testing and resistance to attacks; NIST SP
800-226, "Guidelines for Evaluating Differential Privacy Guarantees", 2025; OWASP AISVS
1.0; Hugging Face, model-index; CycloneDX 1.6, JSON schema.
"""

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from privaudit.auditing.stored_audit import read_audit, stored_scenarios
from privaudit.core.errors import ConfigError
from privaudit.core.formatting import epsilon, markdown_table, outcome_in_words
from privaudit.evaluation.card import (
    CARD,
    Design,
    Privacy,
    Release,
    SignedCard,
    Training,
    UtilityShown,
    read_card,
)
from privaudit.privacy.certificate import REPEATABLE, is_repeatable
from privaudit.report.attack_classes import CLASSES, lacking
from privaudit.report.export.export import CODE, facts_of
from privaudit.runs.run import find_place, load_run
from privaudit.statistics.estimate import Estimate

AnnexKind = Literal["edpb", "nist", "aisvs", "model-card", "cyclonedx"]
DISCLAIMER = (
    "It says what was tested, and with what result. That the model conforms to a law or a "
    "standard, or is anonymous, does not follow."
)
_ROWS = CLASSES | tomllib.loads(
    (files("privaudit_labs.annexes") / "annexes.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Found:
    """What an audit found: the headline, its verdict in words, its AUROC if coins fell."""

    scenario: str
    attack: str
    outcome: str
    auroc: Estimate | None

    def __str__(self) -> str:
        number = "" if self.auroc is None else f", AUROC {self.auroc}"
        return f"{self.scenario} ({self.attack}): {self.outcome}{number}"


@dataclass(frozen=True)
class AnnexFacts:
    """What annexes are made of.

    Attributes:
        about: What it is of, and who signed, in words.
        release: What others get; None counts every adversary.
        card: Which says all of it; None of a run.
    """

    about: str
    release: Release | None
    found: tuple[Found, ...]
    card: SignedCard | None
    design: Design
    training: Training
    privacy: Privacy
    utility: UtilityShown | None

    def rows(self, kind: str) -> Iterator[dict[str, str]]:
        """Yield item, status and text of each row of an annex."""
        texts, absent = self._texts(), self._absent
        for row in _ROWS[kind]["rows"]:
            tried = row.get("scenarios", [])
            there = [one for one in tried if one not in absent]
            said = "; ".join(str(o) for o in self.found if o.scenario in there)
            status = "tested" if said else "not tested"
            if tried and not there:
                status, said = "not applicable", f"release: {self.release}"
            elif text := texts.get(row.get("fact", "")):
                status, said = "stated", text
            why = said or lacking({**row, "scenarios": there})
            yield {"item": row["item"], "status": status, "said": why}
        known = {
            one for row in _ROWS["edpb"]["rows"] for one in row.get("scenarios", [])
        }
        if other := "; ".join(str(o) for o in self.found if o.scenario not in known):
            yield {"item": "other scenarios", "status": "tested", "said": other}

    @property
    def _absent(self) -> list[str]:
        """Scenarios whose adversary is not there, given what is released."""
        absent: list[str] = _ROWS["release"].get(self.release, [])
        return absent

    def _texts(self) -> dict[str, str]:
        privacy, design, claimed = self.privacy, self.design, self.privacy.claimed
        kinds = {f"{one.kind} noise on {one.release}" for one in privacy.mechanisms}
        drawn = {str(one.randomness) for one in privacy.certified.values()}
        return {
            "guarantees": "; ".join(
                f"{view}: epsilon {epsilon(one.epsilon, one.declared)} at delta "
                f"{one.delta:g}, {one.unit}, {one.adjacency}"
                + (f" ({REPEATABLE})" if is_repeatable(vars(one)) else "")
                for view, one in privacy.certified.items()
                if one.epsilon is not None or one.declared is not None
            ),
            "claim": f"epsilon {epsilon(claimed.epsilon)} at delta {claimed.delta:g}"
            if claimed.epsilon is not None
            else "",
            "mechanisms": "; ".join(sorted(kinds)),
            "noise": f"noise drawn from: {', '.join(sorted(drawn))}" if kinds else "",
            "utility": f"{self.utility.metric} {self.utility.estimate}"
            if self.utility
            else "",
            "trust": f"federation of {design.clients} clients, members by {design.sampling} "
            f"of each {design.unit}; scenarios tried: "
            f"{', '.join(o.scenario for o in self.found) or 'none'}",
        }

    @property
    def name(self) -> str:
        """The method, and the frozen model."""
        parts = self.training.trainer, self.training.model
        return " of ".join(filter(None, parts)) or "model"

    @property
    def metrics(self) -> list[tuple[str, Estimate]]:
        """Utility, and the AUROC of each audit."""
        use = self.utility
        found = [
            (f"membership AUROC, {one.scenario} ({one.outcome})", one.auroc)
            for one in self.found
            if one.auroc is not None and one.scenario not in self._absent
        ]
        return [*([(use.metric, use.estimate)] if use else []), *found]


def annex_facts(
    place: str | None,
    release: Release | None = None,
    runs: str | Path | None = None,
) -> AnnexFacts:
    """Return the facts of a card, or of a run with exact numbers; by default the latest.

    Raises:
        MissingFileError: There is no such card or run.
        ConfigError: The card says another release, or is none.
        TranscriptError: Card, run or an audit is damaged.
    """
    named = None if place is None else find_place(place, runs)
    if named is not None and (named.is_file() or (named / CARD).exists()):
        return _of_card(named, release)
    run = load_run(place, folder=runs).require_complete()
    stored = [read_audit(run, scenario) for scenario in stored_scenarios(run)]
    found = []
    for one in stored:
        words, auroc = outcome_in_words(kind := one.verdict().kind), None
        if kind != "sampling unknown":
            auroc = Estimate.from_dict(one.attack_result(one.attacks[0])["auroc"])
        found.append(Found(one.scenario, one.attacks[0], words, auroc))
    signers = " and ".join(dict.fromkeys(str(s) for s in run.signers if s))
    about = f"Run {run.name}, signed by {signers}. Exact numbers: keep this private."
    known = facts_of(run, [one.contents for one in stored])
    return AnnexFacts(about, release, tuple(found), None, **known)


def _of_card(place: Path, release: Release | None) -> AnnexFacts:
    signed = read_card(place)
    card = signed.card
    if release and card.release and release != card.release:
        raise ConfigError(
            f"--release {release} was given, and {place} says {card.release}. Leave it "
            "out, or export a card of that release."
        )
    return AnnexFacts(
        about=(
            f"Card of {card.made} by privaudit {card.privaudit}, signed by "
            f"{', '.join(signed.keys)}; `privaudit verify` checks it."
        ),
        release=card.release or release,
        found=tuple(
            Found(n, o.headline, o.in_words, None if not o.auroc else o.auroc.estimate)
            for n, o in card.audits.items()
        ),
        card=signed,
        **{name: getattr(card, name) for name in _KNOWN},
    )


_KNOWN = ("design", "training", "privacy", "utility")


def make_annex(facts: AnnexFacts, kind: AnnexKind) -> tuple[dict[str, Any], str]:
    """Return an annex as JSON, and as Markdown.

    Raises:
        ConfigError: It is one that is published, and the numbers are exact.
    """
    if facts.card is None and kind in ("model-card", "cyclonedx"):
        raise ConfigError(
            f"The annex {kind} of a run was requested. It is published, and a run's numbers "
            "are exact: name a card of `privaudit export` in its place."
        )
    if facts.card is not None and kind == "cyclonedx":
        bom = _bill_of_materials(facts, facts.card)
        return bom, json.dumps(bom, indent=2)
    form = "edpb" if kind == "model-card" else kind
    rows, front = list(facts.rows(form)), ""
    contents = {
        "annex": kind, "about": facts.about, "release": facts.release,
        "disclaimer": DISCLAIMER, "rows": rows,
    }  # fmt: skip
    if kind == "model-card":
        contents["model-index"] = _model_index(facts)  # JSON is YAML
        front = f"---\nmodel-index: {json.dumps(contents['model-index'])}\n---\n\n"
    heads = ("item", "status", "what was found, or why not")
    text = (
        f"{front}## {_ROWS[form]['title']}\n\n{facts.about}\n\nRelease: "
        f"{facts.release or 'not declared, so that every adversary counts'}.\n\n"
        f"{markdown_table(heads, [list(row.values()) for row in rows])}\n\n{DISCLAIMER}\n"
    )
    return contents, text


def _model_index(facts: AnnexFacts) -> list[dict[str, Any]]:
    """Return metadata by which the Hub shows metrics of a model."""
    metrics = [
        {"type": "auroc" if "AUROC" in n else n, "name": n, "value": one.value}
        for n, one in facts.metrics
    ]
    dataset = facts.training.dataset or "not named"
    result = {
        "task": {"type": "other", "name": "privacy audit"},
        "dataset": {"type": dataset, "name": dataset},
        "metrics": metrics,
    }
    return [{"name": facts.name, "results": [result]}]


def _bill_of_materials(facts: AnnexFacts, signed: SignedCard) -> dict[str, Any]:
    """Return a bill of materials of the model, with its model card."""
    subjects = {one.name: one.digest for one in signed.statement.subject}
    hashes = {
        name: {"hashes": [{"alg": "SHA-256", "content": digest["sha256"]}]}
        for name, digest in subjects.items()
        if "sha256" in digest
    }
    tool = {"type": "application", "name": CODE, "version": signed.card.privaudit}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": f"{signed.card.made}T00:00:00Z",
            "tools": {"components": [{**tool, **hashes.get(CODE, {})}]},
        },
        "components": [
            {
                "type": "machine-learning-model",
                "name": facts.name,
                "description": facts.about,
                "components": [
                    {"type": "file", "name": name, **digest}
                    for name, digest in hashes.items()
                    if "model" in name
                ],
                "modelCard": _cyclonedx_card(facts),
            }
        ],
    }


def _cyclonedx_card(facts: AnnexFacts) -> dict[str, Any]:
    """Return the model's parameters, metrics, and what was tested and what was not."""
    texts, known, rows = facts._texts(), facts.training, list(facts.rows("edpb"))
    dataset = {
        "type": "dataset",
        "name": known.dataset or "not named",
        "description": texts["trust"],
    }
    model = {"modelArchitecture": known.model} if known.model else {}
    metrics = [
        {
            "type": name,
            "value": str(one.value),
            "slice": f"n = {' + '.join(map(str, one.n))}, interval at "
            f"{100 * one.confidence:.2f} %",
            "confidenceInterval": {
                "lowerBound": str(one.low),
                "upperBound": str(one.high),
            },
        }
        for name, one in facts.metrics
    ]
    limits = [
        f"{row['item']}: {row['status']}; {row['said']}"
        for row in rows
        if row["status"] != "tested"
    ]
    proved = texts["guarantees"] or "no epsilon is certified"
    risks = [
        {"name": f"{row['item']}: {row['said']}", "mitigationStrategy": proved}
        for row in rows
        if row["status"] == "tested"
    ]
    return {
        "modelParameters": {**model, "datasets": [dataset]},
        "quantitativeAnalysis": {"performanceMetrics": metrics},
        "considerations": {
            "technicalLimitations": [*limits, DISCLAIMER],
            "ethicalConsiderations": risks,
        },
    }
