"""How likely a model writes its records out again."""
