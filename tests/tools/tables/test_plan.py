from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit_tools.tables.paper import PaperNumber
from privaudit_tools.tables.plan import TablePlan, read_plan

PLAN = """
title = "Two methods"
seeds = [1, 2]
metrics = ["local", "neighbour"]

[fields]
clients = 3
checkpoint = "none"

[[rows]]
label = "PromptFL"
trainer = "promptfl"
skip_columns = ["with noise: 0.4"]

[[rows]]
label = "DP-FPL"
trainer = "dp-fpl"
settings = { rank = 2, epsilon = "none" }

[[columns]]
label = "none"

[[columns]]
group = "with noise"
label = "0.4"
settings = { epsilon = 0.4 }

[[columns]]
group = "with noise"
label = "0.1"
settings = { epsilon = 0.1 }
only_for = ["DP-FPL"]

[paper.local]
PromptFL = { none = "94.45±0.30" }
DP-FPL = { none = 96, "with noise: 0.4" = "95.74 ± 0.63" }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def test_a_plan_is_read_as_it_is_written(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, PLAN))
    assert plan.seeds == (1, 2)
    assert plan.over == "last10"
    assert [(row.label, column.name) for row, column in plan.cells] == [
        ("PromptFL", "none"),
        ("DP-FPL", "none"),
        ("DP-FPL", "with noise: 0.4"),
        ("DP-FPL", "with noise: 0.1"),
    ]
    assert [len(group) for group in plan.groups] == [1, 2]


def test_none_in_words_is_null_as_on_the_command_line(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, PLAN))
    assert plan.fields["checkpoint"] is None
    assert plan.rows[1].settings == {"rank": 2, "epsilon": None}


def test_the_papers_numbers_stand_by_metric_row_and_column(tmp_path: Path) -> None:
    plan = read_plan(write(tmp_path, PLAN))
    found = plan.printed("local", "DP-FPL", "with noise: 0.4")
    assert found == PaperNumber("95.74 ± 0.63", 95.74, 0.63)
    assert plan.printed("local", "DP-FPL", "with noise: 0.1") is None
    assert plan.printed("neighbour", "DP-FPL", "none") is None


def test_one_column_needs_no_name() -> None:
    plan = TablePlan.model_validate(
        {
            "title": "Short",
            "seeds": [0],
            "rows": [{"label": "a", "trainer": "coop"}],
            "paper": {"local": {"a": 80.5}},
        }
    )
    ((row, column),) = plan.cells
    assert plan.printed("local", row.label, column.name) == PaperNumber("80.5", 80.5)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("seeds = ", "seed = ", "seed is no key there. Known: title, source"),
        ("trainer = ", "trainr = ", r"rows\[1\].trainr is no key there. Known: label"),
        ("only_for", "for", r"columns\[3\].for is no key there"),
        ("[1, 2]", "[]", "seeds: Tuple should have at least 1 item"),
        ("[1, 2]", "[1, 1]", "the seeds hold 1 more than once"),
        ("[1, 2]", "[-1]", r"seeds\[1\]: Input should be greater than or equal to 0"),
        ('"neighbour"', '"loss"', "'loss' is no metric; there are local, neighbour"),
        ('"neighbour"', '"client min-q"', "no metric; did you mean 'client min-k'"),
        ('"neighbour"', '"sever BLEU-1"', "did you mean 'server BLEU-1'"),
        ('"neighbour"', '"local"', "the metrics hold local more than once"),
        ('label = "DP-FPL"', 'label = "PromptFL"', "rows hold PromptFL more than once"),
        ('label = "0.1"', 'label = "0.4"', "columns hold with noise: 0.4 more than"),
        ("clients = 3", "seed = 3", "fields: 'seed' is no field here"),
        ('skip_columns = ["', 'skip_columns = ["x', "names 'xwith noise: 0.4'"),
        ('["DP-FPL"]', '["DP-FPF"]', "did you mean 'DP-FPL'"),
        ("[paper.local]", "[paper.mix]", "paper names 'mix', and there are local"),
        ("PromptFL = {", "Prompt = {", "paper.local names 'Prompt'"),
        ("none = 96", "non = 96", "paper.local.DP-FPL names 'non'"),
        ("none = 96", "none = 960", "paper.local.DP-FPL: 960 is no number of a paper"),
        ("none = 96", 'none = "about 9"', "'about 9' is no number of a paper"),
        ("{ none = 96,", "[96", "is no TOML: "),
        ('PromptFL = { none = "94.45±0.30" }', "PromptFL = 94", "for 3 columns: name"),
        ("[[columns]]", "[[columms]]", "columms is no key there"),
        (
            "seeds = ",
            "attacked = -1\nseeds = ",
            r"attacked: .*greater than 0; or: .*'all'",
        ),
        ('title = "Two methods"', "", "title: Field required"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_place(
    tmp_path: Path, before: str, after: str, says: str
) -> None:
    assert before in PLAN
    with pytest.raises(ConfigError, match=says):
        read_plan(write(tmp_path, PLAN.replace(before, after)))


def test_a_plan_without_any_cell_is_refused(tmp_path: Path) -> None:
    row, column = '[[rows]]\nlabel = "a"\ntrainer = "coop"\n', 'label = "c"\n'
    skips = f'{row}skip_columns = ["c"]\n[[columns]]\n{column}'
    with pytest.raises(ConfigError, match="no row has a column"):
        read_plan(write(tmp_path, f'title = "t"\nseeds = [0]\n{skips}'))


def test_a_plan_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"There is no gone\.toml"):
        read_plan(tmp_path / "gone.toml")


hundredths = st.integers(0, 10000).map(lambda n: n / 100)


@given(hundredths, hundredths, st.sampled_from(["±", " ± ", " +/- "]))
def test_numbers_are_read_as_papers_print_them(
    mean: float, spread: float, between: str
) -> None:
    found = PaperNumber.read(f"{mean:.2f}{between}{spread:.2f}")
    assert (found.mean, found.spread) == (mean, spread)
    assert PaperNumber.read(mean).spread is None


@pytest.mark.parametrize("printed", [True, None, "", "±1", "90±", "-3", "90 %", [90]])
def test_other_things_are_no_numbers_of_a_paper(printed: Any) -> None:
    with pytest.raises(ValueError, match="is no number of a paper"):
        PaperNumber.read(printed)
