"""Projectors of image embeddings for language models."""
