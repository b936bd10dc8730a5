"""``privaudit pretrain``: how the embedded models and a projector are made."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privaudit.cli import options
from privaudit.cli.printing import as_json, show, with_json
from privaudit.core.errors import ConfigError

if TYPE_CHECKING:
    from privaudit_tools.surrogate_clip.storage import Accuracies

app = typer.Typer(help="Train a model to audit with.", no_args_is_help=True)

Dataset = Annotated[str, typer.Option(help="A name from `privaudit list datasets`.")]
Weights = Annotated[Path, options.folder_option("Folder for weights and log.")]
Seed = Annotated[int, typer.Option(min=0, max=options.MOST_SEED)]
Minutes = Annotated[
    float | None, typer.Option(help="Training time, instead of --steps.")
]
Split = Annotated[
    str | None, typer.Option(help="Public split: validation, if there is one.")
]
Share = Annotated[
    float | None,
    typer.Option(
        help="Share of the training records to use as public instead. By default: 0.2, "
        "if there is no validation split."
    ),
]
Steps = Annotated[int | None, typer.Option(min=1, max=10**9, help="Optimiser steps.")]


def _command(
    name: str, module: str, found: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter a command, which prints where a model lies and an object of a named class."""

    def printed() -> Any:
        from privaudit.cli.json_schemas import json_object

        kind = getattr(import_module(module), found)
        return json_object("Pretrained", path=str, model=str | None, found=kind)

    def enter(command: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(
            with_json(options.with_bits(command), f"pretrain {name}", printed)
        )
        return command

    return enter


def _show(out: Path, model: str | None, found: Any, text: str) -> None:
    from privaudit.core.parameters import to_plain

    plain = to_plain(type(found), found)
    show({"path": str(out), "model": model, "found": plain}, text)


def _say(line: object) -> None:
    """Print a line of a log: beside JSON to the error stream."""
    typer.echo(line, err=as_json.get())


def _refuse_both(steps: int | None, minutes: float | None) -> None:
    """Refuse two lengths of one training."""
    if steps is not None and minutes is not None:
        raise ConfigError(
            f"Training cannot take {steps} steps and {minutes:g} minutes at once. Give "
            "one of --steps and --minutes."
        )


def _make_first(out: Path) -> None:
    """Make the folder before minutes are spent on what belongs into it."""
    from privaudit.core.storage import make_private_folder

    make_private_folder(out)


@_command("tiny-clip", "privaudit_tools.pretraining.tiny_clip", "TinyClipLogLine")
def pretrain_tiny_clip(
    out: Weights,
    steps: Steps = None,
    seed: Seed = 0,
) -> None:
    """Train tiny-clip on synthetic images; the embedded weights stay as they are."""
    from privaudit_tools.pretraining.tiny_clip import TinyClipSettings, pretrain

    _make_first(out)
    settings = TinyClipSettings(**options.given(steps=steps, seed=seed))
    _show(out, None, pretrain(settings, out, _say), f"Weights and log: {out}")


@_command("tiny-llava", "privaudit_tools.pretraining.tiny_llava", "TinyLlavaLogLine")
def pretrain_tiny_llava(
    out: Weights,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = 0,
) -> None:
    """Train tiny-llava on synthetic scenes; the embedded weights stay as they are."""
    from privaudit_tools.pretraining.tiny_llava import (
        TinyLlavaSettings,
        pretrain,
        steps_within,
    )

    _refuse_both(steps, minutes)
    _make_first(out)
    settings = TinyLlavaSettings(**options.given(steps=steps, seed=seed))
    if minutes is not None:
        settings = replace(settings, steps=steps_within(minutes, settings))
    _show(out, None, pretrain(settings, out, _say), f"Weights and log: {out}")


@_command("surrogate-clip", "privaudit_tools.surrogate_clip.storage", "Accuracies")
def pretrain_surrogate_clip(
    dataset: Dataset,
    out: Annotated[Path, options.folder_option("Folder for weights and description.")],
    data: options.Data = None,
    split: Split = None,
    share: Share = None,
    steps: Steps = None,
    minutes: Minutes = None,
    seed: Seed = 0,
    size: Annotated[
        int | None, typer.Option(help="Image size in pixels, such as 32 or 96.")
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Channels of the image tower's first stage.")
    ] = None,
    stem: Annotated[
        int | None,
        typer.Option(
            help="1, 2 or 4: the tower downsamples by 8 times this, to one token per "
            "remaining pixel."
        ),
    ] = None,
) -> None:
    """Align a small CLIP with the public part of a data set.

    It has then seen the class names and the public images: a surrogate for CLIP.
    """
    from privaudit_tools.surrogate_clip.making import make_surrogate

    _refuse_both(steps, minutes)
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
        progress=_say,
    )
    _show_accuracies(out, f"surrogate:{out}", made.accuracies, made.template)


@_command("aligned-clip", "privaudit_tools.surrogate_clip.storage", "Accuracies")
def pretrain_aligned_clip(
    dataset: Dataset,
    encoder: Annotated[
        str,
        typer.Option(help="A text encoder of transformers: a folder or a hub name."),
    ],
    out: Annotated[
        Path, options.folder_option("Folder for encoder, map, description.")
    ],
    data: options.Data = None,
    split: Split = None,
    share: Share = None,
    public: Annotated[
        int | None,
        typer.Option(min=2, help="Public records per class to fit the map on."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Map a bank of embeddings into a pretrained text encoder's space, linearly.

    Nothing else is fitted: a stand-in for CLIP whose texts were pretrained on more.
    """
    from privaudit_tools.aligned_clip.making import make_aligned

    _make_first(out)
    made = make_aligned(
        dataset,
        encoder,
        out,
        data=data,
        split=split,
        share=share,
        settings=options.given(public=public, seed=seed),
    )
    _show_accuracies(out, f"aligned:{out}", made.accuracies, made.template)


def _show_accuracies(
    out: Path, model: str, accuracy: "Accuracies", template: str
) -> None:
    said = (
        f"Accuracy on {accuracy.records} held-out records: {accuracy.template:.1%} with "
        f"{template!r} ({accuracy.template_by_class:.1%} averaged over classes), "
        f"{accuracy.random_context:.1%} with random contexts."
    )
    _show(out, model, accuracy, f"{said}\nUse it: --model {model}")


@_command("projector", "privaudit_tools.projector.projector_folder", "Losses")
def pretrain_projector(
    language: Annotated[
        str,
        typer.Option(
            help="A causal language model of transformers: a folder or a hub name."
        ),
    ],
    dataset: Dataset,
    out: Annotated[Path, options.folder_option("Folder for the captioner.")],
    data: options.Data = None,
    split: Split = None,
    share: Share = None,
    parts: Annotated[
        int | None, typer.Option(help="Tokens per image embedding.")
    ] = None,
    steps: Steps = None,
    seed: Seed = 0,
    device: options.Device = None,
) -> None:
    """Train a projector of image embeddings for a language model, on public captions.

    Clients never get these captions: they become reference records, or are left out.
    """
    from privaudit.core.devices import use_device
    from privaudit.core.portable_bits import warn_unless_held
    from privaudit_tools.projector.making import make_captioner

    with use_device(device):
        warn_unless_held()  # of the device
        _make_first(out)
        made = make_captioner(
            language,
            dataset,
            out,
            data=data,
            split=split,
            share=share,
            settings=options.given(parts=parts, steps=steps, seed=seed),
            progress=_say,
        )
    model = f"language:{out}"
    _show(out, model, made.losses, f"Use it: --model {model}")
