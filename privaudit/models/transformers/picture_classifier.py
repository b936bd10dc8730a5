"""Image towers of transformers, tuned to tell classes apart, and class texts before them.

Texts of CLIP and SigLIP are written by hand or behind a context. SigLIP's are in lower
case and padded to the tower's context, and nothing is masked: its feature is read at the
last position, which mostly is padding.

Source: Zhai, Mustafa, Kolesnikov, Beyer, "Sigmoid loss for language image
pre-training", ICCV 2023; Tschannen et al., "SigLIP 2", arXiv:2502.14786.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.records import PictureTokens, Records
from privaudit.models.clip.picture_preparation import Pictures, ProcessorPreparation
from privaudit.models.clip.promptable_clip import ClassPrompts, spoken
from privaudit.models.clip.text_tower import prompt_tokens
from privaudit.models.feature_cache import cached_features, cached_tokens
from privaudit.models.frozen_model import FeatureModel, TunableClassifier, weights_hash
from privaudit.models.hugging_face import (
    check_type,
    import_transformers,
    load_model,
    load_reader,
    refuse_types,
)
from privaudit.models.interfaces import Classifier, Precision, Tower, Tuning
from privaudit.models.language.language_targets import TargetNames
from privaudit.models.registry import ModelRequest
from privaudit.models.transformers.towers import (
    ClipVisionTower,
    FrozenTexts,
    SiglipTower,
    VisionTower,
    classifying_tower,
    without_pooler,
)


class ClassTexts(nn.Module):
    """The frozen text half of transformers' CLIP or SigLIP."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model, self._tokenizer = model, tokenizer
        self.transformer = model.text_model
        self._is_siglip = model.config.model_type == "siglip"

    @property
    def output_dim(self) -> int:
        """Size of a text's feature."""
        if self._is_siglip:
            return int(self.model.config.text_config.projection_size)
        return int(self.model.config.projection_dim)

    @property
    def context_length(self) -> int:
        """Positions that the text tower has."""
        return int(self.model.config.text_config.max_position_embeddings)

    @property
    def logit_scale(self) -> float:
        """What cosines are multiplied by.

        SigLIP also adds a bias, the same to every class: a softmax over classes, and
        so all that trainers and attacks see, does not depend on it.
        """
        return float(self.model.logit_scale.float().exp())

    def encode_text(self, ids: Int[Tensor, "texts length"]) -> Float[Tensor, "texts d"]:
        """Return the features of whole rows, behind the model's own projection."""
        return self.model.get_text_features(ids).pooler_output

    def tokenize(
        self, texts: Sequence[str], context_length: int
    ) -> Int[Tensor, "texts length"]:
        """Return token numbers, padded to a length."""
        return self._tokenizer(
            [text.lower() if self._is_siglip else text for text in texts],
            padding="max_length",
            max_length=context_length,
            truncation=True,
            return_tensors="pt",
        )["input_ids"]

    @torch.no_grad()
    def features(
        self, class_names: Sequence[str], template: str
    ) -> Float[Tensor, "classes dim"]:
        """Return the normalised features of a hand-written prompt for each class."""
        written = [template.replace("{}", name) for name in class_names]
        if self._is_siglip:
            rows = self.tokenize(written, self.context_length)
            made = self.encode_text(rows.to(self.model.device))
        else:
            tokens = self._tokenizer(
                written, padding=True, truncation=True, return_tensors="pt"
            ).to(self.model.device)
            made = self.model.get_text_features(
                tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).pooler_output
        return normalize(made.float(), dim=-1)


class ContextPrompts:
    """Contexts in front of class names, read by the text half as a whole.

    Texts are tokenised when the first context is read: who tunes the image tower never
    asks for it.
    """

    def __init__(
        self,
        texts: ClassTexts,
        class_names: Sequence[str],
        context_tokens: int,
        precision: Precision = "float32",
    ) -> None:
        self._texts, self._names, self._precision = texts, class_names, precision
        self.context_tokens = context_tokens
        self.width = int(texts.transformer.get_input_embeddings().embedding_dim)

    @cached_property
    def _prompts(self) -> ClassPrompts:
        texts = self._texts
        tokens = prompt_tokens(
            texts.tokenize,
            [f"{spoken(name)}." for name in self._names],
            self.context_tokens,
            texts.context_length,
        ).to(texts.model.device)
        return ClassPrompts(texts, tokens, self._precision)

    def __call__(
        self, contexts: Float[Tensor, "prompts tokens width"]
    ) -> Float[Tensor, "prompts classes dim"]:
        """Return normalised features of every class behind every context."""
        return self._prompts(contexts)


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
        return self._plain.embed(pictures.to(self.device, self._model.dtype))

    @torch.no_grad()
    def encode_images(
        self, pictures: Float[Tensor, "n 3 h w"]
    ) -> Float[Tensor, "n dim"]:
        """Return the frozen model's vector of each picture, l2-normalised."""
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
