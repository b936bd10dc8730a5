"""What an attack's stored parameters say, read in one place."""

from dataclasses import replace

import pytest

from privaudit.auditing.named_attacks import shadows_of, written_settings
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
