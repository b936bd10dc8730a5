"""Data sets that papers report on, in their own files, and banks of embeddings with captions."""
