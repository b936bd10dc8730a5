"""Text tower of an open_clip model, tuned as transformers' CLIP, for a classifier."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.records import TokenSequences
from privaudit.models.clip.text_tower import PromptTokens, TextTower, text_tower
from privaudit.models.hugging_face import import_transformers
from privaudit.models.interfaces import Head, Tuning
from privaudit.models.transformers.tuned_modules import TunedModules, in_front


class ClipTextTower(TunedModules):
    """Class texts of a CLIP whose text tower is tuned; its image tower stays frozen.

    So pictures are encoded once, and a step costs one pass over the class texts.

    Raises:
        ConfigError: The text tower is none that transformers' CLIP can be.
    """

    head: Head | None = None

    def __init__(
        self, clip: nn.Module, tokens: PromptTokens, logit_scale: float
    ) -> None:
        tower = text_tower(clip)
        super().__init__(as_transformers(tower))
        self.width, self._logit_scale = tower.width, logit_scale
        self.context = len(tower.positional_embedding)
        self._ends = tower.end_positions(tokens.ids)
        self._ids = tokens.ids[:, : int(self._ends.max()) + 1]

    def run_once(self) -> object:
        """Run the model on the class texts."""
        return self._text_features(Tuning(), 1)

    def logits(
        self,
        features: Float[Tensor, "k rows d"],
        tokens: Tensor | None,
        words: TokenSequences | None,
        tuning: Tuning,
    ) -> Float[Tensor, "k rows classes"]:
        """Return scaled cosines between pictures and each model's class texts."""
        count = len(features)
        if tuning.weights:
            text = self.each_alone(tuning, lambda n, rest: self._text_features(rest, 1))
        else:
            text = self._text_features(tuning, count)
        return self._logit_scale * torch.einsum("krd,kcd->krc", features, text)

    def _text_features(
        self, tuning: Tuning, count: int
    ) -> Float[Tensor, "k classes dim"]:
        classes, length = self._ids.shape
        self.check_length(length, tuning)
        embedded = self._embedding(self._ids).expand(count, classes, length, -1)
        rows = in_front(tuning.prompt, embedded).flatten(0, 1)
        first = tuning.skipped_positions
        places = torch.arange(first, first + rows.shape[1], device=rows.device)[None]
        text = self.model.text_model
        ends = self._ends.repeat(count) + tuning.virtual_tokens
        with self.tuned(tuning, count, len(rows) * rows.shape[1], len(rows)):
            hidden = text.embeddings(inputs_embeds=rows, position_ids=places)
            states = text.encoder(
                inputs_embeds=hidden, attention_mask=None, is_causal=True
            ).last_hidden_state
            final = text.final_layer_norm(states[torch.arange(len(rows)), ends])
            features = self.model.text_projection(final)
        features = features.unflatten(0, (count, classes))
        return normalize(features, dim=-1)


def as_transformers(tower: TextTower) -> Any:
    """Return transformers' CLIP text model with an open_clip tower's weights.

    Raises:
        ConfigError: The tower is built in another way: texts see later tokens, or its
            blocks are not open_clip's ordinary ones.
    """
    blocks: Sequence[Any] = tower.blocks
    scaled = any(not isinstance(block.ls_1, nn.Identity) for block in blocks)
    if not tower.shares_prefixes() or isinstance(tower.projection, nn.Linear) or scaled:
        raise ConfigError(
            "Only open_clip's ordinary causal text towers can be tuned in this way, "
            "and this model has another one. Use a model such as open_clip:ViT-B-16."
        )
    transformers = import_transformers()
    config = transformers.CLIPTextConfig(
        vocab_size=tower.token_embedding.num_embeddings,
        hidden_size=tower.width,
        intermediate_size=blocks[0].mlp.c_fc.out_features,
        projection_dim=tower.dim,
        num_hidden_layers=len(blocks),
        num_attention_heads=blocks[0].attn.num_heads,
        max_position_embeddings=len(tower.positional_embedding),
        hidden_act="gelu" if isinstance(blocks[0].mlp.gelu, nn.GELU) else "quick_gelu",
        layer_norm_eps=blocks[0].ln_1.eps,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = transformers.CLIPTextModelWithProjection(config)
    with torch.no_grad():
        _copy_weights(tower, blocks, model)
    return model.to(tower.positional_embedding.device)


def _copy_weights(tower: TextTower, blocks: Sequence[Any], model: Any) -> None:
    text = model.text_model
    text.embeddings.token_embedding.weight.copy_(tower.token_embedding.weight)
    text.embeddings.position_embedding.weight.copy_(tower.positional_embedding)
    text.final_layer_norm.load_state_dict(tower.ln_final.state_dict())
    projection = cast("Tensor | None", tower.projection)
    model.text_projection.weight.copy_(
        torch.eye(tower.width) if projection is None else projection.T
    )
    for block, layer in zip(blocks, text.encoder.layers, strict=True):
        attention = layer.self_attn
        weights = block.attn.in_proj_weight.chunk(3)
        biases = block.attn.in_proj_bias.chunk(3)
        linear = (attention.q_proj, attention.k_proj, attention.v_proj)
        for target, weight, bias in zip(linear, weights, biases, strict=True):
            target.weight.copy_(weight)
            target.bias.copy_(bias)
        attention.out_proj.load_state_dict(block.attn.out_proj.state_dict())
        layer.layer_norm1.load_state_dict(block.ln_1.state_dict())
        layer.layer_norm2.load_state_dict(block.ln_2.state_dict())
        layer.mlp.fc1.load_state_dict(block.mlp.c_fc.state_dict())
        layer.mlp.fc2.load_state_dict(block.mlp.c_proj.state_dict())
