"""JSON Schemas of what commands print under ``--json``: a type each.

Where a command shows progress, or has several results, every line is a document of its
schema: events first, then results.
"""

from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from privaudit.checks.gate.guarantees import Stated
from privaudit.checks.lint.evidence import Finding
from privaudit.checks.plugin_trial import Trial
from privaudit.core.errors import UnknownNameError
from privaudit.evaluation.card import Card
from privaudit.evaluation.tradeoff.result import SearchCost, SweepCell, SweepPoint
from privaudit.report.export.alone import Mismatch
from privaudit.statistics.claim import ClaimKind
from privaudit.statistics.dominance import Domination, Margins
from privaudit.statistics.epsilon.bound import EpsilonBound
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.progress import CellDone, Phase, Result, RoundDone

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class JudgedCell(SweepCell):
    """A cell of a sweep, and where it stands among the others."""

    dominated: bool
    undecided: int
    standing: str


@dataclass(frozen=True, kw_only=True)
class TriedTrainer(Trial):
    """What ``claim`` prints of another package's trainer that it tried out."""

    event = Result.event


class _Closed(GenerateJsonSchema):
    """Objects have the keys of their type, all of them and no others."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        made = super().dataclass_schema(schema)
        if event := getattr(schema["cls"], "event", None):
            made["properties"] = {"event": {"const": event}} | made["properties"]
        made["required"] = [*made["properties"]]
        return made | {"additionalProperties": False}


def json_object(name: str, /, **fields: Any) -> Any:
    """Return the type of an object with these keys; one with a default may be left out."""
    named: Json = {
        n: k if isinstance(k, tuple) else (k, ...) for n, k in fields.items()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **named)


def json_result(name: str, /, **fields: Any) -> Any:
    """Return the type of a line with a result of a command that shows progress."""
    return json_object(name, event=Literal[Result.event], **fields)


def _list(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


def _all(kind: Any, names: str) -> Json:
    return dict.fromkeys(names.split(), kind)


_CLAIM: Json = {
    **_all(str, "canary where"),
    "config": Json,
    "records": int,
    "bound": EpsilonBound,
    "verdict": json_object("ClaimVerdict", kind=ClaimKind, sentence=str, alarm=bool),
    "scores": list[float],
    "is_member": list[bool],
}
_TRAINED = json_result(
    "Trained",
    **_all(str, "run path"),
    **_all(int, "rounds bytes_up bytes_down"),
    utility=Estimate,
    claimed=Json,
    certified=dict[str, Json],
    **_all((int, 0), "model_queries sums aborted_sums"),
)
_AUDITED = json_result(
    "Audited",
    **_all(str, "run path report scenario attack settings verdict sentence"),
    **_all(str, "assurance unproved strength"),
    parts=list[Literal["average", "tail"]],
    tail_bound=float | None,
    trainings=int | None,
    **_all(Estimate, "auroc success"),
    **_all(dict[str, Estimate], "tpr_at_fpr others"),
    **_all(Json | None, "budget certified"),
    utility=Estimate | None,
    metric=str | None,
)
_CHECK = _all(str, "name setting outcome sentence")
_CHECKS = (
    json_object(
        "Measured",
        **_CHECK,
        **_all(float, "limit now p_value"),
        about=Literal["leak", "utility"],
        before=float | None,
        estimate=Estimate,
        enough=int | None,
    )
    | json_object(
        "Guaranteed", **_CHECK, **_all(Stated, "now before"), about=Literal["guarantee"]
    )
    | json_object(
        "Strength", **_CHECK, **_all(str, "code now before"), about=Literal["strength"]
    )
)
_GATE: Json = {
    **_all(str, "run paired scenario outcome sentence assurance unproved"),
    **_all(list[str], "deviations notes"),
    "baseline": str | None,
    "alpha": float,
    "audits": json_object("Audits", **_all(int, "made different")),
    "planned": bool,
    "exit_code": int,
    "checks": _list(_CHECKS),
}
_GATED = json_object("Gated", **_GATE) | json_result(
    "GatedMethods",
    **_GATE,
    **_all(list[int], "looks seeds"),
    aurocs=list[tuple[float, float]],
    further=tuple[int, int] | None,
)
_CHANGE = json_object(
    "Change",
    **_all(str, "name about kind sentence"),
    **_all(float, "first second margin p_value p_within"),
    **_all(bool, "primary regressed passes"),
    difference=Estimate,
    enough=int | None,
)
_COMPARED = json_object(
    "Compared",
    **_all(str, "scenario paired_by"),
    **_all(list[str], "first against"),
    **_all(bool, "regressed passes secondary_regressed"),
    changes=_list(_CHANGE),
)
_SWEPT = json_result(
    "Swept",
    path=str,
    alpha=float,
    margins=Margins,
    cells=list[JudgedCell],
    dominations=list[Domination],
    reported=list[SweepCell],
    cost=SearchCost | None,
    **_all(list[SweepPoint], "points report_points"),
)
_CHECKED = {
    **_all(list[str], "checked recomputed trusted"),
    "mismatches": list[Mismatch],
}
_CARD = json_result("CheckedCard", card=str, **_CHECKED, matches=bool)
_VERIFIED = json_result(
    "VerifiedCard",
    run=str,
    **_all(int, "values on_trust"),
    **_CHECKED,
    replayed=_list(
        json_object(
            "ReplayedAudit",
            scenario=str,
            scores=int,
            largest=float | None,
            why=list[str],
        )
    ),
    matches=bool,
)
_RECOMPUTED = json_result(
    "RecomputedRun",
    **_all(str, "run difference"),
    **_all(list[str], "near audits"),
    messages=int,
    largest=float | None,
    matches=bool,
)
_CLAIMED = json_result("Claimed", **_CLAIM) | json_result(
    "ClaimedUnderBoth",
    **_all(bool, "refuted alarm"),
    sentence=str,
    audits=_list(json_object("OneAdjacency", **_CLAIM)),
)
_SPLIT = json_object(
    "Split",
    ledger=str,
    tossed=bool,
    clients=GenericAlias(
        dict, (str, json_object("Client", **_all(int, "candidates members")))
    ),
    **_all(int, "tests public"),
)
_IMPORTED = json_object(
    "Imported",
    **_all(str, "run path"),
    **_all(int, "messages rounds clients"),
    certified=dict[str, Json],
)
CONTENTS: Json = {
    "train": RoundDone | Phase | _TRAINED | json_result("Offered", session=str),
    "split": _SPLIT,
    "import": _IMPORTED,
    "status": json_object("Status", **_all(dict[str, Json], "sweeps runs")),
    "attack": Phase | _AUDITED,
    "scores": Phase | _AUDITED,
    "claim": Phase | _CLAIMED | TriedTrainer,
    "lint": dict[str, list[Finding]],
    "report": json_object("Page", page=str),
    "compare": _COMPARED,
    "tradeoff": RoundDone | Phase | CellDone | _SWEPT,
    "gate": RoundDone
    | Phase
    | json_object("BaselineFile", baseline=str)
    | json_result("MethodBaseline", baseline=str)
    | _GATED,
    "plan": json_object("Planned", **_all(str, "plan sha256"), scenarios=list[str]),
    "export": json_object("Exported", folder=str, budget=float, card=Card),
    "verify": RoundDone | Phase | _CARD | _VERIFIED | _RECOMPUTED,
    "key show": json_object(
        "Keys", **_all(str, "public_key private_key"), trusted=dict[str, str]
    ),
    "key sign": json_object("Written", path=str),
    "key export": json_object("Written", path=str),
    "key answer": json_object("Answered", path=str, number=int, sealed=bool),
    "key trust": json_object("Trusted", **_all(str, "name path")),
    "list": _list(json_object("Listed", name=str, lines=list[str])),
    "new": json_object("Begun", files=list[str]),
    "doctor": _list(json_object("Found", **_all(str, "name found"))),
    "figure": json_object("Written", path=str),
}
"""By the words of a command."""


def schema_of(command: str) -> Json:
    """Return the JSON Schema of what a command, as "key show", prints under ``--json``.

    Raises:
        UnknownNameError: It has none.
    """
    if command not in CONTENTS:
        raise UnknownNameError("schema of the command", command, CONTENTS)
    return schema_of_type(CONTENTS[command])


def schema_of_type(kind: Any) -> Json:
    """Return the JSON Schema of a type; an object has its keys and no others."""
    adapter = TypeAdapter(kind)
    schema = adapter.json_schema(mode="serialization", schema_generator=_Closed)
    return {"$schema": DIALECT, **schema}
