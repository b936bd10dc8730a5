"""Prompt learning for CLIP, as prompt trainers share it."""
