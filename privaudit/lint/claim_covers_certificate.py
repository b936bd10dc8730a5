"""Is what is claimed at least what is certified, in every view?"""

from privaudit.lint.evidence import Evidence
from privaudit.lint.finding import Found, Rule


def _check(evidence: Evidence) -> Found:
    claimed, certified = evidence.claim.epsilon, evidence.certified
    if claimed is None:
        return
    beyond = [v for v, c in certified.items() if c.epsilon and c.epsilon > claimed]
    nothing = [v for v, c in certified.items() if c.epsilon is None]
    table = ", ".join(f"{view} {proved}" for view, proved in certified.items())
    told = (
        f"Claimed is {claimed:g} at delta {evidence.claim.delta:g}; certified: {table}"
    )
    if not evidence.claim_holds:
        yield (
            "error",
            f"{told}. No epsilon as low as the claimed one is proved for "
            f"{', '.join(beyond) or 'any view'}.",
            evidence.setting("mode", "clip"),
        )
    elif beyond or nothing:
        more = [f"it does not hold for {', '.join(beyond)}"] if beyond else []
        if nothing:
            why = certified[nothing[0]].why.rstrip(".")
            more.append(f"nothing is proved for {', '.join(nothing)} ({why})")
        holds = [view for view in certified if view not in (*beyond, *nothing)]
        yield (
            "warning",
            f"{told}. The claim holds for {', '.join(holds)}; {'; '.join(more)}.",
            evidence.setting("mode", "noise_at"),
        )


CLAIM_COVERS_CERTIFICATE = Rule(
    "claim-covers-certificate",
    "Is the claimed epsilon at least the certified one, in each view?",
    _check,
)
