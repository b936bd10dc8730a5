"""Small random SigLIPs, saved in the layout that the hub has them in.

What of the published files decides how a text is read stands here in small: a context
that all texts are padded to, an end token that is also SigLIP's padding, Gemma's
tokenizer for SigLIP 2, sharded bfloat16 weights, no mask for padding.
"""

import json
from pathlib import Path
from typing import Any

import torch

from privaudit.models.hugging_face import import_transformers
from tests.small_transformers import LAYERS, WIDTH, random_model

SIDE, CONTEXT = 28, 24
_SENTENCES = (
    "a photo of a bright film",
    "a dull song and a calm play",
    "it was not very good",
    "abcdefghijklmnopqrstuvwxyz",
)


def siglip_tokenizer(version: int) -> Any:
    """Return SigLIP's tokenizer of pieces, or Gemma's as SigLIP 2 has it."""
    from tokenizers import (
        Regex,
        Tokenizer,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    letters = [*sorted(set("".join(_SENTENCES)) - {" "}), "▁"]
    if version == 1:
        special, end = ["<pad>", "</s>", "<unk>"], "</s>"
        words = {f"▁{word}" for text in _SENTENCES for word in text.split()}
        pieces = [(each, 0.0) for each in special]
        pieces += [(each, -9.0) for each in letters]
        pieces += [(each, -2.0) for each in sorted(words - {"▁bright"})]
        made = Tokenizer(models.Unigram(pieces, unk_id=2))
        made.normalizer = normalizers.Sequence(
            [
                normalizers.Lowercase(),
                normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""),
                normalizers.Strip(),
            ]
        )
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        names = {"pad_token": "</s>", "unk_token": "<unk>"}
    else:
        special, end = ["<pad>", "<eos>", "<bos>", "<unk>"], "<eos>"
        made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        trainer = trainers.BpeTrainer(
            vocab_size=80,
            special_tokens=special,
            initial_alphabet=letters,
            show_progress=False,
        )
        made.train_from_iterator(_SENTENCES, trainer)
        names = {"pad_token": "<pad>", "bos_token": "<bos>", "unk_token": "<unk>"}
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, special.index(end))]
    )
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=end,
        model_input_names=["input_ids"],
        model_max_length=CONTEXT,
        **names,
    )


def siglip_model(version: int) -> Any:
    """Return a small random ``SiglipModel``."""
    transformers = import_transformers()
    text = {
        **LAYERS,
        "vocab_size": 90,
        "max_position_embeddings": CONTEXT,
        "projection_size": WIDTH,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    eye = {**LAYERS, "image_size": SIDE, "patch_size": 14 if version == 1 else 7}
    config = transformers.SiglipConfig(text_config=text, vision_config=eye)
    return random_model(lambda: transformers.SiglipModel(config))


def save_siglip(folder: Path, version: int) -> str:
    """Save one as the hub has it, in bfloat16 and shards; return its ``--model``."""
    transformers = import_transformers()
    transformers.utils.logging.disable_progress_bar()
    model = siglip_model(version).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="20KB")
    siglip_tokenizer(version).save_pretrained(folder)
    transformers.SiglipImageProcessor(
        size={"height": SIDE, "width": SIDE}, resample=2 + (version == 1)
    ).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    written = json.loads(path.read_text())
    written["tokenizer_class"] = "SiglipTokenizer" if version == 1 else "GemmaTokenizer"
    written["processor_class"] = "SiglipProcessor"
    if version == 2:
        written |= {"add_bos_token": False, "add_eos_token": True}
    path.write_text(json.dumps(written))
    return f"clip:{folder}"
