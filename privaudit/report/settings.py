"""How runs and attacks were set up, for the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from privaudit.auditing.audit import Audit, last_rounds
from privaudit.core.portable_bits import NOT_STATED, Provenance, in_words
from privaudit.report.report_data import ReportData
from privaudit.report.tables.attack_tables import outside_grid
from privaudit.report.wording import TableRows, setting
from privaudit.runs.ledger import known_by
from privaudit.runs.run import Run


def run_settings(data: ReportData) -> tuple[dict[str, str], TableRows]:
    """Return how the runs were made, and what came of it that is no result.

    What is the same in all of them, by name; and rows of what differs, "-" where a
    run has no such setting.
    """
    each = [_of_run(audit) for audit in data.audits]
    names = list(dict.fromkeys(name for fields in each for name in fields))
    table = {name: [fields.get(name, "-") for fields in each] for name in names}
    shared = {n: v[0] for n, v in table.items() if len(set(v)) == 1}
    rows: TableRows = [
        (n.replace("_", " "), *v) for n, v in table.items() if n not in shared
    ]
    return shared, rows


def _of_run(audit: Audit) -> dict[str, str]:
    run = audit.run
    fields = run.config.described()
    trainer_settings = fields.pop("settings")
    plugins: Mapping[str, str] = run.header.get("plugins", {})
    shown: dict[str, Any] = {
        "run": run.name,
        "written by": f"privaudit {run.header.get('privaudit', '?')}",
        **_signers(run),
        "equal bytes": run.why_not_repeatable,
        **_computed(audit),
        "trainer": fields.pop("trainer"),
        **{f"{kind} from": package for kind, package in plugins.items()},
        **{f"trainer: {name}": value for name, value in trainer_settings.items()},
        **fields,
        "members": _coins(run),
        "clients attacked": _attacked(audit),
        **(_of_rounds(audit) if run.metrics else {}),
    }
    return {name: setting(value) for name, value in shown.items() if value != ""}


def _computed(audit: Audit) -> dict[str, str]:
    """Say in which bits run and audit were computed; no processor, by which bytes differ."""
    trained = Provenance.of(audit.run.header).bits
    attacked = in_words(audit.computed) if audit.computed else ""
    if trained == attacked:
        return {"computed in": attacked or NOT_STATED}
    if audit.run.origin:
        return {"attacked in": attacked}
    return {"trained in": trained or NOT_STATED, "attacked in": attacked or NOT_STATED}


def _coins(run: Run) -> str:
    """Say how members were chosen, and who can choose the same again."""
    if run.sampling == "unknown" or run.config.members == "all":
        return "by no coin"
    if run.sampling != "coin":
        return _drawn(run)
    each = "a coin per client" if run.config.members == "clients" else "a coin each"
    if run.origin and run.truth.coin is None:
        return f"{each}, as declared"
    return f"{each}. {known_by(run.coin_seed) or 'Of a secret key.'}"


def _drawn(run: Run) -> str:
    """Say of what draw members are a part, and whether it was done again."""
    if run.sampling == "population":
        return "a random sample of a population, as the others, as declared"
    coin, split = run.truth.coin, "a random split of fixed size"
    if coin is None or coin.seed is None:
        return f"{split}, as declared"
    return f"{split} by {coin.randomness}, seed {coin.seed}, done again"


def _of_rounds(audit: Audit) -> dict[str, Any]:
    """Return what there is where something was trained and attacked."""
    metrics = audit.run.metrics
    return {
        "attack seed": audit.seed,
        **_of_last_rounds(audit),
        "bytes sent up, all rounds": f"{sum(line['bytes_up'] for line in metrics):,}",
        "bytes sent down, all rounds": f"{sum(n['bytes_down'] for n in metrics):,}",
        "masked with": masked_with(metrics),
    }


def masked_with(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return how many neighbours clients masked with; empty if not on a graph."""
    sums = [line.get("secure_sum") or {} for line in metrics]
    drawn = {(s["neighbours"], s["threshold"]) for s in sums if "neighbours" in s}
    return ", ".join(
        f"{neighbours} neighbours each, threshold {threshold}"
        for neighbours, threshold in sorted(drawn)
    )


def _signers(run: Run) -> dict[str, str]:
    """Say whose keys vouch for the run, and for its audits, once it lies in a folder."""
    if not run.is_stored:
        return {}
    trained, audited = run.signers
    return {"signed by": str(trained)} | (
        {"audits signed by": str(audited)} if audited else {}
    )


def _attacked(audit: Audit) -> str:
    """Say which clients each attack was on, or all attacks if they agree."""
    attacks, everyone = audit.results.items(), audit.run.config.clients
    whom = {
        name: f"all {everyone}"
        if len(result.clients) == everyone
        else ", ".join(client.client for client in result.clients)
        for name, result in attacks
    }
    if len(set(whom.values())) == 1:
        return next(iter(whom.values()))
    return "; ".join(f"{name}: {clients}" for name, clients in whom.items())


def _of_last_rounds(audit: Audit) -> dict[str, str]:
    """Return the utility of the last rounds, where it was measured."""
    if audit.utility is None or (last := last_rounds(audit.run)) is None:
        return {}
    return {f"own-class {audit.utility.metric}, {_which(audit.run)}": f"{last:.3f}"}


def _which(run: Run) -> str:
    """Say which rounds the utility is of: not each is measured where that is slow."""
    measured = sum(line["local_accuracy"] is not None for line in run.metrics)
    if measured == len(run.metrics):
        return "mean of last 10 rounds"
    if measured == 1:
        return "last measured round"
    return f"mean of last {min(measured, 10)} measured rounds"


def attack_settings(audits: Sequence[Audit]) -> dict[str, list[str]]:
    """Return each attack's parameters; several where runs were attacked differently.

    The cells of MaxRényi's grid, whose names say all, are left out.
    """
    by_attack: dict[str, list[str]] = {}
    for audit in audits:
        for name, result in outside_grid(audit.results).items():
            shown = f"{result.settings} of {result.package}".removesuffix(" of ")
            if shown and shown not in by_attack.setdefault(name, []):
                by_attack[name].append(shown)
    return by_attack
