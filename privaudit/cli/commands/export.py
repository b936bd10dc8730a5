"""Commands ``export``, ``verify`` and ``key``: cards to publish, their check, signatures."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from privaudit.cli import options
from privaudit.cli.printing import show, with_json
from privaudit.core.errors import ConfigError

if TYPE_CHECKING:
    from privaudit.cli.progress import Display
    from privaudit.report.export import CardCheck, Export, Recomputed, Verification


def export(
    public: Annotated[
        Path,
        options.folder_option("Folder to create, such as for a CI artefact."),
    ],
    run: Annotated[str | None, typer.Argument(help="By default: the latest.")] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            help="Whose audit the card holds; may be repeated. By default: all made."
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="Epsilon of all cards of the ledger together.")
    ] = 2.0,
    release: Annotated[
        Literal["weights", "api", "internal"] | None,
        typer.Option(help="What others get: the model's weights, answers, or nothing."),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="A file that is released; the card names its digest."),
    ] = None,
    opening: Annotated[
        Path | None,
        options.file_option(
            "Of a run with a session: also write truth and scores, which only its auditor "
            "can open."
        ),
    ] = None,
    runs: options.RunsFolder = None,
) -> None:
    """Export a card of a run that can be shared: noised AUROCs, verdicts, guarantees.

    Leaves out membership, records, exact numbers, scores, tensors, seeds and paths.
    """
    from privaudit.report.export import export_public, require_session, write_opening
    from privaudit.runs.run import load_run

    loaded = load_run(run, folder=runs)
    if opening is not None:  # before a number is noted
        require_session(loaded)
    found = export_public(
        loaded,
        public,
        scenarios=scenario or (),
        budget=budget,
        release=release,
        models=model or (),
    )
    if opening is not None:
        write_opening(loaded, opening)
    card = found.card.plain()
    contents = {"folder": str(found.folder), "budget": found.budget, "card": card}
    show(contents, "\n".join(_lines_of_export(found)))


def _lines_of_export(found: "Export") -> Iterator[str]:
    card = found.card
    yield f"{found.folder}: card.json"
    for name, audit in card.audits.items():
        auroc = audit.auroc
        said = f"AUROC {auroc.estimate}" if auroc else "no number without fair coins"
        spread = f", noise of sd {auroc.noise_sd:.3f}" if auroc else ""
        yield f"  {name}, {audit.headline}: {audit.in_words}; {said}{spread}"
    if not card.audits:
        yield "  no audit yet: `privaudit attack` makes one"
    count = card.ledger.numbers
    yield (
        f"All cards of this ledger: {count} number{'s' * (count != 1)}, epsilon "
        f"{card.ledger.epsilon:.3g} of {found.budget:g} at delta {card.ledger.delta:g}. "
        "Attacked together before writing: within chance."
    )


def verify(
    card: Annotated[
        str | None,
        typer.Argument(
            help="An audit card, or an export's folder; with --recompute a run, by "
            "default the latest."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Argument(help="By default: the run with the card's transcript."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="Who must have signed the card: 64 hexadecimal digits or a file with "
            "them; may be repeated. Then no run is needed."
        ),
    ] = None,
    subject: Annotated[
        list[Path] | None,
        typer.Option(help="A file that the card must be about, such as the model."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run the attacks again, too.")
    ] = False,
    as_auditor: Annotated[
        Path | None,
        typer.Option(
            help="What the owner opened to you, who answered the session: make coins, "
            "numbers and verdicts again of it, without the run."
        ),
    ] = None,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Of a run: train it again with its key, run all its attacks again, and "
            "compare. In the run's own bits, unless --bits says others.",
        ),
    ] = False,
    runs: options.RunsFolder = None,
) -> None:
    """Verify an audit card by itself, against its run, or a run by computing it again.

    Exit code 0 if it matches, 1 if it does not, 2 if that cannot be found out: the card
    or the run is missing, or cannot be made again here.
    """
    from privaudit.cli.progress import choose_view
    from privaudit.core.signing import named_key
    from privaudit.evaluation.card import read_card
    from privaudit.report.export import (
        check_card,
        recompute_run,
        verify_as_auditor,
        verify_card,
    )

    others = {
        "--again": again, "--key": key, "--subject": subject, "--as-auditor": as_auditor
    }  # fmt: skip
    if recompute and (run is not None or any(others.values())):
        named = [name for name, given in others.items() if given]
        what = named[0] if named else f"a second argument, {run!r}"
        raise ConfigError(
            f"--recompute was given with {what}: it takes one run, and makes all its "
            "audits again. Leave that out."
        )
    view = choose_view()
    if recompute:
        with view:
            recomputed = recompute_run(card, runs=runs, watcher=view)
        _present(view, recomputed, _lines_of_run(recomputed))
        return
    if card is None:
        raise ConfigError(
            "verify was called without a card. Name one, or an export's folder, or add "
            "--recompute to verify a run."
        )
    keys = [named_key(one) for one in key or ()]
    if as_auditor is not None:
        if run is not None or again:
            raise ConfigError(
                "--as-auditor was given with a run or --again: it takes the place of the "
                "run. Leave one out."
            )
        opened = verify_as_auditor(card, as_auditor, tuple(keys), tuple(subject or ()))
        lines = (*_columns(opened.check), *_lines_of_card(opened))
        _present(view, opened, iter(lines))
        return
    if keys and run is None and not again:
        checked = check_card(read_card(card), keys, subject or ())
        _present(view, checked, _columns(checked))
        return
    with view:
        verified = verify_card(
            card,
            run,
            runs=runs,
            again=again,
            keys=keys,
            files=subject or (),
            watcher=view,
        )
    _present(view, verified, _lines_of_card(verified))


def _columns(found: "CardCheck") -> Iterator[str]:
    """Yield what was checked, recomputed and taken on trust, below each other."""
    for mismatch in found.mismatches:
        yield f"  DOES NOT HOLD: {mismatch}"
    for head in ("checked", "recomputed", "trusted"):
        yield "taken on trust:" if head == "trusted" else f"{head}:"
        yield from (f"  {line}" for line in getattr(found, head))


def _present(
    view: "Display",
    found: "CardCheck | Recomputed | Verification",
    lines: Iterator[str],
) -> None:
    """Print what was compared, and what differs; exit code 1 where something does."""
    from privaudit.cli.progress import Result
    from privaudit.report.export import CardCheck

    text = "\n".join(lines)
    if isinstance(found, CardCheck):
        where = {"card": str(found.card.place)}
    else:
        where = {"run": found.run.place}
    result = Result(text, {**where, **_compared(found), "matches": found.matches})
    view.present([result], lambda: typer.echo(text))
    if not found.matches:
        raise typer.Exit(1)


def _compared(found: "CardCheck | Recomputed | Verification") -> dict[str, Any]:
    """Return the fields as JSON knows them: no infinite difference, no run or card."""
    fields = dict(vars(found))
    if check := fields.pop("check", None):
        fields["mismatches"] = (*check.mismatches, *fields["mismatches"])
        fields = {**vars(check), **fields}
    fields = {n: one for n, one in fields.items() if n not in ("run", "card")}
    for name in {"mismatches", "replayed"} & fields.keys():
        fields[name] = [{**vars(one)} for one in fields[name]]
    for one in (fields, *fields.get("replayed", ())):
        if not math.isfinite(one.get("largest", 0.0)):
            one["largest"] = None
    return fields


def _lines_of_run(found: "Recomputed") -> Iterator[str]:
    made = f"{found.messages} messages"
    if found.audits:
        made += f", and the audits {', '.join(found.audits)}"
    if not found.matches:
        yield f"{found.run.place} DIFFERS first in {found.difference}."
        yield f"  Before that, no difference: {made}."
    elif found.near:
        yield f"{found.run.place} comes out within the tolerance: {made}."
        yield (f"  The largest difference is {found.largest:.2g} of what is allowed.")
    else:
        yield f"{found.run.place} comes out to the byte: {made}."
    if found.near:
        yield f"  Not compared to the byte: {'; '.join(found.near)}."
    if found.other_version:
        yield f"  {found.other_version}"


def _lines_of_card(found: "Verification") -> Iterator[str]:
    for mismatch in (*found.check.mismatches, *found.mismatches):
        yield f"  {mismatch}"
    for one in found.replayed:
        for why in one.why:
            yield f"  {one.scenario}, attacked again: {why}"
        if one.matches:
            yield (
                f"  {one.scenario}, played anew: {one.scores} scores, none differs by "
                f"more than {one.largest:.1g}"
            )
    yield f"The card {_verdict(found)} {found.run.place}: {found.values} values."
    if found.run.why_not_repeatable:
        yield f"  The run was {found.run.why_not_repeatable}."
    made = found.values - found.on_trust
    yield f"  made again from what the run holds, and compared: {made}"
    trained, audited = found.run.signers
    whose = f"the training {trained}" + (f", the audits {audited}" if audited else "")
    yield f"  compared with the run's signed files: {found.on_trust}"
    if found.on_trust:
        yield f"  These are taken on trust. Who signed: {whose}."


def _verdict(found: "Verification") -> str:
    if not found.matches:
        return "does NOT match"
    return "does not differ from" if found.on_trust else "matches"


class _ShowIfBare(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["show"])


def show_key() -> None:
    """Show the public key, the path of the private key, and the trusted keys."""
    from privaudit.core.signing import key_place, own_key, public_half, trusted_keys

    public, path = public_half(own_key()), key_place()
    others = {k: name for k, name in trusted_keys().items() if k != public}
    lines = [
        f"Public key: {public}",
        f"The private half lies in {path}, and signs your runs.",
        f"Trusted besides: {len(others)}" if others else "No other is trusted.",
        *(f"  {other} {name}" for other, name in others.items()),
    ]
    contents = {"public_key": public, "private_key": str(path), "trusted": others}
    show(contents, "\n".join(lines))


def export_key(
    out: Annotated[Path, options.file_argument],
) -> None:
    """Write the public key, for those who should trust your runs."""
    from privaudit.core.signing import own_key, public_half
    from privaudit.runs.own_files import write_output

    write_output(out, f"{public_half(own_key())}\n".encode())
    show({"path": str(out)}, str(out))


def sign_card(
    card: Annotated[str, typer.Argument(help="An audit card, or an export's folder.")],
) -> None:
    """Countersign an audit card that others signed: that you checked it."""
    from privaudit.evaluation.card import read_card
    from privaudit.report.export.export import write_card

    signed = read_card(card)
    write_card(signed.place, signed.envelope.countersigned())
    show({"path": str(signed.place)}, str(signed.place))


def answer(
    session: Annotated[
        Path, typer.Argument(help="What the owner sent: `train --session` wrote it.")
    ],
) -> None:
    """Answer an owner's session with your half of the coin, or note its sealed run.

    Send the file back. A session is answered once, and all that an owner begins are counted.
    """
    from privaudit.runs.session import answer_session

    found = answer_session(session)
    number, is_sealed = found.answered.number, found.seal is not None
    what = "its run is sealed" if is_sealed else "answered: send the file back"
    contents = {"path": str(session), "number": number, "sealed": is_sealed}
    show(contents, f"{session}: session {number} of this owner, {what}.")


def trust_other(
    key: Annotated[
        str, typer.Argument(help="64 hexadecimal digits, or a file with them.")
    ],
    name: Annotated[str, typer.Option(help="Owner of the key, named in reports.")],
) -> None:
    """Trust runs signed with another key."""
    from privaudit.core.signing import trust_key

    path = trust_key(key, name)
    text = f"Runs by {name} are trusted. To take it back, remove the line of {path}."
    show({"name": name, "path": str(path)}, text)


app = typer.Typer(
    cls=_ShowIfBare,
    help="Manage the key that signs runs, and the keys that are trusted.",
)
for _name, _command in (
    ("show", show_key),
    ("export", export_key),
    ("sign", sign_card),
    ("answer", answer),
    ("trust", trust_other),
):
    app.command(_name)(with_json(_command, f"key {_name}"))
