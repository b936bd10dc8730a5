"""Attacks by file. To add one, copy ``lira.py``; a one-line score goes to its like."""

from privaudit.core.registry import import_under_one_name

import_under_one_name(__name__)

# Names whose module is called otherwise: a look-up imports that module alone.
MODULES = {
    **dict.fromkeys(
        ("confidence", "entropy", "loss-threshold", "modified-entropy"),
        "output_attacks",
    ),
    **dict.fromkeys(
        (
            "max-prob-gap",
            "max-renyi",
            "min-k",
            "min-k-plus-plus",
            "mod-renyi",
            "perplexity-zlib",
            "token-loss",
        ),
        "token_attacks",
    ),
}
IN_LABS = (
    "difficulty-calibration",
    "extraction",
    "fedmia",
    "gradient-norm",
    "label-only",
    "neighbourhood",
    "quantile-regression",
    "ramia",
    "upload-inversion",
    "whitened-alignment",
)
RENAMED = {"pipra": "prompt-discriminant"}
