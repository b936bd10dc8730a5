"""``privaudit pretrain``: how the embedded models and a projector are made."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Int
from torch import Tensor

from privaudit.cli import options
from privaudit.cli.commands.pretrain_surrogate import checked, public_part
from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset, FeatureBank
from privaudit.datasets.dialogues import TokenSequences
from privaudit.datasets.sources import load_dataset
from privaudit.models.language.bare_language import load_language
from privaudit.models.language.dialogue_tokens import DialogueTokens
from privaudit.models.language.projector_folder import (
    Losses,
    ProjectorDescription,
    save_captioner,
)
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.models.pretraining.projector import (
    Learned,
    ProjectorLogLine,
    ProjectorSettings,
    caption_loss,
    learn_projector,
)
from privaudit.models.pretraining.public_split import PublicRecords, unseen_records

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


@app.command("tiny-clip")
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


@app.command("tiny-llava")
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
    from privaudit.cli.commands.pretrain_surrogate import make_surrogate

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


TEMPLATE = "{image}{question}"
_COMPARED = 200  # unseen records that the losses are measured on


def make_captioner(
    source: str,
    dataset_name: str,
    out: Path,
    *,
    data: Path | None = None,
    split: str | None = None,
    share: float | None = None,
    template: str = TEMPLATE,
    settings: Mapping[str, Any] | None = None,
    progress: Callable[[ProjectorLogLine], None] | None = None,
) -> ProjectorDescription:
    """Learn a projector on a data set's public part, and write a captioner.

    Args:
        source: The language model, as
            :func:`~privaudit.models.language.bare_language.load_language` takes it.
        dataset_name: From ``privaudit list datasets``: embeddings with captions.
        out: The captioner's folder.
        data: Where the data set lies; None looks in the usual places.
        split: "validation"; None takes it where there is one.
        share: Of the training records, to be public in place of a split.
        template: The prompt, with {image} and {question}.
        settings: Fields of :class:`~privaudit.models.pretraining.projector.ProjectorSettings`.
        progress: Called with every line of the log.

    Raises:
        PrivauditError: As the parts do.
    """
    how = checked(ProjectorSettings, settings or {})
    dataset = load_dataset(dataset_name, data)
    public = public_part(dataset, split, share, how.seed)
    return captioner_on(
        source, dataset, dataset_name, public, out, template, how, progress
    )


def captioner_on(
    source: str,
    dataset: Dataset,
    name: str,
    public: PublicRecords,
    out: Path,
    template: str = TEMPLATE,
    settings: ProjectorSettings | None = None,
    progress: Callable[[ProjectorLogLine], None] | None = None,
) -> ProjectorDescription:
    """Learn on given public records of a data set in memory; see above.

    Raises:
        ConfigError: It has pictures in place of embeddings, or no captions.
        PrivauditError: As the parts do.
    """
    how, bank = settings or ProjectorSettings(), _bank(dataset)
    model, tokenizer = load_language(source)
    language = StackedLanguageModel(model, tokenizer)
    write = DialogueTokens(tokenizer, template, how.parts, language.context)
    words = write([dataset.dialogues[int(i)] for i in public.indices])
    embeddings = bank.embeddings[public.indices]
    learned = learn_projector(language, embeddings, words, how, progress)
    described = ProjectorDescription(
        sha256="",
        language_hash="",
        dataset=name,
        data_hash=dataset.hash,
        public_split=public.split,
        settings=how,
        template=template,
        bank_width=embeddings.shape[1],
        threads=0,
        versions={},
        losses=_losses(language, write, dataset, public, learned),
        log=learned.log,
        public_indices=tuple(public.indices.tolist()),
    )
    return save_captioner(out, described, learned.projector, model, tokenizer)


def _bank(dataset: Dataset) -> FeatureBank:
    if isinstance(dataset.images, FeatureBank) and dataset.dialogues:
        return dataset.images
    lacks = "captions" if dataset.dialogues == () else "embeddings, but pictures"
    raise ConfigError(
        "A projector is learned from embeddings and captions, and the data set has no "
        f"{lacks}. Take one with both, or a model that reads pictures."
    )


@torch.no_grad()
def _losses(
    language: StackedLanguageModel,
    write: DialogueTokens,
    dataset: Dataset,
    public: PublicRecords,
    learned: Learned,
) -> Losses:
    chosen: Int[Tensor, " n"] = unseen_records(dataset, public)[:_COMPARED]
    words = write([dataset.dialogues[int(i)] for i in chosen])
    embeddings = _bank(dataset).embeddings[chosen]
    own, other = (
        float(caption_loss(language, learned.projector(given), _on(words, language)))
        for given in (embeddings, embeddings.roll(1, dims=0))
    )
    return Losses(len(chosen), own, other)


def _on(words: TokenSequences, language: StackedLanguageModel) -> TokenSequences:
    return TokenSequences(
        words.ids.to(language.device), words.kinds.to(language.device)
    )
