"""``--json`` of every command: one document of its schema, and nothing else printed."""

import json
import shlex
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from privaudit import Run, train
from privaudit.cli.commands.export import _compared
from privaudit.cli.json_schemas import CONTENTS, schema_of
from privaudit.core.errors import UnknownNameError
from privaudit.evaluation.card import SignedCard
from privaudit.recording.recorder import Recorder
from privaudit.report.export import CardCheck
from privaudit.report.export.verify import Replayed, Verification
from tests.conftest import Cli
from tests.privaudit.cli.test_command_line import COMMANDS
from tests.privaudit.recording.small_federation import Linear, run_federation, toss

SWEEP = (
    "--trainers zero-shot --seeds 1,2 --shadows 0 --field rounds=1 --field clients=2"
)
SEEDS = "--seeds 4 --shadows 0 --field rounds=1 --field clients=2"
LINES = [  # every command at least once, with each kind of result that it has
    "train --rounds 1 --clients 2 --seed 3 --name new",
    "train --rounds 1 --clients 3 --seed 3 --name masked --secure-aggregation masked",
    "split --records 100 --clients 2 --out new.npz",
    "import recording --ledger ledger.npz",
    "status",
    "attack one two --shadows 0 --on local:1",
    "scores scores.csv --sampling coin",
    "claim --epsilon 8 --repeats 20 --rounds 1 --on local:1",
    "claim --epsilon 8 --set mode=published-paper --repeats 20 --rounds 1 --on local:1",
    "lint one two",
    "report one",
    "compare one two",
    "tradeoff --on local:1 " + SWEEP,
    "gate one --write-baseline baseline.json",
    "gate two --baseline baseline.json --max-auroc 0.6 --shadows 2",
    f"gate --method zero-shot --write-baseline plain.json {SEEDS}",
    f"gate --method promptfl --against plain.json {SEEDS}",
    "plan plan.json --margin 0.1",
    "export one --public card",
    "verify card --again",
    "train --rounds 1 --clients 2 --plan plan.json --session session.json",
    "key answer session.json",
    "key export own.pub",
    "verify card --key own.pub",
    "key sign card",
    "verify two --recompute",
    "key show",
    "key export key.pub",
    "key trust key.pub --name friend",
    "list",
    "list lira",
    "new attack one-more",
    "doctor",
    "figure roc one --out roc.pdf",
]


def test_every_command_has_a_schema() -> None:
    names = {" ".join(words) for words in COMMANDS}
    assert names == {*CONTENTS} == {name_of(line) for line in LINES}
    with pytest.raises(UnknownNameError, match="serve"):
        schema_of("serve")


def name_of(line: str) -> str:
    words = tuple(line.split())
    return " ".join(words[: 2 if words[:2] in COMMANDS else 1])


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_a_schema_is_one_and_is_printed(name: str, cli: Cli) -> None:
    """Also where the command itself could not be called: no argument is given."""
    code, out, err = cli(*name.split(), "--json-schema")
    assert (code, err) == (0, "")
    Draft202012Validator.check_schema(json.loads(out))
    assert json.loads(out) == schema_of(name)


def documents(text: str) -> list[Any]:
    """Return one document, or one of each line."""
    try:
        return [json.loads(text, parse_constant=pytest.fail)]
    except json.JSONDecodeError:
        return [
            json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()
        ]


def valid(cli: Cli, *words: object) -> list[Any]:
    """Return what a command prints under ``--json``: each document is of its schema."""
    name = name_of(" ".join(map(str, words)))
    is_own = name in CONTENTS  # another package's says its schema itself
    stored = schema_of(name) if is_own else json.loads(cli(*words, "--json-schema")[1])
    schema = Draft202012Validator(stored)
    code, out, err = cli(*words, "--json")
    assert code in (0, 1, 3), (words, err)
    found = documents(out)
    assert found, words
    for one in found:
        assert not [*schema.iter_errors(one)], (words, str(one)[:500])
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two audited runs' configurations, scores and a recording."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    for name, trainer in (("one", "promptfl"), ("two", "zero-shot")):
        train(trainer, name=name, rounds=1, clients=2, seed=0)
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal()},{int(rng.random() < 0.5)}" for _ in range(200)]
    Path("scores.csv").write_text("\n".join(["score,member", *rows]))
    with Recorder(tmp_path / "recording", weight="num-examples") as recorder:
        run_federation(recorder, toss(), Linear())
    toss().save(tmp_path / "ledger.npz")
    return tmp_path


def test_every_command_prints_json_of_its_schema_and_nothing_else(
    place: Path, cli: Cli
) -> None:
    """In an order in which each finds what it needs."""
    for line in LINES:
        valid(cli, *shlex.split(line))


def test_a_key_that_the_schema_lacks_is_noticed() -> None:
    validator = Draft202012Validator(schema_of("report"))
    assert validator.is_valid({"page": "a"})
    assert not validator.is_valid({"page": "a", "more": 1})
    assert not validator.is_valid({})


def test_a_difference_without_bound_is_null() -> None:
    check = CardCheck(SignedCard.__new__(SignedCard), (), (), (), ())
    replayed = (Replayed("a", 1, inf, ("b",)),)
    found = Verification(Run.__new__(Run), check, 1, 0, (), replayed)
    assert _compared(found)["replayed"][0]["largest"] is None
    assert found.replayed[0].largest == inf
