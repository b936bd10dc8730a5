"""Families of models: one file each, found by the kind that it registers."""
