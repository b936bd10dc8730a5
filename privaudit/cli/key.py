"""``privaudit key``: whose signature this machine makes, and whose it trusts."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from privaudit.cli import outputs


class _ShowIfBare(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["show"])


app = typer.Typer(
    cls=_ShowIfBare,
    help="Manage the key that signs runs, and the keys that are trusted.",
)


@app.command()
def show() -> None:
    """Show the public key, the path of the private key, and the trusted keys."""
    from privaudit.core.signing import key_place, own_key, public_half, trusted_keys

    public = public_half(own_key())
    typer.echo(f"Public key: {public}")
    typer.echo(f"The private half lies in {key_place()}, and signs your runs.")
    others = {k: name for k, name in trusted_keys().items() if k != public}
    typer.echo(f"Trusted besides: {len(others)}" if others else "No other is trusted.")
    for other, name in others.items():
        typer.echo(f"  {other} {name}")


@app.command()
def export(
    out: Annotated[Path, outputs.file_argument],
) -> None:
    """Write the public key, for those who should trust your runs."""
    from privaudit.core.signing import own_key, public_half
    from privaudit.federated.runs.folder.outputs import write_output

    write_output(out, f"{public_half(own_key())}\n".encode())
    typer.echo(out)


@app.command()
def trust(
    key: Annotated[
        str, typer.Argument(help="64 hexadecimal digits, or a file with them.")
    ],
    name: Annotated[str, typer.Option(help="Owner of the key, named in reports.")],
) -> None:
    """Trust runs signed with another key."""
    from privaudit.core.signing import trust_key

    place = trust_key(key, name)
    typer.echo(
        f"Runs by {name} are trusted. To take it back, remove the line of {place}."
    )
