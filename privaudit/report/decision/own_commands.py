"""Commands made of a run's own configuration: what they change, and all else as it was.

Each is read again as its command reads it, and checked; where it would be refused, or
would train something else, there is none.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from privaudit.auditing.named_attacks import refuse_all_members
from privaudit.auditing.scenario import find_scenario
from privaudit.core.errors import PrivauditError
from privaudit.core.parameters import complete_settings, parse_spec
from privaudit.evaluation.tradeoff.plan import cells_of, make_plan
from privaudit.federated.runs.config import (
    RunConfig,
    build_trainer,
    make_config,
    parameters_of,
)
from privaudit.federated.trainer import TRAINERS

_CHOSEN_ANEW = ("trainer", "settings", "seed", "randomness")
_MOST = 2000  # characters that anybody would paste
_USUAL_MODES = ("published-paper", "sound")  # of a trade-off


def private_twin(trainer: str) -> str:
    """Return the trainer that is the same method with noise; empty without one."""
    twin = f"dp-{trainer}"
    return twin if TRAINERS.has(twin) else ""


def knows(trainer: str, parameter: str) -> bool:
    """Say whether a trainer is known here, and has that parameter."""
    return TRAINERS.has(trainer) and parameter in parameters_of(trainer)


def train_command(
    config: RunConfig,
    trainer: str = "",
    settings: Mapping[str, Any] | None = None,
    **fields: Any,
) -> str:
    """Return the command that trains a run anew; empty where there is none.

    The seed is left out: it is chosen anew.

    Args:
        config: Of a run that was trained here.
        trainer: In place of the run's.
        settings: Parameters in place of the run's.
        **fields: Fields of the configuration in place of the run's.
    """
    name = trainer or config.trainer
    try:
        own = {k: v for k, v in _settings(config).items() if knows(name, k)}
        spec = _spec(name, {**own, **(settings or {})})
        words = ["--trainer", spec]
        for field, value in _fields(config, spec, fields).items():
            option = field.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", _text(value)]
    except PrivauditError:
        return ""
    return _joined("train", words)


def tradeoff_command(config: RunConfig, scenario: str) -> str:
    """Return the command that weighs a run's method, with and without noise; or none."""
    try:
        find_scenario(scenario, 0)
        refuse_all_members(config)
        settings = _settings(config)
        mode = settings.pop("mode", None)
        settings.pop("epsilon", None)
        spec = _spec(config.trainer, settings)
        fields = {k: _text(v) for k, v in _fields(config, spec, {}).items()}
    except PrivauditError:
        return ""
    twin = "" if knows(config.trainer, "epsilon") else private_twin(config.trainer)
    entries: dict[str, Any] = {
        "trainers": [name for name in (config.trainer, twin) if name],
        "seeds": [10],
        "scenario": scenario,
        "settings": {k: _text(v) for k, v in settings.items()},
        "fields": fields,
    }
    for modes in _modes(mode):
        try:
            cells_of(make_plan({**entries, **({"modes": modes} if modes else {})}))
        except PrivauditError:
            continue
        words = ["--scenario", scenario, "--trainers", ",".join(entries["trainers"])]
        words += ["--modes", ",".join(modes)] if modes else []
        for option, values in (("--set", entries["settings"]), ("--field", fields)):
            for k, v in values.items():
                words += [option, f"{k}={v}"]
        return _joined("tradeoff", words)
    return ""


def _modes(mode: str | None) -> Iterator[list[str]]:
    """Yield modes to weigh, by default the usual ones; not all go with all settings."""
    yield [] if mode in (None, *_USUAL_MODES) else [str(mode), "sound"]
    yield ["sound"]


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return the parameters of a run that are not the trainer's defaults."""
    usual = complete_settings(build_trainer(config.trainer, {}))
    return {
        name: value
        for name, value in config.settings.items()
        if name not in usual or value != usual[name]
    }


def _fields(config: RunConfig, spec: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that have to be said, and those that are changed.

    Raises:
        PrivauditError: They are refused, or options cannot say all of them.
    """
    wanted = {**config.model_dump(), **changed}
    wanted = {n: value for n, value in wanted.items() if n not in _CHOSEN_ANEW}
    said = config.model_dump(exclude_defaults=True)
    said = {n: v for n, v in {**said, **changed}.items() if n in wanted}
    randomness = {n: v for n, v in changed.items() if n == "randomness"}
    usual = _made(spec, {**said, **randomness})
    said |= {n: v for n, v in wanted.items() if v is not None and usual[n] != v}
    made = _made(spec, {**said, **randomness})
    if {n: made[n] for n in wanted} != wanted:
        raise PrivauditError("No option takes back what another sets.")
    return {**said, **randomness}


def _made(spec: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that a command makes."""
    name, settings = parse_spec("--trainer", spec, "dp-fpl:epsilon=8")
    return make_config(name, settings, **fields).model_dump()


def _spec(name: str, settings: Mapping[str, Any]) -> str:
    said = ",".join(f"{key}={_text(value)}" for key, value in settings.items())
    return f"{name}:{said}" if said else name


def _text(value: Any) -> str:
    """Return a value as a command line has it: none, true, 8."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _joined(command: str, words: list[str]) -> str:
    text = shlex.join(["privaudit", command, *words])
    return text if len(text) <= _MOST else ""
