"""Metrics of captions and answers against references."""
