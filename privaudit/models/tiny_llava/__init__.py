"""The embedded captioning model: how it is drawn for, trained, stored and loaded."""

from privaudit.models.tiny_llava.loading import TinyLlava, load

__all__ = ["TinyLlava", "load"]
