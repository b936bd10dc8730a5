"""Which texts a model writes out again: the scenario ``text-extraction``."""
