"""Families of models: a row of ``built_in``, or a file, found by the kind it registers."""

# Kinds whose module is called otherwise: a look-up imports that module alone.
MODULES = dict.fromkeys(
    (
        *("blip", "clip", "decoder", "encoder", "llava", "seq2seq"),
        *("tiny-clip", "tiny-llava", "vit", "vlm"),
    ),
    "built_in",
)
