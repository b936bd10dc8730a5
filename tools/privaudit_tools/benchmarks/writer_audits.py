"""What attacking a run of models that write takes, by part: ``... RUN`` prints it.

Of the attacks that ask models, without shadow models: processor seconds, and which places
the model read. Places count the same on every machine; few of those that token tables ask
about should be padding, and few rows should go on once their answer has ended.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from privaudit import Auditor, load_run
from privaudit.auditing import auditor, played_scenario, token_tables
from privaudit.auditing.parts import closeness
from privaudit.auditing.scenario import find_scenario
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit.runs import tasks

PARTS: Mapping[str, tuple[Any, str]] = {
    "population, model, reconstruction": (Auditor, "resolve"),
    "token tables": (token_tables, "_ask"),
    "estimates of the attacks": (played_scenario, "evaluate_scores"),
    "closeness of reconstructed models": (closeness, "measure_closeness"),
    "utility: models write": (tasks, "write"),
    "utility: the model as it comes writes": (tasks, "write_untuned"),
    "utility: captions are compared": (tasks, "score_writing"),
    "utility, whole": (auditor, "measure_clients"),
}


@dataclass
class Places:
    """What a language model read.

    Attributes:
        passes: Calls of the model.
        read: Places of texts that were read as a whole, padding included.
        written: Places that were read to write answers, prompts included.
    """

    passes: int = 0
    read: int = 0
    written: int = 0


@contextmanager
def counted_places() -> Iterator[Places]:
    """Count what language models read as long as the context is open."""
    places, run = Places(), StackedLanguageModel._run

    def counting(self: Any, keep: Any, **given: Any) -> Any:
        rows, length = given["inputs_embeds"].shape[:2]
        places.passes += 1
        if given["use_cache"]:
            places.written += rows * length
        else:
            places.read += rows * length
        return run(self, keep, **given)

    with patch.object(StackedLanguageModel, "_run", counting):
        yield places


@contextmanager
def timed_parts() -> Iterator[dict[str, float]]:
    """Add up processor seconds of each of ``PARTS`` as long as the context is open."""
    seconds = dict.fromkeys(PARTS, 0.0)
    with ExitStack() as patches:
        for part, (owner, name) in PARTS.items():
            timed = _timing(seconds, part, getattr(owner, name))
            patches.enter_context(patch.object(owner, name, timed))
        yield seconds


def _timing(
    seconds: dict[str, float], part: str, run: Callable[..., Any]
) -> Callable[..., Any]:
    def timed(*given: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return run(*given, **named)
        finally:
            seconds[part] += time.process_time() - start

    return timed


def main(path: Path) -> None:
    """Print what the audit of a run takes."""
    plan = find_scenario("server-reconstruct", 0).for_task("generation").on_models()
    with timed_parts() as seconds, counted_places() as places:
        Auditor(load_run(path.name, folder=path.parent)).attack(plan, is_logged=False)
    for part, spent in seconds.items():
        print(f"{part:40} {spent:7.1f}")
    print(f"{'whole, with imports':40} {time.process_time():7.1f}")
    print(f"passes {places.passes:,}, read {places.read:,}, written {places.written:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
