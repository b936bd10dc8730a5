"""``privaudit shift``: how much of an AUROC is distribution shift."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import show, with_json

if TYPE_CHECKING:
    from privaudit.runs.run import Run
    from privaudit_labs.shift.distribution_shift_verdict import Shift

SAID = {
    "inside": "non-members of the same distribution",
    "foreign": "foreign non-members",
    "untuned": "the same, untuned model",
    "beyond": "tuned less untuned",
    "blind": "blind attacker, without any model",
    "beyond_blind": "attack less blind attacker",
}


def _printed() -> Any:
    """Return the type of what is printed of each run."""
    from privaudit_labs.shift.distribution_shift_verdict import PrintedShift

    return PrintedShift


@partial(with_json, words="shift", load=_printed)
@options.with_computing
def shift(
    run: options.Runs = None,
    foreign: Annotated[
        str | None,
        typer.Option(
            help="Data set that non-members come from. By default: drawn-digits, or "
            "scenes-far for generative models."
        ),
    ] = None,
    data: options.Data = None,
    scenario: options.ScenarioName = "server-reconstruct",
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated attacks of the scenario. By default: all on class "
            "outputs, or max-renyi,token-loss."
        ),
    ] = None,
    most: Annotated[int, typer.Option(help="Foreign records, at most.")] = 300,
    seed: options.AuditSeed = 0,
    runs: options.RunsFolder = None,
) -> None:
    """Attack with non-members from another data set, and two controls for the shift.

    What the untuned model, or a baseline without any model, already separates is
    distribution shift, not membership. Attacks with shadow models are left out.
    """
    from privaudit.runs.run import chosen_runs
    from privaudit_labs.shift.distribution_shift import measure_shift, usual_foreign

    names = options.maybe_listed("--attacks", attacks)
    for one in chosen_runs(run, runs):
        named = foreign or usual_foreign(one)
        asked: dict[str, Any] = {
            "data": data, "scenario": scenario, "attacks": names, "most": most,
            "seed": seed,
        }  # fmt: skip
        entries = measure_shift(one, named, **asked)
        planted = one.population.canaries
        left_out = 0 if planted is None else len(planted.indices)
        said = f", without {left_out} planted canaries" if left_out else ""
        title = f"{one.name}, non-members from {named}{said}:"
        contents = {
            "run": one.name,
            "foreign": named,
            "asked": asked,
            "canaries_left_out": left_out,
            "attacks": [entry.to_dict() for entry in entries],
        }
        path = _save(one, contents, entries, title)
        contents["path"] = str(path)
        lines = [line for entry in entries for line in _lines_of_shift(entry)]
        show(contents, "\n  ".join([title, *lines, str(path)]), in_a_line=True)


def _lines_of_shift(entry: "Shift") -> Iterator[str]:
    yield f"{entry.attack}: {entry.sentence}"
    for name, number in entry.estimates.items():
        yield f"  {SAID[name]:36s} {number}"


def _save(
    run: "Run", contents: Mapping[str, Any], found: list["Shift"], title: str
) -> Path:
    """Write what was found as JSON, and as a table with a title beside it.

    Other questions have other names. A data set's place is in its digest alone: it may
    lead anywhere.
    """
    from privaudit.core.storage import to_json
    from privaudit.runs.run import AUDITS
    from privaudit_labs.shift.shift_table import shift_table

    foreign, asked = contents["foreign"], contents["asked"]
    digest = hashlib.sha256(to_json({"foreign": foreign, **asked})).hexdigest()[:8]
    data_set = re.sub(r"[^\w.-]+", "-", foreign.partition(":")[0], flags=re.ASCII)
    name = f"{AUDITS}shift-{data_set}-{asked['scenario']}-{digest}"
    given = ", ".join(f"{n} {value}" for n, value in asked.items() if value is not None)
    page = f"{title}\n\n{shift_table({run.name: found})}\nAsked: {given}\n"
    run.add({f"{name}.json": to_json(contents), f"{name}.md": page.encode()})
    return run.path / f"{name}.json"
