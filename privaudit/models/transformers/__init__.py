"""Transformers behind classifiers, tuned in many ways at once: one file a family."""
