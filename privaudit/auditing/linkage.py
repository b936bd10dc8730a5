"""Linking: which of the models that came without names is a client's?

A peer in pFedMoAP gets other clients' prompts, and nothing says whose they are, nor,
unless all clients take part in all rounds, from which round. It attacks a client by the
one that explains the client's candidates best. No truth is in reach here.
"""

from collections.abc import Sequence
from dataclasses import replace

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.signals import measure_signals
from privaudit.core.tensors import distinct
from privaudit.federation.trainer import Reconstruction, Records, Task, Trainer


def link(
    trainer: Trainer,
    task: Task,
    reconstructed: Sequence[Reconstruction],
    candidates: Sequence[Records],
) -> list[Reconstruction]:
    """Put the suspect that is most likely a client's in the place of its model.

    That is the one with the highest mean log-probability of the candidates' labels: of
    a client's candidates half were trained on, and all follow its classes. Membership
    is not needed. Without suspects all is returned as it is. (On digits, 10 clients, 8
    runs: 67 % right at 11 % by chance. Fit to candidates beyond that to public records
    of the same classes: 49 %, so that a client's classes tell more than its members.)
    """
    chosen = list(reconstructed)
    alike: dict[tuple[int, ...], list[int]] = {}  # one view's suspects are one object
    for i, one in enumerate(reconstructed):
        if len(one.suspects):
            alike.setdefault(tuple(map(id, one.suspects)), []).append(i)
    for group in alike.values():
        suspects = reconstructed[group[0]].suspects
        together = Records.joined([candidates[i] for i in group])
        signals = measure_signals(trainer, task, suspects, together)
        sizes = [len(candidates[i]) for i in group]
        for i, fit in zip(
            group, signals.log_likelihood.split(sizes, dim=1), strict=True
        ):
            best = suspects[int(fit.mean(dim=1).argmax())]
            chosen[i] = replace(reconstructed[i], model=best)
    return chosen


def link_targets(adversary: Adversary, targets: Sequence[Target]) -> list[Target]:
    """Return the targets, each with its likeliest suspect as its model.

    Equal models are one object, so that attacks ask it about public records once.
    """
    linked = link(
        adversary.trainer,
        adversary.task,
        [target.reconstructed for target in targets],
        [target.candidates for target in targets],
    )
    models = [one.model for one in linked]
    first, places = distinct(models)
    return [
        replace(target, reconstructed=replace(one, model=models[first[place]]))
        for target, one, place in zip(targets, linked, places, strict=True)
    ]
