"""The embedded captioning model: its weights, and how they are loaded."""
