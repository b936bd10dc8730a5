"""Noise as claimed; and what a trainer records of itself agrees with what it does."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit.checks.lint.accounting import steps_counted
from privaudit.checks.lint.clipping import clipped_norms
from privaudit.checks.lint.evidence import Evidence, Rule
from privaudit.checks.lint.noise import (
    Residual,
    _reused,
    client_residuals,
    noise_as_claimed,
    pool,
    ratio_interval,
    server_residuals,
    two_sided,
)
from privaudit.checks.lint.sampling import poisson_sampling
from privaudit.core.seeds import Seeds, Stream
from privaudit.privacy.discrete_gaussian import Grid, discrete_gaussian
from privaudit.privacy.events import ClientTrace
from privaudit.tuning.prompts.private_training import PrivateTrainer
from tests.privaudit.checks.lint.conftest import Look


def noted(evidence: Evidence, change: Callable[[ClientTrace], ClientTrace]) -> Evidence:
    trace = [
        {client: change(notes) for client, notes in traced.items()}
        for traced in evidence.trace or ()
    ]
    return replace(evidence, trace=trace)


def scaled(evidence: Evidence, factor: float) -> Evidence:
    """Make all noted noise so many times as large."""

    def scale(notes: ClientTrace) -> ClientTrace:
        noise = [replace(n, square=factor**2 * n.square) for n in notes.noise]
        return replace(notes, noise=tuple(noise))

    return noted(evidence, scale)


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 8.0, "noise_at": "client"},
        {"epsilon": 8.0},
        {"mode": "published-paper", "epsilon": 0.4},
        {"mode": "published-code", "epsilon": 0.4},
    ],
    ids=str,
)
def test_a_trainer_that_draws_half_the_noise_is_found(
    settings: dict[str, Any], look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PrivateTrainer.noise

    def half(self: PrivateTrainer, like: Any, grid: Grid, stream: Any) -> Any:
        return plain(self, like, replace(grid, scale=grid.scale // 2), stream)

    monkeypatch.setattr(PrivateTrainer, "noise", half)
    found = noise_as_claimed(look(**settings))
    assert [finding.severity for finding in found] == ["error", "error"]
    for release in ("local", "global"):
        (one,) = [f for f in found if f"on the {release} release" in f.sentence]
        assert 0.4 < float(one.sentence.split(" has ")[1].split()[0]) < 0.6


@pytest.mark.parametrize(("factor", "severity"), [(0.5, "error"), (2.0, "warning")])
def test_too_little_noise_is_an_error_and_too_much_a_warning(
    factor: float, severity: str, look: Look
) -> None:
    evidence = scaled(look(epsilon=8.0, noise_at="client"), factor)
    assert {f.severity for f in noise_as_claimed(evidence)} == {severity}


def test_a_slight_lack_that_no_single_draw_shows_is_found_in_their_sum(
    look: Look,
) -> None:
    evidence = scaled(look(epsilon=8.0, noise_at="client", rounds=40), 0.92)
    found = noise_as_claimed(evidence)
    assert {f.severity for f in found} == {"error"}
    assert any("0 of 120 draws are outside" in f.sentence for f in found)


def test_noise_that_nobody_drew_is_an_error(look: Look) -> None:
    def silent(notes: ClientTrace) -> ClientTrace:
        return replace(notes, noise=())

    evidence = noted(look(epsilon=8.0, noise_at="client"), silent)
    found = noise_as_claimed(evidence)
    assert [f.severity for f in found] == ["error", "error"]
    assert "claims noise in 6 rounds, and the run shows some in 0" in found[0].sentence


def test_without_a_trace_it_says_that_it_cannot_tell(look: Look) -> None:
    evidence = replace(look(epsilon=8.0), trace=None)
    (found,) = noise_as_claimed(evidence)  # the server's noise shows in the transcript
    assert found.severity == "warning"
    assert "local release is as claimed cannot be determined" in found.sentence


def test_noise_that_repeats_is_an_error(look: Look) -> None:
    evidence = look(epsilon=8.0, noise_at="client")
    assert evidence.trace is not None
    trace = [evidence.trace[0], *evidence.trace[:-1]]
    found = noise_as_claimed(replace(evidence, trace=trace))
    assert [f.severity for f in found] == ["error"]
    assert "6 of 36 draws of noise repeat another" in found[0].sentence
    assert not [*inspect.unwrap(_reused)([Mock(tensors={})] * 2)]  # of whole numbers


def as_claimed(evidence: Evidence, residual: Residual, stream: Stream) -> Any:
    """Draw the noise of a stream anew, in claimed standard deviations."""
    index = int(residual.where.removeprefix("round ").split(",")[0])
    event = evidence.event_of(index, residual.release)
    assert event is not None
    return discrete_gaussian(residual.values, event.scale, stream) / event.scale


@pytest.mark.parametrize("name", ["dp-fpl", "dp-fedpgp"])
@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_what_the_transcript_shows_is_the_noise_that_the_seeds_draw(
    name: str, mode: str, look: Look
) -> None:
    """Oracle: the stream itself, also behind momentum and weight decay."""
    evidence = look(name, mode=mode, epsilon=4.0)
    found = list(server_residuals(evidence))
    assert [r.where for r in found] == [f"round {i}, server" for i in range(6)]
    for index, residual in enumerate(found):
        stream = Seeds(0).stream("server noise", round=index)
        drawn = as_claimed(evidence, residual, stream)
        assert residual.square == pytest.approx(float((drawn**2).sum()), rel=1e-3)


def test_what_clients_note_is_the_noise_that_the_seeds_draw(look: Look) -> None:
    evidence = look("dp-promptfl", mode="published-paper", epsilon=4.0)
    for residual in client_residuals(evidence):
        index, client = residual.where.removeprefix("round ").split(", ")
        stream = Seeds(0).stream("noise", round=int(index), client=client)
        drawn = as_claimed(evidence, residual, stream)
        assert residual.square == pytest.approx(float((drawn**2).sum()), rel=1e-4)


def test_p_values_of_honest_noise_are_uniform() -> None:
    squares = np.random.default_rng(0).chisquare(20, size=4000)
    values = two_sided(np.stack([squares, np.full(4000, 20.0)], axis=1))
    for level in (0.01, 0.05, 0.5):
        error = (level * (1 - level) / 4000) ** 0.5
        assert abs((values < level).mean() - level) < 3 * error


def test_pooled_draws_are_added() -> None:
    both = pool([Residual("local", "a", 2, 3.0), Residual("local", "b", 5, 4.0)])
    assert (both.values, both.square) == (7, 7.0)


@given(values=st.integers(1, 10_000), ratio=st.floats(0.1, 10))
def test_the_interval_holds_about_the_ratio(values: int, ratio: float) -> None:
    """Chi-square's median is below its mean: of few values the ratio leans low."""
    low, high = ratio_interval(ratio**2 * values, values, 0.05)
    assert low < ratio < high


def test_no_noise_and_no_claim_are_silent(look: Look) -> None:
    assert noise_as_claimed(look()) == []


def test_noise_is_measured_as_it_is_added(look: Look) -> None:
    """By hand: a client's upload less its clean sum has the noted square."""
    noisy = look(epsilon=8.0, noise_at="client", rounds=1, rank="full")
    clean = look(epsilon=8.0, noise_at="server", rounds=1, rank="full")
    assert noisy.trace is not None
    for one, other in zip(noisy.uploads[0], clean.uploads[0], strict=True):
        drawn = one.tensors["gradient"] - other.tensors["gradient"]
        (noise,) = [
            n for n in noisy.trace[0][one.sender].noise if n.release == "global"
        ]
        torch.testing.assert_close(
            float((drawn**2).sum()), noise.square, rtol=1e-4, atol=0
        )


PAPER = {"mode": "published-paper", "epsilon": 0.4}
MODES: list[tuple[str, dict[str, Any]]] = [
    ("dp-fpl", {"epsilon": 8.0}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "client", "rank": "full"}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "distributed"}),
    ("dp-fpl", PAPER | {"clip": "sample"}),
    *[(f"dp-{m}", {"epsilon": 8.0}) for m in ("promptfl", "fedotp", "fedpgp")],
    *[(f"dp-{m}", PAPER) for m in ("fpl", "promptfl", "fedotp", "fedpgp")],
    *[
        (f"dp-{m}", {"mode": "published-code", "epsilon": 0.4})
        for m in ("fpl", "promptfl", "fedotp", "fedpgp")
    ],
    ("dp-fedpgp", PAPER | {"clip": "sample"}),
    ("dp-promptfl", PAPER | {"clip": "sample"}),
    ("dp-promptfl", PAPER | {"epochs": 2, "momentum": 0.9}),
    ("dp-promptfl", {"mode": "published-code", "epsilon": 0.4, "epochs": 2, "mu": 0.5}),
    ("dp-pfedmoap", {"epsilon": 25.0, "delta": 0.05}),
    ("dp-pfedmoap", {"mode": "published-paper", "epsilon": 25.0, "delta": 0.05}),
]


@pytest.mark.parametrize(("name", "settings"), MODES, ids=str)
def test_clips_noises_samples_and_counts_as_it_says(
    name: str, settings: dict[str, Any], look: Look
) -> None:
    evidence = look(name, **settings)
    rules: tuple[Rule, ...] = (
        clipped_norms,
        noise_as_claimed,
        steps_counted,
        poisson_sampling,
    )
    assert [found for rule in rules for found in rule(evidence)] == []
    shown = [*client_residuals(evidence), *server_residuals(evidence)]
    assert {r.release for r in shown} == {
        event.release for _, event in evidence.events() if event.noise_multiplier > 0
    }
