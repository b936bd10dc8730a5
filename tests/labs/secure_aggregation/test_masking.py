"""Named tensors in, messages and their sum out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from privaudit import train
from privaudit.core.errors import ConfigError, TrainingError
from privaudit.core.seeds import Seeds
from privaudit.federation.transcript import MASKED_KINDS, SERVER, Kind, bytes_sent, size
from privaudit.privacy.secure_aggregation.ideal_sum import secure_sum
from privaudit.report.settings import masked_with
from privaudit.runs.run import Run
from privaudit_labs.secure_aggregation.masking import Masking, masked_sum
from privaudit_labs.secure_aggregation.packets import Packet, PacketKind
from privaudit_labs.secure_aggregation.primitives import RunKey
from tests.conftest import Cli, common_cache, train_and_stop

CLIENTS = tuple(f"client-{i}" for i in range(5))


def uploads(seed: int = 0) -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        client: {
            "context": torch.randn(3, 2, generator=generator),
            "weight": torch.tensor(float(10 + number)),
        }
        for number, client in enumerate(CLIENTS)
    }


def seed_that_loses(who: Sequence[str], *, at_least: int = 1) -> Seeds:
    """Return seeds under which so many of these clients are lost, before they send."""
    for seed in range(4000):
        lost = Masking(dropout=0.3).lost(CLIENTS, Seeds(seed), 0)
        early = [CLIENTS[c] for c, stage in lost.items() if stage < 3]
        if sorted(early) == sorted(who) and len(lost) == len(early) >= at_least:
            return Seeds(seed)
    raise AssertionError("no seed loses them")


def test_the_masked_sum_is_the_ideal_one() -> None:
    found = masked_sum(uploads(), Masking(), Seeds(0), 0)
    ideal = secure_sum(list(uploads().values()))
    assert found.total is not None
    assert found.total.keys() == ideal.keys()
    for name, tensor in ideal.items():
        assert found.total[name].dtype == tensor.dtype
        torch.testing.assert_close(found.total[name], tensor, rtol=1e-6, atol=1e-8)


def test_the_sum_on_a_graph_is_that_of_all_pairs() -> None:
    many = {
        f"client-{i}": {"x": torch.arange(3.0) * i, "weight": torch.tensor(1.0)}
        for i in range(20)
    }
    graphs = [Masking(), Masking(graph="passive"), Masking(graph="active")]
    found = [masked_sum(many, masking, Seeds(0), 3) for masking in graphs]
    for one in found:
        assert one.total is not None
        assert one.total["x"].tolist() == [0.0, 190.0, 380.0]
    densities = [
        (one.report.get("neighbours"), one.report["threshold"]) for one in found
    ]
    assert densities == [(None, 14), (6, 3), (10, 9)]
    again = masked_sum(many, graphs[2], Seeds(0), 3)
    for message, other in zip(found[2].messages, again.messages, strict=True):
        assert message.receiver == other.receiver
        assert all((t == other.tensors[n]).all() for n, t in message.tensors.items())


def test_rounds_have_graphs_of_their_own_and_more_neighbours_where_many_drop_out() -> (
    None
):
    masking = Masking(graph="active")
    first, second = (masking.drawn_graph(Seeds(0), i, 100) for i in range(2))
    assert first is not None
    assert second is not None
    assert first.order != second.order
    lossy = Masking(graph="active", dropout=0.1).drawn_graph(Seeds(0), 0, 100)
    assert lossy is not None
    assert lossy.density.neighbours > first.density.neighbours
    assert Masking(graph="active").drawn_graph(Seeds(0), 0, 5) is None
    assert Masking(graph="active", dropout=0.6).drawn_graph(Seeds(0), 0, 100) is None
    assert Masking(graph="active", dropout=0.9).drawn_graph(Seeds(0), 0, 8) is None
    assert Masking().drawn_graph(Seeds(0), 0, 100) is None


def test_messages_hold_integers_and_one_sum_in_the_clear() -> None:
    found = masked_sum(uploads(), Masking(), Seeds(0), 4)
    *sent, last = found.messages
    assert {m.kind for m in sent} == MASKED_KINDS - {"complaint"}
    assert not any(t.is_floating_point() for m in sent for t in m.tensors.values())
    assert (last.kind, last.sender, last.receiver) == ("sum", "clients", SERVER)
    masked = [m for m in sent if m.kind == "masked"]
    assert [m.sender for m in masked] == list(CLIENTS)
    assert masked[0].tensors["context"].shape == (3, 2)
    assert masked[0].tensors["context"].dtype == torch.int64
    assert {m.round for m in found.messages} == {4}


def test_packets_have_names_in_the_transcript() -> None:
    assert set(get_args(PacketKind)) == MASKED_KINDS < set(get_args(Kind))


def test_bytes_are_counted_by_hand() -> None:
    """Up: signed keys, 4 sealed shares and 5 pairs of digests, 7 numbers, a signature,
    5 revealed shares.

    Down: 5 signed keys, 4 sealed shares and pairs of digests, 5 survivors, 5
    signatures; lists name each client in 4 bytes.
    """
    found = masked_sum(uploads(), Masking(), Seeds(0), 0)
    up = (80 + 64) + 4 * 48 + 5 * 32 + 7 * 8 + 64 + 5 * 16
    down = 5 * (80 + 64 + 4) + 4 * (48 + 32 + 4) + 5 * 4 + 5 * (64 + 4)
    assert bytes_sent(found.messages) == {"up": 5 * up, "down": 5 * down}
    assert size(found.messages[-1]) == 7 * 4  # the sum itself is sent by nobody


def test_what_only_some_send_is_masked_for_all() -> None:
    sent = uploads()
    sent["client-1"]["extra"] = torch.tensor([7.0])
    found = masked_sum(sent, Masking(), Seeds(0), 0)
    shapes = {
        tuple((name, t.shape) for name, t in m.tensors.items())
        for m in found.messages
        if m.kind == "masked"
    }
    assert len(shapes) == 1
    assert found.total is not None
    assert found.total["extra"].item() == 7.0


def test_the_lost_are_missing_in_the_sum_and_named_in_the_report() -> None:
    who = ["client-3"]
    found = masked_sum(uploads(), Masking(dropout=0.3), seed_that_loses(who), 0)
    rest = [sent for client, sent in uploads().items() if client not in who]
    assert found.total is not None
    expected = secure_sum(rest)["context"]
    torch.testing.assert_close(found.total["context"], expected)
    assert found.survivors == ("client-0", "client-1", "client-2", "client-4")
    assert found.report["outcome"] == "summed"
    assert sorted(found.report["lost_before"]) == who
    assert (found.report["in_the_sum"], found.report["threshold"]) == (4, 4)


def test_too_few_survivors_leave_no_sum() -> None:
    seeds = seed_that_loses(["client-0", "client-1", "client-2"])
    found = masked_sum(uploads(), Masking(dropout=0.3), seeds, 0)
    assert found.total is None
    assert found.survivors == ()
    assert found.report["outcome"].startswith("aborted, too few survivors (")
    assert not any(m.kind == "sum" for m in found.messages)


def test_losses_follow_their_rate_and_hit_every_stage() -> None:
    lost = [
        Masking(dropout=0.3).lost(CLIENTS, Seeds(seed), index)
        for seed in range(40)
        for index in range(10)
    ]
    stages = [stage for one in lost for stage in one.values()]
    assert len(stages) / 2000 == pytest.approx(0.3, abs=0.04)
    for stage in range(5):
        assert stages.count(stage) / len(stages) == pytest.approx(0.2, abs=0.08)
    assert Masking().lost(CLIENTS, Seeds(0), 0) == {}


def test_rounds_have_masks_of_their_own() -> None:
    first, second = (
        masked_sum(uploads(), Masking(), Seeds(0), i).messages for i in range(2)
    )
    for one, other in zip(first, second, strict=True):
        if one.kind in ("keys", "shares", "masked", "signature", "revealed-shares"):
            pairs = [(t, other.tensors[n]) for n, t in one.tensors.items()]
            assert any(not torch.equal(a, b) for a, b in pairs)


def test_clients_have_one_identity_a_run_and_rounds_a_label_each() -> None:
    runs = [Masking(secrets=RunKey(bytes([n]) * 32)) for n in range(2)]
    keys = {
        (n, client): run.identity(Seeds(0), client).public
        for n, run in enumerate(runs)
        for client in CLIENTS
    }
    assert len(set(keys.values())) == len(keys)
    assert keys[0, "client-0"] == runs[0].identity(Seeds(0), "client-0").public
    labels = {run.label(Seeds(0), index) for run in runs for index in range(2)}
    assert len(labels) == 4


def test_federations_that_share_seeds_have_masks_of_their_own() -> None:
    first, second = (
        masked_sum(uploads(), Masking(), Seeds(0), 0, streams=names).messages
        for names in ([], [f"shadow-1/{client}" for client in CLIENTS])
    )
    for one, other in zip(first, second, strict=True):
        if one.kind == "masked":
            assert not (one.tensors["context"] == other.tensors["context"]).any()


def test_a_fault_is_reported_with_names() -> None:
    def carry(packet: Packet) -> Packet:
        if packet.kind != "shares" or packet.sender != 3:
            return packet
        sealed = packet.arrays["sealed"].copy()
        sealed[0, 0] ^= 1
        return replace(packet, arrays={**packet.arrays, "sealed": sealed})

    found = masked_sum(uploads(), Masking(), Seeds(0), 0, carry=carry)
    assert found.report["outcome"] == "aborted, a message does not fit"
    assert found.report["faults"] == [
        "client-3: a share that it sealed cannot be opened, says client-0"
    ]
    assert found.messages[-1].kind == "complaint"


def test_an_update_out_of_range_stops_the_training_and_is_named() -> None:
    sent = uploads()
    sent["client-2"]["context"] = torch.full((3, 2), 3e6)
    with pytest.raises(TrainingError, match="Round 7, client-2: its upload reaches"):
        masked_sum(sent, Masking(), Seeds(0), 7)


def test_unequal_shapes_and_single_clients_are_refused() -> None:
    one, other = {"x": torch.zeros(2)}, {"x": torch.zeros(3)}
    with pytest.raises(ConfigError, match=r"first 'x' is \(2,\), number 1 \(3,\)"):
        masked_sum({"a": one, "b": other}, Masking(), Seeds(0), 0)
    with pytest.raises(ConfigError, match="a sum over one is its update"):
        masked_sum({"a": one}, Masking(), Seeds(0), 0)


def test_where_nothing_is_sent_nothing_is_masked() -> None:
    found = masked_sum({"a": {}, "b": {}}, Masking(), Seeds(0), 0)
    assert found.total == {}
    assert found.messages == ()
    assert found.survivors == ("a", "b")


QUICK: dict[str, Any] = {"rounds": 3, "epochs": 1, "seed": 2}
LOSSY: dict[str, Any] = {"secure_aggregation": "masked", "dropout": 0.3, **QUICK}
CHANCE = 1e-6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one run in the clear, one under masks, and one with losses."""
    folder = tmp_path_factory.mktemp("masked")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="clear", **QUICK)
        train(folder=folder, name="masked", secure_aggregation="masked", **QUICK)
        train(folder=folder, name="lossy", **LOSSY)
    return folder


def test_the_masked_run_ends_where_the_clear_one_does(runs: Path) -> None:
    clear, masked = Run(runs / "clear"), Run(runs / "masked")
    for client, model in clear.personal_models.items():
        other = masked.personal_models[client]["context"]
        torch.testing.assert_close(other, model["context"], rtol=1e-3, atol=1e-4)


def test_no_file_that_an_adversary_sees_holds_an_update_in_the_clear(
    runs: Path,
) -> None:
    """The first round's updates are the same in both runs, to the last bit."""
    updates = [
        m.tensors["context"]
        for m in Run(runs / "clear").transcript
        if m.kind == "update" and m.round == 0
    ]
    wanted = {
        part
        for update in updates
        for numbers in (update, update.double())
        for part in (numbers.numpy().tobytes(), numbers[0, :8].numpy().tobytes())
    }

    def found(run: str) -> int:
        files = [f.read_bytes() for f in (runs / run / "transcript").iterdir()]
        return sum(part in file for part in wanted for file in files)

    assert found("masked") == 0
    assert found("clear") == 2 * len(updates)  # as sent, in float32


def test_masked_uploads_of_a_run_are_uniform(runs: Path) -> None:
    from scipy import stats

    shares = [
        (t.double() / 2.0**64 + 0.5).flatten()
        for m in Run(runs / "masked").transcript
        if m.kind == "masked"
        for t in m.tensors.values()
    ]
    numbers = torch.cat(shares).numpy()
    assert len(numbers) > 10_000
    assert stats.kstest(numbers, "uniform").pvalue > CHANCE


def test_metrics_say_what_came_of_every_sum(runs: Path) -> None:
    found = [line["secure_sum"] for line in Run(runs / "masked").metrics]
    assert [one["outcome"] for one in found] == ["summed"] * 3
    outcomes = {line["secure_sum"]["outcome"] for line in Run(runs / "lossy").metrics}
    assert any(outcome.startswith("aborted, too few surv") for outcome in outcomes)
    assert "summed" in outcomes
    assert all("secure_sum" not in line for line in Run(runs / "clear").metrics)


def test_an_aborted_round_leaves_what_is_broadcast_as_it_was(runs: Path) -> None:
    run = Run(runs / "lossy")
    sent = {
        m.round: m.tensors["context"] for m in run.transcript if m.kind == "broadcast"
    }
    for line in run.metrics:
        index = line["round"]
        aborted = line["secure_sum"]["outcome"].startswith("aborted")
        assert torch.equal(sent[index], sent[index + 1]) == aborted


def test_masks_cost_bytes_both_ways(runs: Path) -> None:
    clear, masked = Run(runs / "clear").metrics[0], Run(runs / "masked").metrics[0]
    assert masked["bytes_up"] > 2 * clear["bytes_up"]  # 8 bytes a number, not 4
    assert masked["bytes_down"] > clear["bytes_down"]


def test_equal_configurations_give_equal_bytes_and_a_resumed_run_too(
    runs: Path, tmp_path: Path
) -> None:
    train_and_stop(1, folder=tmp_path, name="again", **LOSSY)
    assert not Run(tmp_path / "again").is_complete
    train(folder=tmp_path, name="again", resume=True, **LOSSY)
    for path in (runs / "lossy" / "transcript").iterdir():
        again = tmp_path / "again" / "transcript" / path.name
        assert again.read_bytes() == path.read_bytes()


def test_the_command_line_trains_on_a_graph_to_the_same_models(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    words = ["--secure-aggregation", "masked", "--masking-graph", "passive"]
    words += ["--rounds", "3", "--set", "epochs=1", "--seed", "2", "--name", "ring"]
    code, _, error = cli("train", "--seed", 0, *words)
    assert code == 0, error
    ring, all_pairs = Run(tmp_path / "runs" / "ring"), Run(runs / "masked")
    assert ring.config.masking_graph == "passive"
    sums = [line["secure_sum"] for line in ring.metrics]
    assert [(s["neighbours"], s["threshold"]) for s in sums] == [(4, 2)] * 3
    assert masked_with(ring.metrics) == "4 neighbours each, threshold 2"
    assert masked_with(all_pairs.metrics) == ""
    for client, model in all_pairs.personal_models.items():
        other = ring.personal_models[client]["context"]
        assert torch.equal(model["context"], other)
    keys = [m for m in ring.transcript if m.kind == "keys" and m.sender == SERVER]
    assert {len(m.tensors["clients"]) for m in keys} == {5}
