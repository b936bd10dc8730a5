import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    MissingFileError,
)
from privaudit.runs.config import make_config
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import require_data, schedule


def plan_of(**changes: Any) -> TablePlan:
    asked: dict[str, Any] = {
        "title": "t",
        "seeds": [4, 5],
        "fields": {"clients": 3, "rounds": 2},
        "settings": {"epochs": 7, "epsilon": 8.0},
        "rows": [
            {"label": "PromptFL", "trainer": "promptfl", "fields": {"rounds": 3}},
            {"label": "DP-FPL", "trainer": "dp-fpl", "settings": {"rank": 1}},
        ],
        "columns": [
            {"label": "3"},
            {"label": "2", "fields": {"clients": 2, "rounds": 1}},
        ],
    }
    return TablePlan.model_validate(asked | changes)


def test_the_columns_fields_stand_over_the_rows_and_those_over_the_plans() -> None:
    runs = {run.label: run for run in schedule(plan_of()).runs}
    assert runs["PromptFL, 3, seed 4"].fields == {"clients": 3, "rounds": 3, "seed": 4}
    assert runs["PromptFL, 2, seed 5"].fields == {"clients": 2, "rounds": 1, "seed": 5}
    assert runs["DP-FPL, 3, seed 4"].fields == {"clients": 3, "rounds": 2, "seed": 4}


def test_shared_parameters_go_to_those_trainers_that_have_them() -> None:
    runs = {run.label: run for run in schedule(plan_of()).runs}
    assert runs["PromptFL, 3, seed 4"].settings == {"epochs": 7}
    assert runs["DP-FPL, 3, seed 4"].settings == {"epsilon": 8.0, "rank": 1}


def test_a_columns_parameters_go_likewise_and_those_for_a_row_over_them() -> None:
    column = {
        "label": "c",
        "settings": {"epsilon": 2.0, "epochs": 4},
        "settings_for": {"DP-FPL": {"epsilon": 3.0, "rank": 2}},
    }
    runs = {run.label: run for run in schedule(plan_of(columns=[column])).runs}
    assert runs["PromptFL, c, seed 4"].settings == {"epochs": 4}
    assert runs["DP-FPL, c, seed 4"].settings == {"epsilon": 3.0, "rank": 2}


def test_runs_come_seed_by_seed_with_the_digest_of_their_configuration() -> None:
    planned = schedule(plan_of())
    assert [run.fields["seed"] for run in planned.runs] == [4] * 4 + [5] * 4
    for run in planned.runs:
        config = make_config(run.trainer, run.settings, **run.fields)
        assert run.short_hash == config.short_hash
    assert len(planned.places) == 8


def test_a_run_that_two_cells_show_is_trained_once() -> None:
    columns = [{"label": "a"}, {"label": "b", "settings": {}}]
    planned = schedule(plan_of(columns=columns))
    assert len(planned.runs) == 4
    assert (
        planned.places["DP-FPL", "a", 4]
        == planned.places["DP-FPL", "b", 4]
        != planned.places["DP-FPL", "b", 5]
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"settings": {"epoch": 3}},
            "'epoch', and no row's trainer has that.*Did you mean 'epochs'",
        ),
        ({"fields": {"client": 3}}, "PromptFL, 3, seed 4: The run cannot take client"),
        ({"columns": [{"label": "c", "settings": {"rank": 1}}]}, "no parameter 'rank'"),
        (
            {"columns": [{"label": "c", "settings": {"epoch": 3}}]},
            "The settings of column 'c' hold 'epoch'",
        ),
        ({"columns": [{"label": "c", "fields": {"rounds": 0}}]}, "rounds = 0"),
        ({"rows": [{"label": "a", "trainer": "promptfll"}]}, "mean 'promptfl'"),
        ({"fields": {"data": "~no-such-user/x"}}, r"not there: ~no-such-user/x \(data"),
        (
            {"fields": {"model": "x:$NOT_SET_ANYWHERE/y"}},
            r"not set: NOT_SET_ANYWHERE \(y\)",
        ),
    ],
)
def test_a_run_that_cannot_be_configured_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigError, MissingFileError), match=says):
        schedule(plan_of(**changes))


def test_variables_and_the_home_folder_are_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "weights").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    for model in ("open_clip:~/models", "open_clip:${SOMEWHERE}/models"):
        fields = {"model": model, "checkpoint": "$SOMEWHERE/weights"}
        run = schedule(plan_of(fields=fields)).runs[0]
        assert run.fields["model"] == f"open_clip:{tmp_path}/models"
        assert run.fields["checkpoint"] == str(tmp_path / "weights")


@pytest.mark.parametrize(
    "fields", [{"model": "open_clip:$SOMEWHERE/gone"}, {"checkpoint": "gone.npz"}]
)
def test_a_path_that_is_not_there_is_refused_before_anything_runs(
    fields: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    with pytest.raises(MissingFileError, match=r"gone(\.npz)? \("):
        schedule(plan_of(fields=fields))


def test_all_that_is_missing_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    fields = {"model": "vlm:$MODELS/llava", "checkpoint": "$CLIP/RN50.pt"}
    columns = [
        {"label": name, "fields": {"dataset": "caltech101", "data": f"$SETS/{name}"}}
        for name in ("there", "pets", "dtd")
    ]
    plan = plan_of(fields=fields, columns=columns)
    for variable in ("MODELS", "CLIP", "SETS"):
        monkeypatch.delenv(variable, raising=False)
    named = r"MODELS \(llava\), CLIP \(RN50\.pt\), SETS \(there, pets, dtd\)\. Set each"
    with pytest.raises(ConfigError, match=named):
        schedule(plan)
    for variable in ("MODELS", "CLIP", "SETS"):
        monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(MissingFileError) as caught:
        schedule(plan)
    here = f"{tmp_path}/"
    assert str(caught.value) == (
        f"The plan needs what is not there: {here}llava (model), {here}RN50.pt "
        f"(checkpoint), {here}pets (data), {here}dtd (data). Put it there, or set CLIP, "
        "MODELS, SETS to where it is."
    )


def test_data_lie_in_any_folder_of_the_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b" / "pets").mkdir(parents=True)
    monkeypatch.setenv("PRIVAUDIT_DATA", f"{tmp_path}/a{os.pathsep}{tmp_path}/b")
    fields = {"dataset": "oxford-pets", "data": "$PRIVAUDIT_DATA/pets"}
    run = schedule(plan_of(fields=fields)).runs[0]
    assert run.fields["data"] == str(tmp_path / "b" / "pets")
    fields["data"] = "$PRIVAUDIT_DATA/dogs"
    monkeypatch.setenv("HOME", str(tmp_path))
    sought = [tmp_path / f for f in ("a", "b", ".cache/privaudit/data")]
    named = " or ".join(f"{folder}/dogs" for folder in sought)
    with pytest.raises(MissingFileError, match=rf"{named} \(data\). Put it there, or "):
        schedule(plan_of(fields=fields))
    monkeypatch.delenv("PRIVAUDIT_DATA")
    (sought[-1] / "dogs").mkdir(parents=True)
    (run, *_) = schedule(plan_of(fields=fields)).runs
    assert run.fields["data"] == str(sought[-1] / "dogs")


def test_what_the_search_path_lacks_is_named_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    pets = {"dataset": "oxford-pets"}
    columns = [
        {"label": place, "fields": {**pets, "data": place}}
        for place in ("data://dogs", "data://cats", "./gone", "$PRIVAUDIT_DATA/far")
    ]
    with pytest.raises(MissingFileError) as caught:
        schedule(plan_of(columns=columns))
    said = str(caught.value)
    assert said.startswith("The plan needs what is not there: ./gone (data), ")
    assert (
        "or set PRIVAUDIT_DATA to where it is, or name another place with --field "
        in said
    )
    assert "--field data=…. There is no data://dogs: " in said
    assert said.count("There is no data://cats: ") == 1
    with pytest.raises(MissingFileError) as caught:
        schedule(plan_of(columns=columns[:1]))
    assert str(caught.value).startswith("There is no data://dogs: nothing is at ")


def test_variables_with_nothing_behind_them_have_no_brackets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("OTHERS", "SETS"):
        monkeypatch.delenv(variable, raising=False)
    fields = {"dataset": "oxford-pets", "data": "$OTHERS"}
    bare = "not set: OTHERS. Set each to the folder that has it.$"
    with pytest.raises(ConfigError, match=bare):
        schedule(plan_of(fields=fields))
    fields["checkpoint"] = "$OTHERS/a"
    with pytest.raises(ConfigError, match=r"not set: OTHERS \(a\)\. "):
        schedule(plan_of(fields=fields))
    fields["checkpoint"] = "$SETS/a"
    both = r"not set: OTHERS, SETS \(a\). Set each .* has what stands behind it in br"
    with pytest.raises(ConfigError, match=both):
        schedule(plan_of(fields=fields))


def plan_elsewhere(dataset: str, data: str) -> TablePlan:
    return TablePlan.model_validate(
        {
            "title": "t",
            "seeds": [1],
            "metrics": ["elsewhere BLEU-1"],
            "elsewhere": {"dataset": dataset, "data": data},
            "fields": {"model": "tiny-llava", "dataset": "scenes"},
            "rows": [{"label": "a", "trainer": "fedrand"}],
        }
    )


def test_the_place_of_data_elsewhere_is_asked_for_too(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    plan = plan_elsewhere("nocaps", str(gone))
    says = rf"{gone} \(elsewhere.data\). Put it there, or .* --field elsewhere.data=…"
    with pytest.raises(MissingFileError, match=says):
        schedule(plan)
    gone.mkdir()
    planned = schedule(plan)
    with pytest.raises(DatasetError, match=f"There is no nocaps.* in {gone}"):
        require_data(planned)


def test_what_is_not_trained_may_lack_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.setenv("SETS", str(tmp_path))
    monkeypatch.delenv("OTHERS", raising=False)
    columns = [
        {"label": data, "fields": {"dataset": "oxford-pets", "data": data}}
        for data in ("$SETS/pets", "$SETS/dogs", "$OTHERS/cats", "data://gone")
    ]
    plan = plan_of(columns=columns)

    def only(wanted: str) -> Callable[[str, str, int], bool]:
        return lambda row, column, seed: column == wanted

    planned = schedule(plan, only("$SETS/pets"))
    assert ("DP-FPL", "$SETS/dogs", 4) in planned.places
    for missing in ("$SETS/dogs", "$OTHERS/cats", "data://gone"):
        with pytest.raises((ConfigError, MissingFileError)):
            schedule(plan, only(missing))


def test_every_incomplete_data_set_is_named(tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [{"label": "digits"}]
    for name in ("oxford-pets", "dtd"):
        (tmp_path / name).mkdir()
        fields = {"dataset": name, "data": str(tmp_path / name)}
        columns.append({"label": name, "fields": fields})
    planned = schedule(plan_of(columns=columns))
    with pytest.raises(DatasetError) as caught:
        require_data(planned)
    said = str(caught.value)
    for file in ("split_zhou_OxfordPets.json", "split_zhou_DescribableTextures.json"):
        assert said.count(f"There is no {file}") == 1
    require_data(schedule(plan_of(columns=columns[:1])))


def test_a_table_that_lies_here_is_read_and_a_name_on_a_hub_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "pets").mkdir(parents=True)
    planned = schedule(plan_of(fields={"dataset": "hf:owner/pets"}))
    with pytest.raises(DatasetError, match="owner/pets"):
        require_data(planned)
    require_data(schedule(plan_of(fields={"dataset": "hf:owner/dogs"})))
    away = plan_elsewhere("hf", "owner/pets")
    with pytest.raises(DatasetError, match="owner/pets"):
        require_data(schedule(away))


def test_classes_that_a_data_set_lacks_are_named(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "bank.npz",
        embeddings=np.eye(4, dtype=np.float32),
        labels=np.arange(4) % 2,
        class_names=np.array(["cat", "dog"]),
    )
    fields = {"dataset": "feature-bank", "data": str(tmp_path / "bank.npz")}
    require_data(schedule(plan_of(fields={**fields, "classes": "dog,cat"})))
    with pytest.raises(DatasetError, match="1 of the 2 chosen classes are none of"):
        require_data(schedule(plan_of(fields={**fields, "classes": "dog,cow"})))


SPLITS = "$SOMEWHERE/split_fewshot/shot_16-seed_{seed}.pkl"


@pytest.fixture
def splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CoOp's few-shot splits for seeds 4 and 5."""
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "split_fewshot"
    folder.mkdir()
    for seed in (4, 5):
        (folder / f"shot_16-seed_{seed}.pkl").write_text(f"split {seed}")
    return folder


@pytest.mark.parametrize("part", ["plan", "row", "column"])
def test_a_field_may_hold_the_runs_seed(splits: Path, part: str) -> None:
    """As where each seed has a few-shot split of its own."""
    fields = {"dataset": "oxford-pets", "data": SPLITS}
    changes: dict[str, dict[str, Any]] = {"plan": {}, "row": {}, "column": {}}
    changes[part] = {"fields": fields}
    row = {"label": "a", "trainer": "promptfl", **changes["row"]}
    column = {"label": "c", **changes["column"]}
    plan = plan_of(rows=[row], columns=[column], settings={}, **changes["plan"])
    first, second = schedule(plan).runs
    assert first.fields["data"] == str(splits / "shot_16-seed_4.pkl")
    assert second.fields["data"] == str(splits / "shot_16-seed_5.pkl")
    assert first.short_hash != second.short_hash


def test_other_braces_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("seed", "x")
    fields = {"image_column": "{} {x} {{seed}} ${seed} {SEED} {seed}{seed}"}
    planned = schedule(plan_of(fields=fields, columns=[{"label": "c"}]))
    assert planned.runs[0].fields["image_column"] == "{} {x} {{seed}} x {SEED} 44"


def test_fields_without_a_seed_are_the_same_for_all_seeds(splits: Path) -> None:
    data = splits / "shot_16-seed_4.pkl"
    fields: dict[str, Any] = {"dataset": "oxford-pets", "data": str(data)}
    rows = [{"label": "a", "trainer": "promptfl"}]
    columns = [{"label": "c"}]
    plan = plan_of(fields=fields, rows=rows, columns=columns, settings={})
    runs = schedule(plan).runs
    assert [run.short_hash for run in runs] == [
        make_config("promptfl", **fields, seed=seed).short_hash for seed in (4, 5)
    ]


@pytest.mark.usefixtures("splits")
def test_each_missing_split_is_named_once() -> None:
    fields = {"dataset": "oxford-pets", "data": SPLITS}
    with pytest.raises(MissingFileError) as caught:
        schedule(plan_of(fields=fields, seeds=[4, 6, 5, 7]))
    said = str(caught.value)
    assert [said.count(f"seed_{seed}.pkl (data)") for seed in (4, 5, 6, 7)] == [
        0, 0, 1, 1,
    ]  # fmt: skip


def test_a_models_name_is_no_path() -> None:
    schedule(plan_of(fields={"model": "open_clip:hf-hub:laion/CLIP-ViT-B-16"}))
