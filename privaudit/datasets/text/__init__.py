"""Texts with labels or answers."""
