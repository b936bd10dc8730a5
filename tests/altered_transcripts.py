"""Transcripts with other uploads, whose hash chain is made anew."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from privaudit import Run
from privaudit.federated.transcripts.folder import TranscriptFolder
from privaudit.federated.transcripts.transcript import ChainEnd, Message


def alter_messages(
    run: Path, change: Callable[[Tensor], Tensor], among: Callable[[int, Message], bool]
) -> ChainEnd:
    """Change tensors of a run's messages, and return where the new chain ends.

    Args:
        run: The run's folder.
        change: Returns another tensor.
        among: Which messages, by their number and what they are.
    """
    end, folder = ChainEnd(), TranscriptFolder(run / "transcript")
    messages = [
        Message(
            m.round,
            m.sender,
            m.receiver,
            m.kind,
            {n: change(t) if among(i, m) else t for n, t in m.tensors.items()},
        )
        for i, m in enumerate(Run(run).transcript)
    ]
    folder.manifest.unlink()
    for index in sorted({m.round for m in messages}):
        end = folder.write(index, [m for m in messages if m.round == index], end)
    return end
