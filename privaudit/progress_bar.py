"""A progress bar for the terminal; silent where nobody watches."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


class ProgressBar:
    """A bar on the error stream, gone when the work is done.

    Args:
        unit: What is counted, in the plural.
    """

    def __init__(self, unit: str) -> None:
        console = Console(stderr=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=None)

    def __enter__(self) -> "ProgressBar":
        self.progress.start()
        return self

    def say(self, what: str, done: int, total: int) -> None:
        """Show what is done, and how far."""
        self.progress.update(
            self.task, description=what, completed=done, total=total, refresh=True
        )

    def describe(self, what: str) -> None:
        """Show what is done next."""
        self.progress.update(self.task, description=what, refresh=True)

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
