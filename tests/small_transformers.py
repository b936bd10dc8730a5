"""Small models of transformers in folders, as a hub would have them, SigLIP among them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.models.hugging_face import import_peft, import_transformers
from privaudit.models.interfaces import Change, Tunable, Tuning

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "<s>", "</s>")
ANSWERS = ("yes", "no", "maybe")
TEXT_WORDS = (
    *("a", "the", "is", "it", "this", "was", "not", "very", "what", "who"),
    *("film", "play", "song", "good", "bad", "dull", "bright", "calm", "long"),
    *ANSWERS,
)
VOCABULARY = len(SPECIAL) + len(TEXT_WORDS)
WIDTH, SIZE, PATCH = 16, 16, 8
NAMES = ("bright film", "dull song", "calm play")

ENCODERS = (
    *("bert", "roberta", "distilbert", "electra"),
    *("albert", "xlm-roberta", "modernbert", "deberta", "deberta-v2"),
)
WITHOUT_PREFIX = ("encoder-deberta", "encoder-deberta-v2", "vit-Swin")
"""Families into whose attention no prefix can be put."""


def text_tokenizer(kind: str) -> Any:
    """Return a tokenizer of words with the family's own special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    numbers = {token: i for i, token in enumerate([*SPECIAL, *TEXT_WORDS])}
    made = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair, special = _AROUND[kind]
    if single:
        made.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(s, numbers[s]) for s in special]
        )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if kind in ENCODERS:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    else:
        names |= {"eos_token": "</s>"} | ({} if kind == "t5" else {"bos_token": "<s>"})
    inputs = ["input_ids", "attention_mask"]
    if kind in ("bert", "electra", "albert", "deberta-v2"):
        inputs.insert(1, "token_type_ids")
    fast = import_transformers().PreTrainedTokenizerFast
    return fast(tokenizer_object=made, model_input_names=inputs, **names)


_BERT = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ("[CLS]", "[SEP]"))
_AROUND: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    **dict.fromkeys(ENCODERS, _BERT),
    "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", ("[CLS]", "[SEP]")),
    "t5": ("$A </s>", "$A $B </s>", ("</s>",)),
    "bart": ("<s> $A </s>", "<s> $A $B </s>", ("<s>", "</s>")),
    "gpt2": ("", "", ()),
    "llama": ("<s> $A", "<s> $A $B", ("<s>",)),
    "clip": ("<s> $A </s>", "<s> $A $B </s>", ("<s>", "</s>")),
}


LAYERS = {
    "hidden_size": WIDTH,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_WORDS = {"vocab_size": VOCABULARY, "pad_token_id": 0}
_ENDS = {"bos_token_id": 4, "eos_token_id": 5}
_BERT_SIZES = {**LAYERS, "max_position_embeddings": 40}
_DISTANCES = {  # of the published ones: no absolute positions, above all
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
    "type_vocab_size": 0,
}
_BUCKETS = {"position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
_DISTIL = {"dim": WIDTH, "hidden_dim": 20, "n_layers": 2, "n_heads": 2}
_GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 48}
_T5 = {"d_model": WIDTH, "d_kv": 8, "d_ff": 20, "num_layers": 2, "num_heads": 2}
_WINDOW = {"num_hidden_layers": 3, "local_attention": 4}  # the third layer sees one
_SEPARATED = {
    "cls_token_id": 1,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BART = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20),
    "d_model": WIDTH,
}
_TEXTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("Bert", _BERT_SIZES),
    "roberta": ("Roberta", {**_BERT_SIZES, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", {**_BERT_SIZES, "type_vocab_size": 1}),
    "albert": ("Albert", {**_BERT_SIZES, "embedding_size": 8}),
    "electra": ("Electra", {**_BERT_SIZES, "embedding_size": 8}),
    "modernbert": ("ModernBert", {**_BERT_SIZES, **_WINDOW, **_SEPARATED}),
    "deberta": ("Deberta", {**_BERT_SIZES, **_DISTANCES}),
    "deberta-v2": ("DebertaV2", {**_BERT_SIZES, **_DISTANCES, **_BUCKETS}),
    "distilbert": ("DistilBert", {**_DISTIL, "max_position_embeddings": 40}),
    "gpt2": ("GPT2", {**_GPT, **_ENDS}),
    "llama": ("Llama", {**LAYERS, "max_position_embeddings": 48, **_ENDS}),
    "bart": ("Bart", {**_BART, **_ENDS, "decoder_start_token_id": 5}),
    "t5": ("T5", {**_T5, "decoder_start_token_id": 0, "eos_token_id": 5}),
}


def text_config(kind: str) -> Any:
    """Return a small configuration of a family that reads texts."""
    name, sizes = _TEXTS[kind]
    return getattr(import_transformers(), f"{name}Config")(**{**_WORDS, **sizes})


_CLASSES = {
    **dict.fromkeys(("gpt2", "llama"), "AutoModelForCausalLM"),
    **dict.fromkeys(("t5", "bart"), "AutoModelForSeq2SeqLM"),
}


def random_model(build: Callable[[], Any], seed: int = 0) -> Any:
    """Build a model, and move its weights so that none are 0 or 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    return model.eval().requires_grad_(False)


def text_model(kind: str) -> Any:
    """Return a small random model of a family that reads texts."""
    transformers = import_transformers()
    made = getattr(transformers, _CLASSES.get(kind, "AutoModel"))
    return random_model(lambda: made.from_config(text_config(kind)))


def vision_config(kind: str) -> Any:
    """Return a small configuration of an image tower, of SigLIP with its texts'."""
    transformers = import_transformers()
    if kind == "Siglip":
        text = text_config("bert").to_dict() | {"projection_size": WIDTH}
        eye = vision_config("SiglipVision").to_dict()
        eye["patch_size"] = 7  # a margin is left over, as in so400m-patch14-384
        return transformers.SiglipConfig(text_config=text, vision_config=eye)
    if kind == "Swin":  # windows of 3 among 8 and 4 patches a side: some are padded
        stages = {"depths": [2, 2], "num_heads": [1, 2], "embed_dim": WIDTH // 2}
        return transformers.SwinConfig(
            image_size=SIZE, patch_size=2, window_size=3, mlp_ratio=2, **stages
        )
    made = getattr(transformers, f"{kind}Config")
    return made(**LAYERS, image_size=SIZE, patch_size=PATCH)


def clip_model() -> Any:
    """Return a small random CLIP."""
    transformers = import_transformers()
    config = transformers.CLIPConfig(
        text_config={**_WORDS, **LAYERS, "max_position_embeddings": 20, **_ENDS},
        vision_config=vision_config("CLIPVision").to_dict(),
        projection_dim=12,
    )
    return random_model(lambda: transformers.CLIPModel(config))


def blip_model(language: str) -> Any:
    """Return a small random BLIP-2 in front of a language model."""
    transformers = import_transformers()
    config = transformers.Blip2Config(
        vision_config=vision_config("Blip2Vision").to_dict(),
        qformer_config={
            **LAYERS,
            "vocab_size": VOCABULARY,
            "encoder_hidden_size": WIDTH,
        },
        text_config=_blip_language(language).to_dict(),
        num_query_tokens=3,
    )
    kind = transformers.Blip2ForConditionalGeneration
    return random_model(lambda: kind(config))


def _blip_language(kind: str) -> Any:
    if kind == "t5":
        return text_config("t5")
    return import_transformers().OPTConfig(
        **_WORDS,
        **_ENDS,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=48,
    )


def image_processor() -> Any:
    """Return what makes pictures of any size into what the towers take."""
    return import_transformers().CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}
    )


def save(folder: Path, family: str) -> str:
    """Save a family's small model with all that it needs; return its ``--model``."""
    import_transformers().utils.logging.disable_progress_bar()
    kind, _, which = family.partition("-")
    if kind in ("encoder", "decoder", "seq2seq"):
        text_model(which).save_pretrained(folder)
        text_tokenizer(which).save_pretrained(folder)
        return f"{kind}:{folder}"
    image_processor().save_pretrained(folder)
    if kind == "vit":
        made = import_transformers().AutoModel.from_config
        random_model(lambda: made(vision_config(which))).save_pretrained(folder)
    elif kind == "clip":
        clip_model().save_pretrained(folder)
        text_tokenizer("clip").save_pretrained(folder)
    else:
        blip_model(which).save_pretrained(folder)
        text_tokenizer("t5" if which == "t5" else "llama").save_pretrained(folder)
    return f"{kind}:{folder}"


def alter(name: str, **entries: Any) -> Callable[[Path], None]:
    """Return what changes entries of a JSON file in a folder."""

    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | entries))

    return change


def some_lora(model: Tunable, parameters: Stacked) -> Tuning:
    """Return what pairs named "TARGET A" and "TARGET B" add."""

    def one(name: str) -> Change:
        first, second = parameters[f"{name} A"], parameters[f"{name} B"]
        return lambda rows: 0.5 * (rows @ first.mT) @ second.mT

    return Tuning({name: one(name) for name in model.targets})


def with_lora_of_peft(
    inner: Any, model: Tunable, pairs: Mapping[str, Tensor], **options: Any
) -> Any:
    """Return peft's own model around the same weights, with a first model's pairs."""
    peft = import_peft()
    names = list(model.targets)
    rank = len(pairs[f"{names[0]} A"][0])
    asked = peft.LoraConfig(
        r=rank, lora_alpha=rank / 2, target_modules=names, **options
    )
    wrapped = peft.get_peft_model(inner, asked).eval()
    modules = dict(wrapped.base_model.model.named_modules())
    with torch.no_grad():
        for name in names:
            modules[name].lora_A["default"].weight.copy_(pairs[f"{name} A"][0])
            modules[name].lora_B["default"].weight.copy_(pairs[f"{name} B"][0])
    return wrapped


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int = 1) -> dict[str, Tensor]:
    """Draw leaves of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (0.3 * torch.randn(*shape, generator=generator)).requires_grad_()
        for name, shape in shapes.items()
    }


def pair_shapes(model: Tunable, k: int, rank: int = 2) -> dict[str, tuple[int, ...]]:
    """Return the shapes of k models' pairs for every target."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, target in model.targets.items():
        shapes[f"{name} A"] = (k, rank, target.inputs)
        shapes[f"{name} B"] = (k, target.outputs, rank)
    return shapes


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
