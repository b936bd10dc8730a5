"""Drawn scenes: what they show, how they are drawn, what is said and asked of them."""

from privaudit.datasets.scenes.records import scenes, scenes_far, scenes_vqa

__all__ = ["scenes", "scenes_far", "scenes_vqa"]
