"""Errors, registries, random numbers, files: no word of the domain."""
