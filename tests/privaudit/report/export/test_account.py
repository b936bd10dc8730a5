"""The card attack: it must work on exact numbers by client, and not on cards."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, load_run, train
from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.score_table import ScoreTable
from privaudit.auditing.scored_audit import Declared, audit_scores
from privaudit.auditing.stored_audit import read_audit, save_audit
from privaudit.core.errors import ConfigError, PrivauditError, TranscriptError
from privaudit.core.signing import keys_folder, own_key, public_half
from privaudit.privacy.noised_auroc import RankQuery
from privaudit.report.export import export_public
from privaudit.report.export.account import (
    FOLDER,
    CardNumber,
    are_aligned,
    card_numbers,
    read_numbers,
)
from privaudit.statistics.roc import auroc
from tests.conftest import Cli, common_cache

Sizes = tuple[int, ...]


def by_client(
    attacks: Sequence[Sequence[ClientScores]],
) -> tuple[list[CardNumber], np.ndarray, list[np.ndarray], np.ndarray]:
    """Return what cards once held: each attack's exact AUROC by client, with its n."""
    everybody = [c.records for clients in attacks for c in clients]
    records = np.unique(np.concatenate(everybody))
    numbers, rules, places = [], [], {}
    for clients in attacks:
        rules.append(np.zeros(len(records)))
        for client in clients:
            where = np.searchsorted(records, client.records)
            row = np.zeros(len(records))
            row[where] = RankQuery.of([client.records], [client.scores]).ranks
            members = int(client.is_member.sum())
            pairs = members * (len(where) - members)
            found = 2 * pairs * (auroc(*client.groups).value - 0.5) if pairs else 0.0
            numbers.append(CardNumber(row, found))
            rules[-1] += row
            places[client.client] = where
    return numbers, records, list(places.values()), np.stack(rules)


def made_up(
    sizes: Sizes, attacks: int, rng: np.random.Generator
) -> list[list[ClientScores]]:
    """Return scores that tell nothing of coins, of several attacks."""
    coins = [rng.random(size) < 0.5 for size in sizes]
    begins = np.cumsum([0, *sizes])
    return [
        [
            ClientScores(
                f"client-{k}",
                np.arange(begins[k], begins[k + 1]),
                np.zeros(size, int),
                rng.normal(size=size),
                np.zeros(size, bool),
                coins[k],
            )
            for k, size in enumerate(sizes)
        ]
        for _ in range(attacks)
    ]


def truth_of(clients: Sequence[ClientScores]) -> np.ndarray:
    return np.concatenate([client.is_member for client in clients])


def test_exact_numbers_by_client_give_every_member_away(
    rng: np.random.Generator,
) -> None:
    """It must work: as many numbers of each client as it has candidates."""
    attacks = made_up((46, 44, 42), 46, rng)
    numbers, _, places, rules = by_client(attacks)
    truth = truth_of(attacks[0])
    for reading in read_numbers(numbers, places).values():
        assert reading.right(truth) == 132
        assert reading.is_beyond_chance(truth, rules)


def test_few_exact_numbers_give_small_clients_away_to_the_search_alone(
    rng: np.random.Generator,
) -> None:
    """Three clients of 30 and 5 numbers each: 2^30 memberships, of which few fit."""
    attacks = made_up((30, 30, 30), 5, rng)
    numbers, _, places, rules = by_client(attacks)
    truth = truth_of(attacks[0])
    readings = read_numbers(numbers, places)
    assert readings["least squares"].right(truth) < 75
    assert readings["search"].right(truth) >= 85
    assert readings["search"].is_beyond_chance(truth, rules)


def test_an_audit_as_cards_once_held_it_tells_more_than_any_of_its_attacks(
    run: Run,
) -> None:
    """A real one: its exact AUROCs by client, with those on the server's own model."""
    stored = read_audit(run, "server-reconstruct")
    attacks = [stored.clients(attack) for attack in stored.attacks]
    numbers, records, places, rules = by_client(attacks)
    truth = run.truth.is_member[records]
    reading = read_numbers(numbers, places)["least squares"]
    best = max(auroc(rule[truth], rule[~truth]).value for rule in rules)
    assert auroc(reading.belief[truth], reading.belief[~truth]).value > best


@pytest.mark.parametrize("leak", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("sizes", [(12,), (46, 44, 42), (9,) * 30])
def test_a_ledger_s_budget_of_cards_stays_within_chance(
    sizes: Sizes, leak: float, rng: np.random.Generator
) -> None:
    """Three noised numbers of each of 12 ledgers, whatever the scores tell by themselves.

    Where they tell nothing, the mean AUROC of the reader is at most what three numbers
    allow of two coins, a member's and another's: Phi(0.289 sqrt(3)) = 0.69.
    """
    aurocs = []
    for _ in range(12):
        attacks = made_up(sizes, 3, rng)
        truth = truth_of(attacks[0])
        queries = [
            RankQuery.of(
                [c.records for c in clients],
                [c.scores + leak * c.is_member for c in clients],
            )
            for clients in attacks
        ]
        noised = [
            one.exact(truth) * one.fine + round(rng.normal() * one.scale)
            for one in queries
        ]
        numbers, _, places = card_numbers(queries, noised)
        rules = np.stack([one.coefficients for one in numbers])
        for reading in read_numbers(numbers, places).values():
            assert not reading.is_beyond_chance(truth, rules)
        if 0 < truth.sum() < len(truth):
            belief = reading.belief
            aurocs.append(auroc(belief[truth], belief[~truth]).value)
    error = 1 / math.sqrt(3 * len(aurocs) * sum(sizes))
    if not leak:
        assert np.mean(aurocs) < 0.69 + 4 * error


def test_without_noise_pooled_numbers_add_up_to_a_gain(
    rng: np.random.Generator,
) -> None:
    """It must work: 100 exact pooled numbers of 540 candidates."""
    attacks = made_up((54,) * 10, 100, rng)
    truth = truth_of(attacks[0])
    queries = [
        RankQuery.of([c.records for c in one], [c.scores for c in one])
        for one in attacks
    ]
    rules = np.stack([one.ranks for one in queries]).astype(float)
    exact = [CardNumber(row, float(row[truth].sum())) for row in rules]
    reading = read_numbers(exact, [])["least squares"]
    gained = auroc(reading.belief[truth], reading.belief[~truth]).value
    assert gained > 0.65
    assert reading.is_beyond_chance(truth, rules)


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


def test_tables_of_scores_that_lack_some_records_are_counted_together(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """Each cost an epsilon of its own, and their noise averaged away."""
    scores, coins = rng.normal(size=300), rng.random(300) < 0.5

    def numbers(kept: np.ndarray, truth: np.ndarray, **columns: Any) -> int:
        table = ScoreTable.of(scores[kept], truth[kept], **columns)
        name = f"table-{len(list(tmp_path.glob('card-*')))}"
        save_audit(audit_scores(table, Declared(sampling="coin")), tmp_path / name)
        run = load_run(tmp_path / name)
        return export_public(run, tmp_path / f"card-{name}").card.ledger.numbers

    everybody = np.arange(300)
    assert numbers(everybody, coins) == 1
    assert numbers(np.delete(everybody, [7, 90]), coins) == 2
    assert numbers(everybody[1:], coins, clients=["a"] * 150 + ["b"] * 149) == 3
    assert numbers(everybody, rng.permutation(coins)) == 1  # of other coins
    with pytest.raises(ConfigError, match="the budget is 2"):
        numbers(everybody[:-1], coins)
    four, shared = np.repeat(everybody[:100], 4), rng.random(100) < 0.5
    for count in (1, 2):  # groups share a coin, and a card holds one of each
        scores = rng.normal(size=400)
        assert numbers(np.arange(400), shared[four], groups=four) == count


def test_rows_of_coins_are_one_where_chance_does_not_align_them(
    rng: np.random.Generator,
) -> None:
    for count in (30, 300, 3000):
        coins = rng.random(count) < 0.5
        lacking = [np.delete(coins, rng.integers(0, count, count // 25)) for _ in "ab"]
        assert are_aligned(*lacking)
        others = [rng.random(count) < 0.5 for _ in range(60)]
        assert sum(are_aligned(coins, other) for other in others) < 5  # 0.001 each
        assert not are_aligned(np.sort(coins), np.sort(lacking[0]))  # no order of coins


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


FIELDS = ("noised", "members", "ranks", "ledger", "data")


@pytest.mark.parametrize("field", [*FIELDS, "signature", "number"])
def test_an_account_that_was_altered_or_lacks_a_field_stops_every_export(
    runs: Make, tmp_path: Path, folder: Path, field: str
) -> None:
    export_public(runs("first"), tmp_path / "one")
    (place,) = folder.glob("*.json")
    content = json.loads(place.read_text())
    if field in FIELDS:
        value = content["number"][field]
        content["number"][field] = value + 1 if isinstance(value, int) else value[::-1]
    else:
        del content[field]
    place.write_text(json.dumps(content))
    said = "not as it was signed" if field in FIELDS else None
    with pytest.raises(TranscriptError, match=said):
        export_public(runs("other"), tmp_path / "two")


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

    for step in ("keep", "write_card"):
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
    from privaudit.report.export.export import RunSecret

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
    text = cli.done("export", runs("first").path, "--public", tmp_path / "a")
    assert "1 number, epsilon 1.09 of 2 at delta 1e-05" in text
    error = cli.refused(
        "export", runs("second").path, "--public", tmp_path / "b", "--budget", "1.2"
    )
    assert "the budget is 1.2, and 1 on earlier cards have taken 1.09" in error
    assert not (tmp_path / "b").exists()
