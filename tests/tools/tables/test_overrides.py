"""Plans with other settings, fields or seeds than their files say."""

from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit_tools.tables.overrides import overridden
from privaudit_tools.tables.parts import Elsewhere
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import schedule


def plan_of(**changes: Any) -> TablePlan:
    asked = {
        "title": "t",
        "seeds": [1, 2],
        "settings": {"epochs": 5},
        "rows": [
            {"label": "a", "trainer": "coop", "fields": {"rounds": 5}},
            {"label": "b", "trainer": "zero-shot"},
        ],
        "columns": [
            {"label": "x", "settings": {"epochs": 2}, "only_for": ["a"]},
            {"label": "y", "fields": {"clients": 4}},
        ],
        "paper": {"local": {"a": {"x": "1.5"}}},
    }
    return TablePlan.model_validate(asked | changes)


FAR = ["local", "elsewhere BLEU-1"]


def test_what_is_given_stands_over_rows_and_columns() -> None:
    changed = overridden(plan_of(), {"epochs": 1}, {"rounds": 2, "clients": 3}, [7])
    runs = schedule(changed).runs
    assert {run.fields["rounds"] for run in runs} == {2}
    assert {run.fields["clients"] for run in runs} == {3}
    assert {run.settings.get("epochs") for run in runs} == {1, None}
    assert changed.seeds == (7,)
    assert changed.paper == plan_of().paper
    assert overridden(plan_of(), {}, {}) == plan_of()
    one = {"of": "p", "says": "s", "row": "b", "columns": ["y", "z"]}
    looks = {"looks": [3], "seeds": [1, 2, 3], "reproduces": ["p"], "expects": [one]}
    by_need = plan_of(**looks, columns=[{"label": "y"}, {"label": "z"}], paper={})
    assert overridden(by_need, {}, {}, [7]).looks == ()


def test_a_note_says_what_was_changed() -> None:
    plan = plan_of(notes=["Rates of 1e-4."])
    fields = {"checkpoint": None, "data": "/home/someone/pets"}
    changed = overridden(plan, {"epochs": 1}, fields, [7])
    assert changed.notes == (
        "Not as the plan has it, whatever the notes below say (--set, --field): "
        "epochs = 1, checkpoint = none, data = pets.",
        "Rates of 1e-4.",
    )
    assert overridden(plan, {}, {}, [7]).notes == plan.notes
    (said, _) = overridden(plan, {"epochs": 1}, {}).notes
    assert said.endswith("(--set, --field): epochs = 1.")


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("data", "/home/x/pets/", "pets"),
        ("data", "~/pets", "pets"),
        ("data", "owner/pets", "owner/pets"),
        ("data", "data://sets/pets", "data://sets/pets"),
        ("data", "/", "/"),
        ("dataset", "hf:/home/x/pets", "hf:pets"),
        ("model", "surrogate:/home/x/caltech-bank", "surrogate:caltech-bank"),
        ("model", "open_clip:hf-hub:laion/B-16", "open_clip:hf-hub:laion/B-16"),
        ("checkpoint", "$CLIP/RN50.pt", "RN50.pt"),
        ("template", "a photo of a/an X", "a photo of a/an X"),
        ("elsewhere.data", "../far/nocaps", "nocaps"),
    ],
)
def test_only_the_folder_above_a_path_is_left_out_of_the_note(
    field: str, value: str, shown: str
) -> None:
    plan = plan_of(metrics=FAR, elsewhere={"dataset": "nocaps"})
    (said, *_) = overridden(plan, {}, {field: value}).notes
    assert said.endswith(f": {field} = {shown}.")


def test_what_is_given_stands_over_what_a_column_means_for_one_row() -> None:
    column = {"label": "x", "settings_for": {"a": {"epochs": 3, "batch_size": 8}}}
    plan = plan_of(columns=[column], paper={})
    before = plan.model_copy(deep=True)
    changed = overridden(plan, {"epochs": 1}, {})
    assert changed.columns[0].settings_for == {"a": {"batch_size": 8}}
    runs = schedule(changed).runs
    assert {run.settings.get("epochs") for run in runs} == {1, None}
    assert plan == before


def test_seeds_and_trainers_are_no_fields() -> None:
    with pytest.raises(ConfigError, match="'seed' is no field here"):
        overridden(plan_of(), {}, {"seed": 3})


def test_fields_of_a_data_set_elsewhere_are_changed_alone() -> None:
    away = {"dataset": "nocaps", "data": "nowhere"}
    plan = plan_of(metrics=FAR, elsewhere=away, fields={"dataset": "digits"})
    near = {"clients": 3, "elsewhere.dataset": "scenes-far", "elsewhere.data": None}
    changed = overridden(plan, {}, near)
    assert changed.elsewhere == Elsewhere(dataset="scenes-far")
    assert changed.fields == {"dataset": "digits", "clients": 3}
    kept = overridden(plan, {}, {"elsewhere.dataset": "scenes-far"}).elsewhere
    assert kept == Elsewhere(dataset="scenes-far", data="nowhere")


def test_a_data_set_elsewhere_that_no_metric_reads_is_refused() -> None:
    with pytest.raises(
        ValueError, match="names nocaps, and no metric is measured there"
    ):
        plan_of(elsewhere={"dataset": "nocaps"})


@pytest.mark.parametrize(
    ("elsewhere", "field", "says"),
    [
        (None, "dataset", "elsewhere.dataset was given, and the plan has no"),
        ("nocaps", "datset", "elsewhere.datset is no key there. Known: dataset, data"),
        ("nocaps", "dataset", "elsewhere.dataset: Input should be a valid string"),
    ],
)
def test_fields_elsewhere_that_there_are_not_are_refused(
    elsewhere: str | None, field: str, says: str
) -> None:
    away = {"metrics": FAR, "elsewhere": {"dataset": elsewhere}} if elsewhere else {}
    plan = plan_of(**away)
    with pytest.raises(ConfigError, match=says):
        overridden(plan, {}, {f"elsewhere.{field}": None})
