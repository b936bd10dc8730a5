"""The README.txt beside a card: what is included, what is not, what it still reveals."""

from collections.abc import Iterator, Mapping
from typing import Any

from privaudit.privacy.certificate import REPEATABLE, is_repeatable
from privaudit.report.export.allow_list import AllowList
from privaudit.report.export.audits import AUDITS, FEWEST

README = "README.txt"
_TELLS = """\
What a card still reveals
  It is computed from the true membership, so it is not differentially private. It
  reveals the number of members, but no single one: no result is on fewer than {fewest}
  members or {fewest} non-members. Someone who knows all candidates but one, with their
  scores, may learn about that one from any exact number. Someone with the data who
  guesses the run's seed can train again, compare, and identify all members: seeds
  below 4294967296 can be tried one by one. Hashes named "sealed" are HMACs under a key
  that stayed with the run; without it they confirm no guess.
"""


def readme(card: Mapping[str, Any], left: AllowList, files: Mapping[str, int]) -> str:
    """Return the text of README.txt."""
    return "\n".join([*_lines(card, left, files), "", _TELLS.format(fewest=FEWEST)])


def _lines(
    card: Mapping[str, Any], left: AllowList, files: Mapping[str, int]
) -> Iterator[str]:
    config = card["run"]["config"]
    yield "A privacy audit by privaudit, without its private parts"
    yield ""
    origin = card["run"].get("origin")
    if origin:
        yield f"  a run from elsewhere ({origin}): its owner's words stay with the run"
    else:
        yield f"  trainer {config.get('trainer')}, data {config.get('dataset')}"
    yield f"  transcript {card['run']['progress']['head']}"
    yield f"  card {card['sha256']}"
    if count := card.get("tried", {}).get("audits"):
        yield f"  {count} audits of the run are in its log; verdicts are corrected for"
        yield "  those that differ"
    if any(map(is_repeatable, card["privacy"].get("certified", {}).values())):
        yield ""
        yield f"  {REPEATABLE.capitalize()}: its noise derives from a seed. Certified"
        yield "  epsilons are what the same run would have under a secret key."
    for scenario, audit in card[AUDITS].items():
        yield ""
        yield audit["question"]
        yield from (f"  {line}" for line in _verdicts(audit, scenario))
        yield f"  {_proof(card['privacy'], audit)}"
    yield ""
    yield "Included"
    yield "  card.json: estimates with intervals and n, verdicts, settings, claimed"
    yield "  and certified epsilon, versions, hashes. `privaudit verify card.json`"
    yield "  checks it against the run."
    yield ""
    yield "Left out: files"
    yield from (f"  {count:4d}  {kind}" for kind, count in files.items())
    yield ""
    yield "Left out: entries of the included files"
    yield f"  {len(left.withheld):4d}  known, and private or given elsewhere"
    yield f"  {len(left.few):4d}  results on fewer than {FEWEST} members or non-members"
    yield f"  {len(left.unknown):4d}  unknown keys"
    yield f"  {len(left.odd):4d}  values of an unknown form"


def _proof(privacy: Mapping[str, Any], audit: Mapping[str, Any]) -> str:
    """Say what is claimed, and what is proved where the audit looked."""
    view = str(audit.get("threat")).partition(":")[0]
    claimed = privacy.get("claimed", {}).get("epsilon")
    certified = privacy.get("certified", {}).get(view, {})
    proved, declared = certified.get("epsilon"), certified.get("declared")
    epsilons = ["none" if e is None else f"{e:.3g}" for e in (claimed, proved)]
    whom = f" for one {certified.get('unit', 'record')}" if proved is not None else ""
    return (
        f"epsilon: claimed {epsilons[0]}, proved against this view {epsilons[1]}{whom}"
        + ("" if declared is None else f" (declared {declared:.3g}: nobody's proof)")
    )


def _verdicts(audit: Mapping[str, Any], scenario: str) -> Iterator[str]:
    """Yield one line for each attack on clients' models, the headline first."""
    if not audit["leaks"]:
        yield f"{scenario}: no result is on enough records"
    if "unknown_attacks" in audit:
        yield (
            f"{audit['unknown_attacks']} attacks left out: the installation that "
            "exported does not have them"
        )
    for attack, leak in audit["leaks"].items():
        yield f"{attack}: {leak['verdict']['sentence']}"
