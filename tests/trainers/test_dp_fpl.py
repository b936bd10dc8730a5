import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.streams import KEY
from privaudit.federated.federation import Federation, RoundRecord, give_away, run_round
from privaudit.federated.runs.config import build_trainer
from privaudit.federated.threat_models import (
    find_threat,
    peer,
    released,
    server,
    server_aggregate,
)
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.federated.transcript import SERVER, Message
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.tuning.prompts.gradients import ContextGradients, fixed_batch
from privaudit.tuning.prompts.low_rank import by_factors, factorize
from privaudit.tuning.prompts.private_training import Parts
from tests.places import SHARED

Shards = dict[str, Records]
ALL = 12  # the members a client of the toy task has on average: sampling at rate 1
GOLDEN = SHARED / "golden" / "rgp.npz"
needs_golden = pytest.mark.skipif(
    not GOLDEN.exists(), reason="needs ../shared/golden/rgp.npz, which is not there"
)
MODES: list[dict[str, Any]] = [
    {},
    {"epsilon": 8.0},
    {"epsilon": 8.0, "noise_at": "distributed", "factorization": "left"},
    {"epsilon": 8.0, "noise_at": "client", "rank": "full"},
    {"epsilon": 8.0, "residual": False},
    {"mode": "published-paper", "epsilon": 8.0},
    {"mode": "published-paper", "epsilon": 8.0, "clip": "sample"},
    {"mode": "published-code", "epsilon": 8.0},
]


def make(**options: Any) -> DPFPL:
    rates = {"learning_rate_global": 0.02, "learning_rate_local": 0.02}
    return DPFPL(**({"rank": 2, "batch_size": 5} | rates | options))


def train(
    trainer: DPFPL,
    task: Task,
    shards: Shards,
    seed: int = 0,
    key: bytes | None = None,
    **options: Any,
) -> tuple[Federation, list[RoundRecord]]:
    secrets = None if key is None else Seeds.of_key(key)
    federation = Federation.begin(trainer, task, shards, Seeds(seed), secrets=secrets)
    records = []
    for index in range(task.rounds):
        records += run_round(trainer, task, [federation], index, **options)
    return federation, records


def all_messages(
    trainer: DPFPL, task: Task, federation: Federation, rounds: list[RoundRecord]
) -> list[Message]:
    _, last = give_away(trainer, task, federation, task.rounds)
    return [message for r in rounds for message in r.messages] + list(last)


def gradient_sum(task: Task, context: torch.Tensor, shard: Records) -> torch.Tensor:
    """Oracle: a plain backward pass through the summed loss."""
    leaf = context.clone().requires_grad_()
    logits = task.logit_scale * shard.features @ task.prompts(leaf[None])[0].T
    loss = torch.nn.functional.cross_entropy(logits, shard.labels, reduction="sum")
    return torch.autograd.grad(loss, leaf)[0]


def test_without_noise_at_full_rank_it_is_plain_gradient_descent(
    task: Task, shards: Shards
) -> None:
    """By hand: each prompt moves by its rate times the mean over a constant."""
    trainer = make(
        rank="full",
        batch_size=ALL,
        learning_rate_global=0.3,
        learning_rate_local=0.1,
    )
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    shared = federation.server["context"]
    locals_ = {c: kept["local"] for c, kept in federation.kept.items()}
    for index in range(2):
        run_round(trainer, task, [federation], index)
        sums = {
            client: gradient_sum(task, shared + locals_[client], shard)
            for client, shard in shards.items()
        }
        shared = shared - 0.3 * sum(sums.values()) / (3 * ALL)
        locals_ = {c: locals_[c] - 0.1 * sums[c] / ALL for c in shards}
    torch.testing.assert_close(federation.server["context"], shared)
    for client, local in locals_.items():
        torch.testing.assert_close(federation.kept[client]["local"], local)


@pytest.mark.parametrize("rank", [3, 8])
@pytest.mark.parametrize("factorization", ["both", "left"])
def test_a_rank_of_all_tokens_or_more_is_full_rank(
    factorization: str, rank: int, task: Task, shards: Shards
) -> None:
    """Then u spans everything, and the rebuilt gradient is the gradient."""
    full, _ = train(make(rank="full"), task, shards)
    whole, _ = train(make(rank=rank, factorization=factorization), task, shards)
    torch.testing.assert_close(
        full.server["context"], whole.server["context"], rtol=1e-4, atol=1e-5
    )


def test_without_noise_it_does_not_matter_who_would_add_it(
    task: Task, shards: Shards
) -> None:
    first, *others = (
        train(make(noise_at=place), task, shards)[0].server["context"]
        for place in ("server", "client", "distributed")
    )
    assert all(torch.equal(first, other) for other in others)


def test_a_clip_norm_beyond_all_gradients_clips_nothing(
    task: Task, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = train(make(), task, shards)
    monkeypatch.setattr(DPFPL, "noise_multiplier", lambda self, task: 0.0)
    clipped, _ = train(make(epsilon=1.0, clip_norm=1e6), task, shards)
    torch.testing.assert_close(plain.server["context"], clipped.server["context"])
    narrow, _ = train(make(epsilon=1.0, clip_norm=0.01), task, shards)
    assert (narrow.server["context"] - plain.server["context"]).norm() > 0.01


def test_clipping_records_or_the_batch_is_one_where_nothing_is_clipped(
    task: Task, shards: Shards
) -> None:
    """A sum over a constant is the mean, for clients that fill their batch."""
    options: dict[str, Any] = {"mode": "published-paper", "clip_norm": 1e6}
    batch, _ = train(make(**options), task, shards)
    sample, _ = train(make(**options, clip="sample"), task, shards)
    torch.testing.assert_close(batch.server["context"], sample.server["context"])


def test_without_residual_the_prompt_in_training_is_the_factors_product(
    task: Task, shards: Shards
) -> None:
    trainer = make(rank=1, residual=False, batch_size=ALL)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    shared, local = federation.server["context"], federation.kept["client-0"]["local"]
    stream = Seeds(0).stream("factorization", client="client-0")
    start = stream.normal_tensor((5, 1))
    factors = factorize(local, start)
    want = gradient_sum(task, shared + factors.u @ factors.v, shards["client-0"])
    (record,) = run_round(trainer, task, [federation], 0)
    sent = next(m for m in record.messages if m.sender == "client-0")
    torch.testing.assert_close(sent.tensors["gradient"], want)


def test_the_published_code_has_momentum_and_decay_for_each_client(
    task: Task, shards: Shards
) -> None:
    """By hand, at full rank: v <- 0.9 v + g + 0.0005 p; p <- p - rate v."""
    trainer = make(mode="published-code", rank="full", batch_size=100)
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    shared = federation.server["context"]
    local = federation.kept["client-1"]["local"]
    velocity = torch.zeros_like(local)
    for index in range(3):
        gradient = gradient_sum(task, shared + local, shards["client-1"]) / 9
        run_round(trainer, task, [federation], index)
        shared = federation.server["context"]
        velocity = 0.9 * velocity + gradient + 5e-4 * local
        local = local - 0.02 * velocity
    torch.testing.assert_close(federation.kept["client-1"]["local"], local)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_cohort_equals_its_clients_one_by_one(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    trainer = make(**options)
    together, _ = train(trainer, task, shards, cohort_size=64)
    alone, _ = train(trainer, task, shards, cohort_size=1)
    for client in shards:
        for name, tensor in together.kept[client].items():
            torch.testing.assert_close(
                tensor, alone.kept[client][name], rtol=1e-5, atol=1e-5
            )
    torch.testing.assert_close(
        together.server["context"], alone.server["context"], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("options", MODES, ids=str)
def test_equal_seeds_give_equal_prompts_and_others_do_not(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    first, again, other = (
        train(make(**options), task, shards, seed)[0].server["context"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_noise_is_repeated_by_the_secret_key_and_not_by_the_seed(
    task: Task, shards: Shards
) -> None:
    for place in ("server", "client", "distributed"):
        trainer = make(epsilon=8.0, noise_at=place, batch_size=ALL)
        first, again, other = (
            train(trainer, task, shards, key=key * KEY)[0] for key in (b"a", b"a", b"b")
        )
        assert torch.equal(first.server["context"], again.server["context"])
        assert not torch.equal(first.server["context"], other.server["context"])
        kept = [f.kept["client-0"]["local"] for f in (first, other)]
        assert not torch.equal(*kept)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_nothing_but_one_gradient_goes_up_and_one_context_down(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    """No weight and no size: those would tell how many members a client has."""
    _, records = train(make(**options), task, shards)
    for message in (m for r in records for m in r.messages):
        want = {"context"} if message.sender == SERVER else {"gradient"}
        assert set(message.tensors) == want
        assert all(t.shape == (3, 5) for t in message.tensors.values())


@pytest.mark.parametrize(
    ("noise_at", "per_client"), [("client", 1.0), ("distributed", 1 / math.sqrt(3))]
)
def test_an_empty_sample_sends_noise_of_the_variance_asked_for(
    noise_at: str, per_client: float, task: Task, shards: Shards
) -> None:
    trainer = make(epsilon=2.0, noise_at=noise_at, clip_global=0.7)
    nobody = {c: s.pick(torch.zeros(len(s)).bool()) for c, s in shards.items()}
    federation = Federation.begin(trainer, task, nobody, Seeds(0))
    uploads, multipliers = [], set()
    for index in range(60):
        (record,) = run_round(trainer, task, [federation], index)
        sent = [m.tensors["gradient"] for m in record.messages if m.receiver == SERVER]
        uploads.append(torch.stack(sent))
        multipliers |= {e.noise_multiplier for e in record.events[1:]}
    (multiplier,) = multipliers
    std = multiplier * 0.7
    # 2,700 draws, and 900 sums of three: standard errors of 1.4 % and 2.4 %.
    drawn = torch.stack(uploads)
    assert float(drawn.std()) == pytest.approx(std * per_client, rel=0.06)
    of_sums = std * per_client * math.sqrt(3)
    assert float(drawn.sum(1).std()) == pytest.approx(of_sums, rel=0.1)


def test_the_servers_noise_has_the_variance_asked_for(task: Task) -> None:
    trainer = make(epsilon=2.0, learning_rate_global=1.0)
    zero = {"gradient": torch.zeros(3, 5)}
    state = trainer.start(task, Seeds(0))
    moves = []
    for index in range(200):
        at = Round(index, Seeds(0), task.clients)
        moved, (event,) = trainer.aggregate(task, state, zero, at)
        moves.append((state["context"] - moved["context"]) * 3 * trainer.divisor(task))
    want = event.noise_multiplier * event.clip_norm
    assert float(torch.stack(moves).std()) == pytest.approx(want, rel=0.06)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(gone=st.integers(0, 8), clip=st.floats(0.05, 20), seed=st.integers(0, 99))
def test_one_record_moves_each_release_by_at_most_its_clip_norm(
    gone: int, clip: float, seed: int, task: Task, shards: Shards
) -> None:
    """The sensitivity that the certificate takes for granted, in mode "sound"."""
    trainer = make(epsilon=1.0, clip_local=clip, clip_global=2 * clip)
    contexts = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(seed))
    factors = factorize(contexts, torch.ones(1, 5, 2) + contexts[:, :2].mT)
    shard = shards["client-1"]
    fewer = shard.pick(torch.arange(len(shard)) != gone)
    at = Round(0, Seeds(0), ("c",))
    both = []
    for records in (shard, fewer):
        batch = fixed_batch(Cohort.of(["c"], [records]), at, 100)
        gradients = ContextGradients.forward(task, contexts, batch)
        releases: list[Parts] = [
            ("local", lambda g: by_factors(g, factors), clip),
            ("global", lambda g: {"gradient": g}, 2 * clip),
        ]
        both.append(trainer.clipped(gradients, releases, at))
    for with_it, without, norm in zip(*both, (clip, 2 * clip), strict=True):
        moved = torch.cat([(with_it[n] - without[n]).flatten() for n in with_it])
        assert 0 < float(moved.norm()) <= norm * 1.0001


@pytest.mark.parametrize("options", MODES[1:], ids=str)
def test_every_round_tells_one_local_and_one_global_mechanism(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    _, records = train(make(**options), task, shards)
    for record in records:
        assert sorted(event.release for event in record.events) == ["global", "local"]
        assert all(event.parties == 3 for event in record.events)


@pytest.mark.parametrize(
    ("noise_at", "view"),
    [("server", "released"), ("client", "server"), ("distributed", "released")],
)
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_sound_noise_certifies_epsilon_against_whom_it_hides_least(
    noise_at: str, view: CertifiedView, share: float, task: Task, shards: Shards
) -> None:
    trainer = make(epsilon=2.0, noise_at=noise_at, local_share=share)
    _, records = train(trainer, task, shards)
    proved = certify([r.events for r in records], view, 1e-5).epsilon
    released = certify([r.events for r in records], "released", 1e-5).epsilon
    assert proved is not None
    assert released is not None
    assert released <= proved
    assert 0.98 * 2.0 < proved <= 2.0 * (1 + 1e-6)
    assert trainer.claim(task).epsilon == 2.0


@pytest.mark.parametrize(
    ("noise_at", "view", "is_proved"),
    [
        ("server", "server", False),
        ("server", "server-aggregate", False),
        ("server", "peer", True),
        ("client", "server", True),
        ("distributed", "server-aggregate", True),
    ],
)
def test_who_adds_the_noise_decides_against_whom_it_counts(
    noise_at: str, view: CertifiedView, is_proved: bool, task: Task,
    shards: Shards,
) -> None:  # fmt: skip
    _, records = train(make(epsilon=2.0, noise_at=noise_at), task, shards)
    proved = certify([r.events for r in records], view, 1e-5).epsilon
    assert (proved is not None) == is_proved
    assert proved is None or proved <= 2.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("options", "candidates", "releases", "certified"),
    [
        # claimed: 0.4, 0.1, 0.01, as accounted for the published constants
        ({"clip": "sample", "rank": "full"}, 30, 1, (0.41, 0.090, 0.007)),
        ({"clip": "sample"}, 30, 1, (0.60, 0.131, 0.010)),
        ({"clip": "sample"}, 400, 1, (1.27, 0.279, 0.022)),
        ({"clip": "batch"}, 400, 1, (101.6, 14.3, 1.0)),
        ({"clip": "batch"}, 400, 2, (140, 18.6, 1.24)),
        ({"mode": "published-code"}, 400, 2, (140, 18.6, 1.24)),
    ],
)
def test_the_published_constants_certify_what_is_known_of_them(
    options: dict[str, Any],
    candidates: int,
    releases: int,
    certified: tuple[float, ...],
    task: Task,
    shards: Shards,
) -> None:
    """T 100, C 10, B 32, 1e-5; the local release alone (1), or with the global (2)."""
    large = replace(task, rounds=100, candidates=dict.fromkeys(shards, candidates))
    for claimed, want in zip((0.4, 0.1, 0.01), certified, strict=True):
        trainer = make(
            **({"mode": "published-paper"} | options), epsilon=claimed, batch_size=32
        )
        federation = Federation.begin(trainer, large, shards, Seeds(0))
        (record,) = run_round(trainer, large, [federation], 0)
        events = [record.events[:releases]] * 100
        proved = certify(events, "released", 1e-5).epsilon
        assert proved == pytest.approx(want, rel=0.02, abs=6e-4)
        assert trainer.claim(large).epsilon == claimed


@needs_golden
@pytest.mark.parametrize("rank", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    ("options", "start", "want"),
    [
        ({"mode": "published-paper"}, "both", "full_grad_eq4"),
        ({"mode": "published-code"}, "both", "full_grad_ref_code"),
        ({"factorization": "left"}, "left", "left_full_grad"),
    ],
)
def test_the_local_gradient_is_that_of_the_published_code(
    rank: int, options: dict[str, Any], start: Any, want: str
) -> None:
    """Reference: compute_full_grad of trainers/DP_FPL.py, and the formulas, float64."""
    with np.load(GOLDEN, allow_pickle=False) as archive:
        given_ = {
            name: torch.from_numpy(archive[f"k{rank}_{name}"])
            for name in ("P", "V0", "G", want)
        }
    factors = factorize(given_["P"][None], given_["V0"][None], start)
    parts = by_factors(given_["G"][None], factors)
    got = make(rank=rank, **options)._local_gradient(parts, factors)
    torch.testing.assert_close(got[0], given_[want], rtol=0, atol=1e-8)


@needs_golden
def test_the_published_noise_is_that_of_the_published_code(task: Task) -> None:
    """Reference: the noise lines of build_model; the server adds sigma_L to a sum."""
    with np.load(GOLDEN, allow_pickle=False) as archive:
        columns = [archive[f"noise_{name}"] for name in ("T", "eps", "delta", "C", "B")]
        stds = archive["noise_std_local"]
    at = Round(0, Seeds(0), tuple("abcdefghij"))
    for std, (rounds, epsilon, delta, clip, batch) in list(
        zip(stds, zip(*columns, strict=True), strict=True)
    )[::9]:
        for mode in ("published-paper", "published-code"):
            trainer = make(
                mode=mode,
                epsilon=float(epsilon),
                delta=float(delta),
                clip_norm=float(clip),
                batch_size=int(batch),
            )
            noise = trainer._mechanisms(replace(task, rounds=int(rounds)), at)
            assert noise.local.std == pytest.approx(std)
            assert noise.server_std == pytest.approx(std)


def test_a_released_prompt_is_rebuilt_exactly(task: Task, shards: Shards) -> None:
    trainer = make()
    federation, rounds = train(trainer, task, shards)
    view = released(all_messages(trainer, task, federation, rounds))
    for client in shards:
        reconstructed = trainer.reconstruct(task, view, client)
        want = federation.server["context"] + federation.kept[client]["local"]
        assert torch.equal(reconstructed.model["context"], want)
        assert not reconstructed.missing


@pytest.mark.parametrize(
    "options", [{}, {"mode": "published-code", "batch_size": 4}], ids=str
)
def test_at_full_rank_the_server_rebuilds_all_but_the_random_start(
    options: dict[str, Any], task: Task, shards: Shards
) -> None:
    trainer = make(rank="full", **options)
    federation, rounds = train(trainer, task, shards)
    view = server(all_messages(trainer, task, federation, rounds))
    for client in shards:
        reconstructed = trainer.reconstruct(task, view, client)
        personal = reconstructed.model["context"] - federation.server["context"]
        start = trainer.start_client(task, client, Seeds(0))["local"]
        learned = federation.kept[client]["local"] - start
        # Weight decay shrinks the unknown start by a little, and so its loss too.
        torch.testing.assert_close(personal, learned, rtol=1e-4, atol=1e-4)
        assert reconstructed.estimated
        assert reconstructed.missing == ("the local prompt's random start",)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_server_rebuilds_the_right_client_at_low_rank(
    rank: int, task: Task, shards: Shards
) -> None:
    trainer = make(rank=rank)
    federation, rounds = train(trainer, replace(task, rounds=20), shards)
    view = server(all_messages(trainer, task, federation, rounds))
    clients = list(shards)
    learned, reconstructed = [], []
    for client in clients:
        start = trainer.start_client(task, client, Seeds(0))["local"]
        learned.append((federation.kept[client]["local"] - start).flatten())
        model = trainer.reconstruct(task, view, client).model["context"]
        reconstructed.append((model - federation.server["context"]).flatten())
    table = cosine_similarity(
        torch.stack(reconstructed)[:, None], torch.stack(learned)[None], dim=-1
    )
    assert table.argmax(dim=0).tolist() == [0, 1, 2]
    assert table.diagonal().mean() > (table.sum() - table.trace()) / 6 + 0.2


def test_who_sees_no_upload_rebuilds_the_global_prompt_alone(
    task: Task, shards: Shards
) -> None:
    trainer = make(epsilon=8.0, noise_at="client")
    messages = all_messages(trainer, task, *train(trainer, task, shards))
    for threat in (server_aggregate, peer("client-2")):
        view = threat(messages)
        reconstructed = trainer.reconstruct(task, view, "client-0")
        last = [m for m in messages if m.kind == "broadcast"][-1]
        assert torch.equal(reconstructed.model["context"], last.tensors["context"])
        assert reconstructed.missing == ("the client's local prompt",)


def test_the_sampling_rate_is_public_and_at_most_one(task: Task) -> None:
    few, many = make(batch_size=3), make(batch_size=500)
    assert (few.sampling_rate(task), few.divisor(task)) == (0.25, 3)
    assert (many.sampling_rate(task), many.divisor(task)) == (1, 12)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epsilon": 0}, "epsilon = 0: Input should be greater than 0"),
        ({"epsilon": -1.0}, "epsilon = -1.0"),
        ({"rank": 0}, "rank"),
        ({"mode": "published-paper", "noise_at": "client"}, "server adds the noise"),
        ({"mode": "published-code", "factorization": "left"}, '"both" only'),
        ({"mode": "sound", "clip": "batch"}, "'sample' only"),
        ({"mode": "published-code", "clip": "sample"}, "'batch' only"),
        ({"local_share": 1.0}, "local_share = 1.0"),
    ],
)
def test_impossible_options_are_refused_with_a_reason(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_trainer("dp-fpl", settings)
    assert told in str(caught.value)
    assert "ArgsKwargs" not in str(caught.value)


@pytest.mark.parametrize("threat", ["server", "server-aggregate"])
def test_a_server_takes_its_own_noise_away(
    threat: str, task: Task, shards: Shards
) -> None:
    """Its model's shared part is where the clean sums lead, not what it broadcast."""
    trainer = make(epsilon=0.1)
    view = find_threat(threat)(
        all_messages(trainer, task, *train(trainer, task, shards))
    )
    shared = trainer.reconstruct(task, view, "client-0").shared
    assert shared is not None
    clean = view.sums[0].broadcast["context"]
    for one in view.sums:
        mean = one.mean("gradient") / trainer.divisor(task)
        clean = clean - trainer.learning_rate_global * mean
    torch.testing.assert_close(shared["context"], clean)
    noisy = view.last_broadcast("client-0").tensors["context"]
    assert (shared["context"] - noisy).norm() > clean.norm()


def test_without_noise_clean_sums_lead_to_the_last_broadcast(
    task: Task, shards: Shards
) -> None:
    """So the server's way of adding them up is the trainer's own."""
    trainer = make(mode="published-paper", epsilon=1e9)
    view = find_threat("server")(
        all_messages(trainer, task, *train(trainer, task, shards))
    )
    shared = trainer.reconstruct(task, view, "client-0").shared
    assert shared is not None
    torch.testing.assert_close(
        shared["context"],
        view.last_broadcast("client-0").tensors["context"],
        rtol=1e-4,
        atol=1e-5,
    )
