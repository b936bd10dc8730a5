"""Attacks that no scenario makes of its own: by name, beside the others."""
