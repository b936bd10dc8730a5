from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from privaudit import Run, train
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.signals import mean_log_likelihood
from privaudit.auditing.token_tables import table_of
from privaudit.datasets import sources
from privaudit.datasets.records import PADDING
from privaudit.datasets.scenes import records as scenes
from privaudit.federation.query import questions
from privaudit.models.interfaces import Tuning
from privaudit.models.language.stacked_language import StackedLanguageModel
from privaudit_tools.benchmarks.writer_audits import PARTS, counted_places, main
from tests.conftest import common_cache

SMALL: dict[str, Any] = {"clients": 2, "rounds": 1, "participation": 1.0, "shots": 4}
SMALL |= {"tested": 12, "public_share": 0.2, "measured_rounds": 1, "seed": 5}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("writers")
    with pytest.MonkeyPatch.context() as patch, common_cache(tmp_path_factory):
        patch.setattr(scenes, "RECORDS", 600)
        sources._load.cache_clear()
        yield train("fedrand", folder=folder, **SMALL)
    sources._load.cache_clear()


def test_few_places_of_a_token_table_are_padding(run: Run) -> None:
    """And each record is told what it is told alone."""
    plan = find_scenario("server-reconstruct", 0).for_task("generation")
    adversary, targets = Auditor(run).prepare(plan)
    records, model = adversary.task.public, targets[0].reconstructed.model
    assert records.words is not None
    assert len(records) > 100
    with counted_places() as places:
        table = table_of(adversary, records, model)
    assert places.read < 1.1 * int((records.words.kinds != PADDING).sum())
    assert places.read < 0.8 * records.words.trimmed().ids.numel()
    likely = mean_log_likelihood(table, "description")
    for record in (0, 57, len(records) - 1):
        alone = table_of(adversary, records.pick(torch.tensor([record])), model)
        said = mean_log_likelihood(alone, "description")
        torch.testing.assert_close(likely[[record]], said, rtol=1e-5, atol=1e-6)


def test_few_rows_go_on_when_their_answer_has_ended(run: Run) -> None:
    records, language = run.population.task.public, run.population.task.language
    assert isinstance(language, StackedLanguageModel)
    assert records.tokens is not None
    assert records.words is not None
    prompts = questions(records.words)
    pictures = records.tokens.read()[None]
    with counted_places() as places:
        (said,) = language.generate_ids(pictures, prompts.repeated(1), Tuning(), 40)
    lengths = [len(answer) for answer in said]
    read = int((prompts.kinds != PADDING).sum())
    assert max(lengths) > 1.5 * mean(lengths)  # else there is none to leave
    assert read < places.written <= read + sum(lengths) / 0.8


def test_the_parts_of_an_audit_are_printed(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    main(Path(run.path))
    printed = capsys.readouterr().out
    assert all(part in printed for part in PARTS)
    assert "passes" in printed
