"""Federations that others trained: how they are recorded, and read as runs."""
