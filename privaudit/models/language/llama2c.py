"""Language models in llama2.c's format, made into those of transformers.

Source: Karpathy, "llama2.c", the export with version 0: seven whole numbers, then all
weights as 32-bit floats; the tokenizer's file has a score, a length and the bytes of
each token. Models of that kind are small enough for an audit on a laptop.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.storage import read_bytes
from privaudit.models.hugging_face import import_transformers

_HEADER = struct.Struct("<7i")
_SPECIAL = ("<unk>", "<s>", "</s>")
_FIRST_PIECE = 259  # after the special tokens, and one for each byte


@dataclass(frozen=True)
class Header:
    """The numbers that such a file begins with.

    Attributes:
        dim: Width of an embedding.
        hidden: Width inside the feed-forward part.
        layers: How many.
        heads: Of queries.
        key_heads: Of keys and values.
        vocabulary: Tokens; negative where logits have weights of their own.
        context: Positions.
    """

    dim: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int

    @property
    def shares_embedding(self) -> bool:
        """Whether the embedding's weights make the logits, too."""
        return self.vocabulary > 0

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each block of weights, in the file's order."""
        layers, dim, hidden = self.layers, self.dim, self.hidden
        keys = self.key_heads * self.head_dim
        angles = (self.context, self.head_dim // 2)
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (abs(self.vocabulary), dim),
            "input_layernorm": (layers, dim),
            "self_attn.q_proj": (layers, dim, dim),
            "self_attn.k_proj": (layers, keys, dim),
            "self_attn.v_proj": (layers, keys, dim),
            "self_attn.o_proj": (layers, dim, dim),
            "post_attention_layernorm": (layers, dim),
            "mlp.gate_proj": (layers, hidden, dim),
            "mlp.down_proj": (layers, dim, hidden),
            "mlp.up_proj": (layers, hidden, dim),
            "norm": (dim,),
            "cosines": angles,
            "sines": angles,
        }
        return (
            shapes if self.shares_embedding else shapes | {"head": shapes["embedding"]}
        )


def load_llama2c(folder: Path) -> tuple[Any, Any]:
    """Return a ``LlamaForCausalLM`` and its tokenizer.

    Args:
        folder: With one file tok*.bin, and one other .bin file.

    Raises:
        MissingFileError: They are not there.
        ConfigError: They are not whole, or do not belong together.
    """
    tokenizers = sorted(folder.glob("tok*.bin"))
    weights = sorted(set(folder.glob("*.bin")) - set(tokenizers))
    if len(tokenizers) != 1 or len(weights) != 1:
        raise MissingFileError(
            f"A model of llama2.c is one .bin file with weights and one tok*.bin, and "
            f"{folder} has {len(weights)} and {len(tokenizers)} of them."
        )
    model = llama(read_bytes(weights[0], "tensors"), weights[0].name)
    pieces = read_pieces(read_bytes(tokenizers[0]), model.config.vocab_size)
    return model, sentence_tokenizer(pieces)


def llama(content: bytes, name: str = "the file") -> Any:
    """Return the model in a file of weights, as a ``LlamaForCausalLM``.

    Raises:
        ConfigError: The file is longer or shorter than its header says.
    """
    if len(content) < _HEADER.size:
        raise ConfigError(f"{name} has {len(content)} bytes: no header. Restore it.")
    header = Header(*_HEADER.unpack_from(content))
    shapes = header.shapes() if min(*_HEADER.unpack_from(content)[:5]) > 0 else {}
    expected = _HEADER.size + 4 * sum(map(math.prod, shapes.values()))
    if not shapes or len(content) != expected:
        raise ConfigError(
            f"{name} has {len(content)} bytes, and its header {header} asks for "
            f"{expected}. It is cut, or of another version than 0 of llama2.c's."
        )
    return _filled(header, dict(_blocks(content, shapes)))


def _blocks(
    content: bytes, shapes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[str, Tensor]]:
    at = _HEADER.size
    for name, shape in shapes.items():
        count = math.prod(shape)
        numbers = np.frombuffer(content, "<f4", count, at).astype(np.float32)
        yield name, torch.from_numpy(numbers).view(shape)
        at += 4 * count


def _filled(header: Header, blocks: dict[str, Tensor]) -> Any:
    transformers = import_transformers()
    model = transformers.LlamaForCausalLM(_configuration(header)).eval()
    state = {
        "model.embed_tokens.weight": blocks["embedding"],
        "model.norm.weight": blocks["norm"],
        "lm_head.weight": blocks.get("head", blocks["embedding"]),
    }
    for name, block in blocks.items():
        if name in ("embedding", "norm", "head", "cosines", "sines"):
            continue
        for layer, weight in enumerate(block):
            if name.endswith(("q_proj", "k_proj")):
                weight = _halves(weight, header.head_dim)
            state[f"model.layers.{layer}.{name}.weight"] = weight
    model.load_state_dict(state)
    return model


def _configuration(header: Header) -> Any:
    return import_transformers().LlamaConfig(
        vocab_size=abs(header.vocabulary),
        hidden_size=header.dim,
        intermediate_size=header.hidden,
        num_hidden_layers=header.layers,
        num_attention_heads=header.heads,
        num_key_value_heads=header.key_heads,
        max_position_embeddings=header.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=header.shares_embedding,
        bos_token_id=1,
        eos_token_id=1,
    )


def _halves(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder rows: llama2.c turns neighbours, transformers turns halves of a head."""
    heads = weight.view(-1, head_dim // 2, 2, weight.shape[1])
    return heads.transpose(1, 2).reshape(weight.shape)


def read_pieces(content: bytes, vocabulary: int) -> list[tuple[str, float]]:
    """Return each token's text and score from a tokenizer's file.

    Raises:
        ConfigError: There are more or fewer than the model has.
    """
    pieces, at = [], 4  # behind the longest token's length
    while at + 8 <= len(content):
        score, length = struct.unpack_from("<fi", content, at)
        text = content[at + 8 : at + 8 + length].decode("utf-8", errors="replace")
        pieces.append((text, score))
        at += 8 + max(0, length)
    if len(pieces) != vocabulary or at != len(content):
        raise ConfigError(
            f"The tokenizer's file holds {len(pieces)} tokens in {len(content)} bytes, "
            f"and the model has {vocabulary}. Take the file that belongs to it."
        )
    return pieces


def sentence_tokenizer(pieces: list[tuple[str, float]]) -> Any:
    """Return a transformers tokenizer that joins pieces as SentencePiece does.

    Of all neighbours that make a token, those that make the one with the highest score
    are joined first. Blanks are part of tokens, and one stands before each text. The
    start token is the end token, too: these models were trained on stories behind one
    another with nothing else between them.

    Args:
        pieces: Text and score; the first three are for unknown, start and end, and the
            next 256 are the bytes.
    """
    tokenizers, transformers = _tokenizers(), import_transformers()
    texts = [*_SPECIAL, *(text.replace(" ", "▁") for text, _ in pieces[3:])]
    scores = {text: pieces[i][1] for i, text in enumerate(texts) if i >= _FIRST_PIECE}
    model = tokenizers.models.BPE(
        vocab={text: i for i, text in enumerate(texts)},
        merges=_merges(scores),
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    norm, back = tokenizers.normalizers, tokenizers.decoders
    tokenizer.normalizer = norm.Sequence([norm.Prepend("▁"), norm.Replace(" ", "▁")])
    tokenizer.decoder = back.Sequence(
        [
            back.Replace("▁", " "),
            back.ByteFallback(),
            back.Fuse(),
            back.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="<s>",
        clean_up_tokenization_spaces=False,
    )


def _tokenizers() -> Any:
    import tokenizers

    return tokenizers


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token, the best-scored token's first."""
    pairs = [
        (-score, text[:cut], text[cut:])
        for text, score in scores.items()
        for cut in range(1, len(text))
        if text[:cut] in scores and text[cut:] in scores
    ]
    return [(left, right) for _, left, right in sorted(pairs)]
