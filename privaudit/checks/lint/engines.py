"""Rules of privacy engines in clients: does the accountant count what was done?

A recording of Opacus holds what each engine did in each round. An accountant counts the
steps of its own engine, as Poisson samples of its loader, and nothing besides.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from privaudit.checks.lint.evidence import Evidence, Found, rule
from privaudit.checks.lint.noise import FIRST, correlation_p, two_sided
from privaudit.checks.lint.sampling import Counts
from privaudit.core.formatting import epsilon
from privaudit.federation.trainer import ClientId
from privaudit.recording.opacus import EngineNote
from privaudit.statistics.comparisons import holm

LEVEL = 1e-6
"""Chance that one of these tests calls an engine that works as it says anything else."""
Notes = dict[ClientId, list[tuple[int, EngineNote]]]


@rule
def privacy_engine(evidence: Evidence) -> Found:
    """Does a privacy engine count, sample and noise all that its client sends?"""
    by_client: Notes = defaultdict(list)
    for index, client, note in evidence.engines:
        by_client[client].append((index, note))
    if not by_client:
        return
    for sentence in (*_forgetful(evidence, by_client), *_unprotected(by_client)):
        yield "error", sentence
    yield from _sampled(by_client)
    for sentence in _noise(by_client):
        yield "error", sentence
    if not all(note.secure for _, _, note in evidence.engines):
        yield (
            "note",
            "Opacus draws its noise from torch's generator, in floating point "
            "(secure_mode=False): whoever knows its seed subtracts it.",
        )


def _forgetful(evidence: Evidence, notes: Notes) -> Iterator[str]:
    """Say where accountants count fewer steps than their clients took."""
    short = []
    for client, rounds in notes.items():
        taken = sum(note.steps for _, note in rounds)
        if rounds[-1][1].accounted < taken:
            short.append((client, len(rounds), rounds[-1][1], taken))
    if not short:
        return
    client, rounds_of_one, last, taken = short[0]
    given = evidence.certified["server"].stated
    printed = "" if last.epsilon is None else f" and gave {last.epsilon:.3g}"
    yield (
        f"The privacy engine of {client} counted {last.accounted} of the {taken} steps "
        f"that it took in {rounds_of_one} rounds{printed}; all together give "
        f"{epsilon(given)} ({len(short)} of {len(notes)} clients so). Make one "
        "PrivacyEngine for all rounds, or load the accountant's state into each new one."
    )


def _unprotected(notes: Notes) -> Iterator[str]:
    """Say which tensors moved without noise."""
    names = {n for some in notes.values() for _, note in some for n in note.unprotected}
    if names:
        first = ", ".join(sorted(names)[:3])
        yield (
            f"{len(names)} tensors of the model moved in training, and the private "
            f"optimizer does not step them ({first}): no noise is on what they hold of "
            "records, such as the running statistics of batch norm. Freeze them, or "
            "keep them out of what is sent."
        )


def _sampled(notes: Notes) -> Found:
    """Say where batches are no Poisson samples, or not as large as is counted on."""
    some = [note for rounds in notes.values() for _, note in rounds]
    plain = sum(not note.poisson for note in some)
    if plain:
        yield (
            "error",
            f"In {plain} of {len(some)} rounds of clients batches are no Poisson samples "
            "(poisson_sampling=False), and Opacus' accountant counts them as such: its "
            "epsilon is too low. What is declared here counts every record as in every "
            "batch.",
        )
        return
    lots = _lots(notes)
    p_values = holm([p_value for p_value, _ in lots]) if lots else ()
    wrong = [
        (p, what) for p, (_, what) in zip(p_values, lots, strict=True) if p < LEVEL
    ]
    if wrong:
        p_value, what = min(wrong)
        yield (
            "error",
            f"Lots are no Poisson samples at the rate that the accountant counts on: "
            f"{what} (adjusted p = {p_value:.2g}; {len(wrong)} of {len(lots)} tests so). "
            "Train on the data loader that make_private returns.",
        )


def _lots(notes: Notes) -> list[tuple[float, str]]:
    """Return p-values of what lot sizes are asked, two of each client, and the answers."""
    asked = []
    for client, rounds in notes.items():
        rate = max(note.sampling_rate for _, note in rounds)
        lots = [(size, note.records, n) for _, note in rounds for size, n in note.lots]
        if not lots or rate >= 1:
            continue
        sizes, trials, times = (np.array(column) for column in zip(*lots, strict=True))
        counts = Counts("", np.repeat(sizes, times), np.repeat(trials, times), rate)
        mean = sizes @ times / times.sum()
        expected = rate * (trials @ times) / times.sum()
        told = f"those of {client} hold {mean:.4g} records on average"
        asked += [
            (counts.share(), f"{told}, and {expected:.4g} are counted on"),
            (
                counts.p_value(),
                f"those of {client} spread {counts.spread():.3g} times as much "
                f"(n = {len(counts.counts)})",
            ),
        ]
    return asked


def _noise(notes: Notes) -> Iterator[str]:
    """Say where the noise of steps is not as large as the optimizer's multiplier."""
    drawn: Sequence[tuple[str, EngineNote]] = [
        (f"round {index} of {client}", note)
        for client, rounds in notes.items()
        for index, note in rounds
        if note.values
    ]
    if not drawn:
        return
    squares = np.array([(note.square, float(note.values)) for _, note in drawn])
    p_values = holm(two_sided(squares))
    wrong = [n for n, p_value in enumerate(p_values) if p_value < LEVEL]
    if wrong:
        least = min(wrong, key=lambda n: squares[n, 0] / squares[n, 1])
        ratio = float(np.sqrt(squares[least, 0] / squares[least, 1]))
        yield (
            f"The noise of {len(wrong)} of {len(drawn)} rounds of clients is not as large "
            f"as the noise multiplier says: {drawn[least][0]} has {ratio:.3f} times its "
            f"standard deviation (n = {drawn[least][1].values})."
        )
    rows = np.array([note.first for _, note in drawn if len(note.first) == FIRST])
    rows = rows / np.linalg.norm(rows, axis=-1, keepdims=True).clip(min=1e-300)
    alike = np.abs(np.triu(rows @ rows.T, 1)) if len(rows) > 1 else np.zeros((1, 1))
    if correlation_p(float(alike.max()), FIRST) * alike.size < LEVEL:
        yield (
            "The noise of two rounds of clients is the same "
            f"(correlation {alike.max():.3f}, n = {FIRST}): whoever sees both subtracts it."
        )
