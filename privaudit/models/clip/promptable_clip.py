"""Frozen CLIPs whose prompts can be learned, and the tokens of their pictures."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.core.step_graphs import StepGraph
from privaudit.core.tensors import at_least_float32
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.records import PictureTokens, Records
from privaudit.models.clip.picture_preparation import Pictures
from privaudit.models.clip.shared_prefix import SharedPrefixText, TextJacobian
from privaudit.models.clip.text_tower import (
    PromptTokens,
    TextTower,
    Tokenizer,
    any_text_tower,
    plain_prompt_features,
    prompt_tokens,
)
from privaudit.models.feature_cache import cached_features, cached_tokens
from privaudit.models.frozen_model import FeatureModel, weights_hash
from privaudit.models.interfaces import Classifier, Precision
from privaudit.models.transformers.clip_text import ClipTextTower


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


class ClassPrompts:
    """The frozen text tower bound to class names: contexts in, text features out.

    Made by :meth:`PromptableCLIP.prompts`.
    """

    def __init__(
        self, clip: nn.Module, tokens: PromptTokens, precision: Precision = "float32"
    ) -> None:
        if precision == "float16":
            raise ConfigError(
                "Prompts before class names were requested in float16, whose range is "
                "small for their gradients. Use float32 or bfloat16."
            )
        tower = any_text_tower(clip)
        self.context_tokens = tokens.context_tokens
        self.width, self.dim = tower.width, tower.dim
        self._clip, self._tokens = clip, tokens
        self._shared: SharedPrefixText | None = None
        is_exact = tower.token_embedding.weight.dtype == torch.float32
        self._autocast = precision == "bfloat16" and is_exact
        if isinstance(tower, TextTower) and tower.shares_prefixes():
            dtype = torch.bfloat16 if precision == "bfloat16" else None
            self._shared = SharedPrefixText(tower, tokens, dtype)
            self._replayed = StepGraph(self._shared)

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return l2-normalised text features of every class behind every context.

        Differentiable in ``contexts``; works under ``torch.func`` and with
        ``is_grads_batched``; with ``create_graph`` inside of
        ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)``, as fused attention has no
        second derivative.

        Raises:
            ConfigError: The contexts have another shape than the prompts were made for.
        """
        self._check(contexts)
        if self._shared is not None:
            features = self._replayed(contexts)
        else:
            kind = contexts.device.type
            with torch.autocast(kind, torch.bfloat16, enabled=self._autocast):
                features = plain_prompt_features(self._clip, self._tokens, contexts)
        return normalize(at_least_float32(features), dim=-1)

    @torch.no_grad()
    def jacobian(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> TextJacobian | None:
        """Return the features, for many products with their derivative.

        None where there is nothing faster than autograd.
        """
        self._check(contexts)
        return None if self._shared is None else self._shared.jacobian(contexts)

    def _check(self, contexts: Float[Tensor, "prompts tokens width"]) -> None:
        expected = (self.context_tokens, self.width)
        if contexts.shape[1:] != expected:
            raise ConfigError(
                f"These prompts take contexts of {expected} (tokens, width), and got "
                f"{tuple(contexts.shape[1:])}. Make prompts with that context length."
            )


class PromptableCLIP(FeatureModel):
    """An open_clip model with frozen weights.

    Args:
        clip: The model; it is put in evaluation mode and its weights are frozen.
        tokenizer: The one it was trained with.
        preprocess_batch: From pictures (grey or RGB, bytes or floats from 0 to 1) to
            what the image tower takes.
    """

    image_size: int

    def __init__(
        self,
        name: str,
        clip: nn.Module,
        tokenizer: Tokenizer,
        preprocess_batch: Callable[[Pictures], Tensor],
    ) -> None:
        self.name = name
        self.clip = cast(Any, clip.eval().requires_grad_(False))
        self.tokenizer = tokenizer
        self._prepare = preprocess_batch
        self._tower = any_text_tower(clip)
        self.width, self.dim = self._tower.width, self._tower.dim
        self.token_width = self.dim
        self.logit_scale = float(self.clip.logit_scale.exp())
        size = self.clip.visual.image_size
        self.image_size = int(size if isinstance(size, int) else size[0])

    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int = 16
    ) -> Classifier:
        """Return the text tower before prompts, and hand-written ones' features."""
        return Classifier(
            self.prompts(class_names, context_tokens, self.precision),
            self.logit_scale,
            self.template_features(class_names, template),
            partial(self.tower, class_names, template),
        )

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return pictures' features, and those of their patches if asked."""
        features = cached_features(self, dataset.pictures)
        if not image_tokens:
            return Records(features, dataset.labels)
        tokens = PictureTokens.of(cached_tokens(self, dataset.pictures))
        return Records(features, dataset.labels, tokens)

    @property
    def description(self) -> str:
        """The image tower: activation and layer-norm epsilon are no weights."""
        return str(self.clip.visual)

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._tower.token_embedding.weight.device

    def preprocess_batch(self, pictures: Pictures) -> Float[Tensor, "n 3 size size"]:
        """Make pictures of one size into what :meth:`encode_images` takes."""
        return self._prepare(pictures)

    @torch.no_grad()
    def encode_images(
        self, pictures: Float[Tensor, "n 3 h w"], batch: int = 256
    ) -> Float[Tensor, "n dim"]:
        """Return l2-normalised features of prepared pictures, without gradient.

        They are encoded ``batch`` at a time: more is faster and takes more memory.
        """
        parts = pictures.split(batch)
        features = [self.clip.encode_image(part.to(self.device)) for part in parts]
        return normalize(torch.cat(features), dim=-1)

    @torch.no_grad()
    def encode_tokens(
        self, pictures: Float[Tensor, "n 3 h w"], batch: int = 256
    ) -> Float[Tensor, "n tokens dim"]:
        """Return l2-normalised features of every picture's patches, without gradient.

        RN50 has 49 tokens at 224 pixels and ViT-B-16 has 196; see
        :func:`image_tokens` for each kind of tower.
        """
        parts = pictures.split(batch)
        tokens = [image_tokens(self.clip, part.to(self.device)) for part in parts]
        return normalize(torch.cat(tokens), dim=-1)

    @property
    def bank_width(self) -> int:
        """Size of the embeddings that :meth:`encode_bank` takes."""
        return int(getattr(self.clip.visual, "bank_width", self.dim))

    @torch.no_grad()
    def encode_bank(
        self, embeddings: Float[Tensor, "n bank_width"]
    ) -> Float[Tensor, "n dim"]:
        """Return l2-normalised image features for embeddings that were made elsewhere.

        A model that was aligned with a bank projects its embeddings. Any other takes
        embeddings that its own image tower made, and only normalises them; that they
        come from that very tower cannot be seen in them.

        Raises:
            ConfigError: The embeddings have another size.
        """
        if embeddings.shape[1] != self.bank_width:
            raise ConfigError(
                f"{self.name} takes embeddings of {self.bank_width} numbers, and these "
                f"have {embeddings.shape[1]}. Use the model that made them, or align "
                "one with them: privaudit pretrain surrogate-clip."
            )
        features = embeddings.to(self.device)
        if hasattr(self.clip.visual, "bank_width"):
            features = self.clip.encode_image(features)
        return normalize(features, dim=-1)

    def prompts(
        self,
        class_names: Sequence[str],
        context_tokens: int = 16,
        precision: Precision = "float32",
    ) -> ClassPrompts:
        """Bind the text tower to class names.

        The prompt of a class is [start] [context] [tokens of "name."] [end].

        Args:
            class_names: At least one; underscores count as blanks.
            context_tokens: Learnable vectors before the name, the same for all classes.
            precision: "bfloat16" runs the text tower in that type, up to twice as fast
                where the processor knows it and slower where it does not. On ViT-B-16's
                text tower at random weights features then differ by at most 0.002
                (cosine at least 0.9999) and gradients by 2 percent of their norm.

        Raises:
            ConfigError: A name is empty or does not fit beside the context, or the
                precision is float16.
        """
        texts = [f"{spoken(name)}." for name in class_names]
        tokens = self._tokens(texts, context_tokens)
        return ClassPrompts(self.clip, tokens, precision)

    @torch.no_grad()
    def template_features(
        self, class_names: Sequence[str], template: str = "a photo of a {}."
    ) -> Float[Tensor, "classes dim"]:
        """Return l2-normalised features of a hand-written prompt for each class.

        Underscores in class names, of which there is at least one, count as blanks.

        Raises:
            ConfigError: The template has no ``{}``, or a text does not fit.
        """
        texts = _filled(template, class_names)
        prompts = ClassPrompts(self.clip, self._tokens(texts, 0))
        return prompts(torch.empty(1, 0, self.width, device=self.device))[0]

    def tower(self, class_names: Sequence[str], template: str) -> ClipTextTower:
        """Return the text tower on hand-written prompts, to be tuned as a whole.

        Raises:
            ConfigError: The tower cannot be tuned, or as :meth:`template_features`.
        """
        tokens = self._tokens(_filled(template, class_names), 0)
        return ClipTextTower(self.clip, tokens, self.logit_scale)

    @cached_property
    def model_hash(self) -> str:  # type: ignore[override]  # large: hashed when asked
        """SHA-256 over the names, types, shapes and bytes of all weights."""
        return weights_hash(self.clip)

    def _tokens(self, texts: Sequence[str], context_tokens: int) -> PromptTokens:
        length = int(self.clip.context_length)
        tokens = prompt_tokens(self.tokenizer, texts, context_tokens, length)
        return tokens.to(self.device)


def _filled(template: str, class_names: Sequence[str]) -> list[str]:
    if "{}" not in template:
        raise ConfigError(
            f"A template has {{}} where the class name goes, and {template!r} has "
            "none. Write for example 'a photo of a {}.'."
        )
    return [template.replace("{}", spoken(name)) for name in class_names]


def spoken(name: str) -> str:
    """Return a class name as a text has it."""
    return name.replace("_", " ")
