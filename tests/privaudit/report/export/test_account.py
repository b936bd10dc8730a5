"""The account of a ledger: what its cards say is counted once, and never forgotten."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, Run, load_run, train
from privaudit.auditing.storage.save import save_audit
from privaudit.core.errors import ConfigError, PrivauditError, TranscriptError
from privaudit.core.signing import keys_folder, own_key, public_half
from privaudit.privacy.noised_auroc import RankQuery
from privaudit.report.export import export_public
from privaudit.report.export.account import FOLDER
from tests.conftest import Cli, common_cache

Make = Callable[[str], Run]
RUNS = {  # all of one seed, so that coins of records in common are the same
    "first": ("promptfl", 2, 1),
    "second": ("promptfl", 2, 2),
    "third": ("promptfl", 3, 1),  # other clients, and so another ledger
    "fourth": ("promptfl", 3, 2),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Audited runs of one seed, and one of another."""
    folder = tmp_path_factory.mktemp("accounts")
    with common_cache(tmp_path_factory):
        for name, (trainer, clients, epochs) in RUNS.items():
            run = train(
                trainer, folder=folder, name=name, rounds=1, clients=clients, seed=9,
                settings={"epochs": epochs},
            )  # fmt: skip
            save_audit(Auditor(run).attack(shadows=0))
        other = train(
            "promptfl", folder=folder, name="other", rounds=1, clients=2, seed=10,
            settings={"epochs": 1},
        )  # fmt: skip
        save_audit(Auditor(other).attack(shadows=0))
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Make:
    """Take a copy of a run."""

    def copy(name: str) -> Run:
        place = tmp_path / "copies" / name
        if not place.exists():
            shutil.copytree(made / name, place)
        return load_run(place)

    return copy


@pytest.fixture
def folder() -> Path:
    return keys_folder() / FOLDER


def said(run: Run, out: Path, **options: object) -> float:
    card = export_public(run, out, **options).card  # type: ignore[arg-type]
    auroc = card.audits["server-reconstruct"].auroc
    assert auroc is not None
    return auroc.value


def test_a_fourth_number_of_one_seed_s_coins_is_refused_whatever_its_clients(
    runs: Make, tmp_path: Path
) -> None:
    for count, name in enumerate(("first", "second", "third"), start=1):
        found = export_public(runs(name), tmp_path / name)
        assert found.card.ledger.numbers == count
    assert found.card.ledger.epsilon == pytest.approx(2.0, abs=0.01)
    with pytest.raises(ConfigError, match=r"makes an epsilon of 2.34 .* budget is 2, "):
        export_public(runs("fourth"), tmp_path / "fourth")
    assert not (tmp_path / "fourth").exists()
    assert export_public(runs("other"), tmp_path / "other").card.ledger.numbers == 1
    raised = export_public(runs("fourth"), tmp_path / "fourth", budget=3.0)
    assert raised.card.ledger.numbers == 4


def test_a_number_said_again_is_the_same_and_costs_nothing(
    runs: Make, tmp_path: Path
) -> None:
    """Copies of a run before its first export do not average the noise away."""
    one = runs("first")
    other = load_run(shutil.copytree(one.path, tmp_path / "elsewhere"))
    values = [
        said(run, tmp_path / f"out-{n}") for n, run in enumerate([one, one, other])
    ]
    assert len(set(values)) == 1
    assert export_public(other, tmp_path / "out-3").card.ledger.numbers == 1


def test_with_the_account_taken_away_the_same_number_has_the_same_noise(
    runs: Make, tmp_path: Path, folder: Path
) -> None:
    """The noise follows from the owner's key: forgetting does not draw it anew."""
    fresh = load_run(shutil.copytree(runs("first").path, tmp_path / "elsewhere"))
    before = said(runs("first"), tmp_path / "one")
    shutil.rmtree(folder)
    assert said(fresh, tmp_path / "two") == before


def test_the_noise_follows_from_no_seed(
    runs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner of the same seed, data and settings has other noise."""
    copy = load_run(shutil.copytree(runs("first").path, tmp_path / "elsewhere"))
    before = said(runs("first"), tmp_path / "one")
    monkeypatch.setenv("PRIVAUDIT_TRUST", public_half(own_key()))
    monkeypatch.setenv("PRIVAUDIT_SIGNING_KEY", "22" * 32)
    monkeypatch.setenv("PRIVAUDIT_KEYS", str(tmp_path / "theirs"))
    assert said(copy, tmp_path / "two") != before


def test_the_same_question_with_other_noise_is_another_number(
    runs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner who takes another key, beside the same account, averages nothing away."""
    copy = load_run(shutil.copytree(runs("first").path, tmp_path / "elsewhere"))
    export_public(runs("first"), tmp_path / "one")
    monkeypatch.setenv("PRIVAUDIT_TRUST", public_half(own_key()))
    monkeypatch.setenv("PRIVAUDIT_SIGNING_KEY", "22" * 32)
    assert export_public(copy, tmp_path / "two").card.ledger.numbers == 2


@pytest.mark.parametrize("field", ["noised", "members", "ranks", "ledger", "data"])
def test_an_account_that_was_altered_stops_every_export(
    runs: Make, tmp_path: Path, folder: Path, field: str
) -> None:
    export_public(runs("first"), tmp_path / "one")
    (place,) = folder.glob("*.json")
    content = json.loads(place.read_text())
    value = content["number"][field]
    changed = {int: lambda v: v + 1, str: lambda v: v[::-1], list: lambda v: v[::-1]}
    content["number"][field] = changed[type(value)](value)
    place.write_text(json.dumps(content))
    with pytest.raises(TranscriptError, match="not as it was signed"):
        export_public(runs("other"), tmp_path / "two")


@pytest.mark.parametrize("field", ["signature", "number"])
def test_an_account_without_a_field_stops_every_export(
    runs: Make, tmp_path: Path, folder: Path, field: str
) -> None:
    export_public(runs("first"), tmp_path / "one")
    (place,) = folder.glob("*.json")
    content = json.loads(place.read_text())
    del content[field]
    place.write_text(json.dumps(content))
    with pytest.raises(TranscriptError):
        export_public(runs("second"), tmp_path / "two")


def test_a_number_that_is_gone_from_the_account_is_missed_by_its_run(
    runs: Make, tmp_path: Path, folder: Path
) -> None:
    export_public(runs("first"), tmp_path / "one")
    for place in folder.glob("*.json"):
        place.unlink()
    with pytest.raises(TranscriptError, match="does not have: it lies beside"):
        export_public(runs("first"), tmp_path / "one")


def test_a_kill_between_account_and_card_spends_once(
    runs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    from privaudit.report.export import export as export_module

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("keep", "_write"):
        with monkeypatch.context() as patch:
            patch.setattr(export_module, step, killed)
            with pytest.raises(KeyboardInterrupt):
                export_public(runs("first"), tmp_path / "one")
        assert not (tmp_path / "one").exists()
    assert len(list(folder.glob("*.json"))) == 1
    assert export_public(runs("first"), tmp_path / "one").card.ledger.numbers == 1


def _export(place: Path, out: Path) -> str:
    try:
        return str(export_public(load_run(place), out).card.ledger.numbers)
    except PrivauditError:
        return "refused"


def test_exports_at_once_do_not_spend_the_same_epsilon(
    runs: Make, tmp_path: Path
) -> None:
    """Four that each open the lock, and a budget for three."""
    places = [runs(name).path for name in RUNS]
    with ThreadPoolExecutor(4) as pool:
        outcomes = pool.map(_export, places, [tmp_path / one.name for one in places])
    assert sorted(outcomes) == ["1", "2", "3", "refused"]


def test_a_number_without_noise_is_stopped_by_the_card_s_own_attack(
    runs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """As if noise were lost and each client's candidates stood in a card of their own."""
    from privaudit.report.export import export as export_module
    from privaudit.report.export.account import NotedNumber
    from privaudit.report.export.run_secret import RunSecret

    def exact(run: Run, scenario: str, secret: RunSecret) -> NotedNumber:
        del scenario, secret
        few = run.truth.candidates_of(0)[:12]
        query = RankQuery((12,), few, 2 ** np.arange(12) * 8)  # one sum names all
        monkeypatch.setattr(RankQuery, "scale", 1)
        noised = query.exact(run.truth.is_member[few]) * query.fine
        return NotedNumber.of(query, run, "server-reconstruct", noised)

    monkeypatch.setattr(export_module, "number_of", exact)
    with pytest.raises(ConfigError, match="would learn more of 12 memberships"):
        export_public(runs("first"), tmp_path / "one")
    assert not list(folder.glob("*.json"))
    assert not (tmp_path / "one").exists()


def test_the_command_says_what_it_spent_and_what_there_is(
    runs: Make, tmp_path: Path, cli: Cli
) -> None:
    code, text, _ = cli("export", runs("first").path, "--public", tmp_path / "a")
    assert code == 0
    assert "1 number, epsilon 1.09 of 2 at delta 1e-05" in text
    code, _, error = cli(
        "export", runs("second").path, "--public", tmp_path / "b", "--budget", "1.2"
    )
    assert code == 2
    assert "the budget is 1.2, and 1 on earlier cards have taken 1.09" in error
    assert not (tmp_path / "b").exists()
