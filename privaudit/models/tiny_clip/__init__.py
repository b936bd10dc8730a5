"""The embedded CLIP: its weights, and how they are loaded."""
