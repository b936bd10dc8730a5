"""What certificates and claims say in words."""

from typing import get_args

from privaudit.core.phrases import phrase
from privaudit.privacy.events import Release

NO_MECHANISM = phrase("claim", "no privacy mechanism")
NO_RECORD = phrase("claim", "no record is used")

NOTHING_COUNTS = phrase("mechanism", "no mechanism counts")
NOTHING_RELEASED = phrase("mechanism", "nothing is released")
STEPS = phrase(
    "mechanism",
    "at most {steps} steps of a Gaussian mechanism of effective noise multiplier "
    "{noise}, ",
)
WHOLE = phrase("mechanism", "without sampling")
POISSON = phrase("mechanism", "Poisson-sampled at rate {rate}")
DRAWN = phrase("mechanism", "of {rate} of all clients, drawn without replacement")
FLOATS = phrase(
    "mechanism",
    "noise drawn in floating point, whose low bits can tell neighbouring values "
    "apart, which no accountant counts",
)
DISCRETE = phrase(
    "mechanism",
    "discrete Gaussian noise on a grid, {steps} steps to a standard deviation or "
    "more, which is accounted for",
)


def _why(template: str) -> str:
    return phrase("certificate", template, release=get_args(Release))


EVERYTHING_IS_PUBLIC = _why("No record has any influence on what this view holds.")
NONE_APPLIED = _why("No mechanism was applied.")
NO_NOISE = _why("What this view sees of round {round} carries no noise.")
UNBOUNDED = _why(
    "Nothing bounds what the noise of the {release} release of round {round} hides: it "
    "was not clipped."
)
SERVERS_OWN = _why("The server adds the noise itself, so it sees what the noise hides.")
WITHOUT_NOISE = _why("The {release} release of round {round} has no noise.")
DECLARED = _why(
    "Declared, not certified: the mechanisms are the word of whoever recorded the "
    "federation or wrote the trainer, and nothing here applied them."
)
LEFT_OUT = _why(
    "Which records are left out may follow from the data, as by an audit, and no noise "
    "covers that choice: an epsilon would hold for a list that was fixed before anybody "
    "looked at the data."
)
WHY: dict[str, dict[str, str]] = {
    "server": {
        "client": _why("Every upload carries its own client's noise."),
        "distributed": _why(
            "Every upload carries its client's share of the noise only."
        ),
    },
    "server-aggregate": {
        "client": _why("The sum that the server sees carries every client's noise."),
        "distributed": _why(
            "The sum that the server sees carries all shares of the noise."
        ),
    },
    "peer": {
        "server": _why("Broadcasts carry the server's noise, which no peer knows."),
        "client": _why(
            "Broadcasts carry the noise of all clients but the peer itself."
        ),
        "distributed": _why(
            "Broadcasts carry all shares of the noise but the peer's own."
        ),
    },
    "released": {
        "server": _why(
            "The global part carries the server's noise, the local its client's."
        ),
        "client": _why("Every part of the prompt carries its client's noise."),
        "distributed": _why("The global part carries all shares of the noise."),
    },
}
"""Why the noise counts, by view and by who adds it."""
