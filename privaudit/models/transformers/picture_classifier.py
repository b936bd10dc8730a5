"""Image towers of transformers, tuned to tell classes apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.picture_tokens import PictureTokens
from privaudit.datasets.records import Records
from privaudit.models.clip.picture_preparation import Pictures, ProcessorPreparation
from privaudit.models.feature_cache import cached_features, cached_tokens
from privaudit.models.frozen_model import (
    FeatureModel,
    TunableClassifier,
    weights_hash,
)
from privaudit.models.hugging_face import (
    check_type,
    import_transformers,
    load_model,
    load_reader,
    refuse_types,
)
from privaudit.models.interfaces import Classifier, Tower, Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.registry import ModelRequest
from privaudit.models.transformers.class_texts import ClassTexts, ContextPrompts
from privaudit.models.transformers.row_tower import without_pooler
from privaudit.models.transformers.vision import (
    ClipVisionTower,
    FrozenTexts,
    SiglipTower,
    VisionTower,
    classifying_tower,
)


class PictureClassifier(TunableClassifier, FeatureModel):
    """An image tower, whose embedded patches are its pictures' tokens.

    With ``texts`` it is a CLIP or SigLIP; ``build`` makes a tower of class names and a
    hand-written prompt.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        processor: Any,
        build: Callable[[tuple[str, ...], str], VisionTower],
        texts: ClassTexts | None = None,
    ) -> None:
        self.name, self._model, self._build, self._texts = name, model, build, texts
        self._plain = build(("nothing",), "{}")
        self.model_hash = weights_hash(texts.model if texts else model)
        self._processor, self._prepare = processor, ProcessorPreparation(processor)
        self.image_size = self._side_of_pictures(int(model.config.image_size))
        self.width = int(model.config.hidden_size)
        self.token_width = int(getattr(model.config, "embed_dim", self.width))
        self.dim = texts.output_dim if texts else self.width

    def _side_of_pictures(self, trained: int) -> int:
        """Return the side of prepared pictures, in pixels.

        It need not be that of the training: DINOv2 was trained at 518 pixels, comes
        with a processor for 224, and interpolates its positions. A ViT does not.
        """
        black = torch.zeros(1, 3, trained, 2 * trained, dtype=torch.uint8)
        tried = (black[..., :trained], black)
        sizes = {tuple(self._prepare(picture).shape) for picture in tried}
        (_, _, height, side), *others = sizes
        if height != side or others or not self._embeds(side):
            made = " and ".join(f"{s[2]} x {s[3]}" for s in sorted(sizes))
            raise ConfigError(
                f"The image processor of {self.name} makes pictures of {made} pixels, "
                f"and the image tower takes squares of {trained}. Mend "
                "preprocessor_config.json."
            )
        return side

    @torch.no_grad()
    def _embeds(self, side: int) -> bool:
        try:
            self.encode_tokens(torch.zeros(1, 3, side, side))
        except (ValueError, RuntimeError):
            return False
        return True

    @property
    def device(self) -> torch.device:
        """Where the image tower runs."""
        return next(iter(self._model.parameters())).device

    @property
    def description(self) -> str:
        """What beside the weights decides about a picture's tokens and feature."""
        config = self._model.config.to_json_string()
        return f"{config} {self._processor.to_json_string()}"

    def preprocess_batch(self, pictures: Pictures) -> Float[Tensor, "n 3 size size"]:
        """Prepare a batch of pictures of one size as the model's processor does."""
        return self._prepare(pictures)

    @torch.no_grad()
    def encode_tokens(
        self, pictures: Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n parts width"]:
        """Return each picture's embedded class token and patches, before any layer."""
        if not len(pictures):
            return torch.empty(0, 0, self.token_width)
        return self._plain.embed(pictures.to(self.device, self._model.dtype))

    @torch.no_grad()
    def encode_images(
        self, pictures: Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n dim"]:
        """Return the frozen model's vector of each picture, l2-normalised."""
        if not len(pictures):
            return torch.empty(0, self.dim)
        tokens = self.encode_tokens(pictures)[None]
        return normalize(self._plain.vectors(tokens, Tuning())[0], dim=-1)

    def encode_bank(
        self, embeddings: Float[Tensor, "n bank_dim"]
    ) -> Float[Tensor, "n dim"]:
        """Refuse embeddings that an image tower made elsewhere: they have no patches."""
        raise ConfigError(
            f"{self.name} looks at pictures, and was given {len(embeddings)} pooled "
            "embeddings. Give it the pictures."
        )

    def tower(self, class_names: tuple[str, ...], template: str) -> Tower:
        """Return the image tower before classes of these names."""
        return self._build(class_names, template)

    def read(self, dataset: Dataset, *, image_tokens: bool = False) -> Records:
        """Return patches of pictures, and whole pictures' features.

        Raises:
            ConfigError: Local features are asked for, in the space of class texts.
        """
        if image_tokens and self._texts:
            raise ConfigError(
                f"This trainer compares parts of pictures with class texts, and "
                f"{self.name} has features of whole pictures only. Use a model of "
                "open_clip, such as open_clip:ViT-B-16."
            )
        features = cached_features(self, dataset.pictures)
        tokens = PictureTokens.of(cached_tokens(self, dataset.pictures))
        return Records(features, dataset.labels, tokens)

    def backbone(
        self, class_names: tuple[str, ...], template: str, context_tokens: int = 0
    ) -> Classifier:
        """Return what trainers see: prompts and class texts where there are any."""
        plain = super().backbone(class_names, template)
        if self._texts is None:
            return plain
        texts, precision = self._texts, self.precision
        return replace(
            plain,
            prompts=ContextPrompts(texts, class_names, context_tokens, precision),
            logit_scale=texts.logit_scale,
            zero_shot=texts.features(class_names, template),
        )


def vit(
    name: str, model: Any, processor: Any, targets: TargetNames
) -> TunableClassifier:
    """Return an image tower that gets a head for the classes.

    Of a model of pictures and texts, such as SigLIP, it is the image half.
    """
    image_tower = without_pooler(getattr(model, "vision_model", model))

    def build(class_names: tuple[str, ...], template: str) -> VisionTower:
        return classifying_tower(image_tower, len(class_names), targets)

    return PictureClassifier(name, image_tower, processor, build)


def clip(
    name: str, model: Any, tokenizer: Any, processor: Any, targets: TargetNames
) -> TunableClassifier:
    """Return transformers' CLIP or SigLIP, tuned before its class texts or in them."""
    texts = ClassTexts(model, tokenizer)
    is_siglip = model.config.model_type == "siglip"
    image_tower = model.vision_model if is_siglip else image_half(model)
    kind = SiglipTower if is_siglip else ClipVisionTower

    def build(class_names: tuple[str, ...], template: str) -> VisionTower:
        features = texts.features(class_names, template)
        return kind(image_tower, FrozenTexts(features, texts.logit_scale), targets)

    return PictureClassifier(name, image_tower, processor, build, texts)


def load_vit(request: ModelRequest) -> TunableClassifier:
    """Load an image tower, frozen."""
    source, where = request.source, (request.device, request.dtype)
    refuse_types(source, "vit:", "siglip2", "siglip2_vision_model", "swinv2")
    model = load_model("AutoModel", "image tower", source, *where)
    processor = load_reader("AutoImageProcessor", "image processor", source)
    return vit(request.name, model, processor, request.targets)


_CLASSES = {"clip": "CLIPModel", "siglip": "SiglipModel"}
# SigLIP's own class needs sentencepiece; tokenizer.json says the same, for SigLIP 2 too.
_TOKENIZERS = {"clip": "AutoTokenizer", "siglip": "PreTrainedTokenizerFast"}


def load_clip(request: ModelRequest) -> TunableClassifier:
    """Load transformers' CLIP or SigLIP, as :func:`load_vit`."""
    source, where = request.source, (request.device, request.dtype)
    kind = check_type(source, "clip:", "clip", "siglip")
    model = load_model(_CLASSES[kind], "CLIP", source, *where)
    processor = load_reader("AutoImageProcessor", "image processor", source)
    tokenizer = load_reader(_TOKENIZERS[kind], "tokenizer", source)
    return clip(request.name, model, tokenizer, processor, request.targets)


def image_half(model: Any) -> Any:
    """Return the image tower and its projection as one model, with the same weights."""
    kind = import_transformers().CLIPVisionModelWithProjection
    config = model.config.vision_config
    config.projection_dim = model.config.projection_dim
    with torch.device("meta"):
        half = kind(config)
    half.vision_model = model.vision_model
    half.visual_projection = model.visual_projection
    return half.eval()
