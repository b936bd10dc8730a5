"""Small vision-language models of transformers in folders, and what they compute themselves."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from privaudit.datasets.records import ANSWER, Dialogue, Records
from privaudit.models.hugging_face import import_transformers
from privaudit.models.vision_language.vlm import VisionLanguageModel
from tests.small_records import RaggedPictures
from tests.small_transformers import random_model, with_lora_of_peft

WIDTH, SIDE = 16, 16
_SENTENCES = (
    "a red square and a blue circle",
    "what is it? yes no maybe who is this",
    "You are a helpful assistant.",
    "user assistant system model User: Assistant: USER: ASSISTANT:",
)
_IM = ("<|im_start|>", "<|im_end|>")
_QWEN = (*_IM, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_TILES = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE], [SIDE, 3 * SIDE]]


def _chat(before: str, mark: str, after: str) -> str:
    """Return a chat template for one question about one picture."""
    return (
        f"{before}{{% for part in messages[0]['content'] %}}"
        f"{{% if part['type'] == 'image' %}}{mark}"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}{after}{{% endif %}}"
    )


_QWEN_CHAT = _chat(
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|im_end|>\n<|im_start|>assistant\n",
)
CHATS: Mapping[str, str | None] = {
    "llava": _chat("USER: ", "<image>\n", " ASSISTANT:"),
    "llava_next": _chat("[INST] ", "<image>\n", " [/INST]"),
    "llava_onevision": _chat(
        "<|im_start|>user ", "<image>\n", "<|im_end|><|im_start|>assistant\n"
    ),
    "qwen2_vl": _QWEN_CHAT,
    "qwen2_5_vl": _QWEN_CHAT,
    "qwen3_vl": _QWEN_CHAT.split("<|im_end|>\n", 1)[1],
    "idefics3": _chat("<|im_start|>User:", "<image>", "<end_of_utterance>\nAssistant:"),
    "smolvlm": _chat("<|im_start|>User:", "<image>", "<end_of_utterance>\nAssistant:"),
    "paligemma": None,
    "gemma3": _chat(
        "<bos><start_of_turn>user\n",
        "<start_of_image>",
        "<end_of_turn>\n<start_of_turn>model\n",
    ),
    "internvl": _chat(
        "<|im_start|>user\n", "<IMG_CONTEXT>\n", "<|im_end|>\n<|im_start|>assistant\n"
    ),
}
FAMILIES = tuple(CHATS)

_ROWS = tuple(f"<row_{i}_col_{j}>" for i in range(1, 4) for j in range(1, 4))
_IDEFICS = (
    *("<|im_start|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"),
    *("<global-img>", *_ROWS),
)
_GEMMA = ("<start_of_turn>", "<end_of_turn>")
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "llava": ("<image>",),
    "llava_next": ("<image>",),
    "llava_onevision": (*_IM, "<image>", "<video>"),
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "qwen3_vl": _QWEN,
    "idefics3": _IDEFICS,
    "smolvlm": _IDEFICS,
    "paligemma": ("<image>",),
    "gemma3": (*_GEMMA, "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
    "internvl": (*_IM, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
}
_NAMED: Mapping[str, Mapping[str, str]] = {
    "gemma3": {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
}


@cache
def _trained() -> str:
    """Return a tokenizer of bytes and a few words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<pad>", "<bos>", "<eos>"],
        show_progress=False,
    )
    made.train_from_iterator([*_SENTENCES, "\n\n\n\n", "\n\n\n", "\n\n"], trainer)
    return str(made.to_str())


def _tokenizer(family: str) -> Any:
    from tokenizers import Tokenizer, processors

    made = Tokenizer.from_str(_trained())
    made.add_special_tokens(list(_SPECIAL[family]))
    if family in ("llava", "llava_next", "gemma3"):
        made.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", 1)]
        )
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=dict(_NAMED.get(family, {})),
    )


_TEXT = {
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": WIDTH // 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SIGHT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
}
_QWEN_TEXT = {"max_window_layers": 2}  # as many as there are layers, as published
_MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
_QWEN_SIGHT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def _parts(family: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what is said of the text, of the pictures, and of the whole."""
    clip = {"model_type": "clip_vision_model", **_SIGHT, "patch_size": 8}
    siglip = {"model_type": "siglip_vision_model", **_SIGHT, "patch_size": 8}
    if family == "llava":
        return {"model_type": "llama", **_TEXT}, clip, {"image_seq_length": 4}
    if family == "llava_next":
        whole = {"image_grid_pinpoints": _TILES, "image_seq_length": 4}
        return {"model_type": "mistral", **_TEXT}, clip, whole
    if family == "llava_onevision":
        whole = {
            "image_grid_pinpoints": _TILES,
            "vision_feature_select_strategy": "full",
            "vision_feature_layer": -1,
        }
        return {"model_type": "qwen2", **_TEXT}, siglip, whole
    if family == "qwen2_vl":
        sight = {**_QWEN_SIGHT, "embed_dim": WIDTH, "mlp_ratio": 2}
        return {**_TEXT, **_QWEN_TEXT, "rope_scaling": {**_MROPE}}, sight, {}
    sized = {**_QWEN_SIGHT, "intermediate_size": 20, "out_hidden_size": WIDTH}
    if family == "qwen2_5_vl":
        sight = {**sized, "window_size": 16, "fullatt_block_indexes": [1]}
        return {**_TEXT, **_QWEN_TEXT, "rope_scaling": {**_MROPE}}, sight, {}
    if family == "qwen3_vl":
        sight = {**sized, "num_position_embeddings": 16}
        sight |= {"deepstack_visual_indexes": [0, 1]}
        return {**_TEXT, "rope_scaling": {**_MROPE}}, sight, {}
    if family in ("idefics3", "smolvlm"):
        sight = {**_SIGHT, "patch_size": 4}
        return {"model_type": "llama", **_TEXT}, sight, {"scale_factor": 2}
    if family == "paligemma":
        text = {"model_type": "gemma", **_TEXT}
        return text, {**siglip, "projection_dim": WIDTH}, {"projection_dim": WIDTH}
    if family == "gemma3":
        text = {"model_type": "gemma3_text", **_TEXT, "sliding_window": 8}
        text |= {"query_pre_attn_scalar": 8}
        return text, {**siglip, "patch_size": 4}, {"mm_tokens_per_image": 4}
    sight = {**_SIGHT, "patch_size": [4, 4], "image_size": [SIDE, SIDE]}
    whole = {"downsample_ratio": 0.5, "image_seq_length": 4}
    return {"model_type": "qwen2", **_TEXT}, sight, whole


_CLASSES = {
    "llava": "Llava",
    "llava_next": "LlavaNext",
    "llava_onevision": "LlavaOnevision",
    "qwen2_vl": "Qwen2VL",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen3_vl": "Qwen3VL",
    "idefics3": "Idefics3",
    "smolvlm": "SmolVLM",
    "paligemma": "PaliGemma",
    "gemma3": "Gemma3",
    "internvl": "InternVL",
}
_MARKS = {
    "gemma3": "<image_soft_token>",
    "internvl": "<IMG_CONTEXT>",
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), "<|image_pad|>"),
}


def build(family: str, tokenizer: Any) -> Any:
    """Return a small model of a family at random weights."""
    transformers = import_transformers()
    text, sight, whole = _parts(family)
    numbers = tokenizer.convert_tokens_to_ids
    whole["image_token_id"] = numbers(_MARKS.get(family, "<image>"))
    if family.startswith("qwen"):
        whole["video_token_id"] = numbers("<|video_pad|>")
        whole["vision_start_token_id"] = numbers("<|vision_start|>")
        whole["vision_end_token_id"] = numbers("<|vision_end|>")
    if family == "llava_onevision":
        whole["video_token_id"] = numbers("<video>")
    if family == "gemma3":
        whole["boi_token_index"] = numbers("<start_of_image>")
        whole["eoi_token_index"] = numbers("<end_of_image>")
    text = {**text, "vocab_size": len(tokenizer)}
    config = getattr(transformers, f"{_CLASSES[family]}Config")(
        text_config=text, vision_config=sight, **whole
    )
    kind = getattr(transformers, f"{_CLASSES[family]}ForConditionalGeneration")
    return random_model(lambda: kind(config))


def build_processor(family: str, tokenizer: Any) -> Any:
    """Return a family's processor, with sizes as small as the model's."""
    transformers = import_transformers()
    square = {"height": SIDE, "width": SIDE}
    chat = {"chat_template": CHATS[family], "tokenizer": tokenizer}
    patches = {**chat, "patch_size": 8, "num_additional_image_tokens": 1}
    patches |= {"vision_feature_select_strategy": "default"}
    kind = getattr(transformers, f"{_CLASSES[family]}Processor")
    if family == "llava":
        return kind(
            image_processor=transformers.CLIPImageProcessor(
                size={"shortest_edge": SIDE}, crop_size=square
            ),
            **patches,
        )
    if family == "llava_next":
        return kind(
            image_processor=transformers.LlavaNextImageProcessor(
                size={"shortest_edge": SIDE},
                crop_size=square,
                image_grid_pinpoints=_TILES,
            ),
            **patches,
        )
    if family == "llava_onevision":
        return kind(
            image_processor=transformers.LlavaOnevisionImageProcessor(
                size=square, image_grid_pinpoints=_TILES
            ),
            video_processor=transformers.LlavaOnevisionVideoProcessor(size=square),
            num_image_tokens=4,
            vision_feature_select_strategy="full",
            **chat,
        )
    if family.startswith("qwen"):
        videos = (
            "Qwen3VLVideoProcessor" if family == "qwen3_vl" else "Qwen2VLVideoProcessor"
        )
        sizes = {
            "patch_size": 4,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "size": {"shortest_edge": 64, "longest_edge": 4096},
        }
        return kind(
            image_processor=transformers.Qwen2VLImageProcessor(**sizes),
            video_processor=getattr(transformers, videos)(**sizes),
            **chat,
        )
    if family in ("idefics3", "smolvlm"):
        pictures = getattr(transformers, f"{_CLASSES[family]}ImageProcessor")(
            size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE}
        )
        if family == "smolvlm":
            chat["video_processor"] = transformers.SmolVLMVideoProcessor()
        return kind(image_processor=pictures, image_seq_len=4, **chat)
    if family == "paligemma":
        pictures = transformers.SiglipImageProcessor(size=square, image_seq_length=4)
        return kind(image_processor=pictures, **chat)
    if family == "gemma3":
        pictures = transformers.Gemma3ImageProcessor(size=square)
        return kind(image_processor=pictures, image_seq_length=4, **chat)
    return kind(
        image_processor=transformers.GotOcr2ImageProcessor(
            size=square, crop_to_patches=True, min_patches=1, max_patches=4
        ),
        video_processor=transformers.InternVLVideoProcessor(size=square),
        image_seq_length=4,
        **chat,
    )


def without_frames(patch: pytest.MonkeyPatch) -> None:
    """Let SmolVLM's processor do without the package that it counts videos' frames with."""
    import_transformers()
    from transformers.models.smolvlm import processing_smolvlm

    patch.setattr(processing_smolvlm, "num2words", str)


def save_vlm(folder: Path, family: str) -> str:
    """Save a family's small model with all that it needs; return its ``--model``."""
    import_transformers().utils.logging.disable_progress_bar()
    tokenizer = _tokenizer(family)
    build(family, tokenizer).to(torch.bfloat16).save_pretrained(
        folder, max_shard_size="20KB"
    )
    build_processor(family, tokenizer).save_pretrained(folder)
    _lay_out(folder, family)
    return f"vlm:{folder}"


def _lay_out(folder: Path, family: str) -> None:
    """Divide the processor's settings into the files that the hub has."""
    whole = _read(folder / "processor_config.json")
    about = {"processor_class": whole["processor_class"]}
    for part, name in _PARTS.items():
        if settings := whole.pop(part, None):
            _write(folder / name, {**settings, **about})
    _write(folder / "processor_config.json", whole)
    if family in ("qwen2_vl", "qwen2_5_vl"):
        config = _read(folder / "config.json")
        text = config.pop("text_config")
        _write(folder / "config.json", {**text, **config})
        (folder / "processor_config.json").unlink()
        (folder / "video_preprocessor_config.json").unlink()
        template = folder / "chat_template.jinja"
        _write(folder / "chat_template.json", {"chat_template": template.read_text()})
        template.unlink()


_PARTS = {
    "image_processor": "preprocessor_config.json",
    "video_processor": "video_preprocessor_config.json",
}


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content))


def own_processor(folder: Path) -> Any:
    """Return the processor that is saved in a folder."""
    return import_transformers().AutoProcessor.from_pretrained(folder)


def own_inputs(family: str, processor: Any, picture: Tensor, dialogue: Dialogue) -> Any:
    """Return what the family's own processor makes of one question."""
    asked = [{"type": "image"}, {"type": "text", "text": dialogue.question}]
    text = f"{processor.image_token}{dialogue.question}"
    if family != "paligemma":
        text = processor.apply_chat_template(
            [{"role": "user", "content": asked}], add_generation_prompt=True
        )
    seen = Image.fromarray(picture.permute(1, 2, 0).numpy())
    begins = {"add_special_tokens": False} if text.startswith("<bos>") else {}
    return processor(text=[text], images=[[seen]], return_tensors="pt", **begins)


def with_answer(
    family: str, inputs: Mapping[str, Any], answer: Tensor
) -> dict[str, Any]:
    """Put an answer behind a prompt, as the family is trained."""
    longer = dict(inputs)
    of_answer = {
        "input_ids": answer,
        "attention_mask": torch.ones_like(answer),
        "token_type_ids": torch.full_like(answer, int(family == "paligemma")),
        "mm_token_type_ids": torch.zeros_like(answer),
    }
    for name, more in of_answer.items():
        if name in longer:
            longer[name] = torch.cat([longer[name], more[None]], dim=1)
    longer.pop("labels", None)
    return longer


@torch.no_grad()
def logits_of_peft(
    family: str,
    folder: Path,
    model: VisionLanguageModel,
    records: Records,
    pairs: Mapping[str, Tensor],
) -> list[Tensor]:
    """Return each ragged picture's logits by peft's own model, with its image tower."""
    kind = import_transformers().AutoModelForImageTextToText
    original = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    peft = with_lora_of_peft(original, model.language, pairs)
    processor, pictures = own_processor(folder), RaggedPictures(len(records))
    assert records.words is not None
    found = []
    for row, dialogue in enumerate(records.dialogues):
        answer = records.words.ids[row][records.words.kinds[row] == ANSWER]
        own = own_inputs(family, processor, pictures[row], dialogue)
        found.append(peft(**with_answer(family, own, answer)).logits[0])
    return found
