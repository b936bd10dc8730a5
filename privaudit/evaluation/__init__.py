"""Across runs: comparison, trade-off, costs, distribution shift, tables of papers."""
