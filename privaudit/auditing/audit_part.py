"""The interface of an audit's parts, and the list of them.

Beside what its attacks found, an audit holds parts: what single rounds tell, what one
run shows about epsilon, and so on. Each is a file in :mod:`privaudit.auditing.parts`,
which registers its part here; none is named anywhere else. The parts are computed after
the attacks, stored in audit.json, read back from there, and shown in the report.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.core.errors import ConfigError, shown
from privaudit.core.parameters import from_plain, to_plain
from privaudit.core.registry import Registry

R = TypeVar("R", covariant=True)
LATER = 100  # parts that came after the first version of audit.json
OWN_KEYS = frozenset(
    {
        "run", "scenario", "question", "threat", "clients", "seed", "budget", "computed",
        "config", "privacy", "reconstruction", "utility", "leaks",
    }
)  # fmt: skip
"""What an audit itself writes into audit.json, and no part may."""


@dataclass(frozen=True)
class AuditPart(Generic[R]):
    """One kind of result that an audit may hold beside its attacks.

    Whoever makes one enters it into the list.

    Attributes:
        name: In :attr:`privaudit.auditing.audit.Audit.parts`; that of its module.
        kind: The type of a result: dataclasses, estimates, numbers, texts, and tuples
            and mappings of them. pydantic writes and reads it by its fields.
        applies: Whether a scenario that was played has this part.
        compute: Returns the result where the part applies.
        nothing: The result where it does not.
        title: Heads the part in the report.
        key: In audit.json; by default the name.
        place: Among the parts of the first version of audit.json, which always has
            their keys. Later ones come last, and have a key only where they apply.
        scores: Before the names of attacks in scores.npz, for a part whose result is a
            mapping of attack results: scores are kept, and figures made from them anew.
    """

    name: str
    kind: Any
    applies: Callable[[PlayedScenario], bool]
    compute: Callable[[PlayedScenario], R]
    nothing: R
    title: str
    key: str = ""
    place: int = LATER
    scores: str = ""

    def __post_init__(self) -> None:
        if self.entry in OWN_KEYS:
            raise ConfigError(
                f"The audit part {shown(self.name)} writes {shown(self.entry)} of "
                "audit.json, which is the audit's own. Give it a key of its own."
            )
        PARTS.register(self.name)(self)

    @property
    def entry(self) -> str:
        """The key in audit.json."""
        return self.key or self.name

    def scored(self, result: Any) -> dict[str, Any]:
        """Return what a result, or its entry, holds of attacks, as scores.npz names them."""
        return (
            {f"{self.scores}{n}": r for n, r in result.items()} if self.scores else {}
        )

    def to_json(self, result: Any) -> Any:
        """Return a result as audit.json holds it."""
        if self.scores:
            return {name: one.to_dict() for name, one in result.items()}
        return to_plain(self.kind, result)

    def from_json(self, entry: Any, scored: Mapping[str, AttackResult]) -> Any:
        """Return the result that :meth:`to_json` wrote; attacks go by their names in scores.npz.

        Raises:
            ValueError: The entry is damaged, or of another version.
        """
        if self.scores:
            return {name: scored[f"{self.scores}{name}"] for name in entry}
        return from_plain(self.kind, entry)


PARTS: Registry[AuditPart[Any]] = Registry("audit part", "privaudit.auditing.parts")


def audit_parts() -> list[AuditPart[Any]]:
    """Return all parts in their order."""
    return sorted(PARTS.usable().values(), key=lambda p: (p.place, p.name))


def stored_parts(found: Iterable[str]) -> list[AuditPart[Any]]:
    """Return the parts that an audit.json holds, by the names or keys of those found."""
    names = set(found)
    return [p for p in audit_parts() if p.place < LATER or {p.name, p.entry} & names]
