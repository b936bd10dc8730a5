"""Utility tables: a plan, its runs over seeds, and a paper's numbers beside ours."""
