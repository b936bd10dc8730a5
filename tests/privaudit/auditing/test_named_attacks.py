"""What an attack's stored parameters say, read in one place."""

from dataclasses import replace

import pytest
from pydantic.dataclasses import dataclass

from privaudit.attacks.output_attacks import OutputAttack
from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.named_attacks import (
    is_written,
    restore_attack,
    shadows_of,
    written_settings,
)
from privaudit.core.errors import ConfigError
from privaudit.report.wording import strength
from tests.privaudit.made_audits import make_audit


@pytest.mark.parametrize(
    ("settings", "shadows"),
    [
        ("Rmia(shadows=16, mode='online')", 16),
        ("LossThreshold()", None),
        ("Mine(base='lira shadows=16')", None),  # a word in another one's value
        ("shadows=16", None),
        ("Mine(shadows=0x10)", None),
        ("Mine(shadows=1234567890)", None),
        (None, None),
    ],
)
def test_only_a_parameter_called_shadows_counts(
    settings: str | None, shadows: int | None
) -> None:
    assert shadows_of(settings) == shadows
    leak = replace(make_audit().headline, attack="mine", settings=settings or "")
    said = "mine" if shadows is None else f"mine ({shadows} shadow models)"
    assert strength(leak) == said


def test_a_text_of_another_form_stays_as_it_is() -> None:
    for text in ("Mine(x", "Mine(x)", "3(x=1)", "Mine(x=1)\n"):
        assert written_settings(text) == {"": text}


@dataclass(frozen=True)
class Noted(OutputAttack):
    note: str | None = ""
    share: float = 1.0


@pytest.mark.parametrize(
    ("settings", "is_one"),
    [
        ("UploadInversion(examples=16, matched=2)", True),
        ("UploadInversion(how='a_word')", True),
        ("UploadInversion()", True),
        ("UploadInversion", False),
        ("UploadInversion(who='Jane Doe')", False),
        ("Jane(examples=16)", False),
    ],
)
def test_settings_of_an_attack_that_is_not_here_are_numbers_and_choices(
    settings: str, is_one: bool
) -> None:
    assert is_written("upload-inversion", settings) is is_one


@pytest.mark.parametrize("name", ATTACKS.names())
def test_an_attack_is_restored_from_its_fields(name: str) -> None:
    attack = ATTACKS.find(name)()
    assert restore_attack(name, repr(attack)) == attack


@pytest.mark.parametrize(
    ("settings", "is_plain"),
    [
        ("Noted(note='a_word-more', share=0.5)", True),
        ("Noted(note=None, share=inf)", True),
        ("Noted(note='a', share=-1e-05)", True),
        ("Noted(note='', share=1.0)", False),
        ("Noted(note='Jane', share=1.0)", False),
        ("Noted(note='two words', share=1.0)", False),
        ("Noted(note='a', share=nan)", False),
        ("Noted(note='a', share=-inf)", False),
        ("Noted(note='a', share=1)", False),  # not as it is written
        ("Noted(note='a', share=1.0) and more", False),
        ("Other(note='a', share=1.0)", False),
        ("", False),
    ],
)
def test_fields_that_are_no_numbers_or_choices_are_refused(
    settings: str, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go where a run's files never do, and come of a file that may be foreign."""
    monkeypatch.setitem(ATTACKS._entries, "noted", Noted)
    if is_plain:
        assert repr(restore_attack("noted", settings)) == settings
        return
    with pytest.raises(ConfigError, match="is not written so"):
        restore_attack("noted", settings)
