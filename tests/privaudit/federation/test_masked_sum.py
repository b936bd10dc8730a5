"""What a masked sum means to the rest, whoever computes it, and what it must be."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.scenario import MASKED
from privaudit.core import registry
from privaudit.core.errors import ConfigError, PluginError, ViewError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Tensors
from privaudit.federation.masked_sum import SECURE_SUMS, MakesMasks, MaskedSum, Masks
from privaudit.federation.threat_models import server
from privaudit.federation.transcript import SERVER, Message
from privaudit.runs.run import Run
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import Cli, common_cache, refuse, train_and_stop
from tests.toy_federation import Play

Uploads = Mapping[str, Tensors]
Change = Callable[[MaskedSum, Uploads], Any]
STEP = 2.0**-20
QUICK: dict[str, Any] = {"rounds": 3, "epochs": 1, "seed": 2}
HIDDEN: dict[str, Any] = {"secure_aggregation": "masked", **QUICK}
LABS = "stands in privaudit-labs, which is not installed.*: pip install ./labs"


def left_alone(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    return found


@dataclass(frozen=True)
class Toy:
    """Masks that cancel: each client adds one, and takes off that of the one before.

    ``change`` is what the package does wrong.
    """

    change: Change = left_alone

    def step(self, parties: int) -> float:
        return STEP

    def sum_of(
        self, uploads: Uploads, seeds: Seeds, index: int, streams: Sequence[str]
    ) -> Any:
        generator = torch.Generator().manual_seed(index)
        codes = {
            c: {n: (t.double() / STEP).round().long() for n, t in sent.items()}
            for c, sent in uploads.items()
        }
        drawn = [
            {
                n: torch.randint(2**62, t.shape, generator=generator)
                for n, t in c.items()
            }
            for c in codes.values()
        ]
        hidden = {
            c: {n: t + drawn[i][n] - drawn[i - 1][n] for n, t in codes[c].items()}
            for i, c in enumerate(codes)
        }
        names = next(iter(uploads.values()))
        total = {
            n: (torch.stack([one[n] for one in hidden.values()]).sum(0) * STEP).to(
                t.dtype
            )
            for n, t in names.items()
        }
        sent = [Message(index, c, SERVER, "masked", hidden[c]) for c in hidden]
        there = {"clients": torch.arange(len(uploads), dtype=torch.int32)}
        told = [Message(index, SERVER, c, "survivors", there) for c in hidden]
        learned = Message(index, "clients", SERVER, "sum", total)
        said = {"outcome": "summed"}
        found = MaskedSum(total, tuple(uploads), (*sent, *told, learned), said)
        return self.change(found, uploads)


def with_messages(found: MaskedSum, *added: Message, drop: str = "") -> MaskedSum:
    kept = [m for m in found.messages if m.kind != drop]
    return replace(found, messages=(*kept, *added))


def in_the_clear(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    sent = [Message(0, c, SERVER, "update", t) for c, t in uploads.items()]
    return with_messages(found, *sent)


def codes_of(uploads: Uploads, client: str) -> dict[str, torch.Tensor]:
    return {n: (t / STEP).round().long() for n, t in uploads[client].items()}


def without_masks(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    codes = codes_of(uploads, "client-1")
    return with_messages(found, Message(0, "client-1", SERVER, "masked", codes))


def but_for_one(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    """The mask is too short by one number, the likeliest fault of all."""
    hidden = {n: t.clone() for n, t in found.messages[1].tensors.items()}
    for name, code in codes_of(uploads, "client-1").items():
        hidden[name].view(-1)[-1] = code.view(-1)[-1]
    return with_messages(found, Message(0, "client-1", SERVER, "masked", hidden))


def in_another_shape(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    codes = {n: t[None] for n, t in codes_of(uploads, "client-1").items()}
    return with_messages(found, Message(0, "client-1", SERVER, "masked", codes))


def among_keys(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    codes = codes_of(uploads, "client-0")
    return with_messages(found, Message(0, SERVER, "client-1", "keys", codes))


def of_others(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    there = {"clients": torch.tensor([0, 1], dtype=torch.int32)}
    told = Message(0, SERVER, "client-0", "survivors", there)
    return with_messages(found, told, drop="survivors")


@dataclass(frozen=True)
class Coarse(Toy):
    def step(self, parties: int) -> float:
        return 1.0


def aborted(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    shown = with_messages(without_masks(found, uploads), drop="sum")
    return replace(shown, total=None, survivors=())


def as_floats(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    hidden = {n: t + torch.randn_like(t) for n, t in uploads["client-1"].items()}
    return with_messages(found, Message(0, "client-1", SERVER, "masked", hidden))


def of_one(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    total = uploads["client-0"]
    learned = Message(0, "clients", SERVER, "sum", total)
    alone = replace(found, total=total, survivors=("client-0",))
    return with_messages(alone, learned, drop="sum")


def with_another(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    total = {**(found.total or {}), "of client-0": uploads["client-0"]["context"]}
    learned = Message(0, "clients", SERVER, "sum", total)
    return with_messages(replace(found, total=total), learned, drop="sum")


def off_by_a_bit(found: MaskedSum, uploads: Uploads) -> MaskedSum:
    total = {n: t + 100 * STEP for n, t in (found.total or {}).items()}
    return replace(found, total=total)


WRONG: list[tuple[Change, str]] = [
    (
        lambda found, uploads: (found.total, found.messages),
        "a tuple, and not a MaskedSum",
    ),
    (lambda found, uploads: replace(found, survivors=("x",)), "('x',) as survivors of"),
    (in_the_clear, "a message of kind 'update'"),
    (lambda found, uploads: with_messages(found, drop="sum"), "0 sums on record"),
    (of_one, "1 sums on record, of 1 clients"),
    (off_by_a_bit, "is not what 3 clients sent"),
    (with_another, "'of client-0' that is not what 3 clients sent"),
    (
        lambda found, uploads: with_messages(found, drop="masked"),
        "no masked upload of client-0",
    ),
    (as_floats, "of client-1 as no integers"),
    (but_for_one, "'context' of client-1 without a mask"),
    (in_another_shape, "of client-1 of other names or shapes"),
    (among_keys, "integers of 64 bits in 'keys' of server"),
    (of_others, "no message of survivors whose list is [0, 1, 2]"),
    (
        lambda found, uploads: with_messages(found, drop="survivors"),
        "no message of survivors",
    ),
    (lambda found, uploads: replace(found, report={}), "as its docstring says"),
    (
        lambda found, uploads: with_messages(
            found, Message(7, SERVER, "client-0", "keys", {})
        ),
        "a message of another round",
    ),
    (without_masks, "of client-1 without a mask"),
    (aborted, "'context' of client-1 without a mask"),
]


def test_another_packages_protocol_ends_where_the_ideal_sum_does(play: Play) -> None:
    assert isinstance(Toy(), Masks)
    ideal, masked = play(PromptFL(epochs=1)), play(PromptFL(epochs=1), masking=Toy())
    for name, tensor in ideal.server.items():
        torch.testing.assert_close(masked.server[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("change", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_called_masked_and_is_not_is_refused(
    change: Change, said: str, play: Play
) -> None:
    played = play(PromptFL(epochs=1), rounds=0)
    before = {name: tensor.clone() for name, tensor in played.server.items()}
    with pytest.raises(PluginError, match=r"In round 0 Toy.sum_of gave") as refused:
        played.step(masking=Toy(change))
    assert said in str(refused.value)
    assert all(torch.equal(before[n], played.server[n]) for n in before)


def test_steps_too_coarse_are_refused_since_noise_is_on_their_grid(play: Play) -> None:
    with pytest.raises(PluginError, match=r"steps of 1\.0, and a power of two up to"):
        play(PromptFL(epochs=1), masking=Coarse())


def test_a_run_says_whose_protocol_masked_it_and_keys_differ_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(SECURE_SUMS.find("masked"), MakesMasks)
    run = train(folder=tmp_path, name="labs", **{**HIDDEN, "rounds": 1})
    assert run.header["plugins"]["masks"].startswith("privaudit-labs ")
    monkeypatch.setattr(SECURE_SUMS, "package_of", lambda name: "others 1.2")
    other = train(folder=tmp_path, name="others", **{**HIDDEN, "rounds": 1})
    assert other.header["plugins"] == {"masks": "others 1.2"}
    sent = [
        next(m for m in one.transcript if m.kind == "masked") for one in (run, other)
    ]
    assert not torch.equal(*(one.tensors["context"] for one in sent))


def test_a_run_of_another_packages_protocol_is_attacked_and_linted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(SECURE_SUMS, "find", lambda name: lambda *given: Toy())
    monkeypatch.setattr(SECURE_SUMS, "package_of", lambda name: "others 1.2")
    run = train(folder=tmp_path / "runs", name="toy", **HIDDEN)
    audit = Auditor(run).attack("server-reconstruct", shadows=0)
    assert audit.scenario.threat == "server-aggregate"
    assert [one.parties for one in server(run.transcript).sums] == [10, 10, 10]
    assert cli("lint", "toy")[0] == 0
    monkeypatch.setattr(SECURE_SUMS, "find", lambda name: lambda *given: object())
    with pytest.raises(
        PluginError, match=r"of others 1\.2 made a object, which has no"
    ):
        train(folder=tmp_path / "runs", name="none", **HIDDEN)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one run in the clear, one under masks, and one with losses."""
    folder = tmp_path_factory.mktemp("masked")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="clear", **QUICK)
        train(folder=folder, name="masked", **HIDDEN)
        train(folder=folder, name="lossy", dropout=0.3, **HIDDEN)
    return folder


@pytest.fixture
def without_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no plugin in any list."""
    monkeypatch.setattr(registry, "_entry_points", lambda group, path: ())
    monkeypatch.setattr(SECURE_SUMS, "_entries", {})


@pytest.mark.usefixtures("without_labs")
def test_without_labs_nothing_is_begun_and_a_sentence_says_what_to_install(
    tmp_path: Path, cli: Cli
) -> None:
    said = cli.refused("train", "--secure-aggregation", "masked")
    assert "The secure-sum protocol 'masked' stands in privaudit-labs" in said
    assert "pip install ./labs" in said
    assert not (tmp_path / "runs").exists()


def test_without_labs_what_is_there_of_a_run_stays(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    train_and_stop(1, folder=tmp_path, **HIDDEN)
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    request.getfixturevalue("without_labs")
    again: list[dict[str, Any]] = [{"resume": True}, {"fresh": True}]
    for how in again:
        with pytest.raises(ConfigError, match=LABS):
            train(folder=tmp_path, name="cut", **how, **HIDDEN)
    after = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    assert after == before


def test_without_labs_a_masked_run_is_judged_the_same(
    runs: Path, tmp_path: Path, cli: Cli, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(runs / "masked", tmp_path / "runs" / "masked")
    words = ("attack", "masked", "--shadows", "0", "--json")
    commands = [words, ("lint", "masked", "--json"), ("report", "masked")]
    before = [cli(*command) for command in commands]
    request.getfixturevalue("without_labs")
    after = [cli(*command) for command in commands]
    assert [code for code, _, _ in after] == [code for code, _, _ in before]
    assert verdict(after[0][1]) == verdict(before[0][1])
    assert after[1][1] == before[1][1]
    assert train(folder=tmp_path / "runs", name="masked", **HIDDEN).is_complete
    assert "pip install ./labs" in cli.refused("verify", "masked", "--recompute")


def verdict(printed: str) -> list[Any]:
    """Return what an attack's last line says, but for times and counts of audits."""
    last = json.loads(printed.splitlines()[-1])
    return [last[name] for name in ("verdict", "auroc", "scenario")]


def test_the_server_rebuilds_nobody_and_the_reason_is_given(runs: Path) -> None:
    masked = Auditor(Run(runs / "masked"))
    audit = masked.attack("server-reconstruct", shadows=0)
    sums = masked.attack("server-aggregate", shadows=0)
    assert audit.scenario.threat == "server-aggregate"
    assert MASKED in audit.part(CLOSENESS).missing
    assert audit.auroc == sums.auroc
    assert MASKED not in sums.part(CLOSENESS).missing


@pytest.mark.slow
def test_shadows_of_masked_sums_are_those_of_ideal_ones(runs: Path) -> None:
    """An adversary repeats what the server sees: sums, whoever made them."""
    found = [
        Auditor(Run(runs / name)).attack("server-aggregate", clients=1, shadows=5)
        for name in ("clear", "masked")
    ]
    values = [audit.results["lira"].auroc.value for audit in found]
    assert values[0] == pytest.approx(values[1], abs=0.02)


def test_what_needs_single_updates_says_that_there_are_none(runs: Path) -> None:
    with pytest.raises(ViewError, match="uploads of this run are masked"):
        Auditor(Run(runs / "masked")).attack("update-watch")
    with pytest.raises(ViewError, match="only sums"):
        server(Run(runs / "masked").transcript).updates_of("client-0")


def test_sums_count_those_who_are_in_them(runs: Path) -> None:
    run = Run(runs / "lossy")
    said = [line["secure_sum"]["in_the_sum"] for line in run.metrics]
    view = server(run.transcript)
    assert [one.parties for one in view.sums] == [n for n in said if n]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trainer", "pfedmoap"), "uses each of them by itself, not their sum"),
        (("--participation", "0.1"), "1 of 10 clients takes part in a round"),
        (("--dropout", "1"), "cannot take dropout"),
    ],
)
def test_what_cannot_be_masked_is_refused(
    words: tuple[str, ...], said: str, cli: Cli
) -> None:
    refuse(cli, said, "train", "--secure-aggregation", "masked", *words)


def test_a_graph_is_for_masked_uploads_only(cli: Cli) -> None:
    says = "Add --secure-aggregation masked, or leave --masking-graph out"
    refuse(cli, says, "train", "--seed", 0, "--masking-graph", "active")


@pytest.mark.slow
def test_the_command_line_trains_attacks_and_lints_a_masked_run(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    shutil.copytree(runs / "masked", tmp_path / "runs" / "masked")
    words = ("attack", "masked", "--shadows", "0")
    code, out, _ = cli(*words)
    assert code == 0
    assert "no single one to reconstruct a client's model from" in " ".join(out.split())
    stored = tmp_path / "runs" / "masked" / "audits" / "server-reconstruct"
    audit = json.loads((stored / "audit.json").read_text())
    assert audit["threat"] == "server-aggregate"
    assert cli("lint", "masked")[0] == 0
