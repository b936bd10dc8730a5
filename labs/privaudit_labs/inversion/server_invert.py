"""Inversion by the server: what of its clients' records can it read from uploads?"""

from privaudit.auditing.scenario import SCENARIOS, Scenario
from privaudit_labs.inversion.upload_inversion import UploadInversion

NAME = "server-invert"


@SCENARIOS.register(NAME)
def server_invert(shadows: int = 50) -> Scenario:
    """A curious server reads classes, features and words out of what clients sent.

    The verdict compares how well what was read fits records that were trained on, and
    records of the same client that were not.

    Args:
        shadows: None are trained; the attack simulates clients of its own.
    """
    return Scenario(
        name=NAME,
        question="What can a curious server read of its clients' records themselves?",
        threat="server",
        attacks={"upload-inversion": UploadInversion()},
        dominates=("server-aggregate", "curious-peer"),
    )
