"""Rules of clipping."""

from dataclasses import replace

import pytest
from torch import Tensor

from privaudit.checks.lint.clipping import clip_per_record, clipped_norms
from privaudit.checks.lint.evidence import Evidence
from privaudit.privacy.clipping import clip_records
from tests.privaudit.checks.lint.conftest import Look


@pytest.mark.parametrize("mode", ["published-paper", "published-code"])
def test_a_clipped_batch_mean_is_an_error_with_its_sensitivity(
    mode: str, look: Look
) -> None:
    found = clip_per_record(look(mode=mode, epsilon=0.4, clip_norm=10.0))
    assert [f.severity for f in found] == ["error", "error"]
    local, shared = (f.sentence for f in found)
    assert "moves it by up to 28.3 (2.83 clip norms) in each of 6 rounds" in local
    assert "moves it by up to 20 (2 clip norms)" in shared
    assert "the claimed formula counts 2 (clip norm over 5 records)" in shared
    assert found[0].settings == (f"mode={mode}", "clip=batch")


def test_where_noise_makes_up_for_it_a_clipped_batch_mean_is_a_warning(
    look: Look,
) -> None:
    found = clip_per_record(look("dp-promptfl", mode="published-paper", epsilon=0.4))
    assert [f.severity for f in found] == ["warning"]


def test_clipped_records_are_silent(look: Look) -> None:
    assert clip_per_record(look(epsilon=8.0)) == []
    paper = look(mode="published-paper", epsilon=0.4, clip="sample")
    assert clip_per_record(paper) == []


def test_a_record_of_clipped_records_that_the_trace_contradicts_is_an_error(
    look: Look,
) -> None:
    evidence = look(mode="published-paper", epsilon=0.4)
    lies = [[replace(e, per_record=True) for e in events] for events in evidence.rounds]
    found = clip_per_record(replace(evidence, rounds=lies))
    assert [f.severity for f in found] == ["error", "error"]
    assert "notes the clipped mean of a batch" in found[0].sentence


@pytest.mark.parametrize("name", ["dp-fpl", "dp-fedpgp"])
def test_a_trainer_that_clips_at_twice_the_norm_is_found(
    name: str, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loose(gradients: dict[str, Tensor], clip: float, mask: Tensor) -> object:
        return clip_records(gradients, 2 * clip, mask)

    monkeypatch.setattr("privaudit.tuning.prompts.private_training.clip_records", loose)
    found = clipped_norms(look(name, epsilon=8.0, clip_norm=0.1))
    assert {f.severity for f in found} == {"error"}
    assert "0.2 where 0.1 is the most" in found[0].sentence


def test_uploads_without_noise_that_are_too_long_are_found(look: Look) -> None:
    """Ten times a clipped mean lies beyond the clip norm, which binds at 0.1."""
    evidence = look(mode="published-paper", epsilon=0.4, clip_norm=0.1)
    assert clipped_norms(evidence) == []
    (found,) = clipped_norms(longer(evidence, 10))
    assert "18 of 18 uploads without noise are longer" in found.sentence
    assert "worst is 1 where 0.1 is the most" in found.sentence


def test_a_sum_of_clipped_records_may_be_as_long_as_its_batch_is_large(
    look: Look,
) -> None:
    evidence = look(epsilon=8.0, clip_norm=0.1)
    assert clipped_norms(evidence) == []
    (found,) = clipped_norms(longer(evidence, 100))
    assert found.severity == "error"


def test_where_nothing_shows_it_cannot_tell(look: Look) -> None:
    evidence = replace(look(epsilon=8.0, noise_at="client"), trace=None)
    (found,) = clipped_norms(evidence)
    assert (found.severity, found.settings) == ("note", ())


def longer(evidence: Evidence, factor: float) -> Evidence:
    """Multiply every upload."""
    messages = [
        replace(m, tensors={n: factor * t for n, t in m.tensors.items()})
        if m.kind == "update"
        else m
        for m in evidence.messages
    ]
    return replace(evidence, messages=messages)
