# mypy: disable-error-code="no-untyped-call"
"""A TinyLLaVA in small: CLIP's tower, a connector of two layers, and an OpenELM."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers import CLIPImageProcessor, CLIPVisionModel, PreTrainedModel

from .configuration import ElmConfig, TinyLlavaConfig  # noqa: TID252 - beside it


def turned(x: Tensor) -> Tensor:
    """Turn pairs of features by angles that grow with the position."""
    half, places = x.shape[-1] // 2, torch.arange(x.shape[-2], dtype=x.dtype)
    angles = torch.outer(places, 1e4 ** (-torch.arange(half, dtype=x.dtype) / half))
    one, two = x.split(half, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Attention(nn.Module):
    """Grouped queries from one projection, normed and turned."""

    def __init__(self, width: int, size: int, heads: int, groups: int) -> None:
        super().__init__()
        self.parts, self.size = (heads, groups, groups), size
        self.qkv_proj = nn.Linear(width, sum(self.parts) * size, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.out_proj = nn.Linear(heads * size, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        q, k, v = heads.split(self.parts, dim=1)
        q, k = turned(self.q_norm(q)), turned(self.k_norm(k))
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out_proj(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj_1 = nn.Linear(width, 2 * inner, bias=False)
        self.proj_2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.proj_1(x).chunk(2, dim=-1)
        return self.proj_2(silu(gate) * value)


class Layer(nn.Module):
    """One of OpenELM's, the deeper the wider."""

    def __init__(self, config: Any, index: int) -> None:
        super().__init__()
        width, heads = config.model_dim, config.num_query_heads[index]
        groups = config.num_kv_heads[index]
        self.attn = Attention(width, config.head_dim, heads, groups)
        self.ffn = FeedForward(width, int(config.ffn_multipliers[index] * width))
        self.attn_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Elm(PreTrainedModel):
    """An OpenELM, whose table of tokens gives the logits, too."""

    config_class = ElmConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        layers = (Layer(config, i) for i in range(config.num_transformer_layers))
        width = config.model_dim
        self.transformer = nn.ModuleDict(
            {
                "token_embeddings": nn.Embedding(config.vocab_size, width),
                "layers": nn.ModuleList(layers),
                "norm": nn.RMSNorm(width),
            }
        )
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.transformer["token_embeddings"]

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, inputs_embeds: Tensor, **_others: Any) -> Any:
        x = inputs_embeds
        for layer in self.transformer["layers"].children():
            x = layer(x)
        x = self.transformer["norm"](x)
        return SimpleNamespace(logits=linear(x, self.get_input_embeddings().weight))


class VisionTower(nn.Module):
    """CLIP's, with what prepares pictures for it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._vision_tower = CLIPVisionModel(config)
        side = config.image_size
        self._image_processor = CLIPImageProcessor(
            size={"shortest_edge": side}, crop_size={"height": side, "width": side}
        )

    def forward(self, pictures: Tensor, layer: int) -> Tensor:
        states = self._vision_tower(pictures, output_hidden_states=True).hidden_states
        return states[layer][:, 1:]


class Connector(nn.Module):
    """From the tower's width to that of words."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        seen, width = config.vision_config.hidden_size, config.text_config.model_dim
        self._connector = nn.Sequential(
            nn.Linear(seen, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, seen: Tensor) -> Tensor:
        return self._connector(seen)


class TinyLlavaForConditionalGeneration(PreTrainedModel):
    """All three."""

    config_class = TinyLlavaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.language_model = Elm(config.text_config)
        self.vision_tower = VisionTower(config.vision_config)
        self.connector = Connector(config)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.language_model.get_input_embeddings()

    def encode_images(self, pictures: Tensor) -> Tensor:
        layer = self.config.vision_feature_layer
        return self.connector(self.vision_tower(pictures, layer))

    def forward(self, inputs_embeds: Tensor, **others: Any) -> Any:
        return self.language_model(inputs_embeds, **others)
