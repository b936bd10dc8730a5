"""The embedded CLIP: how it is drawn for, trained, stored and loaded."""

from privaudit.models.tiny_clip.loading import DEFAULT_TEMPLATE, TinyClip, load

__all__ = ["DEFAULT_TEMPLATE", "TinyClip", "load"]
