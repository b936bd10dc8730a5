"""Events as short texts, the same ones in the picture and in plain lines."""

from collections.abc import Mapping

from privaudit.core.formatting import epsilon as bound_of
from privaudit.core.formatting import small
from privaudit.privacy.certificate import REPEATABLE
from privaudit.report.tables.written_table import size
from privaudit.report.wording import interval, point
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.progress import CellDone, Event, Phase, RoundDone


def line_of(event: Event) -> str:
    """Return an event as one line."""
    if isinstance(event, RoundDone):
        numbers = ", ".join(f"{head} {text}" for head, text in numbers_of(event))
        return f"{event.run}: round {event.done}/{event.total}, {numbers}"
    if isinstance(event, CellDone):
        numbers = f"{event.metric} {number(event.utility)}, AUROC {number(event.auroc)}"
        left = f", about {duration(event.seconds_left)} left"
        after = left if event.done < event.total else ""
        return f"{event.done}/{event.total} {event.name}: {numbers}{after}"
    return f"{event.run}: {phase_of(event)}"


def phase_of(event: Phase) -> str:
    """Say what begins, and how far it is."""
    which = f"{event.done + 1}/{event.total}"
    parts = {
        "encode": f"{event.done}/{event.total} pictures encoded",
        "wait": f"{event.done}/{event.total} s without a sign of {event.what}",
        "reconstruct": f"reconstruct {event.what}",
        "shadows": f"shadow models {event.done}/{event.total} of {event.what}",
        "attack": f"attack {which}, {event.what}",
        "cell": f"train and attack {which}, {event.what}",
        "claim": f"{event.done}/{event.total} runs with and without a canary",
        "check": f"check {which}, {event.what}",
    }
    return parts[event.phase] + (f", {event.detail}" if event.detail else "")


def numbers_of(event: RoundDone) -> list[tuple[str, str]]:
    """Return the numbers that matter while a run is trained, with their names."""
    return [
        ("loss", f"{event.loss:.3f}"),
        ("utility", _utility(event)),
        ("sent", f"{size(event.bytes_up)} up, {size(event.bytes_down)} down"),
        ("epsilon", spent(event)),
    ]


def _utility(event: RoundDone) -> str:
    if event.utility is None:
        return "not measured yet"
    late = event.utility_round != event.done
    return number(event.utility) + (f" (round {event.utility_round})" * late)


def spent(event: RoundDone) -> str:
    """Say what is certified so far, against whom."""
    if all(epsilon is None for epsilon in event.epsilon.values()):
        return "none"
    proved = any(event.epsilon.values())
    late = event.epsilon_round != event.done
    after = f" (round {event.epsilon_round})" * late
    bounds = "; ".join(
        f"{text} for {', '.join(views)}"
        for text, views in _by_bound(event.epsilon).items()
    )
    mark = f" ({REPEATABLE})" if event.randomness == "seed" and proved else ""
    return f"{bounds}{after}, delta {small(event.delta)}{mark}"


def _by_bound(epsilon: Mapping[str, float | None]) -> dict[str, list[str]]:
    """Return the views by the text of their bound."""
    by_bound: dict[str, list[str]] = {}
    for view, bound in epsilon.items():
        by_bound.setdefault(bound_of(bound), []).append(view)
    return by_bound


def number(estimate: Estimate) -> str:
    """Return a number with its interval."""
    return f"{point(estimate)} {interval(estimate)}"


def duration(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> duration(3725.0), duration(42.0)
        ('1 h 2 min', '42 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
