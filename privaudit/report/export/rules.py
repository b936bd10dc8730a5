"""Which keys of a run's files may leave the machine, and in what form."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.errors import ConfigError, PluginError, UnknownNameError
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.flower_partition import FLOWER, FlowerPartition
from privaudit.federated.runs.tasks import EXACT
from privaudit.federated.trainer import TRAINERS
from privaudit.federated.transcripts.threat_models import THREATS
from privaudit.models import registry
from privaudit.privacy.certificate import CertifiedView
from privaudit.recording.origins.scores import SCORES
from privaudit.report.export.allow_list import (
    AllowList,
    FieldRule,
    Omitted,
    counts,
    each,
    either,
    entries,
    flag,
    length,
    listed,
    number,
    one_of,
    text,
    withheld,
)
from privaudit.report.export.texts import (
    ACCOUNTANT,
    BOUND_METHOD,
    CANARIES,
    CLAIM,
    MEANING,
    MECHANISM,
    METHOD,
    METRIC,
    MODELS,
    NOISE_AT,
    PACKAGE,
    PARTITIONS,
    READ,
    REASON,
    RELEASE,
    SCORED_BY,
    SHA,
    SLUG,
    VERSION,
    VIEW,
    WHY,
    attack_label,
    is_label,
)
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.captions.token_f1 import F1
from privaudit.statistics.verdict import Sampling

VERDICT = entries(
    {
        "kind": text(
            r"(NOT )?REFUTED|UNDERPOWERED|UNTESTABLE|leaks|reversed|no evidence|"
            r"underpowered|sampling unknown"
        ),
        "alarm": flag,
        "sentence": withheld,  # made again from the numbers
    }
)
ESTIMATE = entries(
    {
        "value": number,
        "low": number,
        "high": number,
        "n": counts,
        "method": METHOD,
        "confidence": number,
        "unresolved": REASON,
    }
)


def per_attack(rule_of_each: FieldRule) -> FieldRule:
    """Return a rule for an object with an entry for each of some attacks."""

    def rule(sieve: AllowList, value: Any, place: str) -> Any:
        names = filter(is_label, value) if isinstance(value, Mapping) else ()
        return entries(dict.fromkeys(names, rule_of_each))(sieve, value, place)

    return rule


EXTRACTED = each(
    r"[0-9.]{1,9} % shown, (greedy|n = [0-9,]{1,9}|"
    r"(exact|up to [0-9.]{1,9} % of tokens differ) within [0-9]{1,5} draws)",
    entries(dict.fromkeys(("members", "others", "beyond"), ESTIMATE)),
)
CLOSENESS = each(r"(cosine|distance|agreement)(_null)?", ESTIMATE)
CAPTIONS = entries(dict.fromkeys((*METRICS, F1, EXACT), ESTIMATE))


def model(sieve: AllowList, value: object, place: str) -> str | Omitted:
    """Let a model's name through, but of one in a folder only what kind it is."""
    kind = str(value).partition(":")[0]
    with suppress(UnknownNameError, PluginError):
        sources = registry.MODELS.find(kind).sources
        if sources in (registry.FOLDER, registry.FOLDER_OR_HUB):
            return kind
    sieved: str | Omitted = MODELS(sieve, value, place)
    return sieved


def partition(sieve: AllowList, value: object, place: str) -> str | Omitted:
    """Let a partition through, one of flwr-datasets without its own seed."""
    if str(value).startswith(FLOWER):
        with suppress(ConfigError):
            found = FlowerPartition.of(str(value))
            rest = {k: one for k, one in found.parameters.items() if "seed" not in k}
            value = str(replace(found, parameters=rest))
    sieved: str | Omitted = PARTITIONS(sieve, value, place)
    return sieved


SETTING = either(flag, number, SLUG)
CONFIG = entries(
    {
        "trainer": one_of(TRAINERS.names),
        "settings": each(r"(?!.*seed)[a-z_]+", SETTING),
        "dataset": one_of(DATASETS.names),
        "data": withheld,
        "image_column": withheld,
        "label_column": withheld,
        "text_column": withheld,
        "owner_column": withheld,
        "classes": withheld,
        "groups": withheld,  # a column's name is the owner's word
        "model": model,
        "checkpoint": withheld,
        "template": withheld,
        "precision": SLUG,
        "quantise": text("4bit|8bit"),
        "clients": number,
        "partition": partition,
        "alpha": number,
        "shards": number,
        "sizes": withheld,
        "rounds": number,
        "participation": number,
        "context_tokens": number,
        "shots": number,
        "without": withheld,  # positions of records
        "members": SLUG,
        "test_share": number,
        "public_share": number,
        "publish": flag,
        "seed": withheld,
        "views": number,
        "cohort_size": number,
        "measured_rounds": number,
        "targets": text(r"[a-z0-9_-]+(, ?[a-z0-9_-]+){0,9}"),
        "tested": number,
        "tested_clients": number,
        "canary": SLUG,
        "canaries": number,
        "secure_aggregation": SLUG,
        "masking_graph": SLUG,
        "dropout": number,
        "randomness": SLUG,
        "sampling": text(*get_args(Sampling)),
    }
)
DEVICE = entries(
    {
        "kind": text("cpu|cuda|mps"),
        "name": withheld,  # tells machines apart
        "deterministic": flag,
        "matmul": text("highest|high|medium"),
    }
)
HEADER = entries(
    {
        "format": number,
        "privaudit": VERSION,
        "origin": text("recorded|scores"),
        "libraries": each(
            "torch|open-clip-torch|numpy|opacus|dp-accounting|transformers|tokenizers",
            VERSION,
        ),
        "python": VERSION,
        "threads": number,
        "device": DEVICE,
        "earlier": withheld,
        "equal_bytes": flag,
        "counts_audits": withheld,
        "stacked_clients": withheld,  # tells machines apart
        "records_at_once": withheld,
        "precision_seconds": withheld,
        "remote_code": flag,
        "plugins": each("trainer|dataset|model", PACKAGE),
        "class_names": withheld,
        "config": CONFIG,
        "identity_hash": withheld,  # of the place or content of data, too
        "model_hash": SHA,
        "data_hash": withheld,  # sealed, or plain for data that come along
        "ledger_hash": withheld,  # sealed
        "progress": entries(
            {
                "rounds": number,
                "length": number,
                "head": SHA,
                "metrics_hash": withheld,
                "trace_hash": withheld,
                "checkpoint_hash": withheld,
            }
        ),
        "files": withheld,
    }
)
_GUARANTEE: dict[str, FieldRule] = {"epsilon": number, "delta": number}
PRIVACY = entries(
    {
        "claimed": entries({**_GUARANTEE, "source": CLAIM}),
        "certified": each(
            "|".join((*get_args(CertifiedView), SCORES)),
            entries(
                {
                    **_GUARANTEE,
                    "view": VIEW,
                    "mechanism": MECHANISM,
                    "accountant": ACCOUNTANT,
                    "why": WHY,
                    "unit": text("record|client"),
                    "adjacency": text("(add/remove|replace)-one"),
                    "randomness": text("seed|system"),
                    "declared": number,
                }
            ),
        ),
        "mechanisms": listed(
            entries(
                {
                    "release": RELEASE,
                    "noise_multiplier": number,
                    "sensitivity": number,
                    "clip_norm": number,
                    "sampling_rate": number,
                    "sampling": text("poisson|fixed-batch|without-replacement"),
                    "noise_at": NOISE_AT,
                    "parties": number,
                    "steps": number,
                    "per_record": flag,
                    "kind": text("(discrete-)?gaussian"),
                    "unit": text("record|client"),
                    "adjacency": text("(add/remove|replace)-one"),
                    "bounded": flag,
                    "values": number,
                    "scale": number,
                    "rounding": text("nearest|toward-zero"),
                    "rounds": counts,
                }
            )
        ),
    }
)
LEAK = entries(
    {
        "attack": attack_label,
        "settings": withheld,  # said again by the attack
        "threshold": withheld,  # likewise
        "package": PACKAGE,
        "auroc": ESTIMATE,
        "auroc_new_clients": ESTIMATE,
        "tpr_at_fpr": each(r"0\.[0-9]+", ESTIMATE),
        "success": ESTIMATE,
        "success_plain": ESTIMATE,
        "advantage": ESTIMATE,
        "by_client": each(r"client-\d+|clients", ESTIMATE),
        "verdict": VERDICT,
        "tied": number,
    }
)
BOUND = entries(
    {
        "value": number,
        "confidence": number,
        "delta": number,
        "n": counts,
        "ceiling": number,
        "design": text("one run|many runs"),
        "method": BOUND_METHOD,
        "can_refute": flag,
        "adjacency": text("(add/remove|replace)-one"),
        "unit": text("record"),
    }
)
AUDIT = entries(
    {
        "run": withheld,  # its name holds the seed
        "scenario": one_of(lambda: [*SCENARIOS.names(), SCORES]),
        "question": withheld,  # said again by the scenario
        "threat": text(*THREATS, SCORES, r"peer:client-\d+"),
        "clients": number,
        "seed": withheld,
        "budget": entries(
            dict.fromkeys(("seconds", "each", "clients", "shadows"), number)
        ),
        "config": withheld,  # the run's own is there
        "privacy": withheld,  # likewise
        "reconstruction": each(r"\d+", number),
        "utility": entries(
            {
                "local": ESTIMATE,
                "neighbour": ESTIMATE,
                "mix": ESTIMATE,
                "gain_over_zero_shot": ESTIMATE,
                "zero_shot": ESTIMATE,
                "metric": METRIC,
                "server": ESTIMATE,
                "everywhere": ESTIMATE,
                "captions": each("server|clients", CAPTIONS),
                "macro_f1": ESTIMATE,
                "tested_clients": number,
                "local_last_10_rounds": number,
            }
        ),
        "rebuilt": entries(
            {
                "missing": length,
                "staleness": number,
                "closeness": CLOSENESS,
            }
        ),
        "leaks": withheld,  # made again from the scores
        "server_model": withheld,  # likewise
        "linking": entries(
            {
                "attack": attack_label,
                "auroc_without": ESTIMATE,
                "auroc_difference": per_attack(
                    entries({"estimate": ESTIMATE, "p_value": number})
                ),
                "linked_right": ESTIMATE,
                "linked_right_by_chance": number,
                "suspects": number,
            }
        ),
        "rounds": listed(
            entries(
                {
                    "attack": attack_label,
                    "meaning": MEANING,
                    "by_round": each(r"\d+", ESTIMATE),
                }
            )
        ),
        "source": entries(
            {
                "members": ESTIMATE,
                "others": ESTIMATE,
                "beyond": ESTIMATE,
                "chance": number,
                "sentence": withheld,
            }
        ),
        "record_exposure": withheld,  # it names records
        "exposure": entries(
            {
                "secrets": number,
                "untrained": number,
                **dict.fromkeys(
                    ("members", "others", "first_of_members", "first_of_others"),
                    ESTIMATE,
                ),
                "beyond": ESTIMATE,
            }
        ),
        "extraction": entries({"p": number, "shares": EXTRACTED, "drawn": EXTRACTED}),
        "inversion": entries(
            {
                "measures": each(READ, each("members|others|guessed|beyond", ESTIMATE)),
                **dict.fromkeys(("matched", "clients", "tokens_read"), number),
                "pairs": withheld,  # they name records
            }
        ),
        "one_run": entries(
            {
                "canaries": CANARIES,
                "scored_by": SCORED_BY,
                "bound": BOUND,
                "others": listed(BOUND),
                "verdict": VERDICT,
            }
        ),
    }
)
