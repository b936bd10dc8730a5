"""``privaudit annex``: what was tested and what is proved, in the words of who asks."""

from functools import partial
from typing import Annotated, Any, Literal

import typer

from privaudit.cli import options
from privaudit.cli.printing import show, with_json


def _printed() -> Any:
    """Return the type of an annex: its rows, or a bill of materials."""
    from privaudit.cli.json_schemas import Json, json_object

    rows = json_object(
        "Annex",
        annex=str,
        about=str,
        disclaimer=str,
        release=str | None,
        rows=list[dict[str, str]],
        **{"model-index": (list[Json], [])},
    )
    materials = json_object(
        "Materials",
        bomFormat=str,
        specVersion=str,
        version=int,
        metadata=Json,
        components=list[Json],
    )
    return rows | materials


@partial(with_json, words="annex", load=_printed)
def annex(
    of: Annotated[
        str | None,
        typer.Argument(
            help="A card or an export's folder, whose annex can be shared; or a run, with "
            "exact numbers. By default: the latest run."
        ),
    ] = None,
    kind: Annotated[
        Literal["edpb", "nist", "aisvs", "model-card", "cyclonedx"],
        typer.Option(
            "--for",
            help="EDPB opinion 28/2024, NIST SP 800-226, OWASP AISVS, the Hub with a "
            "model-index, a CycloneDX 1.6 bill of materials in JSON.",
        ),
    ] = "edpb",
    release: Annotated[
        Literal["weights", "api", "internal"] | None,
        typer.Option(help="What others get, which decides on adversaries that count."),
    ] = None,
    runs: options.RunsFolder = None,
) -> None:
    """Print an annex to an assessment: what was tested, what was not, and what is proved."""
    from privaudit_labs.annexes.annex import annex_facts, make_annex

    show(*make_annex(annex_facts(of, release, runs), kind))
