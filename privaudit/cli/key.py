"""``privaudit key``: whose signature this machine makes, and whose it trusts."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from privaudit.cli import outputs
from privaudit.cli.printing import show, with_json


class _ShowIfBare(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["show"])


def show_key() -> None:
    """Show the public key, the path of the private key, and the trusted keys."""
    from privaudit.core.signing import key_place, own_key, public_half, trusted_keys

    public, place = public_half(own_key()), key_place()
    others = {k: name for k, name in trusted_keys().items() if k != public}
    lines = [
        f"Public key: {public}",
        f"The private half lies in {place}, and signs your runs.",
        f"Trusted besides: {len(others)}" if others else "No other is trusted.",
        *(f"  {other} {name}" for other, name in others.items()),
    ]
    contents = {"public_key": public, "private_key": str(place), "trusted": others}
    show(contents, "\n".join(lines))


def export_key(
    out: Annotated[Path, outputs.file_argument],
) -> None:
    """Write the public key, for those who should trust your runs."""
    from privaudit.core.signing import own_key, public_half
    from privaudit.federated.runs.folder.outputs import write_output

    write_output(out, f"{public_half(own_key())}\n".encode())
    show({"path": str(out)}, str(out))


def trust_other(
    key: Annotated[
        str, typer.Argument(help="64 hexadecimal digits, or a file with them.")
    ],
    name: Annotated[str, typer.Option(help="Owner of the key, named in reports.")],
) -> None:
    """Trust runs signed with another key."""
    from privaudit.core.signing import trust_key

    place = trust_key(key, name)
    text = f"Runs by {name} are trusted. To take it back, remove the line of {place}."
    show({"name": name, "path": str(place)}, text)


app = typer.Typer(
    cls=_ShowIfBare,
    help="Manage the key that signs runs, and the keys that are trusted.",
)
for _name, _command in (
    ("show", show_key),
    ("export", export_key),
    ("trust", trust_other),
):
    app.command(_name)(with_json(_command, f"key {_name}"))
