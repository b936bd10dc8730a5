"""Noise that came off: once by trying torch's 2^32 states, now by knowing the seed."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float64, Int64, UInt32
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.runs.config import build_trainer
from privaudit.trainers.dp_fedpt import DPFedPT
from privaudit.tuning.transformers.private_updates import MOVED
from tests.toy_federation import Play, Shards

SEED = 271828182845904523  # 18 digits
SPACE = 2**20  # states of torch's generator that are tried, of 2^32
AT_ONCE = 2**15
KEY = bytes(range(32))  # a key as the system draws them, which the adversary has not


def old_state(seed: int, client: str) -> int:
    """Return the 32 bits that torch kept of the seed of a client's noise, as it was."""
    name = f"{seed}|noise|0|{client}"
    derived = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1
    return derived % 2**32


def first_normals(states: UInt32[np.ndarray, " n"]) -> Float64[np.ndarray, "16 n"]:
    """Return the first 16 numbers of torch.randn from each state, of 16 or more.

    MT19937 as Matsumoto and Nishimura wrote it (1998), its first 16 words only; then
    Box-Muller on 24 bits, the words 0 to 7 with 8 to 15.
    """
    wanted = {*range(17), *range(397, 413)}
    word, kept = states.copy(), {0: states}
    for place in range(1, 413):
        word = np.uint32(1812433253) * (word ^ (word >> np.uint32(30)))
        word += np.uint32(place)
        if place in wanted:
            kept[place] = word
    high, low, twist = np.uint32(2**31), np.uint32(2**31 - 1), np.uint32(0x9908B0DF)
    uniform = []
    for place in range(16):
        mixed = (kept[place] & high) | (kept[place + 1] & low)
        y = kept[place + 397] ^ (mixed >> np.uint32(1)) ^ ((mixed & 1) * twist)
        y ^= y >> np.uint32(11)
        y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
        y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
        y ^= y >> np.uint32(18)
        uniform.append((y & np.uint32(2**24 - 1)) / 2**24)
    radius = np.sqrt(-2 * np.log1p(-np.stack(uniform[:8])))
    angle = 2 * np.pi * np.stack(uniform[8:])
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def matching_states(
    upload: Tensor, std: float, clean_norm: float, around: int
) -> Int64[np.ndarray, " found"]:
    """Return the states, of those that share the upper 12 bits, that made the noise.

    What is beneath the noise has at most ``clean_norm``: its share of one number is
    clean_norm / sqrt(d), so that a true state's numbers lie about that close.
    """
    shown = upload[:16, None].double().numpy() / std
    close = 8 * clean_norm / std / len(upload) ** 0.5
    start, found = around // SPACE * SPACE, []
    for first in range(start, start + SPACE, AT_ONCE):
        states = np.arange(first, first + AT_ONCE, dtype=np.uint32)
        apart = np.abs(first_normals(states) - shown).max(axis=0)
        found.append(first + np.flatnonzero(apart < close))
    return np.concatenate(found)


def made(noise_by: str) -> DPFedPT:
    settings: dict[str, Any] = {"virtual_tokens": 80, "noise_by": noise_by}
    trainer = build_trainer("dp-fedpt", {"epsilon": 8.0, **settings})
    assert isinstance(trainer, DPFedPT)
    return trainer


@pytest.fixture
def upload(play: Play) -> Callable[..., Tensor]:
    """Return what client-0 sends in a first round; without a key, noise is the seed's."""

    def of(trainer: DPFedPT, key: bytes | None = None, **world: Any) -> Tensor:
        secrets = None if key is None else Seeds.of_key(key)
        played = play(trainer, rounds=1, seed=SEED, secrets=secrets, **world)
        return played.uploads()["client-0"][MOVED]

    return of


@pytest.fixture
def clean(upload: Callable[..., Tensor]) -> Tensor:
    """Return a clipped move, as a client would send it to a server that adds noise."""
    return upload(made("server"))


def test_the_first_normals_are_torchs() -> None:
    for state in (0, 5, 2**32 - 1):
        generator = torch.Generator().manual_seed(state + 7 * 2**32)  # drops the 7
        torch.testing.assert_close(
            torch.from_numpy(first_normals(np.array([state], dtype=np.uint32))[:, 0]),
            torch.randn(40, generator=generator)[:16].double(),
            atol=1e-5,
            rtol=1e-5,
        )


def test_noise_of_torchs_generator_comes_off_whatever_the_seed(
    task: Task, clean: Tensor
) -> None:
    """The control: noise as it was drawn up to version 0.1, and its 32-bit state.

    2^20 states of the 2^32 are tried, the true one among them, in about 5 seconds of
    one core here: all of them in 6 hours. A program in C took 221 s for all.
    """
    trainer = made("each-client")
    std = trainer.noise_multiplier(task) * trainer.clip_norm
    state = old_state(SEED, "client-0")
    generator = torch.Generator().manual_seed(state)
    upload = clean + std * torch.randn(len(clean), generator=generator)
    found = matching_states(upload, std, trainer.clip_norm, state)
    assert found.tolist() == [state]
    again = torch.Generator().manual_seed(int(found[0]))
    rest = upload - std * torch.randn(len(upload), generator=again)
    assert float((rest - clean).norm()) < 1e-4 * float(upload.norm())
    assert float(rest.norm()) <= trainer.clip_norm * (1 + 1e-4)


@pytest.mark.parametrize("key", [None, KEY], ids=["seed", "system"])
def test_of_todays_noise_no_state_is_found(
    key: bytes | None, task: Task, upload: Callable[..., Tensor]
) -> None:
    trainer = made("each-client")
    std = trainer.noise_multiplier(task) * trainer.clip_norm
    around = old_state(SEED, "client-0")
    sent = upload(trainer, key)
    assert not len(matching_states(sent, std, trainer.clip_norm, around))


@pytest.mark.parametrize("key", [None, KEY], ids=["seed", "system"])
def test_who_knows_the_seed_strips_the_noise_of_a_seed_and_not_that_of_a_key(
    key: bytes | None, task: Task, shards: Shards, upload: Callable[..., Tensor]
) -> None:
    """The adversary trains a client of its own data, as the seed draws its noise.

    The difference of the uploads then lacks the noise: what is left are two clipped
    moves. That is why a run of a seed is marked.
    """
    trainer = made("each-client")
    std = trainer.noise_multiplier(task) * trainer.clip_norm
    sent = upload(trainer, key)
    guess = upload(trainer, shards={**shards, "client-0": task.public})
    rest, noise = float((sent - guess).norm()), std * len(sent) ** 0.5
    if key is None:
        assert rest < 2 * trainer.clip_norm * (1 + 1e-3)
        assert rest < 0.2 * noise
    else:
        assert rest > noise


def test_a_clients_noise_depends_on_no_other_client(
    shards: Shards, upload: Callable[..., Tensor]
) -> None:
    """Nor on the seed, where a key is the system's; equal keys repeat it."""
    trainer = made("each-client")
    of_all = upload(trainer, KEY)
    for others in ((), ("client-2",)):
        some = {client: shards[client] for client in ("client-0", *others)}
        torch.testing.assert_close(upload(trainer, KEY, shards=some), of_all)
