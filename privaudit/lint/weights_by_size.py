"""Do weights beside the uploads tell how many records a client has?"""

from collections import defaultdict

from privaudit.lint.evidence import Evidence
from privaudit.lint.finding import Found, Rule


def _check(evidence: Evidence) -> Found:
    """Look at the single numbers that clients send: are they sizes, up to a factor?"""
    if not evidence.claim.epsilon:
        return
    sizes = {client: len(prints) for client, prints in evidence.members.items()}
    for name, sent in _numbers(evidence).items():
        found = [(sizes[c], v) for c, values in sent.items() for v in values if v != 0]
        shares = {round(value / size, 6) for size, value in found if size}
        if len({value for _, value in found}) > 1 and len(shares) == 1:
            (share,) = shares
            yield (
                "error",
                f"Clients send {name!r} beside their updates: {share:g} times the "
                f"number of their members ({min(found)[0]} to {max(found)[0]}), "
                "without noise. One record more or less shows in it exactly.",
                (f"sent={name}",),
            )


def _numbers(evidence: Evidence) -> dict[str, dict[str, list[float]]]:
    """Return the single numbers in uploads, by name and client."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for messages in evidence.uploads.values():
        for message in messages:
            for name, tensor in message.tensors.items():
                if tensor.numel() == 1:
                    found[name][message.sender].append(float(tensor))
    return found


WEIGHTS_BY_SIZE = Rule(
    "weights-by-size", "Do aggregation weights tell how many records there are?", _check
)
