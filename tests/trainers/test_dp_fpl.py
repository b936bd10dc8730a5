import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import KEY, Seeds
from privaudit.federation.threat_models import find_threat
from privaudit.federation.trainer import Round, Task
from privaudit.privacy.certificate import CertifiedView, certify
from privaudit.trainers.dp_fedotp import DPFedOTP
from privaudit.trainers.dp_fedpgp import DPFedPGP
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.tuning.prompts.gradients import ContextGradients, fixed_batch
from privaudit.tuning.prompts.low_rank import by_factors, factorize
from privaudit.tuning.prompts.private_training import Parts
from tests.golden import golden, golden_tensors
from tests.toy_federation import (
    ALL,
    AT,
    FEW,
    Play,
    Shards,
    context_gradient,
    emptied,
    neighbours,
)


def make(**options: Any) -> DPFPL:
    rates = {"learning_rate_global": 0.02, "learning_rate_local": 0.02}
    return DPFPL(**({"rank": 2, "batch_size": 5} | rates | options))


def test_without_noise_at_full_rank_it_is_plain_gradient_descent(
    play: Play, task: Task, shards: Shards
) -> None:
    """By hand: each prompt moves by its rate times the mean over a constant."""
    rates = {"learning_rate_global": 0.3, "learning_rate_local": 0.1}
    played = play(make(rank="full", batch_size=ALL, **rates), rounds=0)
    shared = played.server["context"]
    locals_ = {c: kept["local"] for c, kept in played.kept.items()}
    for _ in range(2):
        played.step()
        sums = {
            client: context_gradient(task, shared + locals_[client], shard, "sum")
            for client, shard in shards.items()
        }
        shared = shared - 0.3 * sum(sums.values()) / (3 * ALL)
        locals_ = {c: locals_[c] - 0.1 * sums[c] / ALL for c in shards}
    torch.testing.assert_close(played.server["context"], shared)
    for client, local in locals_.items():
        torch.testing.assert_close(played.kept[client]["local"], local)


@pytest.mark.parametrize("rank", [3, 8])
@pytest.mark.parametrize("factorization", ["both", "left"])
def test_a_rank_of_all_tokens_or_more_is_full_rank(
    factorization: str, rank: int, play: Play
) -> None:
    """Then u spans everything, and the rebuilt gradient is the gradient."""
    full, whole = (
        play(make(**options)).server["context"]
        for options in (
            {"rank": "full"},
            {"rank": rank, "factorization": factorization},
        )
    )
    torch.testing.assert_close(full, whole, rtol=1e-4, atol=1e-5)


def test_without_noise_it_does_not_matter_who_would_add_it(play: Play) -> None:
    first, *others = (
        play(make(noise_at=place)).server["context"]
        for place in ("server", "client", "distributed")
    )
    assert all(torch.equal(first, other) for other in others)


def test_a_clip_norm_beyond_all_gradients_clips_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = play(make()).server["context"]
    monkeypatch.setattr(DPFPL, "noise_multiplier", lambda self, task: 0.0)
    clipped, narrow = (
        play(make(epsilon=1.0, clip_norm=norm)).server["context"]
        for norm in (1e6, 0.01)
    )
    torch.testing.assert_close(plain, clipped)
    assert (narrow - plain).norm() > 0.01


def test_clipping_records_or_the_batch_is_one_where_nothing_is_clipped(
    play: Play,
) -> None:
    """A sum over a constant is the mean, for clients that fill their batch."""
    options: dict[str, Any] = {"mode": "published-paper", "clip_norm": 1e6}
    batch, sample = (
        play(make(**options, clip=clip)).server["context"]
        for clip in ("batch", "sample")
    )
    torch.testing.assert_close(batch, sample)


def test_without_residual_the_prompt_in_training_is_the_factors_product(
    play: Play, task: Task, shards: Shards
) -> None:
    played = play(make(rank=1, residual=False, batch_size=ALL), rounds=0)
    shared, local = played.server["context"], played.kept["client-0"]["local"]
    stream = Seeds(0).stream("factorization", client="client-0")
    factors = factorize(local, stream.normal_tensor((5, 1)))
    prompt = shared + factors.u @ factors.v
    want = context_gradient(task, prompt, shards["client-0"], "sum")
    played.step()
    torch.testing.assert_close(played.uploads()["client-0"]["gradient"], want)


@pytest.mark.parametrize("factorization", ["both", "left"])
def test_a_prompt_is_released_without_its_residual_on_request(
    factorization: str, play: Play, task: Task
) -> None:
    """As the paper tests: p_G + u v of rank 1, whose singular value is 1 ("both")."""
    options = {"rank": 1, "factorization": factorization, "batch_size": ALL}
    played = play(make(release_residual=False, **options))
    client = "client-1"
    local = played.kept[client]["local"]
    released = played.trainer.release(
        task,
        [client],
        {"context": played.server["context"][None]},
        {"local": local[None]},
    )["context"][0]
    sizes = torch.linalg.svdvals(released - played.server["context"])
    assert sizes[1] < 1e-5
    if factorization == "both":
        assert sizes[0] == pytest.approx(1, abs=1e-5)
    else:
        assert sizes[0] <= torch.linalg.svdvals(local)[0] * (1 + 1e-5)


def test_the_published_code_has_momentum_and_decay_for_each_client(
    play: Play, task: Task, shards: Shards
) -> None:
    """By hand, at full rank: v <- 0.9 v + g + 0.0005 p; p <- p - rate v."""
    trainer = make(mode="published-code", rank="full", batch_size=100)
    played = play(trainer, rounds=0)
    local = played.kept["client-1"]["local"]
    velocity = torch.zeros_like(local)
    for _ in range(3):
        prompt = played.server["context"] + local
        gradient = context_gradient(task, prompt, shards["client-1"])
        played.step()
        velocity = 0.9 * velocity + gradient + 5e-4 * local
        local = local - 0.02 * velocity
    torch.testing.assert_close(played.kept["client-1"]["local"], local)


@pytest.mark.parametrize("place", ["server", "client", "distributed"])
def test_noise_is_repeated_by_the_secret_key_and_not_by_the_seed(
    place: str, play: Play
) -> None:
    trainer = make(epsilon=8.0, noise_at=place, batch_size=ALL)
    first, again, other = (
        play(trainer, secrets=Seeds.of_key(key * KEY)) for key in (b"a", b"a", b"b")
    )
    assert torch.equal(first.server["context"], again.server["context"])
    assert not torch.equal(first.server["context"], other.server["context"])
    kept = [one.kept["client-0"]["local"] for one in (first, other)]
    assert not torch.equal(*kept)


@pytest.mark.parametrize(
    ("noise_at", "per_client"), [("client", 1.0), ("distributed", 1 / math.sqrt(3))]
)
def test_an_empty_sample_sends_noise_of_the_variance_asked_for(
    noise_at: str, per_client: float, play: Play, shards: Shards
) -> None:
    trainer = make(epsilon=2.0, noise_at=noise_at, clip_global=0.7)
    played = play(trainer, rounds=60, shards=emptied(shards))
    (multiplier,) = {e.noise_multiplier for r in played.rounds for e in r.events[1:]}
    std = multiplier * 0.7
    # 2,700 draws, and 900 sums of three: standard errors of 1.4 % and 2.4 %.
    drawn = torch.stack(
        [
            torch.stack([sent["gradient"] for sent in played.uploads(index).values()])
            for index in range(60)
        ]
    )
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


@FEW
@given(gone=st.integers(0, 8), clip=st.floats(0.05, 20), seed=st.integers(0, 99))
def test_one_record_moves_each_release_by_at_most_its_clip_norm(
    gone: int, clip: float, seed: int, task: Task, shards: Shards
) -> None:
    """The sensitivity that the certificate takes for granted, in mode "sound"."""
    trainer = make(epsilon=1.0, clip_local=clip, clip_global=2 * clip)
    contexts = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(seed))
    factors = factorize(contexts, torch.ones(1, 5, 2) + contexts[:, :2].mT)
    at = Round(0, Seeds(0), ("c",))
    both = []
    for one in neighbours(shards["client-1"], gone):
        batch = fixed_batch(one, at, 100)
        gradients = ContextGradients.forward(task, contexts, batch)
        releases: list[Parts] = [
            ("local", lambda g: by_factors(g, factors), clip),
            ("global", lambda g: {"gradient": g}, 2 * clip),
        ]
        both.append(trainer.clipped(gradients, releases, at))
    for with_it, without, norm in zip(*both, (clip, 2 * clip), strict=True):
        moved = torch.cat([(with_it[n] - without[n]).flatten() for n in with_it])
        assert 0 < float(moved.norm()) <= norm * 1.0001


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
    noise_at: str, view: CertifiedView, is_proved: bool, play: Play
) -> None:
    proved = play(make(epsilon=2.0, noise_at=noise_at)).proved(view)
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
    play: Play,
    task: Task,
) -> None:
    """T 100, C 10, B 32, 1e-5; the local release alone (1), or with the global (2)."""
    sizes = dict.fromkeys(task.clients, candidates)
    large = replace(task, rounds=100, candidates=sizes)
    options = {"mode": "published-paper", "batch_size": 32} | options
    for claimed, want in zip((0.4, 0.1, 0.01), certified, strict=True):
        trainer = make(**options, epsilon=claimed)
        record = play(trainer, rounds=0, task=large).step()
        events = [record.events[:releases]] * 100
        proved = certify(events, "released", 1e-5).epsilon
        assert proved == pytest.approx(want, rel=0.02, abs=6e-4)
        assert trainer.claim(large).epsilon == claimed


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
    known = golden_tensors("rgp", f"k{rank}_")
    factors = factorize(known["P"][None], known["V0"][None], start)
    parts = by_factors(known["G"][None], factors)
    got = make(rank=rank, **options)._local_gradient(parts, factors)
    torch.testing.assert_close(got[0], known[want], rtol=0, atol=1e-8)


def test_the_published_noise_is_that_of_the_published_code(task: Task) -> None:
    """Reference: the noise lines of build_model; the server adds sigma_L to a sum."""
    known = golden("rgp", "noise_")
    columns = [known[name] for name in ("T", "eps", "delta", "C", "B")]
    stds = known["std_local"]
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


def test_a_released_prompt_is_rebuilt_exactly(play: Play) -> None:
    played = play(make())
    for client, kept in played.kept.items():
        reconstructed = played.rebuild("released", client)
        want = played.server["context"] + kept["local"]
        assert torch.equal(reconstructed.model["context"], want)
        assert not reconstructed.missing


@pytest.mark.parametrize(
    "options", [{}, {"mode": "published-code", "batch_size": 4}], ids=str
)
def test_at_full_rank_the_server_rebuilds_all_but_the_random_start(
    options: dict[str, Any], play: Play, task: Task
) -> None:
    trainer = make(rank="full", **options)
    played = play(trainer)
    for client, kept in played.kept.items():
        reconstructed = played.rebuild("server", client)
        personal = reconstructed.model["context"] - played.server["context"]
        start = trainer.start_client(task, client, Seeds(0))["local"]
        # Weight decay shrinks the unknown start by a little, and so its loss too.
        learned = kept["local"] - start
        torch.testing.assert_close(personal, learned, rtol=1e-4, atol=1e-4)
        assert reconstructed.estimated
        assert reconstructed.missing == ("the local prompt's random start",)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_server_rebuilds_the_right_client_at_low_rank(
    rank: int, play: Play, task: Task
) -> None:
    trainer = make(rank=rank)
    played = play(trainer, task=replace(task, rounds=20))
    learned, reconstructed = [], []
    for client, kept in played.kept.items():
        start = trainer.start_client(task, client, Seeds(0))["local"]
        learned.append((kept["local"] - start).flatten())
        model = played.rebuild("server", client).model["context"]
        reconstructed.append((model - played.server["context"]).flatten())
    table = cosine_similarity(
        torch.stack(reconstructed)[:, None], torch.stack(learned)[None], dim=-1
    )
    assert table.argmax(dim=0).tolist() == [0, 1, 2]
    assert table.diagonal().mean() > (table.sum() - table.trace()) / 6 + 0.2


def test_who_sees_no_upload_rebuilds_the_global_prompt_alone(play: Play) -> None:
    played = play(make(epsilon=8.0, noise_at="client"))
    last = [m for m in played.messages if m.kind == "broadcast"][-1]
    for threat in ("server-aggregate", "peer:client-2"):
        reconstructed = played.rebuild(threat)
        assert torch.equal(reconstructed.model["context"], last.tensors["context"])
        assert reconstructed.missing == ("the client's local prompt",)


def test_the_sampling_rate_is_public_and_at_most_one(task: Task) -> None:
    few, many = make(batch_size=3), make(batch_size=500)
    assert (few.sampling_rate(task), few.divisor(task)) == (0.25, 3)
    assert (many.sampling_rate(task), many.divisor(task)) == (1, 12)


def test_an_epsilon_that_rounding_alone_spends_is_refused(task: Task) -> None:
    tiny = make(noise_at="client", epsilon=1e-5, batch_size=ALL)
    with pytest.raises(ConfigError, match=r"^epsilon = 1e-05 .* Raise epsilon"):
        tiny._mechanisms(task, AT)


@pytest.mark.parametrize("threat", ["server", "server-aggregate"])
@pytest.mark.parametrize(
    "trainer",
    [make()]
    + [
        kind(mode=mode)
        for kind in (make, DPFedOTP, DPFedPGP)
        for mode in ("published-paper", "published-code")
    ],
    ids=lambda trainer: f"{type(trainer).__name__}-{trainer.mode}",
)
def test_a_server_takes_its_own_noise_away(
    trainer: Any, threat: str, play: Play, task: Task
) -> None:
    """Clean sums lead where hardly any noise leads, whether uploads are lost or not."""
    for dropout, epsilon in ((0.0, 1e9), (0.3, 1e9), (0.3, 0.1)):
        trainer = replace(trainer, epsilon=epsilon)
        view = find_threat(threat)(play(trainer, dropout=dropout, seed=3).messages)
        assert [one.parties for one in view.sums] == ([2, 3, 2] if dropout else [3] * 3)
        if isinstance(trainer, DPFPL):
            clean = trainer._shared(task, view, "client-1")
        else:
            clean = trainer.without_own_noise(view)
        last = view.last_broadcast("client-1").tensors[trainer.shared]
        hardly = torch.allclose(clean, last, rtol=1e-4, atol=1e-5)
        assert hardly if epsilon > 1 else (clean - last).norm() > clean.norm()
