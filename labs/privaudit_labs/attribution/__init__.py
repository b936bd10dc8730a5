"""Whose a record or a model is: source inference, and what linked models add."""
