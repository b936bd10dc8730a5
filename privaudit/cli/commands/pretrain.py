"""``privaudit pretrain``: how the embedded models and a projector are made."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from privaudit.cli import options

app = typer.Typer(help="Train a model to audit with.", no_args_is_help=True)

Seed = Annotated[
    int,
    typer.Option(
        min=0,
        max=options.MOST_SEED,
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, max=10**9, help="Optimiser steps.")]


def _make_first(out: Path) -> None:
    """Make the folder before minutes are spent on what belongs into it."""
    from privaudit.core.storage import make_private_folder

    make_private_folder(out)


def pretrain_tiny_clip(
    out: Annotated[Path, typer.Option(help="Folder for weights and log.")],
    steps: Steps = None,
    seed: Seed = 0,
) -> None:
    """Train tiny-clip on pictures drawn here; the embedded weights stay as they are."""
    from privaudit.models.pretraining.tiny_clip import TinyClipSettings, pretrain

    _make_first(out)
    settings = TinyClipSettings(**options.given(steps=steps, seed=seed))
    pretrain(settings, out, typer.echo)
    typer.echo(f"Weights and log: {out}")


def pretrain_tiny_llava(
    out: Annotated[Path, typer.Option(help="Folder for weights and log.")],
    steps: Steps = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long to train, in place of steps.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Train tiny-llava on scenes drawn here; the embedded weights stay as they are."""
    from privaudit.models.pretraining.tiny_llava import (
        TinyLlavaSettings,
        pretrain,
        steps_within,
    )

    _make_first(out)
    settings = TinyLlavaSettings(**options.given(steps=steps, seed=seed))
    if minutes is not None:
        settings = replace(settings, steps=steps_within(minutes, settings))
    pretrain(settings, out, typer.echo)
    typer.echo(f"Weights and log: {out}")


if find_spec("privaudit.models.pretraining"):  # in the repository, not in the wheel
    app.command("tiny-clip")(pretrain_tiny_clip)
    app.command("tiny-llava")(pretrain_tiny_llava)


@app.command("surrogate-clip")
def pretrain_surrogate_clip(
    dataset: options.Dataset,
    out: Annotated[Path, typer.Option(help="Folder for weights and description.")],
    data: options.Data = None,
    split: Annotated[
        str | None, typer.Option(help="What is public: validation, where there is one.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="Public in its place: a share of the training records. By default: "
            "0.2, where there is no validation part."
        ),
    ] = None,
    steps: Steps = None,
    minutes: Annotated[
        float | None, typer.Option(help="How long to train, in place of steps.")
    ] = None,
    seed: Seed = 0,
    size: Annotated[
        int | None, typer.Option(help="Side of pictures, such as 32 or 96.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Channels of the image tower's first stage.")
    ] = None,
    stem: Annotated[
        int | None,
        typer.Option(
            help="1, 2 or 4: the tower shrinks pictures by 8 times as much, and has a "
            "token for each pixel that is left."
        ),
    ] = None,
) -> None:
    """Align a small CLIP with the public part of a data set.

    It has then seen the class names and the public pictures: a stand-in for CLIP.
    """
    from privaudit.models.surrogate_clip.making import make_surrogate

    _make_first(out)
    made = make_surrogate(
        dataset,
        out,
        data=data,
        split=split,
        share=share,
        minutes=minutes,
        picture=options.given(size=size, width=width, stem=stem),
        settings=options.given(steps=steps, seed=seed),
        progress=typer.echo,
    )
    found = made.accuracies
    typer.echo(
        f"On {found.records} records that it has not seen: {found.template:.1%} with "
        f"{made.template!r} ({found.template_by_class:.1%} as a mean of classes), "
        f"{found.random_context:.1%} behind random contexts."
    )
    typer.echo(f"Use it: --model surrogate:{out}")


@app.command("projector")
def pretrain_projector(
    language: Annotated[
        str,
        typer.Option(
            help="A causal language model of transformers: a folder or a hub name."
        ),
    ],
    dataset: options.Dataset,
    out: Annotated[Path, typer.Option(help="Folder for the captioner.")],
    data: options.Data = None,
    split: Annotated[
        str | None, typer.Option(help="What is public: validation, where there is one.")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Public in its place: a share of the training records."),
    ] = None,
    parts: Annotated[
        int | None, typer.Option(help="Tokens that an embedding becomes.")
    ] = None,
    steps: Steps = None,
    seed: Seed = 0,
) -> None:
    """Learn to put image embeddings in front of a language model, on public captions.

    Those captions are then nobody's: adversary's records, or left out.
    """
    from privaudit.models.language.projector_folder import make_captioner

    _make_first(out)
    make_captioner(
        language,
        dataset,
        out,
        data=data,
        split=split,
        share=share,
        settings=options.given(parts=parts, steps=steps, seed=seed),
        progress=typer.echo,
    )
    typer.echo(f"Use it: --model language:{out}")
