"""CLIP models whose prompt is learned."""
