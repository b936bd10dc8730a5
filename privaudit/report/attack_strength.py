"""How strong the attack was that a verdict stands on, and what is stronger on what is here.

An attack that asks the target alone leaves models undecided that leak to one with shadow
models: where it finds nothing, and models can be trained, a page is not green.
"""

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass

from privaudit.auditing.audit import Audit
from privaudit.auditing.named_attacks import shadows_of
from privaudit.auditing.scenario import NAMED, find_plan, weight_attacks
from privaudit.auditing.shadow_budget import LADDER
from privaudit.core.errors import PluginError, UnknownNameError
from privaudit.recording.origins.scores import ScoredRun
from privaudit.report import wording

_DECLARED = re.compile(r"shadows=(\d{1,6})|(\d{1,6}) shadow", re.IGNORECASE)


@dataclass(frozen=True)
class HeadlineStrength:
    """How strong a headline attack was.

    Attributes:
        made: What was attacked, by whom, with how many shadow models.
        stronger: What could still be made, and its cost; empty if nothing.
        command: What makes it; empty where no command does.
        is_weak: Whether it had no shadow models where there could be some.
    """

    made: str
    stronger: str = ""
    command: str = ""
    is_weak: bool = False

    @property
    def sentence(self) -> str:
        """Both, as a page has them behind a verdict."""
        more = f" Stronger on what is here: {self.stronger}." * bool(self.stronger)
        return f"Attack: {self.made}.{more}"


def strength_of(audit: Audit) -> HeadlineStrength:
    """Return how strong the attack was that an audit's verdict stands on."""
    result, count = audit.headline, _shadows(audit)
    models = f"{count} shadow models a client" if count else "without shadow models"
    if isinstance(audit.run, ScoredRun) and not audit.run.is_pool:
        models = f"{count or 'no'} shadow models declared"
    by_weights = result.attack in weight_attacks()
    how = "weights alone" if by_weights else models
    who = wording.adversary(audit.scenario.threat).partition(",")[0]
    made = f"{result.attack}, {how}, on {wording.attacked(audit)}, by {who}"
    wanted = next((rung for rung in LADDER if rung > count), 0)
    if not wanted or by_weights or not _takes_shadows(audit, count):
        return HeadlineStrength(made)
    stronger, command = _stronger(audit, wanted)
    return HeadlineStrength(made, stronger, command, is_weak=not count)


def _stronger(audit: Audit, wanted: int) -> tuple[str, str]:
    """Return what more shadow models would be, in words with their cost, and by command."""
    attack, run = f"{NAMED} with {wanted} shadow models", audit.run
    cost = f"at the cost of {wanted} trainings"
    if isinstance(run, ScoredRun):
        by_hand = f"(from_shadows), {cost}"
        return f"{attack} {'on each training' if run.is_pool else by_hand}", ""
    if not run.trains_shadows:
        return f"{attack}, once --owner says how a client trains (local_update)", ""
    command = ["privaudit", "attack", run.name, "--scenario", audit.scenario.name]
    return f"{attack}, {cost}", shlex.join([*command, "--shadows", str(wanted)])


def _shadows(audit: Audit) -> int:
    """Return how many shadow models the headline had; of scores as they are declared."""
    result = audit.headline
    said = _DECLARED.search(f"{result.settings} {result.attack}")
    if said and isinstance(audit.run, ScoredRun):
        return int(said[1] or said[2])
    return shadows_of(result.settings) or 0


def _takes_shadows(audit: Audit, count: int) -> bool:
    """Say whether attacks of the scenario train shadow models, or trained some."""
    if count or isinstance(audit.run, ScoredRun):
        return True
    with suppress(UnknownNameError, PluginError):
        attacks = find_plan(audit.scenario.name).attacks.values()
        return any(attack.trains_shadows for attack in attacks)
    return False
