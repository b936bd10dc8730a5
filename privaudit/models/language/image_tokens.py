"""Image tokens of CLIP: features of a picture's parts, in the space of texts."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from privaudit.core.errors import ConfigError


def image_tokens(
    clip: nn.Module, pictures: Float[Tensor, "n 3 h w"]
) -> Float[Tensor, "n tokens dim"]:
    """Return one feature for each patch, before l2-normalisation.

    Towers of open_clip's two own kinds have them:

    - ``VisionTransformer``: the last layer's patch tokens, through the final layer norm
      and the projection that the pooled feature takes. Where the tower pools its class
      token, nothing in its training asked this of the patches.
    - ``ModifiedResNet``: every position of the last feature map through the attention
      pool's value and output projections. The pool's own output is an average of these
      (in each head, with attention as weights) and of the map's mean, treated alike; so
      pooling is the only step that is left out.

    Source: value and output projections as in Zhou, Loy, Dai, "Extract free dense
    labels from CLIP", ECCV 2022, section 3.2; here with the positions' embeddings, so
    that the pooled feature is made of these tokens. FedOTP's published code instead
    lets every position attend to all of them and takes all outputs.

    Raises:
        ConfigError: The tower is of another kind, or pools through queries.
    """
    tower: Any = clip.visual
    kind = type(tower).__name__
    if kind == "VisionTransformer" and tower.attn_pool is None:
        states = tower.ln_post(tower.transformer(tower._embeds(pictures)))
        return states[:, 1:] @ tower.proj
    if kind == "ModifiedResNet":
        return map_tokens(tower, feature_map(tower, pictures))
    if kind == "VisionTransformer":
        kind = "VisionTransformer with an attentional pooler"
    raise ConfigError(
        f"Image tokens exist for open_clip's VisionTransformer and ModifiedResNet, and "
        f"this model's image tower is a {kind}. Choose a model such as ViT-B-16 or "
        "RN50, or a method that takes whole pictures."
    )


def feature_map(
    tower: Any, pictures: Float[Tensor, "n 3 h w"]
) -> Float[Tensor, "n channels rows columns"]:
    """Return what a ``ModifiedResNet`` pools."""
    states = tower.stem(pictures)
    for stage in (tower.layer1, tower.layer2, tower.layer3, tower.layer4):
        states = stage(states)
    return states


def map_tokens(
    tower: Any, states: Float[Tensor, "n channels rows columns"]
) -> Float[Tensor, "n tokens dim"]:
    """Project every position of a ``ModifiedResNet``'s map, before l2-normalisation."""
    pool = tower.attnpool
    positions = pool.positional_embedding[1:]  # the first is the mean's
    return pool.c_proj(pool.v_proj(states.flatten(2).transpose(1, 2) + positions))
