"""Privacy record of a run: what is claimed, and what is proved per view."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from privaudit.core.seeds import Randomness
from privaudit.privacy.certificate import (
    Certificate,
    CertifiedView,
    certify,
)
from privaudit.privacy.claim import Claim
from privaudit.privacy.events import MechanismEvent


def privacy_record(
    claim: Claim,
    rounds: Sequence[Sequence[Mapping[str, Any]]],
    *,
    sends_updates: bool,
    randomness: Randomness = "seed",
    leaves_out: bool = False,
    declared: bool = False,
) -> dict[str, Any]:
    """Return the content of privacy.json.

    Args:
        claim: The method's own formula.
        rounds: The mechanisms of each round, as JSON.
        sends_updates: Whether clients sent anything before they released a model.
        randomness: Where noise and secret samples came from.
        leaves_out: Whether candidates were left out by name: nobody can tell whether
            the list follows from the data, so that nothing is proved.
        declared: Whether the mechanisms, and that a method uses no record, are somebody
            else's word. What was not sent is no word.
    """
    events = [[MechanismEvent.from_json(e) for e in applied] for applied in rounds]
    certificates = {
        view: _certify(claim, events, view, sends_updates, leaves_out)
        for view in get_args(CertifiedView)
    }
    if declared:
        certificates = {
            view: one if _is_empty(view, events, sends_updates) else one.as_declared()
            for view, one in certificates.items()
        }
    return {
        "claimed": asdict(claim),
        "certified": {
            view: replace(certificate, randomness=randomness).fields()
            for view, certificate in certificates.items()
        },
        "mechanisms": _grouped(rounds),
    }


def _certify(
    claim: Claim,
    events: Sequence[Sequence[MechanismEvent]],
    view: CertifiedView,
    sends_updates: bool,
    leaves_out: bool,
) -> Certificate:
    """Return the certificate; 0 where nothing in the view depends on a record."""
    untouched = claim.epsilon == 0 and not any(events)
    if untouched or _is_empty(view, events, sends_updates):
        why = "No record has any influence on what this view holds."
        return Certificate(
            0.0, claim.delta, view, "nothing is released", "by definition", why
        )
    proved = certify(events, view, claim.delta)
    if leaves_out and proved.epsilon is not None:
        why = (
            "Which records are left out may follow from the data, as by an audit, and no "
            "noise covers that choice: an epsilon would hold for a list that was fixed "
            "before anybody looked at the data."
        )
        return replace(proved, epsilon=None, accountant="", why=why)
    return proved


def _is_empty(
    view: CertifiedView, events: Sequence[Sequence[MechanismEvent]], sends_updates: bool
) -> bool:
    """Say whether a view holds nothing of any record, as the transcript shows."""
    return view != "released" and not sends_updates and not any(events)


def declared_only(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a privacy record as one of mechanisms that nothing here applied.

    An earlier version certified recordings, too, and wrote so.
    """
    certified = {
        view: Certificate(**fields).as_declared().fields()
        for view, fields in record["certified"].items()
    }
    return {**record, "certified": certified}


def events_by_round(
    mechanisms: Sequence[Mapping[str, Any]], rounds: int
) -> list[list[MechanismEvent]]:
    """Return the mechanisms of each round, from what :func:`privacy_record` groups.

    Raises:
        ConfigError: A mechanism is none.
        KeyError: One lacks its rounds.
        IndexError: A round is beyond the last.
    """
    events: list[list[MechanismEvent]] = [[] for _ in range(rounds)]
    for group in mechanisms:
        event = MechanismEvent.from_json(
            {name: value for name, value in group.items() if name != "rounds"}
        )
        for index in group["rounds"]:
            events[index].append(event)
    return events


def _grouped(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return each mechanism once, with the rounds it was applied in."""
    groups: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for index, applied in enumerate(rounds):
        for event in applied:
            groups.setdefault(tuple(sorted(event.items())), []).append(index)
    return [{**dict(key), "rounds": indices} for key, indices in groups.items()]
