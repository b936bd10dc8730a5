"""Options that no trainer can have together, and what the refusal says."""

from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.runs.config import build_trainer

PAPER, CODE = {"mode": "published-paper"}, {"mode": "published-code"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dp-fpl", {"epsilon": 0}, "epsilon = 0: Input should be greater than 0"),
    ("dp-fpl", {"epsilon": -1.0}, "epsilon = -1.0"),
    ("dp-fpl", {"rank": 0}, "rank"),
    ("dp-fpl", PAPER | {"noise_at": "client"}, "server adds the noise"),
    ("dp-fpl", CODE | {"factorization": "left"}, '"both" only'),
    ("dp-fpl", {"mode": "sound", "clip": "batch"}, "'sample' only"),
    ("dp-fpl", CODE | {"clip": "sample"}, "'batch' only"),
    ("dp-fpl", {"local_share": 1.0}, "local_share = 1.0"),
    ("dp-promptfl", {"steps": 0}, "steps = 0"),
    ("dp-promptfl", {"clip": "batch"}, "'sample' only"),
    ("dp-promptfl", {"epochs": 5}, "how many with steps"),
    ("dp-promptfl", PAPER | {"epochs": 5, "clip": "sample"}, "follow in the next"),
    ("dp-promptfl", {"mu": -0.5}, "mu = -0.5"),
    ("dp-promptfl", {"noise_at": "server"}, "no parameter 'noise_at'"),
    ("dp-pfedmoap", CODE, 'knows "sound" and'),
    ("dp-pfedmoap", PAPER | {"clip": "sample"}, "clips the mean over a batch"),
    ("dp-pfedmoap", {"gate": "aggregated"}, "sends the gate without any noise"),
    ("dp-fedpt", PAPER | {"noise_by": "server"}, "each-client"),
    ("fedpt-top-k", PAPER | {"choice": "private"}, "largest"),
    ("fedpgp", {"rank": 0}, "rank"),
    ("fedpgp", {"contrast": -1.0}, "contrast"),
    ("fedpgp", {"temperature": 0.0}, "temperature"),
    ("prompt-fedper", {"shared_tokens": 0}, "shared_tokens = 0"),
    ("fedpt-dhapa", {"statistics_noise": 1.0}, "gamma = 0"),
    (
        "fedpt-dhapa",
        {"statistics_noise": 1.0, "weighting": "sizes"},
        "size would be exact",
    ),
    ("promptfl", {"momentum": 1.0}, "momentum = 1.0"),
    ("promptfl", {"optimizer": "lion"}, "optimizer = 'lion'"),
    ("dp-fpl", CODE | {"optimizer": "adam"}, "kept across rounds. Leave it out"),
    ("dp-promptfl", CODE | {"schedule": "cosine"}, "SGD at one rate"),
    ("dp-fedotp", PAPER | {"optimizer": "adam"}, "SGD at one rate"),
    ("dp-pfedmoap", PAPER | {"weight_decay": 0.1}, "SGD at one rate"),
    ("zero-shot", {"optimizer": "adam"}, "no parameter 'optimizer'"),
    ("fedpt-zeroth-order", {"peft_method": "full"}, "no more than an interface"),
    ("fedpt-zeroth-order", {"micro_batch": 2}, "Lower models_at_once"),
]


@pytest.mark.parametrize(("name", "settings", "reason"), REFUSED)
def test_impossible_options_are_refused_with_a_reason(
    name: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_trainer(name, settings)
    assert reason in str(caught.value)
    assert "ArgsKwargs" not in str(caught.value)
