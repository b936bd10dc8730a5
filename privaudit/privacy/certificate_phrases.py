"""What certificates and claims say in words."""

NO_RECORD = "no record is used"

NOTHING_COUNTS = "no mechanism counts"
NOTHING_RELEASED = "nothing is released"
STEPS = (
    "at most {steps} steps of a Gaussian mechanism of effective noise multiplier "
    "{noise}, "
)
WHOLE = "without sampling"
POISSON = "Poisson-sampled at rate {rate}"
DRAWN = "of {rate} of all clients, drawn without replacement"
FLOATS = (
    "noise drawn in floating point, whose low bits can tell neighbouring values "
    "apart, which no accountant counts"
)
DISCRETE = (
    "discrete Gaussian noise on a grid, {steps} steps to a standard deviation or "
    "more, which is accounted for"
)


EVERYTHING_IS_PUBLIC = "No record has any influence on what this view holds."
NONE_APPLIED = "No mechanism was applied."
NO_NOISE = "What this view sees of round {round} carries no noise."
UNBOUNDED = (
    "Nothing bounds what the noise of the {release} release of round {round} hides: it "
    "was not clipped."
)
SERVERS_OWN = "The server adds the noise itself, so it sees what the noise hides."
WITHOUT_NOISE = "The {release} release of round {round} has no noise."
DECLARED = (
    "Declared, not certified: the mechanisms are the word of whoever recorded the "
    "federation or wrote the trainer, and nothing here applied them."
)
LEFT_OUT = (
    "Which records are left out may follow from the data, as by an audit, and no noise "
    "covers that choice: an epsilon would hold for a list that was fixed before anybody "
    "looked at the data."
)
WHY: dict[str, dict[str, str]] = {
    "server": {
        "client": "Every upload carries its own client's noise.",
        "distributed": "Every upload carries its client's share of the noise only.",
    },
    "server-aggregate": {
        "client": "The sum that the server sees carries every client's noise.",
        "distributed": "The sum that the server sees carries all shares of the noise.",
    },
    "peer": {
        "server": "Broadcasts carry the server's noise, which no peer knows.",
        "client": "Broadcasts carry the noise of all clients but the peer itself.",
        "distributed": "Broadcasts carry all shares of the noise but the peer's own.",
    },
    "released": {
        "server": "The global part carries the server's noise, the local its client's.",
        "client": "Every part of the prompt carries its client's noise.",
        "distributed": "The global part carries all shares of the noise.",
    },
}
"""Why the noise counts, by view and by who adds it."""
