"""Is any record there more than once among the members?"""

from collections import defaultdict

from privaudit.lint.evidence import Evidence
from privaudit.lint.finding import Found, Rule


def _check(evidence: Evidence) -> Found:
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for client, prints in evidence.members.items():
        for position, fingerprint in enumerate(prints):
            places[fingerprint].append((client, position))
    copies = [where for where in places.values() if len(where) > 1]
    if evidence.unit == "client":  # copies in one client are hidden together
        copies = [where for where in copies if len({client for client, _ in where}) > 1]
    if not copies or not evidence.claim.epsilon:
        return
    most = max(copies, key=len)
    inside = max(_most_in_one_client(where) for where in copies)
    across = sum(len({client for client, _ in where}) > 1 for where in copies)
    first = ", ".join(f"member {position} of {client}" for client, position in most[:3])
    yield (
        "error",
        f"{len(copies)} records are trained on more than once, {across} of them by "
        f"several clients; the most frequent {len(most)} times ({first}), at most "
        f"{inside} times by one client. Epsilon is for one copy: {len(most)} copies "
        f"may lose up to {len(most)} times {evidence.claim.epsilon:g}, at a larger "
        "delta.",
        (f"dataset={evidence.dataset}",),
    )


def _most_in_one_client(where: list[tuple[str, int]]) -> int:
    clients = [client for client, _ in where]
    return max(clients.count(client) for client in set(clients))


DUPLICATE_RECORDS = Rule(
    "duplicate-records", "Is any record there more than once among members?", _check
)
