"""Numbers that hang on the last bits of features, and the command that finds them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import Records
from privaudit.models.hugging_face import import_transformers
from privaudit.models.registry import load_frozen
from privaudit_tools.benchmarks import table_stability
from privaudit_tools.benchmarks.table_stability import (
    ALLOWED,
    Shaken,
    distance,
    elsewhere,
    line,
    shaken,
)
from privaudit_tools.tables.matrix import RESULTS
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.stored import read_stored
from tests.places import ROOT
from tests.small_records import text_data
from tests.small_transformers import random_model, text_config, text_tokenizer

PLAN = TablePlan.model_validate(
    {
        "title": "What nobody trained",
        "source": "none",
        "seeds": [1, 2],
        "metrics": ["local"],
        "over": "last",
        "fields": {"rounds": 1},
        "rows": [{"label": "untrained", "trainer": "zero-shot"}],
    }
)


def test_what_is_not_trained_does_not_hang_on_last_bits(tmp_path: Path) -> None:
    ((one,),) = shaken(PLAN, Piece(), tmp_path)
    assert (one.row, one.column, one.metric) == ("untrained", "accuracy", "local")
    assert one.pairs.keys() == {1, 2}
    assert one.is_stable


def test_what_moves_the_numbers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second perturbation turns features round: 84 % become about none."""

    def turned(records: Records, number: int) -> Records:
        return replace(records, features=records.features * (3 - 2 * number))

    monkeypatch.setattr(table_stability, "with_other_last_bits", turned)
    ((one,),) = shaken(PLAN, Piece(), tmp_path)
    assert not one.is_stable
    assert one.moved > 50


def test_words_are_looked_up_with_other_last_bits(tmp_path: Path) -> None:
    """A text's tokens are whole numbers: its embeddings move, and are put back."""
    import_transformers().utils.logging.disable_progress_bar()
    random_model(
        lambda: import_transformers().BertModel(text_config("bert"))
    ).save_pretrained(tmp_path)
    text_tokenizer("bert").save_pretrained(tmp_path)
    model: Any = load_frozen(f"encoder:{tmp_path}")
    table = model._model.get_input_embeddings().weight
    seen = [table.clone()]
    for number in (1, 2, 1):
        with elsewhere(number):
            model.encode(text_data(4))
            model.encode(text_data(4))  # moved once
            seen.append(table.clone())
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[1], seen[2])
    assert torch.allclose(seen[0], seen[1], rtol=2e-7)
    assert torch.equal(table, seen[0])


def test_words_of_a_model_without_a_table_are_refused() -> None:
    model = load_frozen("tiny-clip")
    with elsewhere(1), pytest.raises(ConfigError, match="table of embeddings"):
        table_stability._embeddings(model)


def test_numbers_may_move_by_a_tenth_of_their_spread() -> None:
    within = Shaken("a", "x", "local", {1: (90.0, 90.1), 2: (92.0, 92.0)}, 2**0.5)
    assert within.moved == pytest.approx(0.1)
    assert within.is_stable
    assert not replace(within, pairs={1: (90.0, 90.2), 2: (92.0, 92.0)}).is_stable
    assert Shaken("a", "x", "local", {1: (90.0, 90.0), 2: (90.0, 90.0)}, 0.0).is_stable


def test_models_are_apart_as_a_share_of_their_norm() -> None:
    one = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    assert distance(one, {**one, "b": torch.tensor([4.5])}) == pytest.approx(0.1)
    memory = {"a": torch.tensor([3, 0]), "b": torch.tensor([True, False])}
    other = {**memory, "b": torch.tensor([True, True])}
    assert distance(memory, other) == pytest.approx(0.1**0.5)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs two seeds"):
        next(shaken(PLAN.model_copy(update={"seeds": (1,)}), Piece(), tmp_path))


def test_a_rows_line_has_the_furthest_number_or_all_that_are_beyond() -> None:
    moved = {1: (90.0, 90.3), 2: (92.0, 92.0)}
    near, at, far = (Shaken("a", "x", f"number {n}", moved, n) for n in (9.0, 4.0, 2.0))
    still = Shaken("a", "x", "still", {1: (1.0, 1.0), 2: (1.0, 1.0)}, 0.0)
    said = line("plan", [still, near, at])
    assert said == "| plan | a | x | 1, 2 | 3 of 3 | number 4.0 0.30 of 4.00 |"
    other = replace(far, metric="other")
    said = line("plan", [far, near, other])
    assert said.endswith("| 1 of 3 | number 2.0 0.30 of 2.00; other 0.30 of 2.00 |")
    said = line("plan", [near, replace(far, column="b: y")])
    assert (
        said
        == "| plan | a | 2 columns | 1, 2 | 1 of 2 | b: y: number 2.0 0.30 of 2.00 |"
    )


LINE = re.compile(
    r"^\| ([\w-]+) \| (.+) \| (.+) \| [\d, ]+ \| (\d+) of (\d+) \| (.+) \|$", re.M
)
NUMBER = re.compile(r"^(.+) ([\d.]+) of ([\d.]+)$")


def test_the_pages_rows_are_measured_on_what_is_stored() -> None:
    """A table that is run anew is measured anew, or its lines go."""
    lines = LINE.findall((ROOT / "docs" / "tables" / "README.md").read_text("utf-8"))
    assert lines
    for name, row, column, stable, of, numbers in lines:
        stored = read_stored(ROOT / "docs" / "tables" / RESULTS / f"{name}.json")
        said = [NUMBER.findall(one)[0] for one in numbers.split("; ")]
        beyond = int(of) - int(stable)
        assert len(said) == (beyond or 1)
        for label, moved, spread in said:
            *named, metric = label.rsplit(": ", maxsplit=1)
            column = named[0] if named else column
            summary = stored.cells[row, column, metric, stored.plan.over].summary
            assert summary.spread == pytest.approx(float(spread), abs=0.0051)
            assert (float(moved) > ALLOWED * float(spread)) == bool(beyond)
