"""tiny-clip, the CLIP that comes with the package: tokenizer, sizes, and how it is loaded.

A small CLIP, in names, weights and outputs equal to open_clip's.

open_clip imports timm, transformers, torchvision and torch's compiler, which together
take longer than all else that a run imports, and of which the embedded model calls none.

Source: Radford et al., "Learning transferable visual models from natural language
supervision", ICML 2021, section 2.4: a ResNet with a stem of three convolutions, average
pools in place of strides and attention over the last map; a causal transformer with
layer norms in front, read at the end token.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import interpolate, multi_head_attention_forward

from privaudit.models.clip.picture_preparation import Pictures, as_rgb
from privaudit.models.clip.promptable_clip import PromptableCLIP, feature_map
from privaudit.models.clip.word_tokenizer import WordTokenizer, vocabulary_of
from privaudit.models.registry import ModelRequest
from privaudit.models.weight_files import load_embedded

_EXPANSION = 4  # of channels or widths inside a block


class SmallCLIP(nn.Module):
    """A ResNet of one block a stage, a text tower, and their cosines' temperature.

    Weights are drawn from torch's global state, in open_clip's order.

    Args:
        embed_dim: Of the space that pictures and texts share.
        vision_cfg: ``width``, ``head_width``, and ``image_size``, a multiple of 32.
        text_cfg: ``context_length``, ``vocab_size``, ``width``, ``heads``, ``layers``.
            The end token has the highest number.
    """

    attn_mask: Tensor
    text_pool_type = "argmax"  # open_clip's word for reading at the end token
    text_eos_id = 2  # for towers that pool otherwise

    def __init__(
        self, embed_dim: int, vision_cfg: Mapping[str, Any], text_cfg: Mapping[str, int]
    ) -> None:
        super().__init__()
        length, width = text_cfg["context_length"], text_cfg["width"]
        self.context_length = length
        self.visual = ModifiedResNet(
            vision_cfg["image_size"],
            vision_cfg["width"],
            vision_cfg["head_width"],
            embed_dim,
        )
        token_embedding = nn.Embedding(text_cfg["vocab_size"], width)
        blocks = [
            ResidualAttentionBlock(width, text_cfg["heads"])
            for _ in range(text_cfg["layers"])
        ]
        self.transformer = TextBlocks(blocks)
        self.token_embedding = token_embedding
        self.ln_final = nn.LayerNorm(width)
        self.positional_embedding = nn.Parameter(torch.empty(length, width))
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        later = torch.full((length, length), -math.inf).triu(1)
        self.register_buffer("attn_mask", later, persistent=False)

        nn.init.normal_(token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        for block in blocks:
            block.draw_weights(len(blocks))
        nn.init.normal_(self.text_projection, std=width**-0.5)

    def encode_image(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """Return features, not l2-normalised."""
        return self.visual(pictures)

    def encode_text(self, tokens: Int[Tensor, "n length"]) -> Float[Tensor, "n d"]:
        """Return features, not l2-normalised.

        Attention is causal, so nothing behind the batch's last end token can matter.
        """
        ends = tokens.argmax(-1)
        length = int(ends.max()) + 1
        embedded = self.token_embedding(tokens[:, :length])
        embedded = embedded + self.positional_embedding[:length]
        hidden = self.transformer(embedded, self.attn_mask[:length, :length])
        pooled = self.ln_final(hidden)[torch.arange(len(tokens)), ends]
        return pooled @ self.text_projection


class TextBlocks(nn.Module):
    """The blocks of the text tower, first to last."""

    def __init__(self, blocks: Iterable["ResidualAttentionBlock"]) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(blocks)

    def forward(
        self,
        states: Float[Tensor, "n length width"],
        mask: Float[Tensor, "length length"],
    ) -> Float[Tensor, "n length width"]:
        """Run them; the mask is added to the attention scores."""
        for block in self.resblocks:
            states = block(states, mask)
        return states


class ResidualAttentionBlock(nn.Module):
    """Attention and an MLP, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ls_1 = nn.Identity()
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(width, _EXPANSION * width),
                gelu=nn.GELU(),
                c_proj=nn.Linear(_EXPANSION * width, width),
            )
        )
        self.ls_2 = nn.Identity()

    def draw_weights(self, layers: int) -> None:
        """Draw them smaller the deeper the tower."""
        width = self.attn.embed_dim
        into, back = width**-0.5, width**-0.5 * (2 * layers) ** -0.5
        nn.init.normal_(self.attn.in_proj_weight, std=into)
        nn.init.normal_(self.attn.out_proj.weight, std=back)
        nn.init.normal_(self.mlp.get_parameter("c_fc.weight"), std=(2 * width) ** -0.5)
        nn.init.normal_(self.mlp.get_parameter("c_proj.weight"), std=back)

    def forward(
        self,
        states: Float[Tensor, "n length width"],
        mask: Float[Tensor, "length length"],
    ) -> Float[Tensor, "n length width"]:
        """Return the states after the block."""
        normed = self.ln_1(states)
        attended = self.attn(normed, normed, normed, need_weights=False, attn_mask=mask)
        states = states + attended[0]
        return states + self.mlp(self.ln_2(states))


class ModifiedResNet(nn.Module):
    """The image tower: it shrinks a picture by 32 and pools the map by attention."""

    def __init__(self, image_size: int, width: int, head_width: int, dim: int) -> None:
        super().__init__()
        self.image_size = image_size
        half = width // 2
        self.conv1, self.bn1, self.act1 = _layer(3, half, 3, stride=2)
        self.conv2, self.bn2, self.act2 = _layer(half, half, 3)
        self.conv3, self.bn3, self.act3 = _layer(half, width, 3)
        self.avgpool = nn.AvgPool2d(2)
        self.layer1 = nn.Sequential(Bottleneck(width, width, 1))
        self.layer2 = nn.Sequential(Bottleneck(4 * width, 2 * width, 2))
        self.layer3 = nn.Sequential(Bottleneck(8 * width, 4 * width, 2))
        self.layer4 = nn.Sequential(Bottleneck(16 * width, 8 * width, 2))
        heads = 32 * width // head_width
        self.attnpool = AttentionPool2d(image_size // 32, 32 * width, heads, dim)
        for name, weight in self.named_parameters():
            if name.startswith("layer") and name.endswith("bn3.weight"):
                nn.init.zeros_(weight)  # a block begins as its shortcut

    def stem(
        self, pictures: Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n c rows columns"]:
        """Return the map before the first stage, a quarter as wide and high."""
        states = self.act1(self.bn1(self.conv1(pictures)))
        states = self.act2(self.bn2(self.conv2(states)))
        return self.avgpool(self.act3(self.bn3(self.conv3(states))))

    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n d"]:
        """Return features, not l2-normalised."""
        return self.attnpool(feature_map(self, pictures))


class Bottleneck(nn.Module):
    """Three convolutions beside a projected shortcut."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = _EXPANSION * inner
        self.conv1, self.bn1, self.act1 = _layer(channels, inner, 1)
        self.conv2, self.bn2, self.act2 = _layer(inner, inner, 3)
        self.avgpool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3, self.bn3, self.act3 = _layer(inner, outer, 1)
        shortcut = nn.AvgPool2d(stride), *_layer(channels, outer, 1)[:2]
        names = ("-1", "0", "1")
        self.downsample = nn.Sequential(OrderedDict(zip(names, shortcut, strict=True)))

    def forward(
        self, states: Float[Tensor, "n c h w"]
    ) -> Float[Tensor, "n outer rows columns"]:
        """Return the map after the block."""
        inner = self.act1(self.bn1(self.conv1(states)))
        inner = self.avgpool(self.act2(self.bn2(self.conv2(inner))))
        outer = self.bn3(self.conv3(inner))
        return self.act3(outer + self.downsample(states))


class AttentionPool2d(nn.Module):
    """Attention of a map's mean over its positions."""

    def __init__(self, side: int, width: int, heads: int, dim: int) -> None:
        super().__init__()
        places = torch.randn(side**2 + 1, width) / width**0.5
        self.positional_embedding = nn.Parameter(places)
        self.k_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.c_proj = nn.Linear(width, dim)
        self.heads = heads
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.c_proj):
            nn.init.normal_(layer.weight, std=width**-0.5)

    def forward(
        self, states: Float[Tensor, "n width rows columns"]
    ) -> Float[Tensor, "n dim"]:
        """Return what the mean attends to, projected."""
        places = states.flatten(2).permute(2, 0, 1)
        places = torch.cat([places.mean(0, keepdim=True), places])
        places = places + self.positional_embedding[:, None]
        layers = (self.q_proj, self.k_proj, self.v_proj)
        pooled, _ = multi_head_attention_forward(
            places,
            places,
            places,
            embed_dim_to_check=places.shape[-1],
            num_heads=self.heads,
            in_proj_weight=None,
            in_proj_bias=torch.cat([layer.bias for layer in layers]),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.c_proj.weight,
            out_proj_bias=self.c_proj.bias,
            need_weights=False,
            use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
        )
        return pooled[0]


def _layer(
    channels: int, out: int, size: int, stride: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
    padding = size // 2
    convolution = nn.Conv2d(channels, out, size, stride, padding, bias=False)
    return convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True)


CONTEXT_LENGTH = 32
WORDS = """
again also an and arrow at background black blue brown by can capital checked circle
class clearly close coarse cross cyan diamond digit dotted drawing eight example
fading five for four green grey hand handwritten heart here image in is it just kind
letter look moon nine noisy now number of on one only orange photo picture pink
plain printed purple red ring scan scanned see seven shows sign six small some
square star striped symbol that the there thing this three triangle two type very
was we well white with written yellow you zero
"""
"""Of the captions that the weights were trained on, in privaudit_tools.pretraining."""


class TinyTokenizer(WordTokenizer):
    """Turns texts into the token numbers of ``tiny-clip``.

    Example:
        >>> tokenizer = TinyTokenizer()
        >>> len(tokenizer.encode("a photo of the digit five."))
        7
        >>> tokenizer("five").shape
        torch.Size([1, 32])
    """

    def __init__(self) -> None:
        super().__init__(vocabulary_of([WORDS]), CONTEXT_LENGTH)


EMBED_DIM = 64
PICTURE_SIZE = 32  # what it looks at
IMAGE_SIZE = 64  # what its tower gets: doubled, so that attention pools a 2x2 grid


def configuration() -> dict[str, Any]:
    """Say how the model is built: the arguments of open_clip's ``CLIP``."""
    return {
        "embed_dim": EMBED_DIM,
        "vision_cfg": {
            "layers": [1, 1, 1, 1],
            "width": 16,
            "head_width": 64,
            "image_size": IMAGE_SIZE,
        },
        "text_cfg": {
            "context_length": CONTEXT_LENGTH,
            "vocab_size": TinyTokenizer().vocab_size,
            "width": 64,
            "heads": 4,
            "layers": 2,
        },
    }


def build_model(seed: int = 0) -> SmallCLIP:
    """Build the model at random weights.

    They come from torch's global state, which is put back afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SmallCLIP(**configuration())


MEAN, DEVIATION = 0.5, 0.25


def preprocess_batch(pictures: Pictures) -> Float[Tensor, "n 3 size size"]:
    """Resize to 32x32, double, normalise; pictures that are not square are stretched."""
    small = _resize(as_rgb(pictures).float(), PICTURE_SIZE)
    return (_resize(small, IMAGE_SIZE) - MEAN) / DEVIATION


def _resize(
    pictures: Float[Tensor, "n c h w"], size: int
) -> Float[Tensor, "n c size size"]:
    if pictures.shape[-2:] == (size, size):
        return pictures
    shrinks = max(pictures.shape[-2:]) > size
    return interpolate(
        pictures,
        size=(size, size),
        mode="bilinear",
        align_corners=False,
        antialias=shrinks,
    )


class TinyClip(NamedTuple):
    """The model, and what makes its text tower's tokens."""

    model: SmallCLIP
    tokenizer: TinyTokenizer


def load(folder: Path | None = None) -> TinyClip:
    """Load ``tiny-clip``: frozen, in evaluation mode.

    Args:
        folder: Where its files are; by default those that came with privaudit.
    """
    where = folder or Path(__file__).parent
    return TinyClip(load_embedded(where, "tiny-clip", build_model)[0], TinyTokenizer())


def load_tiny_clip(request: ModelRequest) -> PromptableCLIP:
    """Load ``tiny-clip`` as all other code takes it."""
    model, tokenizer = load()
    clip = model.to(request.device)
    return PromptableCLIP(request.name, clip, tokenizer, preprocess_batch)
