"""Certificates: what an accountant proves about mechanisms as they were applied, per view.

The same noise protects against one adversary and not against another: whoever adds the
noise sees what it hides. Claims by a method's own formula are another matter
(:func:`privaudit.privacy.events.noise_std_published`). A run's privacy.json holds both,
and a certificate bounds how often a record can be reconstructed.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import epsilon as epsilon_text
from privaudit.core.formatting import small
from privaudit.core.seeds import Randomness
from privaudit.privacy.accountant import Sampling, SamplingPhase, tightest_epsilon
from privaudit.privacy.events import Adjacency, Claim, MechanismEvent, Unit
from privaudit.privacy.grid_accounting import discrete_epsilon, rounded_noise

CertifiedView = Literal["server", "server-aggregate", "peer", "released"]
REPEATABLE = "repeatable, not private"
"""What a run is called whose noise follows from a seed."""
_WHY: dict[str, dict[str, str]] = {
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


def is_repeatable(proved: Mapping[str, Any]) -> bool:
    """Say whether a certificate, as JSON, is of noise that follows from a seed."""
    return proved.get("randomness") == "seed" and bool(proved.get("epsilon"))


@dataclass(frozen=True)
class Certificate:
    """An upper bound on a record's or client's privacy loss to one adversary, or none.

    Attributes:
        epsilon: None where nothing is proved; JSON and reports print "none".
        declared: What the accountant gives for mechanisms that are somebody's word:
            nothing here applied them, so that epsilon is None.
        delta: In (0, 1).
        view: The adversary's view, as :func:`certify` lists them.
        mechanism: What was accounted for, in one sentence.
        accountant: Who proved it; empty without a proof.
        why: Why the noise counts, or does not, in this view, in one sentence.
        unit: What is protected: "record" or "client".
        adjacency: Which data sets count as neighbours.
        randomness: Where the noise, and secret samples, come from. "seed" is repeatable
            and not private: whoever guesses the seed subtracts the noise, and epsilon
            is what the same run under a key of the system would have.
    """

    epsilon: float | None
    delta: float
    view: CertifiedView
    mechanism: str
    accountant: str
    why: str
    unit: Unit = "record"
    adjacency: Adjacency = "add/remove-one"
    randomness: Randomness = "seed"
    declared: float | None = None

    def __str__(self) -> str:
        return epsilon_text(self.epsilon, self.declared)

    @property
    def stated(self) -> float | None:
        """Epsilon, proved or declared: for who asks whether mechanisms give it."""
        return self.epsilon if self.declared is None else self.declared

    def as_declared(self) -> "Certificate":
        """Return the same of mechanisms that nothing here applied: no proof."""
        if self.epsilon is None:
            return self
        why = (
            "Declared, not certified: the mechanisms are the word of whoever recorded "
            "the federation or wrote the trainer, and nothing here applied them."
        )
        return replace(
            self, epsilon=None, declared=self.epsilon, accountant="", why=why
        )

    def at(
        self, delta: float, rounds: Sequence[Sequence[MechanismEvent]]
    ) -> "Certificate":
        """Return what the same mechanisms give at another delta."""
        if self.stated is None or delta == self.delta or not any(rounds):
            return replace(self, delta=delta)
        again = replace(certify(rounds, self.view, delta), randomness=self.randomness)
        return again if self.declared is None else again.as_declared()

    def fields(self) -> dict[str, Any]:
        """Return the fields; ``declared`` only where something is."""
        fields = asdict(self)
        if self.declared is None:
            del fields["declared"]
        return fields

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON's types, epsilon "none" where nothing is proved."""
        epsilon = "none" if self.epsilon is None else self.epsilon
        return self.fields() | {"epsilon": epsilon}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Certificate":
        """Return the certificate that :meth:`to_json` wrote."""
        epsilon = None if fields["epsilon"] == "none" else fields["epsilon"]
        return cls(**(fields | {"epsilon": epsilon}))


def certify(
    events: Iterable[Sequence[MechanismEvent]],
    view: CertifiedView,
    delta: float,
    *,
    without_opacus: bool = False,
) -> Certificate:
    """Return what is proved about a record, or a client, against ``view``.

    Who sees what, z being a release's noise multiplier and N its parties:

    ================  ============  ===================  =====================
    view              server noise  client noise         distributed noise
    ================  ============  ===================  =====================
    server            none          z                    z / sqrt(N)
    server-aggregate  none          z sqrt(N)            z
    peer              z             z sqrt(N - 1)        z sqrt((N - 1) / N)
    released          z             z sqrt(N)            z
    ================  ============  ===================  =====================

    for "global" releases. A peer subtracts its own noise; where a client is alone in
    its round no peer has any to subtract, so at least one client's noise counts. An
    "upload", or a "choice", has its own client's noise only, in every view. "local"
    releases compose with the others: in ``released``, which shows them, and also where
    nobody sees them but records were clipped one by one. Global gradients are taken at
    the private prompt, so a record that moves it moves all other records' gradients,
    and only the local noise bounds by how much. (A clipped batch mean is bounded
    whatever the prompt is.) Releases of one Poisson sample are one sampled Gaussian of
    multiplier (sum of s^2 / z^2)^(-1/2), s their sensitivities. Batches of fixed size,
    and releases of one round at different rates, are accounted without sampling. That
    clients are drawn for a round counts in ``released`` only: the server, and under a
    secure sum too, knows who takes part, and a peer when it does itself. Parties that
    pool what they see are not covered.

    The unit and the adjacency are the mechanisms' own; all must have the same.

    Args:
        events: Per round, what was applied to the client's releases. Leave out rounds
            in which it sent nothing: a round without an event counts as unprotected.
        view: Of the adversary: a row of the table.
        delta: In (0, 1).
        without_opacus: As :func:`privaudit.privacy.accountant.tightest_epsilon`.

    Raises:
        ConfigError: Mechanisms protect unlike units.
    """
    events = [list(applied) for applied in events]
    unit, adjacency = _neighbours(events)
    rounds = [[event for event in r if is_seen(event, view)] for r in events]
    unprotected = _why_unprotected(rounds, view)
    if unprotected:
        nothing = "no mechanism counts"
        return Certificate(None, delta, view, nothing, "", unprotected, unit, adjacency)
    phases = _phases(rounds, view)
    account = partial(tightest_epsilon, phases, without_opacus=without_opacus)
    epsilon, accountant = _epsilon(account, rounds, delta)
    mechanism = _describe(phases) + _kind(rounds)
    why = _why(rounds, view)
    return Certificate(
        epsilon, delta, view, mechanism, accountant, why, unit, adjacency
    )


def _epsilon(
    account: Callable[[float], tuple[float, str]],
    rounds: Sequence[Sequence[MechanismEvent]],
    delta: float,
) -> tuple[float, str]:
    """Return what is proved, with what the grids add, and by which accountant."""
    drawn = [e for events in rounds for e in events if e.kind == "discrete-gaussian"]
    if not drawn:
        return account(delta)
    by = ""

    def gaussian(delta: float) -> float:
        nonlocal by
        epsilon, by = account(delta)
        return epsilon

    epsilon = discrete_epsilon(
        gaussian,
        delta,
        values=sum(event.values * event.steps for event in drawn),
        scale=min(event.scale for event in drawn),
        parties=max(event.parties for event in drawn),
    )
    return epsilon, by


def _neighbours(rounds: Sequence[Sequence[MechanismEvent]]) -> tuple[Unit, Adjacency]:
    """Return what all mechanisms protect; a record's presence where there are none."""
    units = {(event.unit, event.adjacency) for events in rounds for event in events}
    if len(units) > 1:
        raise ConfigError(
            f"Mechanisms of one run protect {sorted(units)}, and their epsilons do not "
            "add up. Account for each by itself."
        )
    return units.pop() if units else ("record", "add/remove-one")


def effective_noise(event: MechanismEvent, view: CertifiedView) -> float:
    """Return the noise multiplier that counts in ``view`` for sensitivity 1; 0 is none.

    The table of :func:`certify`, over the event's sensitivity, to which rounding to the
    nearest step of a grid adds.
    """
    if event.noise_at == "none" or not event.bounded:
        return 0.0
    noise = event.noise_multiplier / event.sensitivity
    if noise and event.scale and event.rounding == "nearest":
        shares = event.parties if event.noise_at == "distributed" else 1
        noise = rounded_noise(noise, event.values, event.scale * math.sqrt(shares))
    if event.noise_at == "server":
        return 0.0 if view in ("server", "server-aggregate") else noise
    if event.noise_at == "distributed":
        noise /= math.sqrt(event.parties)
    return noise * math.sqrt(_voices(event, view))


def _voices(event: MechanismEvent, view: CertifiedView) -> int:
    """Count the clients whose noise hides the release from ``view``."""
    if event.release != "global" or view == "server":
        return 1
    return max(event.parties - 1, 1) if view == "peer" else event.parties


def is_seen(event: MechanismEvent, view: CertifiedView) -> bool:
    """Say whether an adversary of a view sees something of the release."""
    return view == "released" or event.release != "local" or event.per_record


def _why_unprotected(
    rounds: Sequence[Sequence[MechanismEvent]], view: CertifiedView
) -> str:
    """Say what stands in the way of a proof; nothing if nothing does."""
    if not rounds:
        return "No mechanism was applied."
    for number, events in enumerate(rounds):
        if not events:
            return f"What this view sees of round {number} carries no noise."
        for event in events:
            if effective_noise(event, view) == 0:
                return _why_not(event, number)
    return ""


def _why_not(event: MechanismEvent, number: int) -> str:
    if not event.bounded:
        return (
            f"Nothing bounds what the noise of the {event.release} release of round "
            f"{number} hides: it was not clipped."
        )
    if event.noise_at == "server" and event.noise_multiplier > 0:
        return "The server adds the noise itself, so it sees what the noise hides."
    return f"The {event.release} release of round {number} has no noise."


def _why(rounds: Sequence[Sequence[MechanismEvent]], view: CertifiedView) -> str:
    """Say why the noise counts; what is shared decides, if anything is."""
    events = [event for events in rounds for event in events]
    shared = [event for event in events if event.release != "local"]
    return _WHY[view][(shared or events)[0].noise_at]


def _phases(
    rounds: Sequence[Sequence[MechanismEvent]], view: CertifiedView
) -> list[SamplingPhase]:
    counts: Counter[tuple[float, float, Sampling]] = Counter()
    for events in rounds:
        phase = _one_round(events, view)
        counts[phase.noise_multiplier, phase.sampling_rate, phase.sampling] += (
            phase.steps
        )
    return [
        SamplingPhase(z, rate, n, drawn)
        for (z, rate, drawn), n in sorted(counts.items())
    ]


def _one_round(events: Sequence[MechanismEvent], view: CertifiedView) -> SamplingPhase:
    samples = {(*_sampled(event, view), event.steps) for event in events}
    if len(samples) == 1:
        rate, drawn, steps = samples.pop()
        noise = _composed([effective_noise(event, view) for event in events])
        return SamplingPhase(noise, rate, steps, drawn)
    # Of unlike samples that may share records, sampling proves nothing.
    each = [effective_noise(e, view) / math.sqrt(e.steps) for e in events]
    return SamplingPhase(_composed(each), 1.0, 1)


def _composed(noises: Sequence[float]) -> float:
    return sum(noise**-2 for noise in noises) ** -0.5


def _sampled(event: MechanismEvent, view: CertifiedView) -> tuple[float, Sampling]:
    """Return the rate that counts in a view, and how it was drawn."""
    if event.sampling == "poisson":
        return event.sampling_rate, "poisson"
    hidden = event.sampling == "without-replacement" and view == "released"
    if hidden and event.sampling_rate < 1 and event.adjacency == "replace-one":
        return event.sampling_rate, "without-replacement"
    return 1.0, "poisson"


def _describe(phases: Sequence[SamplingPhase]) -> str:
    return "; ".join(
        f"at most {phase.steps} steps of a Gaussian mechanism of effective noise "
        f"multiplier {phase.noise_multiplier:.4g}, {_how_sampled(phase)}"
        for phase in phases
    )


def _kind(rounds: Sequence[Sequence[MechanismEvent]]) -> str:
    """Say how the noise was drawn."""
    events = [event for events in rounds for event in events]
    if any(event.kind == "gaussian" for event in events):
        return (
            "; noise drawn in floating point, whose low bits can tell neighbouring values "
            "apart, which no accountant counts"
        )
    fewest = min(event.scale for event in events)
    return (
        f"; discrete Gaussian noise on a grid, {fewest} steps to a standard deviation or "
        "more, which is accounted for"
    )


def _how_sampled(phase: SamplingPhase) -> str:
    if phase.sampling_rate == 1:
        return "without sampling"
    rate = f"{phase.sampling_rate:.4g}"
    if phase.sampling == "poisson":
        return f"Poisson-sampled at rate {rate}"
    return f"of {rate} of all clients, drawn without replacement"


def guarantee_of(proved: Mapping[str, Any]) -> str:
    """Say what a certified epsilon is about: unit, adjacency and delta."""
    return (
        f"one {proved['unit']} (neighbours: {proved['adjacency']}) at "
        f"δ = {small(proved['delta'])}"
    )


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


def batch_share(mechanisms: Sequence[Mapping[str, Any]]) -> float:
    """Return a record's chance to be in the one step of a round; 1 where that is unknown.

    Args:
        mechanisms: Those of a privacy record; each is to take one step of Poisson samples.
    """
    rates = [
        float(one["sampling_rate"])
        for one in mechanisms
        if one["sampling"] == "poisson" and one["steps"] == 1
    ]
    return max(rates) if rates and len(rates) == len(mechanisms) else 1.0


def _grouped(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return each mechanism once, with the rounds it was applied in."""
    groups: list[dict[str, Any]] = []
    for index, applied in enumerate(rounds):
        for event in applied:
            add_to_groups(groups, index, dict(sorted(event.items())))
    return groups


def add_to_groups(
    groups: list[dict[str, Any]], round: int, event: Mapping[str, Any]
) -> None:
    """Add a round's next mechanism to groups, which keep the order within each round.

    So it joins no group before that of the round's last mechanism: of several on one
    release the first is on the release itself.
    """
    holding = [n for n, group in enumerate(groups) if round in group["rounds"]]
    for group in groups[max(holding, default=0) :]:
        if {**group, "rounds": None} == {**event, "rounds": None}:
            group["rounds"].append(round)
            return
    groups.append({**event, "rounds": [round]})


_CANDIDATES = (1_000, 1_000_000)


def reconstruction_bound(epsilon: float, delta: float, baseline: float) -> float:
    """Return the largest chance that a record can be reconstructed with; 1 says nothing.

    Whoever knows all other records and would guess this one with a chance of
    ``baseline`` beforehand succeeds afterwards with at most e^epsilon baseline + delta:
    success is an event, and what (epsilon, delta)-DP bounds are events. It holds for
    any notion of success, exact or near, that the baseline is stated for.

    Source: Balle, Cherubin and Hayes, "Reconstructing training data with informed
    adversaries", IEEE S&P 2022 (reconstruction robustness, ReRo).

    Args:
        epsilon: Certified for this adversary, at least 0.
        delta: In [0, 1).
        baseline: In (0, 1]: of 1,000 equally likely records, 0.001.

    Example:
        >>> round(reconstruction_bound(1.0, 1e-5, 0.001), 6)
        0.002728
    """
    if epsilon >= -math.log(baseline):
        return 1.0
    return min(1.0, math.exp(epsilon) * baseline + delta)


def reconstruction_bounds(certificate: Mapping[str, Any]) -> dict[str, float] | None:
    """Return a view's bounds for a small and a large set of equally likely candidates.

    By their number, as text: that is how they stand in audit.json. None where nothing
    is proved, or where the noise follows from a seed.

    Example:
        >>> reconstruction_bounds({"epsilon": 1.0, "delta": 1e-5, "unit": "record"})
        {'1000': 0.002728..., '1000000': 1.2718...e-05}
    """
    epsilon = certificate["epsilon"]
    if epsilon is None or is_repeatable(certificate):
        return None
    delta = certificate["delta"]
    return {str(n): reconstruction_bound(epsilon, delta, 1 / n) for n in _CANDIDATES}


def reconstruction_sentence(certificate: Mapping[str, Any]) -> str:
    """Say what a certificate allows; nothing where it allows everything by itself.

    Example:
        >>> reconstruction_sentence({"epsilon": 1.0, "delta": 1e-5, "unit": "record"})
        'one of 1,000 equally likely records is reconstructed with a chance of at most \
0.273 %, one of 1,000,000 of at most 0.00127 %'
    """
    bounds = reconstruction_bounds(certificate)
    if bounds is None:
        return ""
    few, many = (f"{100 * bound:.3g} %" for bound in bounds.values())
    return (
        f"one of {_CANDIDATES[0]:,} equally likely {certificate['unit']}s is "
        f"reconstructed with a chance of at most {few}, one of {_CANDIDATES[1]:,} of at "
        f"most {many}"
    )
